//! A file's facts, gathered once for both the text and the JSON form. The JSON form is this module's structs, so
//! field names here are an interface for scripts: add, never rename.

use std::collections::BTreeMap;

use basert_engine::doubled_norm_offset;
use basert_format::{BaseFile, Header, SlotFlags, TensorEntry, VERSION_KEY};
use basert_measure::QualityRecord;
use basert_model::ModelSpec;
use basert_model::plan::ElementSize;
use serde::Serialize;
use serde_json::Value;

use crate::options::any_kv;
use crate::units::{bytes, count};
use crate::verify::record_in_words;
use crate::{bundle, schedule};

/// Everything but the single tensors.
#[derive(Serialize)]
pub struct Summary {
    pub file: String,
    pub file_bytes: u64,
    pub arch: String,
    pub quant_scheme: String,
    /// Name of the quantisation profile; empty without one.
    pub quant_profile: String,
    pub min_hw: String,
    pub target_backend: String,
    /// Unix seconds, as the header spells them.
    pub created: String,
    /// Version of the program that wrote the file, in the format's own spelling.
    #[serde(rename = "baserT_version")]
    pub program_version: String,
    /// Version of our own writer; absent in files of other writers.
    pub basert_version: Option<String>,
    pub source: basert_format::Source,
    pub flags: Vec<String>,
    /// Decoder layers, if the header says how many.
    pub layers: Option<u64>,
    /// What the layers make of the model; absent when `not_runnable` says why.
    pub model: Option<Model>,
    /// Why this version cannot run the file.
    pub not_runnable: Option<String>,
    /// Signs that the conversion went wrong.
    pub suspicious: Option<String>,
    /// What the converter's self-check found.
    pub quality: Option<QualityRecord>,
    /// Why the quality record cannot be read.
    pub quality_problem: Option<String>,
    pub tokenizer: Option<String>,
    pub chat_template: bool,
    pub tensors: Group,
    pub dtypes: Vec<DtypeGroup>,
    /// Draft tensors (multi-token prediction), counted in `tensors` as well.
    pub mtp: Group,
    pub mmproj: Option<MmProjGroup>,
    pub slots: Vec<Slot>,
    pub signature: Option<SignatureFacts>,
    pub metadata: BTreeMap<String, Value>,
}

/// Facts that follow from the configuration.
#[derive(Serialize)]
pub struct Model {
    pub schedule: String,
    pub feed_forward: String,
    pub hidden: usize,
    pub vocab: usize,
    pub context: Option<usize>,
    pub kv_cache: KvCache,
    pub state_bytes_per_sequence: u64,
}

/// Geometry of the KV cache.
#[derive(Serialize)]
pub struct KvCache {
    pub attention_layers: usize,
    /// Heads of one layer.
    pub kv_heads: usize,
    pub head_dim: usize,
    pub bytes_per_token_f16: u64,
    /// By `--kv-bits`; null where the heads are not whole blocks.
    pub bytes_per_token: BTreeMap<&'static str, Option<u64>>,
}

/// A number of tensors and their payload bytes.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Group {
    pub tensors: u64,
    pub bytes: u64,
}

impl Group {
    fn of<'a>(entries: impl Iterator<Item = &'a TensorEntry>) -> Group {
        entries.fold(Group::default(), |g, t| Group { tensors: g.tensors + 1, bytes: g.bytes + t.length })
    }
}

/// Main tensors of one dtype.
#[derive(Serialize)]
pub struct DtypeGroup {
    pub dtype: &'static str,
    #[serde(flatten)]
    pub group: Group,
}

/// Vision and audio towers.
#[derive(Serialize)]
pub struct MmProjGroup {
    pub arch: String,
    #[serde(flatten)]
    pub group: Group,
}

/// One slot.
#[derive(Serialize)]
pub struct Slot {
    pub kind: String,
    pub required: bool,
    pub bytes: u64,
}

/// A signature that is in the file. Nothing here checks it.
#[derive(Serialize)]
pub struct SignatureFacts {
    pub alg: String,
    pub key_id: String,
    pub verified: bool,
}

