//! `basert profile`: where the time of a step goes.

mod args;
mod flame;
mod report;

use basert_convert::same_file;
use basert_engine::{Engine, Options};
use basert_measure::MeasureError;
use basert_measure::bench::{Case, Profile, Test, profile};

use crate::failure::{Failure, Outcome};
use crate::interrupt::{Interrupt, Second};
use crate::locate::locate;
use crate::{bundle, output, place};
pub use args::{PROFILE_HELP, ProfileArgs};

/// Runs the command.
pub fn run(args: &ProfileArgs) -> Outcome {
    let interrupt = Interrupt::install(Second::Exits)?;
    let cases = cases(args);
    if cases.is_empty() {
        return Err(Failure::new("there is nothing to profile").hint("give -p or -n a number of tokens"));
    }
    check_output(args)?;
    let mut engine = load(args, &cases)?;
    let stop = || interrupt.requested();
    let failure = |error| match error {
        MeasureError::Stopped => interrupt.failure(),
        error => Failure::from_error(&error),
    };
    let mut profiles = Vec::new();
    for case in &cases {
        profiles.push(profile(&mut engine, case, args.repetitions, &stop).map_err(failure)?);
    }
    show(args, &engine, &profiles)
}

/// Refuses to draw over the model, or without `--force` over anything.
fn check_output(args: &ProfileArgs) -> Outcome {
    let Some(picture) = &args.flame else { return Ok(()) };
    if same_file(&locate(&args.model)?, picture) {
        let problem = format!("the picture would replace {}, which is read", picture.display());
        return Err(Failure::new(problem).hint("give another name with --flame"));
    }
    place::check(picture, args.force)?;
    place::check_folder(picture)
}

fn cases(args: &ProfileArgs) -> Vec<Case> {
    let prefill = Test::Prefill { tokens: args.prompt };
    let decode = Test::Decode { tokens: args.decode, sequences: args.batch };
    let wanted = [(args.prompt, prefill), (args.decode, decode)];
    let wanted = wanted.into_iter().filter(|(tokens, _)| *tokens > 0);
    wanted.map(|(_, test)| Case { test, depth: args.depth }).collect()
}

fn load(args: &ProfileArgs, cases: &[Case]) -> Outcome<Engine> {
    let needed = cases.iter().map(Case::context).max().unwrap_or(1);
    let given = args.run.resolve()?;
    if let Some(context) = given.context.filter(|&context| context < needed) {
        let problem = format!("a context of {context} tokens is too small: -p, -n and -d need {needed}");
        return Err(Failure::new(problem).hint("leave --context out, or give smaller numbers"));
    }
    let options = Options {
        context: given.context.or(Some(needed)),
        sequences: args.batch,
        step_tokens: given.step_tokens.max(args.batch),
        logit_rows: args.batch,
        ..given
    };
    Engine::load(bundle::open(&args.model)?, &options).map_err(|e| Failure::from_error(&e))
}

fn show(args: &ProfileArgs, engine: &Engine, profiles: &[Profile]) -> Outcome {
    if let Some(path) = &args.flame {
        place::write(path, flame::svg(profiles).as_bytes(), args.force)?;
    }
    if args.json {
        return output::print_json(&report::json(engine, profiles));
    }
    output::print(&report::text(engine, profiles, args.layers))
}
