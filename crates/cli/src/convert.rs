//! `basert convert`: a checkpoint becomes one `.base` file.

use std::error::Error;
use std::path::{Path, PathBuf};

use basert_convert::{ConvertError, Options, Profile, Progress, Report, SelfCheck, Target, source_name};
use basert_format::{Header, Output};
use basert_measure::{Check, QualityRecord};
use basert_text::Tokenizer;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::args::ConvertArgs;
use crate::failure::{Failure, Outcome};
use crate::units::bytes;
use crate::verify::record_in_words;
use crate::{calibrate, interrupt, output, place, progress};

mod places;
mod synthetic;
mod usage;

/// Runs the command.
pub fn run(args: &ConvertArgs) -> Outcome {
    usage::check(args)?;
    let options = options(args)?;
    match (&args.synthetic, &args.source) {
        (Some(geometry), _) => synthetic::run(geometry, args, &options),
        (None, Some(source)) => convert(source, args, options),
        (None, None) => Err(Failure::new("there is nothing to convert")),
    }
}

fn options(args: &ConvertArgs) -> Outcome<Options> {
    Ok(Options {
        target: args.target.unwrap_or(Target::AUTO),
        profile: args.profile.as_deref().map(Profile::load).transpose().map_err(|e| failed(&e))?,
        method: args.method,
        importance: calibrate::saved(&args.calibration)?,
        group: args.group,
        scale: args.scales,
        allow_quant_from_quant: args.allow_quant_from_quant,
        convention: args.source_convention,
        compat: args.compat,
        threads: args.work.threads,
        allow_missing_tokenizer: args.no_tokenizer,
        ..Options::default()
    })
}

fn convert(source: &Path, args: &ConvertArgs, options: Options) -> Outcome {
    if args.plan {
        let report = basert_convert::plan(source, &options).map_err(|e| failed(&e))?;
        let check = basert_convert::with_source(source, &options, |model| Check::peak_bytes(&model.spec));
        let check = if args.no_check { None } else { Some(check.map_err(|e| failed(&e))?) };
        return show_plan(&report, check, args.json);
    }
    let output = match &args.output {
        Some(path) => path.clone(),
        None => {
            let target = basert_convert::resolve_goal(source, &options).map_err(|e| failed(&e))?;
            default_output(source, &target)?
        }
    };
    check_output(source, &output, args)?;
    let options = calibrate::collect(source, args, options)?;

    let place = guarded(Output::new(&output).replace(args.force).keep(args.resume))?;
    remark_on_unfinished(&place);
    let mut bar = Bar::new();
    let mut check = Check { tokenize: &tokenize, threads: args.work.threads };
    let check = if args.no_check { None } else { Some(&mut check as &mut dyn SelfCheck) };
    let result = basert_convert::convert_to(source, &place, &options, &mut bar, check);
    bar.clear();
    let report = result.map_err(|e| {
        let nothing_done = matches!(
            e,
            ConvertError::Resume { .. } | ConvertError::Busy { .. } | ConvertError::InTheWay { .. }
        );
        if !nothing_done {
            say_kept(&place);
        }
        failed(&e)
    })?;
    show(&report, &output, args)
}

/// The output, with ^C leaving nothing but what is kept of it.
///
/// # Errors
/// If signals cannot be handled.
pub fn guarded(output: Output) -> Outcome<Output> {
    let unfinished = output.clone();
    interrupt::on_interrupt(move || {
        unfinished.abandon();
        say_kept(&unfinished);
    })?;
    Ok(output)
}

/// Without --resume, unfinished work lies there unused; whoever left it may have forgotten the option.
fn remark_on_unfinished(output: &Output) {
    if let (None, Some(partial)) = (output.partial(), output.clone().keep(true).partial())
        && partial.exists()
    {
        output::note(&format!("{} is left alone; --resume would continue it", partial.display()));
    }
}

/// Says where unfinished work is, if there is any.
fn say_kept(output: &Output) {
    if let Some(partial) = output.partial().filter(|partial| partial.exists()) {
        output::note(&format!("unfinished work is kept in {}; --resume continues it", partial.display()));
    }
}

/// Ids of a text by a file's own tokenizer.
fn tokenize(header: &Header, text: &str) -> Result<Option<Vec<u32>>, Box<dyn Error + Send + Sync>> {
    if header.tokenizer.is_empty() {
        return Ok(None);
    }
    Ok(Some(Tokenizer::from_header(&header.tokenizer)?.encode(text, true, false)?))
}

