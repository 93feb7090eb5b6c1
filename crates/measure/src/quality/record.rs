//! The numbers of a quality record, as `metadata` keys of the header.

use std::collections::BTreeMap;

use basert_format::BaseFile;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TEXT_NAME;
use crate::{Divergence, MeasureError};

/// Prefix of the keys.
const PREFIX: &str = "quality.";

/// What was found when a file was converted: `metadata` keys `quality.*`, one for each field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QualityRecord {
    /// Version of the arithmetic that ran the file; see [`basert_kernels::ARITHMETIC`].
    pub arithmetic: String,
    /// Which text was read: `basert-1`, or `ids` for a model without a tokenizer.
    pub text: String,
    /// Tokens of it.
    pub tokens: usize,
    /// Perplexity of the file on them.
    pub perplexity: f64,
    /// Perplexity of the source's own values, in f32.
    pub source_perplexity: f64,
    /// Mean KL(source ‖ file) of the next-token distributions over all positions, in nats.
    pub mean_kl: f64,
    /// Largest KL of a position.
    pub max_kl: f64,
    /// Share of positions at which both find the same token likeliest, 0 to 1.
    pub top1_agreement: f64,
    /// Mean KL(source ‖ file) over the positions whose reference logits are kept.
    pub reference_kl: f64,
    /// xxHash64 (seed 0, 16 hex digits) of the file's own logits `[tokens, vocabulary]` as little-endian f32.
    pub logits_xxh64: String,
}

impl QualityRecord {
    /// # Errors
    /// [`MeasureError::NotMeasurable`] if a number is not finite, which JSON cannot say.
    pub(super) fn new(
        text: &str,
        tokens: usize,
        found: &Divergence,
        reference_kl: f64,
        logits: &[f32],
    ) -> Result<QualityRecord, MeasureError> {
        let numbers = [
            found.candidate.perplexity.mean,
            found.reference.perplexity.mean,
            found.kl.mean,
            found.max_kl,
            found.top1_agreement,
            reference_kl,
        ];
        if !numbers.iter().all(|number| number.is_finite()) {
            return Err(MeasureError::NotMeasurable {
                file_nll: found.candidate.nll.mean,
                source_nll: found.reference.nll.mean,
            });
        }
        let [perplexity, source_perplexity, mean_kl, max_kl, top1_agreement, reference_kl] =
            numbers.map(rounded);
        Ok(QualityRecord {
            arithmetic: basert_kernels::ARITHMETIC.to_owned(),
            text: text.to_owned(),
            tokens,
            perplexity,
            source_perplexity,
            mean_kl,
            max_kl,
            top1_agreement,
            reference_kl,
            logits_xxh64: hash(logits),
        })
    }

    /// The record in a file's header, if it has one.
    ///
    /// # Errors
    /// [`MeasureError::Record`] if keys are missing or of another type.
    pub fn of(file: &BaseFile) -> Result<Option<QualityRecord>, MeasureError> {
        let record = QualityRecord::from_metadata(&file.header().metadata);
        record.map_err(|cause| MeasureError::Record {
            path: file.path().to_path_buf(),
            problem: format!("its `{PREFIX}*` metadata is not a quality record: {cause}"),
        })
    }

    /// The record among the keys of a header's `metadata`, if there is one.
    ///
    /// # Errors
    /// Keys that are missing or of another type.
    pub fn from_metadata(
        metadata: &BTreeMap<String, Value>,
    ) -> Result<Option<QualityRecord>, serde_json::Error> {
        let fields = metadata.iter().filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value)));
        let fields: serde_json::Map<String, Value> =
            fields.map(|(key, value)| (key.to_owned(), value.clone())).collect();
        if fields.is_empty() { Ok(None) } else { serde_json::from_value(Value::Object(fields)).map(Some) }
    }

    /// Whether the file reads the text at more than twice its source's perplexity: it works, and has lost much.
    pub fn reads_much_worse(&self) -> bool {
        self.text == TEXT_NAME && self.perplexity > 2.0 * self.source_perplexity
    }

    /// The keys and values for a header.
    pub(super) fn to_metadata(&self) -> Result<BTreeMap<String, Value>, serde_json::Error> {
        let fields: BTreeMap<String, Value> = serde_json::from_value(serde_json::to_value(self)?)?;
        Ok(fields.into_iter().map(|(key, value)| (format!("{PREFIX}{key}"), value)).collect())
    }
}

/// To six significant digits: the last bits of logarithms differ between C libraries, and the same conversion shall give
/// the same bytes everywhere.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let unit = 10f64.powi(5 - value.abs().log10().floor() as i32);
    (value * unit).round() / unit
}

/// xxHash64 of logits.
pub(super) fn hash(logits: &[f32]) -> String {
    let mut state = xxhash_rust::xxh64::Xxh64::new(0);
    logits.iter().for_each(|value| state.update(&value.to_le_bytes()));
    format!("{:016x}", state.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_six_digits() {
        let cases = [
            (0.0, 0.0),
            (1.0, 1.0),
            (12.345678901, 12.3457),
            (0.000123456789, 0.000123457),
            (98765432.1, 98765400.0),
        ];
        for (value, expected) in cases {
            assert_eq!(rounded(value), expected);
        }
        assert!(rounded(f64::NAN).is_nan());
    }
}
