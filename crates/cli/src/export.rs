//! `basert export`: a `.base` file becomes a GGUF.

use basert_convert::{ExportOptions, export_gguf, same_file};
use basert_format::Output;
use serde_json::json;

use crate::args::ExportArgs;
use crate::convert::{Bar, failed, guarded, show_written};
use crate::failure::{Failure, Outcome};
use crate::locate::locate;
use crate::{bundle, place};

/// Runs the command.
pub fn run(args: &ExportArgs) -> Outcome {
    let ExportArgs { gguf, .. } = args;
    let file = &locate(&args.file)?;
    if same_file(file, gguf) {
        return Err(Failure::new(format!("{} is both source and output", file.display())));
    }
    // Says what it is if it is something else.
    bundle::open(file)?;
    place::check(gguf, args.force)?;
    place::check_folder(gguf)?;
    let options =
        ExportOptions { outtype: args.outtype, no_tokenizer: args.no_tokenizer, threads: args.work.threads };
    let place = guarded(Output::new(gguf).replace(args.force))?;
    let mut bar = Bar::new();
    let result = export_gguf(file, &place, &options, &mut bar);
    bar.clear();
    let report = result.map_err(|e| failed(&e))?;
    show_written(json!(report), &report.to_string(), gguf, args.json)
}
