//! `basert serve`: models behind HTTP.

mod args;
mod budget;
mod served;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use basert_engine::{Engine, Limits, Options, Scheduler};
use basert_format::BaseFile;
use basert_server::{ApiKey, App, Config, Ended, Facts, Grammars, Hosted, Loaded, Metrics, Model, Worker};
use basert_text::ChatTemplate;

use crate::bundle::{self, Bundle};
use crate::failure::{Failure, Outcome};
use crate::reserved::Purpose;
use crate::{kept, output, place, selected};

use args::Prefill;
pub use args::{SERVE_HELP, ServeArgs};
use budget::Budget;
use served::Served;

/// Runs the command.
pub fn run(args: &ServeArgs) -> Outcome {
    // Everything that can be refused is refused before a model is loaded.
    let config = config(args)?;
    let options = engine_options(args)?;
    let limits = match args.prefill_tokens {
        Some(Prefill::Most(prefill_tokens)) => Limits { prefill_tokens },
        Some(Prefill::Paced) | None => Limits::default(),
    };
    let paths: Vec<&Path> = args.models.iter().chain(&args.model).map(PathBuf::as_path).collect();
    if let Some(file) = &args.prefix_cache_file {
        if paths.len() > 1 {
            return Err(Failure::new("--prefix-cache-file is of one model, and there are several to serve"));
        }
        place::check(file, true)?;
        place::check_folder(file)?;
    }
    let models = paths.iter().map(|path| model(path, args)).collect::<Outcome<Vec<_>>>()?;
    for (index, (model, _)) in models.iter().enumerate() {
        if models[..index].iter().any(|(other, _)| other.id == model.id) {
            let message = format!("two models are called {}; requests could not tell them apart", model.id);
            return Err(Failure::new(message));
        }
    }
    let metrics = Arc::new(Metrics::default());
    let budget = Budget::new(options.fit);
    let mut hosted = Vec::with_capacity(models.len());
    for (model, path) in models {
        let worker =
            worker(&path, &options, &budget, limits, args, config.idle_timeout, Arc::clone(&metrics))?;
        hosted.push(Hosted { model: Arc::new(model), worker });
    }
    let log = config.log_file.clone().unwrap_or_default();
    let app = App::new(config, hosted, metrics);
    let app = app.map_err(|e| Failure::new(format!("cannot write the log {}: {e}", log.display())))?;
    let ready = |address| output::say(&format!("listening on http://{address}"));
    let ended = basert_server::run(Arc::new(app), ready).map_err(|e| Failure::from_error(&e))?;
    match ended {
        Ended::Drained => Ok(()),
        Ended::TimedOut => {
            output::note("requests that were still running at the end of --drain-timeout were cut off");
            Ok(())
        }
        Ended::Forced { signal } => Err(Failure::Interrupted { signal }),
    }
}

fn config(args: &ServeArgs) -> Outcome<Config> {
    let default = Config::default();
    let mut api_keys = args.api_key.clone();
    if let Some(file) = &args.api_key_file {
        api_keys.extend(keys(file)?);
    }
    for (index, key) in api_keys.iter().enumerate() {
        if api_keys[..index].iter().any(|earlier| earlier.key == key.key) {
            let name = key.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            return Err(Failure::new(format!("the API key number {}{name} was given before", index + 1))
                .hint("--api-key or BASERT_API_KEY count first, then the lines of --api-key-file"));
        }
    }
    Ok(Config {
        host: args.host.unwrap_or(default.host),
        port: args.port.unwrap_or(default.port),
        api_keys,
        cors_origins: args.cors_origin.clone(),
        allowed_hosts: args.allowed_host.clone(),
        max_tokens: args.max_tokens,
        thinking_budget: args.thinking_budget,
        queue: args.queue.unwrap_or(default.queue),
        request_timeout: args.request_timeout,
        idle_timeout: args.idle_timeout,
        drain_timeout: args.drain_timeout.unwrap_or(default.drain_timeout),
        rate_limit: args.rate_limit,
        log_file: args.log_file.clone(),
        ..default
    })
}

fn keys(file: &Path) -> Outcome<Vec<ApiKey>> {
    let shown = file.display();
    let text =
        std::fs::read_to_string(file).map_err(|e| Failure::new(format!("cannot read {shown}: {e}")))?;
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let wrong = |number, problem| Failure::new(format!("{shown}, line {number}: {problem}"));
    let keys: Vec<ApiKey> = lines
        .map(|(line, number)| args::key_line(line).map_err(|problem| wrong(number, problem)))
        .collect::<Outcome<_>>()?;
    if keys.is_empty() {
        return Err(Failure::new(format!("{shown} has no keys")).hint("write one key a line"));
    }
    Ok(keys)
}

