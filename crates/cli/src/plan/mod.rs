//! `basert plan`: what a model takes in memory, before it is there.

mod args;
mod catalog;
mod measured;
mod subject;
mod words;

use basert_engine::{
    EngineError, KvTypes, MemoryPlan, Options, WeightBytes, available_memory, largest_context, memory_plan,
};
use basert_kernels::KvDtype;
use basert_model::plan::ElementSize;
use basert_model::record::{Format, kv_record};

pub use args::{PLAN_HELP, PlanArgs};

use crate::failure::{Failure, Outcome};
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
    let model = Model::find(name, args.target)?;
    let kv = args.kv.types();
    if args.record {
        check_latent(&model, kv)?;
        let context =
            args.max_context.map_or(model.max_context.unwrap_or(USUAL_CONTEXT as u64), |n| n as u64);
        let measured = args.measure.then(|| measured::run(name, kv, context)).transpose()?;
        let formats = (format(kv.k), format(kv.v));
        let record = kv_record(&model.subject, &model.footprint, formats, context, measured.as_ref());
        return output::print_json(&record);
    }
    let budget = args.fit.or_else(available_memory);
    let answer = match &model.runnable {
        Some(runnable) => runnable.answer(args, kv)?,
        None => answer_of_footprint(&model, args, kv)?,
    };
    words::show(&model, &answer, budget, args)
}

/// A plan and the question that it answers.
pub struct Answer {
    pub context: usize,
    pub kv: KvTypes,
    pub plan: MemoryPlan,
    /// What was found for `--fit`, in words.
    pub found: Option<&'static str>,
}

impl Runnable {
    fn answer(&self, args: &PlanArgs, kv: KvTypes) -> Outcome<Answer> {
        let asked = options(args)?;
        match (args.fit, args.max_context) {
            (Some(budget), None) => self.largest(&asked, kv, budget),
            (Some(budget), Some(context)) if !args.kv.is_typed() => self.widest(&asked, context, budget),
            (_, context) => {
                let options = Options { kv, context: context.or(self.spec.max_context), ..asked };
                let context = basert_engine::wanted_context(&self.spec, &options);
                Ok(Answer { context, kv, plan: self.plan(&options)?, found: None })
            }
        }
    }

    fn plan(&self, options: &Options) -> Outcome<MemoryPlan> {
        memory_plan(&self.spec, options, self.weights).map_err(|e| failed(&e))
    }

    fn largest(&self, asked: &Options, kv: KvTypes, budget: u64) -> Outcome<Answer> {
        let most = self.spec.max_context.unwrap_or(USUAL_CONTEXT);
        let open = Options { kv, ..asked.clone() };
        let found = largest_context(&self.spec, &open, self.weights, budget, most).map_err(|e| failed(&e))?;
        let context = found.ok_or_else(|| self.nothing_fits(asked, kv, 1, budget))?;
        let plan = self.plan(&Options { context: Some(context), ..open })?;
        let found =
            if context == most { "the model's whole context fits" } else { "the largest context that fits" };
        Ok(Answer { context, kv, plan, found: Some(found) })
    }

    fn widest(&self, asked: &Options, context: usize, budget: u64) -> Outcome<Answer> {
        let mut last = KvTypes::default();
        for kv in [last].into_iter().chain(KvTypes::NARROWER) {
            if !kv.fit(&self.spec) {
                continue;
            }
            let plan = self.plan(&Options { kv, context: Some(context), ..asked.clone() })?;
            if plan.total() <= budget {
                return Ok(Answer { context, kv, plan, found: Some("the widest KV cache that fits") });
            }
            last = kv;
        }
        Err(self.nothing_fits(asked, last, context, budget))
    }

    fn nothing_fits(&self, asked: &Options, kv: KvTypes, context: usize, budget: u64) -> Failure {
        let total = self
            .plan(&Options { kv, context: Some(context), ..asked.clone() })
            .map_or(0, |plan| plan.total());
        let tokens = crate::units::count(context as u64, "token");
        let (total, weights) = (crate::units::bytes(total), crate::units::bytes(self.weights.mapped));
        let message = format!(
            "nothing fits {}: {tokens} with a {kv} cache take {total}, {weights} of it weights",
            crate::units::bytes(budget)
        );
        Failure::new(message)
            .hint("try fewer --parallel sequences, a smaller --prefix-cache or a narrower --target")
    }
}

/// Cache and state of a model that cannot be run here.
fn answer_of_footprint(model: &Model, args: &PlanArgs, kv: KvTypes) -> Outcome<Answer> {
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
    let (tokens, sequences) = (context as u64, args.parallel as u64);
    let plan = MemoryPlan {
        kv: model.footprint.kv_bytes(tokens, k, v) * sequences,
        kv_keys: model.footprint.kv_bytes(tokens, k, nothing) * sequences,
        state: model.footprint.state.bytes().unwrap_or(0) * sequences,
        ..MemoryPlan::default()
    };
    Ok(Answer { context, kv, plan, found: None })
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

/// What was asked for but K, V and the context.
fn options(args: &PlanArgs) -> Outcome<Options> {
    Ok(Options {
        sequences: args.parallel,
        logit_rows: args.parallel,
        prefix_cache: args.prefix_cache.unwrap_or(0),
        speculation: args.speculative.resolve()?,
        ..Options::default()
    })
}

fn failed(error: &EngineError) -> Failure {
    Failure::from_error(error)
}

/// Bytes of weights, for the report.
pub fn weights(model: &Model) -> Option<(WeightBytes, &str)> {
    model.runnable.as_ref().map(|runnable| (runnable.weights, runnable.stored.as_str()))
}
