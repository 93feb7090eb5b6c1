//! `basert inspect`: what a bug report needs to say about a file.

mod summary;

use std::fmt::Write;

use basert_format::{BaseFile, TensorView};
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::failure::Outcome;
use crate::units::{bytes, count};
use crate::{bundle, output, verify};
use summary::{Group, Summary};

/// Runs the command.
pub fn run(args: &InspectArgs) -> Outcome {
    let file = bundle::open(&args.file)?;
    let summary = Summary::of(&file);
    let verified = if args.verify_checksums { Some(verify::checksums(&file)) } else { None };
    if args.json {
        output::print_json(&to_json(&file, &summary, args.tensors, verified.as_ref()))?;
    } else {
        let mut text = in_words(&summary);
        if args.tensors {
            text.push_str(&table(&file));
        }
        if let Some(Ok(())) = &verified {
            text.push_str("checksums       all correct\n");
        }
        output::print(&text)?;
    }
    verified.unwrap_or(Ok(()))
}

fn in_words(s: &Summary) -> String {
    let mut out = String::new();
    let mut line = |label: &str, text: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{:<15} {}", output::escaped(label), output::escaped(&text));
    };
    line("file", format!("{} ({})", s.file, bytes(s.file_bytes)));
    line("arch", s.arch.clone());
    line("quant scheme", s.quant_scheme.clone());
    if !s.quant_profile.is_empty() {
        line("quant profile", s.quant_profile.clone());
    }
    line("source", format!("{} ({})", s.source.filename, s.source.format));
    line("created", s.created_in_words());
    line("versions", s.versions_in_words());
    line("target", format!("{} (smallest machine {})", s.target_backend, s.min_hw));
    line("flags", s.flags.join(" | "));
    line("layers", s.layers_in_words());
    if let Some(model) = &s.model {
        line("feed-forward", model.feed_forward.clone());
        line("size", format!("hidden {}, vocabulary {}", model.hidden, model.vocab));
        line("context", model.context.map_or("not declared".into(), |n| format!("{n} tokens")));
        line("kv cache", model.cache_in_words());
    }
    if let Some(reason) = &s.not_runnable {
        line("not runnable", reason.clone());
    }
    if let Some(problem) = &s.suspicious {
        line("suspicious", problem.clone());
    }
    line("quality", s.quality_in_words());
    line("tokenizer", s.tokenizer_in_words());
    line("tensors", group(&s.tensors));
    if s.mtp.tensors > 0 {
        line("of those mtp", group(&s.mtp));
    }
    for part in &s.dtypes {
        line(&format!("  {}", part.dtype), group(&part.group));
    }
    if let Some(mmproj) = &s.mmproj {
        line("mmproj", format!("{} ({})", group(&mmproj.group), mmproj.arch));
    }
    line("slots", if s.slots.is_empty() { "none".into() } else { count(s.slots.len() as u64, "slot") });
    for slot in &s.slots {
        let required = if slot.required { ", required" } else { "" };
        line(&format!("  {}", slot.kind), format!("{}{required}", bytes(slot.bytes)));
    }
    line("signature", s.signature_in_words());
    for (key, value) in s.metadata.iter().filter(|(key, _)| !key.starts_with("quality.")) {
        line("metadata", format!("{key} = {value}"));
    }
    out
}

fn group(g: &Group) -> String {
    format!("{}, {} ({} bytes)", count(g.tensors, "tensor"), bytes(g.bytes), g.bytes)
}

/// One line per tensor, main tensors first.
fn table(file: &BaseFile) -> String {
    let tensors: Vec<TensorView> = file.tensors().chain(file.mmproj_tensors()).collect();
    let width = tensors.iter().map(|t| t.entry.name.len()).max().unwrap_or(0);
    let mut out = String::from("\n");
    for t in &tensors {
        let shape: Vec<String> = t.shape.iter().map(u64::to_string).collect();
        let shape = format!("[{}]", shape.join(", "));
        let (name, dtype, length) = (&t.entry.name, t.entry.dtype().name(), t.entry.length);
        let row = format!("{name:<width$}  {dtype:<8}  {shape:<20}  {length:>12}  {}", grouping(t));
        out.push_str(&output::escaped(row.trim_end()));
        out.push('\n');
    }
    out.push('\n');
    out
}

/// `group 64, bf16 scales`; empty for floats.
fn grouping(t: &TensorView) -> String {
    let group = t.entry.group_size.map(|g| format!("group {g}"));
    let scale = t.entry.scale_dtype.map(|s| format!("{s} scales"));
    [group, scale].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn to_json(file: &BaseFile, summary: &Summary, tensors: bool, verified: Option<&Outcome>) -> Value {
    let mut object = json!(summary);
    if tensors {
        object["tensor_list"] = file.tensors().map(|t| tensor_json(&t, false)).collect();
        let mmproj: Vec<Value> = file.mmproj_tensors().map(|t| tensor_json(&t, true)).collect();
        if let Some(list) = object["tensor_list"].as_array_mut() {
            list.extend(mmproj);
        }
    }
    if let Some(result) = verified {
        object["checksums_correct"] = json!(result.is_ok());
    }
    object
}

fn tensor_json(t: &TensorView, mmproj: bool) -> Value {
    json!({
        "name": t.entry.name,
        "dtype": t.entry.dtype().name(),
        "shape": t.shape,
        "offset": t.entry.offset,
        "bytes": t.entry.length,
        "group_size": t.entry.group_size,
        "scale_dtype": t.entry.scale_dtype.map(|s| s.to_string()),
        "xxh64": format!("{:016x}", t.entry.checksum_xxh64),
        "mmproj": mmproj,
    })
}
