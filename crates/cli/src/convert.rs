//! `basert convert`: a checkpoint becomes one `.base` file.

use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use basert_convert::{ConvertError, Options, Profile, Progress, Report, same_file};
use basert_format::Header;
use basert_measure::{Check, QualityRecord};
use basert_text::Tokenizer;
use indicatif::ProgressBar;
use serde_json::json;
use tempfile::TempDir;

use crate::args::ConvertArgs;
use crate::bundle::quoted;
use crate::failure::{Failure, Outcome};
use crate::units::bytes;
use crate::verify::record_in_words;
use crate::{calibrate, interrupt, output, place, progress};

/// Runs the command.
pub fn run(args: &ConvertArgs) -> Outcome {
    let profile = args.profile.as_deref().map(Profile::load).transpose().map_err(|e| failed(&e))?;
    let options = Options {
        target: args.target,
        profile,
        method: args.method,
        importance: calibrate::saved(&args.calibration)?,
        group: args.group,
        scale: args.scales,
        allow_quant_from_quant: args.allow_quant_from_quant,
        convention: args.source_convention,
        threads: args.threads,
        allow_missing_tokenizer: args.no_tokenizer,
        ..Options::default()
    };
    if args.plan {
        let report = basert_convert::plan(&args.source, &options).map_err(|e| failed(&e))?;
        return show_plan(&report, args.json);
    }
    let output = match &args.output {
        Some(path) => path.clone(),
        None => {
            let target = basert_convert::resolve_goal(&args.source, &options).map_err(|e| failed(&e))?;
            default_output(&args.source, &target)?
        }
    };
    check_output(&args.source, &output, args.force)?;
    let options = calibrate::collect(args, options)?;

    let staging = Staging::create(&output, args.force)?;
    let mut bar = Bar { bar: progress::bytes(0), pending: 0 };
    let (source, file) = (&args.source, &staging.file);
    let result = if args.no_check {
        basert_convert::convert(source, file, &options, &mut bar)
    } else {
        let mut check = Check { tokenize: &tokenize, threads: args.threads };
        basert_convert::convert_checked(source, file, &options, &mut bar, &mut check)
    };
    bar.bar.finish_and_clear();
    let report = result.map_err(|e| staging.say_output(failed(&e)))?;
    staging.publish()?;
    show(&report, &output, args.json)
}

/// Ids of a text by a file's own tokenizer.
fn tokenize(header: &Header, text: &str) -> Result<Option<Vec<u32>>, Box<dyn Error + Send + Sync>> {
    if header.tokenizer.is_empty() {
        return Ok(None);
    }
    Ok(Some(Tokenizer::from_header(&header.tokenizer)?.encode(text, true, false)?))
}

