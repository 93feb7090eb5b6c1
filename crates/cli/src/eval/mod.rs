//! `basert eval`: what models are worth, one after the other, by the same measures.

mod args;
mod input;
mod picture;
mod report;

use std::ops::ControlFlow;
use std::path::Path;

use basert_engine::{Engine, KvTypes, Options};
use basert_kernels::KvDtype;
use basert_measure::{
    Footprint, LogitsWriter, MeasureError, Plan, Progress, Speaker, agreement, call_tools, choose, compare,
    perplexity, recall,
};
use basert_text::{ChatTemplate, Tokenizer};
use indicatif::ProgressBar;

use crate::bundle::Bundle;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{Interrupt, Second};
use crate::{output, place, progress, selected};
pub use args::{EVAL_EXAMPLES, EvalArgs};
use input::Input;
use report::{Row, TextResult};

/// Runs the command.
pub fn run(args: &EvalArgs) -> Outcome {
    let second = if args.reading.dump_logits.is_some() { Second::IsIgnored } else { Second::Exits };
    let interrupt = Interrupt::install(second)?;
    // Everything that can be refused is refused before the first model is run.
    let settings = settings(args)?;
    for model in args.models.iter().chain(&args.reading.against) {
        Bundle::open(model)?;
    }
    let input = Input::read(args)?;
    let mut rows = Vec::new();
    for model in &args.models {
        for options in &settings {
            let session = Session { args, input: &input, interrupt: &interrupt, options };
            let row = session.measure(model)?;
            if args.json {
                output::print_json(&row.to_json())?;
            }
            rows.push(row);
        }
    }
    if !args.json {
        output::print(&report::in_words(&rows))?;
    }
    match &args.picture {
        Some(path) => place::write(path, picture::svg(&rows).as_bytes(), args.force),
        None => Ok(()),
    }
}

/// The engine's options for each KV type that is asked for.
fn settings(args: &EvalArgs) -> Outcome<Vec<Options>> {
    let resolved = args.run.resolve_each(&args.with_kv)?;
    let several = args.models.len() * resolved.len() > 1;
    if several && args.reading.dump_logits.is_some() {
        return Err(Failure::new(
            "--dump-logits takes one model and one KV type: there is one file to write",
        ));
    }
    let chunk = args.reading.chunk;
    let sized = |options| Options { step_tokens: chunk, logit_rows: chunk, ..options };
    Ok(resolved.into_iter().map(sized).collect())
}

/// The measuring of one model.
struct Session<'a> {
    args: &'a EvalArgs,
    input: &'a Input,
    interrupt: &'a Interrupt,
    options: &'a Options,
}

