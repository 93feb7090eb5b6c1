//! `basert plan`: what a model takes in memory, before it is there.

mod args;
mod catalog;
mod measured;
mod subject;
mod words;

use basert_engine::{
    KvTypes, MemoryPlan, Options, WeightBytes, available_memory, memory_plan, settled, wanted_context,
};
use basert_kernels::KvDtype;
use basert_model::plan::ElementSize;
use basert_model::record::{Format, kv_record};

pub use args::{PLAN_HELP, PlanArgs};

use crate::failure::{Failure, Outcome};
use crate::options::isa;
use crate::output;
use subject::{Model, Runnable};

/// Context of a comparison where none was asked for.
const USUAL_CONTEXT: usize = 131_072;

/// Runs the command.
pub fn run(args: &PlanArgs) -> Outcome {
    let Some(name) = &args.model else { return catalog::run(args) };
    if args.sort.is_some() || !args.filter.is_empty() {
        let failure = Failure::new("--sort and --filter belong to --catalog, which takes no model");
        return Err(failure.hint("basert plan --help explains both"));
    }
    let options = options(args)?;
    let kv = options.kv;
    let model = Model::find(name, args.target, &options)?;
    if let Some(runnable) = &model.runnable {
        kv.check(&runnable.spec, name).map_err(|e| Failure::from_load(&e))?;
    }
    if args.record {
        check_latent(&model, kv)?;
        let context =
            args.max_context.map_or(model.max_context.unwrap_or(USUAL_CONTEXT as u64), |n| n as u64);
        let measured = args.measure.then(|| measured::run(name, &options, context)).transpose()?;
        let formats = (format(kv.k), format(kv.v));
        let record = kv_record(&model.subject, &model.footprint, formats, context, measured.as_ref());
        return output::print_json(&record);
    }
    let budget = args.fit.or_else(available_memory);
    let answer = match &model.runnable {
        Some(runnable) => runnable.answer(args, options)?,
        None => answer_of_footprint(&model, args, options)?,
    };
    words::show(&model, &answer, budget, args)
}

/// A plan and the question that it answers.
pub struct Answer {
    /// What is loaded with.
    pub options: Options,
    pub context: usize,
    pub plan: MemoryPlan,
    /// What was found for `--fit`, in words.
    pub found: Option<&'static str>,
    /// What gave way to fit, as the running command says it.
    pub shrunk: Vec<String>,
}

impl Runnable {
    /// What is loaded with the options; for `--fit`, what it makes of them.
    fn answer(&self, args: &PlanArgs, options: Options) -> Outcome<Answer> {
        let mut options = Options { context: args.max_context, ..options };
        options.prefix_cache =
            args.purpose.prefix_cache(args.prefix_cache, &self.spec, self.weights.mapped, &options);
        let wanted = wanted_context(&self.spec, &options);
        let (options, shrunk) = match args.fit {
            Some(_) => settled(&self.spec, &options, self.weights).map_err(|e| Failure::from_load(&e))?,
            None => (options, Vec::new()),
        };
        let plan = memory_plan(&self.spec, &options, self.weights).map_err(|e| Failure::from_error(&e))?;
        let context = wanted_context(&self.spec, &options);
        let found = args.fit.map(|_| match (context < wanted, options.narrow_kv) {
            (true, _) => "the largest context that fits",
            (false, true) => "the widest KV cache that fits",
            (false, false) => "the whole context fits",
        });
        Ok(Answer { options, context, plan, found, shrunk })
    }
}

/// Cache and state of a model that cannot be run here.
fn answer_of_footprint(model: &Model, args: &PlanArgs, options: Options) -> Outcome<Answer> {
    let kv = options.kv;
    check_latent(model, kv)?;
    if args.fit.is_some() || args.prefix_cache.is_some_and(|room| room > 0) {
        let why = model.notes.join("; ");
        return Err(Failure::new(format!(
            "--fit and --prefix-cache need a model that can be run here: {why}"
        )));
    }
    let context = args.max_context.or(model.max_context.map(|n| n as usize)).unwrap_or(USUAL_CONTEXT);
    let (k, v) = (format(kv.k).size, format(kv.v).size);
    let nothing = ElementSize { bytes: 0, per: 1 };
    let (tokens, sequences) = (context as u64, options.sequences as u64);
    let plan = MemoryPlan {
        kv: model.footprint.kv_bytes(tokens, k, v) * sequences,
        kv_keys: model.footprint.kv_bytes(tokens, k, nothing) * sequences,
        state: model.footprint.state.bytes().unwrap_or(0) * sequences,
        ..MemoryPlan::default()
    };
    Ok(Answer { options, context, plan, found: None, shrunk: Vec::new() })
}

/// A latent row is stored once, in one type.
fn check_latent(model: &Model, kv: KvTypes) -> Outcome {
    if model.footprint.is_latent() && kv.k != kv.v {
        let message =
            format!("{} keeps one latent row for keys and values, which has one type", model.subject.id);
        return Err(Failure::new(message).hint("give one type, such as --kv-bits 8"));
    }
    Ok(())
}

/// A type of cached elements.
pub fn format(dtype: KvDtype) -> Format {
    let size = ElementSize { bytes: dtype.block_bytes() as u64, per: dtype.block_elements() as u64 };
    Format { name: dtype.name(), size }
}

/// What was asked for but the context and the prefix cache, which depend on the model.
fn options(args: &PlanArgs) -> Outcome<Options> {
    let mut options = Options {
        threads: args.work.threads,
        kv: args.kv.types(),
        narrow_kv: args.kv.is_auto(),
        fit: args.fit,
        page_tokens: args.places.page_tokens(),
        weights: args.places.weights,
        isa: isa()?,
        speculation: args.speculative.resolve()?,
        ..Options::default()
    };
    args.purpose.answers(args.parallel, &mut options);
    Ok(options)
}

/// Bytes of weights, for the report.
pub fn weights(model: &Model) -> Option<(WeightBytes, &str)> {
    model.runnable.as_ref().map(|runnable| (runnable.weights, runnable.stored.as_str()))
}
