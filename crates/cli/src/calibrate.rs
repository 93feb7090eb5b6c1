//! Importance for `basert convert`: read from a file, or collected by running the source on a text.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use basert_convert::{Importance, Method, Options, SourceModel, with_source};
use basert_format::Output;
use basert_measure::activations;
use basert_text::Tokenizer;

use crate::args::{CalibrationOptions, ConvertArgs};
use crate::convert::failed;
use crate::failure::{Failure, Outcome};
use crate::{place, progress};

/// Tokens of a calibration window: long enough for attention to matter, short enough for many different ones.
const WINDOW: usize = 512;

/// The importance file that was named, if one was.
pub fn saved(options: &CalibrationOptions) -> Outcome<Option<Importance>> {
    options.importance.as_deref().map(Importance::load).transpose().map_err(|e| failed(&e))
}

/// Collects importance if a calibration text is named, and saves it if that is asked for.
pub fn collect(source: &Path, args: &ConvertArgs, options: Options) -> Outcome<Options> {
    let CalibrationOptions { calibration, calibration_tokens, save_importance, .. } = &args.calibration;
    let Some(text) = calibration else { return Ok(options) };
    if options.method == Some(Method::Rtn) && save_importance.is_none() {
        return Err(
            Failure::new("--method rtn makes no use of a calibration").hint("choose --method mse or awq")
        );
    }
    if let Some(path) = save_importance {
        place::check(path, args.force)?;
    }
    // Whatever else is refused should not wait for the calibration.
    let method = options.method.map(|_| Method::Mse);
    basert_convert::plan(source, &Options { method, ..options.clone() }).map_err(|e| failed(&e))?;
    let text = std::fs::read_to_string(text)
        .map_err(|e| Failure::new(format!("cannot read {}: {e}", text.display())))?;
    let run = |model: &SourceModel<'_>| run(model, &text, *calibration_tokens, options.threads);
    let importance = with_source(source, &options, run).map_err(|e| failed(&e))??;
    if let Some(path) = save_importance {
        save(&importance, path, args.force)?;
    }
    let importance = (options.method != Some(Method::Rtn)).then_some(importance);
    Ok(Options { importance, ..options })
}

fn run(model: &SourceModel<'_>, text: &str, tokens: usize, threads: Option<usize>) -> Outcome<Importance> {
    let tokenizer = Tokenizer::from_header(model.tokenizer).map_err(|e| {
        Failure::from_error(&e).hint("calibration needs the checkpoint's tokenizer; --importance does not")
    })?;
    let mut ids = tokenizer.encode(text, true, true).map_err(|e| Failure::from_error(&e))?;
    ids.truncate(tokens);
    let bar = progress::tokens(ids.len() as u64);
    bar.set_message("calibration");
    let mut watch = |done: usize| {
        bar.set_position(done as u64);
        ControlFlow::Continue(())
    };
    let window = model.spec.max_context.map_or(WINDOW, |max| max.min(WINDOW));
    let found = activations(model, &ids, window, threads, &mut watch);
    bar.finish_and_clear();
    let squares = found.map_err(|e| Failure::from_error(&e))?;
    Importance::new(&model.spec, ids.len(), squares).map_err(|e| failed(&e))
}

/// The file appears whole.
fn save(importance: &Importance, path: &Path, force: bool) -> Outcome {
    let refuse = |e: std::io::Error| Failure::new(format!("cannot write {}: {e}", path.display()));
    let mut file = Output::new(path).replace(force).create().map_err(refuse)?;
    file.write_all(&importance.to_bytes()).and_then(|()| file.file.sync_all()).map_err(refuse)?;
    file.publish().map_err(refuse)
}