pub fn failed(error: &ConvertError) -> Failure {
    let failure = Failure::from_error(error);
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn show_plan(report: &Report, as_json: bool) -> Outcome {
    if as_json {
        return output::print_json(&json!(report));
    }
    let summary = format!(
        "output: {} of tensors, and a header with the tokenizer\npeak memory: about {}\nnothing was written",
        bytes(report.written.bytes),
        bytes(report.peak_memory_bytes)
    );
    output::print(&format!("{}\n{report}\n{summary}\n", report.table()))
}

fn show(report: &Report, output: &Path, as_json: bool) -> Outcome {
    let size = std::fs::metadata(output).map_or(0, |m| m.len());
    let quality = QualityRecord::from_metadata(&report.quality)
        .map_err(|e| Failure::new(format!("the self-check's own record cannot be read: {e}")))?;
    if as_json {
        let mut object = json!(report);
        object["quality"] = json!(quality);
        object["output"] = json!(output.display().to_string());
        object["output_bytes"] = json!(size);
        return output::print_json(&object);
    }
    let checked = quality.map_or_else(|| "skipped".to_owned(), |record| record_in_words(&record));
    output::print(&format!(
        "{report}\nself-check: {checked}\nwrote {} ({}, {size} bytes)\n",
        output.display(),
        bytes(size)
    ))
}

/// `<source name>-<target>.base` in the current directory.
fn default_output(source: &Path, target: &str) -> Outcome<PathBuf> {
    // Also names `.` and `..`; a source that does not exist is the converter's to report.
    let source = source.canonicalize().unwrap_or_else(|_| source.to_path_buf());
    let is_gguf = source.extension().is_some_and(|e| e == "gguf");
    let name = if is_gguf { source.file_stem() } else { source.file_name() };
    let mut name: OsString = match name {
        Some(name) => name.to_owned(),
        None => {
            return Err(Failure::new("the source has no name to derive the output's from")
                .hint("name the output with -o"));
        }
    };
    name.push(format!("-{target}.base"));
    Ok(name.into())
}

fn check_output(source: &Path, output: &Path, force: bool) -> Outcome {
    if !output.is_dir() && same_file(source, output) {
        return Err(Failure::new(format!("{} is both source and output", source.display())));
    }
    place::check(output, force)?;
    basert_convert::check_output(source, output).map_err(|e| failed(&e))
}

/// A folder beside the output that holds the unfinished file, so that ^C can remove all of it at once, in the
/// middle of a tensor, without the converter's help.
struct Staging {
    /// Removed when it is dropped.
    folder: TempDir,
    file: PathBuf,
    output: PathBuf,
    force: bool,
}

impl Staging {
    fn create(output: &Path, force: bool) -> Outcome<Staging> {
        // The handler stands before there is anything to remove, and waits while the folder is made.
        let unfinished: Arc<Mutex<Option<PathBuf>>> = Arc::default();
        let removed = Arc::clone(&unfinished);
        interrupt::on_interrupt(move || {
            if let Some(folder) = lock(&removed).take() {
                // A file that appears while the folder is being emptied makes the first try fail.
                let _ = (0..3).any(|_| std::fs::remove_dir_all(&folder).is_ok());
            }
        })?;
        let mut unfinished = lock(&unfinished);
        let parent = folder_of(output);
        let folder = tempfile::Builder::new().prefix(".basert-convert-").tempdir_in(parent).map_err(|e| {
            // The library's message names the staging folder, which means nothing to the user.
            let e = std::io::Error::from(e.kind());
            let failure = Failure::new(format!("cannot write to the folder of {}: {e}", output.display()));
            if parent.exists() { failure } else { failure.hint(format!("mkdir -p {}", quoted(parent))) }
        })?;
        *unfinished = Some(folder.path().to_path_buf());
        let name = output.file_name().unwrap_or("out.base".as_ref());
        Ok(Staging { file: folder.path().join(name), folder, output: output.to_path_buf(), force })
    }

    /// The staged file is synced already; the rename is made durable through the folder.
    fn publish(self) -> Outcome {
        place::publish(&self.file, &self.output, self.force)?;
        let synced = std::fs::File::open(folder_of(&self.output)).and_then(|folder| folder.sync_all());
        synced.map_err(|e| Failure::new(format!("cannot sync the folder of {}: {e}", self.output.display())))
    }

    /// Errors about the staged file name the output that the user knows.
    fn say_output(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Error { message, hint } => {
                let staged = self.file.display().to_string();
                let message = message.replace(&staged, &self.output.display().to_string());
                // Of a temporary file in the folder, the system's reason is all that can be said.
                let at = format!(" at path {:?}", self.folder.path()).trim_end_matches('"').to_owned();
                let message = match message.split_once(&at) {
                    Some((reason, _)) => reason.to_owned(),
                    None => message,
                };
                Failure::Error { message, hint }
            }
            other => other,
        }
    }
}

fn folder_of(output: &Path) -> &Path {
    output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A panic elsewhere does not make the path wrong.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Progress in bytes of the output; the tensor at work is the bar's message.
struct Bar {
    bar: ProgressBar,
    /// Bytes of the tensor at work.
    pending: u64,
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