impl Session<'_> {
    fn measure(&self, path: &Path) -> Outcome<Row> {
        let bundle = Bundle::open(path)?;
        let ids = self.input.ids(&bundle)?;
        let longest = self.options.context.or(bundle.max_context());
        let lengths = self.input.recall_lengths(longest)?;
        let options =
            Options { context: self.context(&bundle, ids.as_deref(), &lengths), ..self.options.clone() };
        if self.input.asks_questions() {
            bundle.tokenizer()?;
        }
        let eos = bundle.eos();
        let (tokenizer, file) = bundle.into_parts();
        let mut engine = Engine::load(file, &options).map_err(|e| Failure::from_error(&e))?;
        selected::show(&engine, self.args.verbose);
        let mut row = Row::new(path, Footprint::of(&engine), engine.selected());
        if let Some(ids) = &ids {
            row.text = Some(self.read(&mut engine, ids, &options)?);
        }
        if self.args.measures.own_reference {
            row.own_reference = Some(agreement(&mut engine).map_err(failure)?);
        }
        if let Some(tokenizer) = tokenizer.filter(|_| self.input.asks_questions()) {
            self.ask(&mut engine, &tokenizer, &eos, lengths, &mut row)?;
        }
        Ok(row)
    }

    /// The context that was asked for, else one that holds everything that is to be measured, if the model can.
    fn context(&self, bundle: &Bundle, ids: Option<&[u32]>, lengths: &[usize]) -> Option<usize> {
        let text = ids.map_or(0, |ids| self.args.reading.window.unwrap_or(ids.len()).min(ids.len()));
        let recall = self.input.recall_plan(lengths).map_or(0, |plan| plan.context());
        let needed = text.max(recall).max(self.input.least_context()).max(1);
        self.options.context.or_else(|| bundle.max_context().map(|max| max.min(needed)))
    }

    /// Perplexity of a text, and the distance from a reference.
    fn read(&self, engine: &mut Engine, ids: &[u32], options: &Options) -> Outcome<TextResult> {
        let context = engine.selected().context;
        let window = self.args.reading.window.unwrap_or(context.min(ids.len().max(1)));
        if window.min(ids.len()) > context {
            return Err(Failure::new(format!(
                "windows of {window} tokens do not fit into the context of {context}"
            ))
            .hint(format!("give --window {context} or less, or a larger -c")));
        }
        let stride = self.args.reading.stride.unwrap_or(window);
        let plan = Plan { window, stride, chunk: engine.step_tokens() };
        self.watched(progress::tokens(ids.len() as u64), |watch| match &self.args.reading.against {
            Some(reference) => {
                let reference = Bundle::open(reference)?;
                // Cached without rounding, so that a narrow cache of the model under test shows.
                let kv = KvTypes { k: KvDtype::F32, v: KvDtype::F32 };
                let options = Options { kv, ..options.clone() };
                let mut reference =
                    Engine::load(reference.into_parts().1, &options).map_err(|e| Failure::from_error(&e))?;
                let found = compare(engine, &mut reference, ids, &plan, watch).map_err(failure)?;
                Ok(TextResult { plan, perplexity: found.candidate, divergence: Some(found) })
            }
            None => {
                let vocab = engine.spec().vocab;
                let dump = self.args.reading.dump_logits.as_deref();
                let dump = dump.map(|path| LogitsWriter::create(path, ids.len(), vocab));
                let mut dump = dump.transpose().map_err(failure)?;
                let perplexity = perplexity(engine, ids, &plan, dump.as_mut(), watch).map_err(failure)?;
                if let Some(dump) = dump {
                    dump.finish(self.args.force).map_err(failure)?;
                }
                Ok(TextResult { plan, perplexity, divergence: None })
            }
        })
    }

    /// Puts the questions.
    fn ask(
        &self,
        engine: &mut Engine,
        tokenizer: &Tokenizer,
        eos: &[u32],
        lengths: Vec<usize>,
        row: &mut Row,
    ) -> Outcome {
        let template = ChatTemplate::of(tokenizer).map_err(|e| Failure::from_error(&e))?;
        let mut speaker = Speaker { engine, tokenizer, template: template.as_ref(), eos };
        if let Some(plan) = self.input.recall_plan(&lengths) {
            check_room(plan.context(), speaker.engine.selected().context)?;
            let bar = progress::questions(plan.questions() as u64);
            row.recall =
                Some(self.watched(bar, |watch| recall(&mut speaker, &plan, watch).map_err(failure))?);
        }
        if let Some(questions) = &self.input.choices {
            let bar = progress::questions(questions.len() as u64);
            row.choices =
                Some(self.watched(bar, |watch| choose(&mut speaker, questions, watch).map_err(failure))?);
        }
        if let Some(tasks) = &self.input.tool_calls {
            let bar = progress::questions(tasks.len() as u64);
            row.tool_calls =
                Some(self.watched(bar, |watch| call_tools(&mut speaker, tasks, watch).map_err(failure))?);
        }
        Ok(())
    }

    /// Runs `work` with a bar that follows it, and stops it on ^C.
    fn watched<T>(&self, bar: ProgressBar, work: impl FnOnce(Progress<'_>) -> Outcome<T>) -> Outcome<T> {
        let mut watch = |done: usize| {
            bar.set_position(done as u64);
            if self.interrupt.requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let result = work(&mut watch);
        bar.finish_and_clear();
        if self.interrupt.requested() { Err(self.interrupt.failure()) } else { result }
    }
}

/// Recall prompts and their answers must fit.
fn check_room(needed: usize, context: usize) -> Outcome {
    if needed <= context {
        return Ok(());
    }
    Err(Failure::new(format!(
        "recall needs a context of {needed} tokens, with the answer, and there are {context}"
    ))
    .hint("give smaller --lengths, or a larger -c"))
}

fn failure(error: MeasureError) -> Failure {
    let failure = Failure::from_error(&error);
    match error {
        MeasureError::NoRecord { .. } => failure.hint("name a reference model with --against, and a text"),
        _ => failure,
    }
}
