//! `basert eval`: perplexity, logit dumps, and the distance between two models.

use std::ops::ControlFlow;
use std::path::Path;

use basert_convert::same_file;
use basert_engine::{Engine, Options};
use basert_measure::{
    Divergence, Estimate, LogitsWriter, MeasureError, Perplexity, Plan, compare, perplexity,
};
use serde_json::{Value, json};

use crate::args::EvalArgs;
use crate::bundle::Bundle;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{Interrupt, Second};
use crate::units::{rate, seconds};
use crate::{output, place, progress, selected};

/// Runs the command.
pub fn run(args: &EvalArgs) -> Outcome {
    let second = if args.dump_logits.is_some() { Second::IsIgnored } else { Second::Exits };
    let interrupt = Interrupt::install(second)?;
    let options = args.run.resolve()?;
    check_dump(args)?;
    let bundle = Bundle::open(&args.model)?;
    let ids = match (&args.input.ids_file, &args.input.text_file) {
        (Some(file), _) => {
            bundle.remark_unusable_tokenizer();
            read_ids(file)?
        }
        (None, Some(file)) => {
            let text = read_text(file)?;
            bundle.tokenizer()?.encode(&text, true, true).map_err(|e| Failure::from_error(&e))?
        }
        (None, None) => Vec::new(),
    };
    let options = Options { step_tokens: args.chunk, logit_rows: args.chunk, ..options };
    let mut engine = load(bundle, &options, ids.len())?;
    selected::show(&engine, args.verbose);
    let plan = Plan { window: engine.selected().context.min(ids.len().max(1)), chunk: engine.step_tokens() };

    let bar = progress::tokens(ids.len() as u64);
    let mut watch = |done: usize| {
        bar.set_position(done as u64);
        if interrupt.requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let result = match &args.against {
        Some(reference) => {
            let bundle = Bundle::open(reference)?;
            let mut reference = load(bundle, &options, ids.len())?;
            compare(&mut engine, &mut reference, &ids, &plan, &mut watch).map(Measured::Both)
        }
        None => {
            let vocab = engine.spec().vocab;
            let dump = args.dump_logits.as_deref().map(|path| LogitsWriter::create(path, ids.len(), vocab));
            let mut dump = dump.transpose().map_err(failure)?;
            let result = perplexity(&mut engine, &ids, &plan, dump.as_mut(), &mut watch);
            match (result, dump) {
                (Ok(result), Some(dump)) => dump.finish(args.force).map(|()| Measured::One(result)),
                (result, _) => result.map(Measured::One),
            }
        }
    };
    bar.finish_and_clear();
    let result = result.map_err(|e| match e {
        MeasureError::Stopped => interrupt.failure(),
        other => failure(other),
    })?;
    if args.json {
        output::print_json(&result.to_json(&engine, &plan))
    } else {
        output::print(&result.in_words(&plan))
    }
}

/// Loads a model with the context that was asked for, else one that holds all `tokens` if the model can.
fn load(bundle: Bundle, options: &Options, tokens: usize) -> Outcome<Engine> {
    let context = options.context.or_else(|| bundle.max_context().map(|max| max.min(tokens.max(1))));
    let options = Options { context, ..options.clone() };
    Engine::load(bundle.into_parts().1, &options).map_err(|e| Failure::from_error(&e))
}

fn failure(error: MeasureError) -> Failure {
    Failure::from_error(&error)
}

/// Refuses to dump onto what is read, or without `--force` onto anything.
fn check_dump(args: &EvalArgs) -> Outcome {
    let Some(dump) = &args.dump_logits else { return Ok(()) };
    let inputs = [Some(&args.model), args.input.ids_file.as_ref(), args.input.text_file.as_ref()];
    if let Some(input) = inputs.into_iter().flatten().find(|input| same_file(input, dump)) {
        return Err(Failure::new(format!("the dump would replace {}, which is read", input.display()))
            .hint("give another name with --dump-logits"));
    }
    place::check(dump, args.force)
}

fn read_text(file: &Path) -> Outcome<String> {
    std::fs::read_to_string(file).map_err(|e| Failure::new(format!("cannot read {}: {e}", file.display())))
}

fn read_ids(file: &Path) -> Outcome<Vec<u32>> {
    serde_json::from_str(&read_text(file)?).map_err(|e| {
        Failure::new(format!("{} is not a JSON array of token ids: {e}", file.display()))
            .hint("such a file looks like [9707, 11, 1879]; for text use --text-file")
    })
}

/// What was measured.
enum Measured {
    One(Perplexity),
    Both(Divergence),
}

impl Measured {
    fn in_words(&self, plan: &Plan) -> String {
        match self {
            Measured::One(p) => format!("{}\n", perplexity_line(p, plan)),
            Measured::Both(d) => format!(
                "model:      {}\nreference:  {}\nKL divergence {} nats per token (largest {:.3e}), \
                 same likeliest token at {:.2} % of {} positions\n",
                perplexity_line(&d.candidate, plan),
                perplexity_line(&d.reference, plan),
                scientific(&d.kl),
                d.max_kl,
                100.0 * d.top1_agreement,
                d.positions,
            ),
        }
    }

    fn to_json(&self, engine: &Engine, plan: &Plan) -> Value {
        let mut object = match self {
            Measured::One(p) => perplexity_json(p),
            Measured::Both(d) => {
                let mut object = perplexity_json(&d.candidate);
                object["against"] = json!({
                    "positions": d.positions,
                    "kl": d.kl.mean,
                    "kl_standard_error": d.kl.standard_error,
                    "kl_max": d.max_kl,
                    "top1_agreement": d.top1_agreement,
                    "reference": perplexity_json(&d.reference),
                });
                object
            }
        };
        object["window"] = json!(plan.window);
        object["selected"] = selected::to_json(engine.selected());
        object
    }
}

fn perplexity_line(p: &Perplexity, plan: &Plan) -> String {
    let Estimate { mean, standard_error } = p.perplexity;
    let windows = p.tokens.div_ceil(plan.window);
    let windows =
        if windows > 1 { format!(" in {windows} windows of {}", plan.window) } else { String::new() };
    format!(
        "perplexity {mean:.4} ± {standard_error:.4} over {} tokens{windows}, {} ({:.1} tokens/s)",
        p.scored,
        seconds(p.elapsed),
        rate(p.tokens, p.elapsed),
    )
}

fn scientific(e: &Estimate) -> String {
    format!("{:.3e} ± {:.1e}", e.mean, e.standard_error)
}

fn perplexity_json(p: &Perplexity) -> Value {
    json!({
        "tokens": p.tokens,
        "scored": p.scored,
        "perplexity": p.perplexity.mean,
        "perplexity_standard_error": p.perplexity.standard_error,
        "nll": p.nll.mean,
        "nll_standard_error": p.nll.standard_error,
        "seconds": p.elapsed.as_secs_f64(),
        "tokens_per_s": rate(p.tokens, p.elapsed),
    })
}