fn engine_options(args: &ServeArgs) -> Outcome<Options> {
    let mut options = args.run.resolve_to_fit(&args.fit)?;
    options.context = args.max_context.or(options.context);
    Purpose::Serve.answers(args.max_batch_size.or(args.continuous_batching), &mut options);
    options.speculation = args.speculative.resolve()?;
    Ok(options)
}

/// The text side of a model, and where its file is.
fn model(path: &Path, args: &ServeArgs) -> Outcome<(Model, PathBuf)> {
    let bundle = Bundle::open(path)?;
    let recommended = bundle.recommended();
    let sampling = args.sampling.resolve(&recommended)?;
    let tokenizer = bundle.tokenizer().map_err(|failure| failure.hint("a server needs a tokenizer"))?.clone();
    let (template, template_source) = match &args.chat_template {
        Some(file) => {
            let read = |e| Failure::new(format!("cannot read {}: {e}", file.display()));
            let source = std::fs::read_to_string(file).map_err(read)?;
            let text = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
            let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
            let template = ChatTemplate::new(&source, bos.as_deref(), eos.as_deref());
            (Some(template.map_err(|e| Failure::from_error(&e))?), Some(source))
        }
        None => {
            let template = ChatTemplate::of(&tokenizer).map_err(|e| Failure::from_error(&e))?;
            (template, tokenizer.chat_template().map(str::to_owned))
        }
    };
    let path = bundle.path().to_owned();
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
    let created = path.metadata().ok().and_then(|meta| meta.modified().ok());
    let created = created.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let model = Model {
        id: name.unwrap_or_else(|| "model".to_owned()),
        created: created.map_or(0, |time| time.as_secs()),
        path: path.display().to_string(),
        eos: bundle.eos(),
        grammars: Grammars::default(),
        tokenizer,
        template,
        template_source,
        seed: args.sampling.seed,
        sampling,
    };
    Ok((model, path))
}

/// Loads a model in a thread of its own.
fn worker(
    path: &Path,
    options: &Options,
    budget: &Budget,
    limits: Limits,
    args: &ServeArgs,
    idle: Option<Duration>,
    metrics: Arc<Metrics>,
) -> Outcome<Worker> {
    let (path, options, verbose) = (path.to_owned(), options.clone(), args.verbose);
    let budget = budget.clone();
    let (prefix_cache, prefix_file) = (args.prefix_cache, args.prefix_cache_file.clone());
    let (mut shown, is_paced) = (false, matches!(args.prefill_tokens, Some(Prefill::Paced)));
    let load = move || {
        let file = open(&path)?;
        let turn = budget.turn();
        let mut options = turn.options(&options);
        options.prefix_cache = Purpose::Serve.prefix_cache_for(prefix_cache, &file, &options);
        let refused = |e| turn.refusal(in_a_line(Failure::from_load(&e)));
        let mut engine = Engine::load(file, &options).map_err(refused)?;
        if let Some(file) = &prefix_file {
            kept::load(&mut engine, file).map_err(in_a_line)?;
        }
        if !std::mem::replace(&mut shown, true) {
            selected::show(&engine, verbose);
        }
        let facts = Facts {
            context: engine.selected().context,
            slots: options.sequences.min(engine.step_tokens()),
            vocab: engine.spec().vocab,
            engine: selected::to_json(engine.selected()),
        };
        let _share = turn.take(&engine.selected().memory);
        let scheduler = Scheduler::new(engine, limits);
        let scheduler = if is_paced { scheduler.paced() } else { scheduler };
        let backend = Box::new(Served { scheduler, prompts: prefix_file.clone(), _share });
        Ok(Loaded { backend, facts })
    };
    Worker::start(Box::new(load), idle, metrics).map_err(Failure::new)
}

fn open(path: &Path) -> Result<BaseFile, String> {
    bundle::open(path).map_err(in_a_line)
}

/// What went wrong, and what to do.
fn in_a_line(failure: Failure) -> String {
    match failure {
        Failure::Error { message, hint: Some(hint) } => format!("{message} ({hint})"),
        Failure::Error { message, hint: None } => message,
        Failure::ClosedPipe | Failure::Interrupted { .. } => "interrupted".to_owned(),
    }
}