/// What a look at the weights finds.
fn suspicious(file: &BaseFile) -> Option<String> {
    let arch = file.header().arch.parse().ok()?;
    let mean = doubled_norm_offset(file, arch)?;
    Some(format!(
        "the mean input norm gain is {mean:.2} instead of about 1: the offset was probably added twice, and the model \
         speaks nonsense; convert the checkpoint again"
    ))
}

impl Summary {
    /// Gathers the facts of an open file.
    pub fn of(file: &BaseFile) -> Summary {
        let header = file.header();
        let (model, not_runnable) = match bundle::model(header) {
            Ok(spec) => (Some(Model::of(&spec)), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let quality = QualityRecord::of(file).map_err(|e| e.to_string());
        Summary {
            file: file.path().display().to_string(),
            file_bytes: std::fs::metadata(file.path()).map_or(0, |m| m.len()),
            arch: header.arch.clone(),
            quant_scheme: header.quant_scheme.name().into(),
            quant_profile: header.quant_profile.clone(),
            min_hw: header.min_hw.clone(),
            target_backend: header.target_backend.name().into(),
            created: header.created.clone(),
            program_version: header.basert_version.clone(),
            basert_version: header.metadata.get(VERSION_KEY).and_then(Value::as_str).map(str::to_owned),
            source: header.source.clone(),
            flags: header.flags.to_string().split(" | ").map(str::to_owned).collect(),
            layers: header.config.get("num_hidden_layers").and_then(Value::as_u64),
            model,
            not_runnable,
            suspicious: suspicious(file),
            quality: quality.clone().ok().flatten(),
            quality_problem: quality.err(),
            tokenizer: header.tokenizer.get("tokenizer_type").map(|t| t.get().trim_matches('"').to_owned()),
            chat_template: has_chat_template(header),
            tensors: Group::of(header.tensors.iter()),
            dtypes: dtypes(file),
            mtp: Group::of(header.tensors.iter().filter(|t| t.name.starts_with("mtp."))),
            mmproj: header
                .mmproj
                .as_ref()
                .map(|m| MmProjGroup { arch: m.arch.clone(), group: Group::of(m.tensors.iter()) }),
            slots: slots(file),
            signature: header.sig.as_ref().map(|s| SignatureFacts {
                alg: s.alg.clone(),
                key_id: s.key_id.clone(),
                verified: false,
            }),
            metadata: header.metadata.clone(),
        }
    }

    pub fn quality_in_words(&self) -> String {
        match (&self.quality, &self.quality_problem) {
            (Some(record), _) => record_in_words(record),
            (None, Some(problem)) => problem.clone(),
            (None, None) if self.metadata.contains_key("basert.compat") => {
                "no record: the original's layout has no place for one".into()
            }
            (None, None) => "not checked when it was converted".into(),
        }
    }

    pub fn created_in_words(&self) -> String {
        match self.created.parse().ok().and_then(utc) {
            Some(date) => format!("{date} ({})", self.created),
            None => self.created.clone(),
        }
    }

    pub fn versions_in_words(&self) -> String {
        match &self.basert_version {
            Some(ours) => format!("written by basert {ours} (baserT_version {})", self.program_version),
            None => format!("written by another program (baserT_version {})", self.program_version),
        }
    }

    pub fn layers_in_words(&self) -> String {
        match (&self.model, self.layers) {
            (Some(model), _) => model.schedule.clone(),
            (None, Some(n)) => format!("{n}, of kinds that this version does not know"),
            (None, None) => "not declared".into(),
        }
    }

    pub fn tokenizer_in_words(&self) -> String {
        let template = if self.chat_template { "with chat template" } else { "without chat template" };
        self.tokenizer.as_ref().map_or("none".into(), |kind| format!("{kind}, {template}"))
    }

    pub fn signature_in_words(&self) -> String {
        match &self.signature {
            None => "not signed".into(),
            Some(s) => format!("signed with key '{}' ({}), not checked", s.key_id, s.alg),
        }
    }
}

impl Model {
    fn of(spec: &ModelSpec) -> Model {
        let attention: Vec<_> = spec.layers.iter().filter_map(|l| l.mixer.attention()).collect();
        Model {
            schedule: schedule::mixers(&spec.layers),
            feed_forward: schedule::feed_forward(&spec.layers),
            hidden: spec.hidden,
            vocab: spec.vocab,
            context: spec.max_context,
            kv_cache: KvCache {
                attention_layers: attention.len(),
                kv_heads: attention.first().map_or(0, |a| a.kv_heads),
                head_dim: attention.first().map_or(0, |a| a.head_dim),
                bytes_per_token_f16: spec.kv_bytes_per_token(ElementSize::F16, ElementSize::F16),
                bytes_per_token: widths(spec),
            },
            state_bytes_per_sequence: spec.state_bytes_per_sequence(),
        }
    }

    pub fn cache_in_words(&self) -> String {
        let KvCache { attention_layers, kv_heads, head_dim, bytes_per_token_f16, .. } = self.kv_cache;
        let state = match self.state_bytes_per_sequence {
            0 => String::new(),
            n => format!("; recurrent state {} per sequence", bytes(n)),
        };
        let narrow = |bits: &str| match self.kv_cache.bytes_per_token.get(bits).copied().flatten() {
            Some(n) => format!("; {bits}: {}", bytes(n)),
            None => format!("; {bits}: not with these heads"),
        };
        let narrow: String = NARROW.iter().map(|bits| narrow(bits)).collect();
        format!(
            "{} per token at f16 ({} x {} x {head_dim}, K and V){narrow}{state}",
            bytes(bytes_per_token_f16),
            count(attention_layers as u64, "layer"),
            count(kv_heads as u64, "head"),
        )
    }
}

/// Values of `--kv-bits` below 16.
const NARROW: [&str; 3] = ["8", "84", "4"];

/// Bytes of a token by `--kv-bits`.
fn widths(spec: &ModelSpec) -> BTreeMap<&'static str, Option<u64>> {
    let of = |bits| any_kv(bits).ok().filter(|kv| kv.fit(spec)).map(|kv| kv.bytes_per_token(spec));
    ["16"].into_iter().chain(NARROW).map(|bits| (bits, of(bits))).collect()
}

/// Templates have a key of their own, or stand in the tokenizer's configuration.
fn has_chat_template(header: &Header) -> bool {
    let config = header.tokenizer.get("tokenizer_config.json");
    header.tokenizer.contains_key("tokenizer.chat_template")
        || config.is_some_and(|config| config.get().contains("\"chat_template\":"))
}

fn dtypes(file: &BaseFile) -> Vec<DtypeGroup> {
    let totals = file.dtype_totals().into_iter();
    totals
        .map(|t| DtypeGroup {
            dtype: t.dtype.name(),
            group: Group { tensors: t.tensors as u64, bytes: t.bytes },
        })
        .collect()
}

fn slots(file: &BaseFile) -> Vec<Slot> {
    let slots = file.slots().iter();
    slots
        .map(|s| Slot {
            kind: s.kind.to_string(),
            required: s.flags.contains(SlotFlags::REQUIRED),
            bytes: s.payload_len() as u64,
        })
        .collect()
}

/// `2026-11-30 09:18:33 UTC` from Unix seconds; `None` beyond the year 9999.
/// Days to date by Howard Hinnant's `civil_from_days`.
fn utc(seconds: u64) -> Option<String> {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let mp = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    (year <= 9999).then(|| format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_seconds_as_dates() {
        let cases = [
            (0, Some("1970-01-01 00:00:00 UTC")),
            (951_782_399, Some("2000-02-28 23:59:59 UTC")),
            (951_782_400, Some("2000-02-29 00:00:00 UTC")),
            (1_796_027_613, Some("2026-11-30 08:33:33 UTC")),
            (4_107_542_400, Some("2100-03-01 00:00:00 UTC")),
            (u64::MAX, None),
        ];
        for (seconds, expected) in cases {
            assert_eq!(utc(seconds).as_deref(), expected, "{seconds}");
        }
    }
}
