//! `basert bench`: how fast models are here, and whether they have become slower.

mod args;
mod compare;
mod csv;
mod grid;
mod numbers;
mod report;
mod words;

use std::path::PathBuf;

use basert_engine::{Engine, EngineError, Options};
use basert_format::BaseFile;
use basert_measure::MeasureError;
use basert_measure::bench::{Case, Protocol, Results, Roof, Subject, Test, Watch, load, run as repeat_all};

use crate::failure::{Failure, Outcome};
use crate::interrupt::{Interrupt, Second};
use crate::{bundle, output, progress};
use args::Format;
pub use args::{BENCH_HELP, BenchArgs};
use grid::Setting;
use report::{Parts, Report};

/// Runs the command.
pub fn run(args: &BenchArgs) -> Outcome {
    if args.compare.is_empty() { measure(args) } else { compare::run(args) }
}

fn measure(args: &BenchArgs) -> Outcome {
    let interrupt = Interrupt::install(Second::Exits)?;
    let cases = grid::cases(args)?;
    let files: Vec<BaseFile> = args.models.iter().map(|model| bundle::open(model)).collect::<Outcome<_>>()?;
    let settings = grid::settings(args, &files, &cases)?;
    let protocol = Protocol { warmups: args.warmup, repetitions: args.repetitions };

    let stop = || interrupt.requested();
    let what: Vec<(PathBuf, Options)> =
        settings.iter().map(|setting| (setting.path.clone(), setting.options.clone())).collect();
    let loaded = load(&what, protocol, &stop).map_err(|e| failure(e, &interrupt))?;
    let (engines, load_seconds): (Vec<Engine>, Vec<Vec<f64>>) = loaded.into_iter().unzip();
    let subjects = engines.into_iter().map(|engine| subject(engine, args.roofline));
    let mut subjects: Vec<Subject> = subjects.collect::<Outcome<_>>()?;

    let results = repeat_with_progress(&mut subjects, &cases, protocol, &settings, &stop);
    let results = results.map_err(|e| failure(e, &interrupt))?;
    let complete = results.complete;
    let names = args.models.iter().map(|model| model.display().to_string()).collect();
    let (files, settings, subjects) = (&files[..], &settings[..], &subjects[..]);
    let report = Report::new(Parts { names, files, settings, protocol, subjects, load_seconds, results })?;
    match args.format() {
        Format::Table => output::print(&words::text(&report))?,
        Format::Markdown => output::print(&words::markdown(&report))?,
        Format::Csv => output::print(&csv::csv(&report))?,
        Format::Json => output::print_json(&report)?,
    }
    if complete { Ok(()) } else { Err(interrupt.failure()) }
}

fn subject(engine: Engine, roofline: bool) -> Outcome<Subject> {
    let roof = roofline.then(|| Roof::of(&engine)).transpose().map_err(|e| Failure::from_error(&e))?;
    Ok(Subject { engine, roof })
}

fn repeat_with_progress(
    subjects: &mut [Subject],
    cases: &[Case],
    protocol: Protocol,
    settings: &[Setting],
    stop: &dyn Fn() -> bool,
) -> Result<Results, MeasureError> {
    let bar = progress::repetitions((cases.len() * settings.len() * protocol.rounds()) as u64);
    let mut begun = 0;
    let mut progress = |case: &Case| {
        bar.set_position(begun);
        bar.set_message(in_words(case));
        begun += 1;
    };
    let results = repeat_all(subjects, cases, protocol, &mut Watch { stop, progress: &mut progress });
    bar.finish_and_clear();
    results
}

fn in_words(case: &Case) -> String {
    match case.test {
        Test::Prefill { tokens } => format!("prefill {tokens} at {}", case.depth),
        Test::Decode { tokens, sequences } => format!("decode {tokens} x {sequences} at {}", case.depth),
        Test::Verify { tokens, rows } => format!("verify {tokens} by {rows} at {}", case.depth),
    }
}

fn failure(error: MeasureError, interrupt: &Interrupt) -> Failure {
    match error {
        MeasureError::Stopped => interrupt.failure(),
        MeasureError::Engine(EngineError::Option { option, .. }) => {
            let failure = Failure::from_error(&error);
            match option {
                "context" => {
                    failure.hint("give smaller -p, -n, -d or -b; there is one cache for each setting")
                }
                "sequences" => failure.hint("give a smaller -b"),
                "page size" => failure.hint("give --paged-kv multiples of 32"),
                _ => failure,
            }
        }
        error => Failure::from_error(&error),
    }
}