/// The error with its hint.
pub fn failed(error: &ConvertError) -> Failure {
    let failure = Failure::from_error(error);
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// `check` is the memory that the self-check takes, after the conversion.
fn show_plan(report: &Report, check: Option<u64>, as_json: bool) -> Outcome {
    if as_json {
        let mut object = json!(report);
        object["check_memory_bytes"] = json!(check);
        return output::print_json(&object);
    }
    let check =
        check.map_or_else(String::new, |memory| format!(", then {} for the self-check", bytes(memory)));
    let estimate = report.estimate.map_or_else(String::new, |estimate| format!("time: {estimate}\n"));
    let summary = format!(
        "output: {} of tensors, and a header with the tokenizer\npeak memory: about {}{check}\n{estimate}nothing was written",
        bytes(report.written.bytes),
        bytes(report.peak_memory_bytes)
    );
    output::print(&format!("{}\n{report}\n{summary}\n", report.table()))
}

fn show(report: &Report, output: &Path, args: &ConvertArgs) -> Outcome {
    let quality = QualityRecord::from_metadata(&report.quality)
        .map_err(|e| Failure::new(format!("the self-check's own record cannot be read: {e}")))?;
    if let Some(record) = &quality
        && record.reads_much_worse()
    {
        output::note(
            "it reads the text at more than twice its source's perplexity; more bits or --calibration help",
        );
    }
    let mut object = json!(report);
    object["quality"] = json!(quality);
    let kept =
        if args.compat.is_some() { "; the original's layout has no place for this record" } else { "" };
    let checked = quality.map_or_else(|| "skipped".to_owned(), |record| record_in_words(&record) + kept);
    show_written(object, &format!("{report}\nself-check: {checked}"), output, args.json)
}

/// The end of a command that wrote `output`: its report, as an object or in words, and the file's size.
pub fn show_written(mut object: Value, words: &str, output: &Path, as_json: bool) -> Outcome {
    let size = std::fs::metadata(output).map_or(0, |m| m.len());
    if as_json {
        object["output"] = json!(output.display().to_string());
        object["output_bytes"] = json!(size);
        return output::print_json(&object);
    }
    output::print(&format!("{words}\nwrote {} ({}, {size} bytes)\n", output.display(), bytes(size)))
}

/// `<source name>-<target>.base` in the current directory.
fn default_output(source: &Path, target: &str) -> Outcome<PathBuf> {
    let name = source_name(source).ok_or_else(|| {
        Failure::new("the source has no name to derive the output's from").hint("name the output with -o")
    })?;
    let name = Path::new(&name);
    let is_gguf = name.extension().is_some_and(|e| e == "gguf");
    let stem = if is_gguf { name.file_stem() } else { None };
    let mut name = stem.unwrap_or(name.as_os_str()).to_owned();
    name.push(format!("-{target}.base"));
    Ok(name.into())
}

/// Refuses places where the output or the importance file cannot or must not appear, before any work.
fn check_output(source: &Path, output: &Path, args: &ConvertArgs) -> Outcome {
    places::check(source, output, args)?;
    for path in [Some(output), args.calibration.save_importance.as_deref()].into_iter().flatten() {
        place::check(path, args.force)?;
        place::check_folder(path)?;
    }
    Ok(())
}

/// Progress in bytes of the output; the tensor at work is the bar's message.
pub struct Bar {
    bar: ProgressBar,
    /// Bytes of the tensor at work.
    pending: u64,
}

impl Bar {
    /// A bar at the start.
    pub fn new() -> Bar {
        Bar { bar: progress::bytes(0), pending: 0 }
    }

    /// Takes it off the terminal.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar {
    fn start(&mut self, _tensors: usize, bytes: u64) {
        self.bar.set_length(bytes);
    }

    fn tensor(&mut self, name: &str, bytes: u64) {
        self.bar.inc(std::mem::replace(&mut self.pending, bytes));
        self.bar.set_message(output::escaped(name));
    }

    fn check(&mut self) {
        self.bar.inc(std::mem::take(&mut self.pending));
        self.bar.set_message("running a short text");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_named_after_the_source_and_the_target() {
        let cases = [
            ("/no/such/Qwen3-0.6B", "Qwen3-0.6B-base-q4.base"),
            ("/no/such/smollm2.q8_0.gguf", "smollm2.q8_0-base-q4.base"),
            ("no-such-dir/", "no-such-dir-base-q4.base"),
        ];
        for (source, expected) in cases {
            assert_eq!(default_output(Path::new(source), "base-q4").unwrap(), Path::new(expected));
        }
        assert!(default_output(Path::new("/"), "base-q4").is_err());
    }
}
