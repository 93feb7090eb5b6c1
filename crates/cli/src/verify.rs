//! `basert verify`: whether a file is intact, and whether it still computes what it did when it was converted.

use basert_engine::doubled_norm_offset;
use basert_format::BaseFile;
use basert_measure::{MeasureError, QualityRecord, Replay, replay};
use serde_json::{Value, json};

use crate::args::VerifyArgs;
use crate::failure::{Failure, Outcome};
use crate::units::count;
use crate::{bundle, output, progress};

/// Runs the command.
pub fn run(args: &VerifyArgs) -> Outcome {
    let file = bundle::open(&args.file)?;
    let path = file.path().display().to_string();
    checksums(&file)?;
    let doubled = file.header().arch.parse().ok().and_then(|arch| doubled_norm_offset(&file, arch));
    let replayed = args.logits.then(|| replay(file, args.work.threads)).transpose().map_err(failure)?;
    if args.json {
        output::print_json(&to_json(replayed.as_ref(), doubled))?;
    } else {
        output::print(&in_words(replayed.as_ref()))?;
    }
    match replayed {
        Some(Replay { agrees: false, record, .. }) => {
            let what = if record.is_some() { "record" } else { "reference trace" };
            Err(Failure::new(format!("{path} does not compute here what its {what} says")).hint(
                "convert the checkpoint again; if that does not help, please report it with this machine's CPU",
            ))
        }
        _ => doubled.map_or(Ok(()), |mean| {
            Err(Failure::new(format!("{path}: {}", MeasureError::DoubledNorms { mean }))
                .hint("convert the checkpoint again, without --source-convention"))
        }),
    }
}

/// Recomputes the checksums of tensors and slots, with progress.
pub fn checksums(file: &BaseFile) -> Outcome {
    let bar = progress::bytes(0);
    let result = file.verify_checksums(&mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    result.map_err(|e| Failure::from_error(&e).hint("the file is damaged: copy or convert it again"))
}

fn failure(error: MeasureError) -> Failure {
    let failure = Failure::from_error(&error);
    match error {
        MeasureError::NoRecord { .. } => {
            failure.hint("files that `basert convert` checked have some, but for those of --compat; convert the checkpoint again")
        }
        _ => failure,
    }
}

fn in_words(replay: Option<&Replay>) -> String {
    let mut text = String::from("checksums  all correct\n");
    let Some(replay) = replay else { return text };
    if let Some(record) = &replay.record {
        text.push_str(&format!("recorded   {}\n", record_in_words(record)));
    }
    let bits = match (replay.logits_equal, &replay.record) {
        (Some(true), _) => "bit for bit those of the record",
        (Some(false), _) => "NOT those of the record",
        (None, Some(_)) => "not comparable bit for bit: the record is from another arithmetic",
        (None, None) => "without a record to compare bits with",
    };
    text.push_str(&format!(
        "here       logits {bits}; KL {:.2e} to the reference at {}, same likeliest token at {:.0} %\n",
        replay.mean_kl,
        count(replay.positions as u64, "position"),
        100.0 * replay.top1_agreement
    ));
    text
}

/// One line on a quality record.
pub fn record_in_words(record: &QualityRecord) -> String {
    let QualityRecord { tokens, perplexity, source_perplexity, mean_kl, top1_agreement, .. } = record;
    let text = if record.text == "ids" { "arbitrary ids" } else { "a short text" };
    format!(
        "perplexity {perplexity} on {text} of {tokens} tokens (source {source_perplexity}), KL {mean_kl:.2e} to the \
         source, same likeliest token at {:.1} %",
        100.0 * top1_agreement
    )
}

fn to_json(replay: Option<&Replay>, doubled_norms: Option<f64>) -> Value {
    json!({ "checksums_correct": true, "doubled_norms": doubled_norms, "logits": replay })
}
