//! Importance for `basert convert`: read from a file, or collected by running the source on a text.

use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;

use basert_convert::{Importance, Method, Options, SourceModel, with_source};
use basert_measure::activations;
use basert_text::Tokenizer;

use crate::args::{CalibrationOptions, ConvertArgs};
use crate::convert::failed;
use crate::failure::{Failure, Outcome};
use crate::{place, progress};

/// Tokens of a calibration window: long enough for attention to matter, short enough for many different ones.
const WINDOW: usize = 512;

/// Tokens that are read unless another number is asked for.
const TOKENS: usize = 4096;

/// Fewer tokens than these say nothing about a model's activations.
const FEWEST: usize = 64;

/// Bytes of text that are read at first for every token that is wanted; English has four or five.
const BYTES_PER_TOKEN: u64 = 64;

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
    // Whatever else is refused should not wait for the calibration.
    let method = options.method.map(|_| Method::Mse);
    basert_convert::plan(source, &Options { method, ..options.clone() }).map_err(|e| failed(&e))?;
    let tokens = calibration_tokens.unwrap_or(TOKENS);
    let run = |model: &SourceModel<'_>| run(model, text, tokens, options.threads);
    let importance = with_source(source, &options, run).map_err(|e| failed(&e))??;
    if let Some(path) = save_importance {
        place::write(path, &importance.to_bytes(), args.force)?;
    }
    let importance = (options.method != Some(Method::Rtn)).then_some(importance);
    Ok(Options { importance, ..options })
}

fn run(model: &SourceModel<'_>, text: &Path, tokens: usize, threads: Option<usize>) -> Outcome<Importance> {
    let tokenizer = Tokenizer::from_header(model.tokenizer).map_err(|e| {
        Failure::from_error(&e).hint("calibration needs the checkpoint's tokenizer; --importance does not")
    })?;
    let ids = first_ids(&tokenizer, text, tokens)?;
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

/// The first `tokens` ids of a text, of which no more is read than they need.
fn first_ids(tokenizer: &Tokenizer, path: &Path, tokens: usize) -> Outcome<Vec<u32>> {
    let mut length = BYTES_PER_TOKEN.saturating_mul(tokens as u64);
    let mut ids = loop {
        let (text, is_all) = beginning(path, length)?;
        let ids = tokenizer.encode(&text, true, true).map_err(|e| Failure::from_error(&e))?;
        // Where the text is cut, the last token may be half of another.
        if is_all || ids.len() > tokens {
            break ids;
        }
        length = length.saturating_mul(2);
    };
    ids.truncate(tokens);
    if ids.len() < FEWEST.min(tokens) {
        let found = ids.len();
        return Err(Failure::new(format!(
            "the calibration text {} has {found} tokens, which is too few to learn from",
            path.display()
        ))
        .hint(format!("give a text of at least {FEWEST} tokens; {TOKENS}, about ten pages, are better")));
    }
    Ok(ids)
}

/// Up to `length` bytes of a text, in whole characters, and whether that is all of it.
fn beginning(path: &Path, length: u64) -> Outcome<(String, bool)> {
    let refuse = |why: String| Failure::new(format!("cannot read {}: {why}", path.display()));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| refuse(e.to_string()))?;
    file.take(length).read_to_end(&mut bytes).map_err(|e| refuse(e.to_string()))?;
    let is_all = (bytes.len() as u64) < length;
    if let Err(e) = std::str::from_utf8(&bytes)
        && e.error_len().is_none()
        && !is_all
    {
        bytes.truncate(e.valid_up_to());
    }
    let text = String::from_utf8(bytes).map_err(|e| refuse(format!("it is not UTF-8: {e}")))?;
    Ok((text, is_all))
}
