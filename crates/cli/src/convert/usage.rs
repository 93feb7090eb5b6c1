//! Options of `basert convert` that would mean nothing. Clap waives what an argument requires if that would clash with
//! another one that is there, and takes defaults for given; so this is looked at after parsing.

use crate::args::ConvertArgs;
use crate::failure::{Failure, Outcome};

/// What is given to `--synthetic` to see all geometries.
pub const LIST: &str = "list";

/// Refuses options without the option that they belong to.
///
/// # Errors
/// The first such option.
pub fn check(args: &ConvertArgs) -> Outcome {
    let calibration = &args.calibration;
    let belongs = [
        ("--layers", args.layers.is_some(), "--synthetic", args.synthetic.is_some()),
        ("--draft-layers", args.draft_layers, "--synthetic", args.synthetic.is_some()),
        (
            "--calibration-tokens",
            calibration.calibration_tokens.is_some(),
            "--calibration",
            calibration.calibration.is_some(),
        ),
        (
            "--save-importance",
            calibration.save_importance.is_some(),
            "--calibration",
            calibration.calibration.is_some(),
        ),
    ];
    for (option, given, needed, there) in belongs {
        if given && !there {
            return Err(Failure::new(format!("{option} goes with {needed} only")));
        }
    }
    if args.synthetic.as_deref() == Some(LIST) { check_list(args) } else { Ok(()) }
}

fn check_list(args: &ConvertArgs) -> Outcome {
    // The variable is there for every command, and bothers none.
    let variable = std::env::var_os("BASERT_THREADS").is_some_and(|value| !value.is_empty());
    let options = [
        ("--output", args.output.is_some()),
        ("--target", args.target.is_some()),
        ("--group", args.group.is_some()),
        ("--scales", args.scales.is_some()),
        ("--layers", args.layers.is_some()),
        ("--draft-layers", args.draft_layers),
        ("--threads", args.work.threads.is_some() && !variable),
        ("--no-check", args.no_check),
        ("--force", args.force),
    ];
    match options.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => {
            Err(Failure::new(format!("`--synthetic list` writes nothing, so {option} means nothing")))
        }
        None => Ok(()),
    }
}
