//! What was selected at load: shown by `-v` and part of every `--json` result of a running model.

use basert_engine::{DraftSource, Engine, MemoryPlan, Selected, Speculation};
use serde_json::{Value, json};

use crate::units::{bytes, count};
use crate::{output, schedule};

/// Shows the notes of a load to a person, and everything else with `verbose`.
pub fn show(engine: &Engine, verbose: bool) {
    let selected = engine.selected();
    if verbose {
        for (label, text) in lines(engine) {
            output::say(&format!("{label:<12} {text}"));
        }
    }
    if verbose || output::stderr_is_terminal() {
        selected.notes.iter().for_each(|n| output::note(n));
    }
    // Less than what was asked for is never silent.
    selected.shrunk.iter().for_each(|n| output::note(n));
}

fn lines(engine: &Engine) -> Vec<(&'static str, String)> {
    let Selected { isa, threads, arch, weights, context, memory, .. } = engine.selected();
    let mut lines = vec![
        ("model", format!("{arch}: {}", schedule::mixers(&engine.spec().layers))),
        ("isa", isa.to_string()),
        ("threads", format!("{threads}{}", pinned(engine.selected()))),
    ];
    for total in weights {
        let tensors = count(total.tensors as u64, "tensor");
        lines.push(("weights", format!("{}: {tensors}, {}", total.dtype, bytes(total.bytes))));
    }
    lines.push(("kv cache", kv_cache(engine.selected())));
    if engine.selected().state_bytes > 0 {
        lines.push(("state", format!("{} per sequence", bytes(engine.selected().state_bytes))));
    }
    lines.push(("context", format!("{context} tokens")));
    lines.extend(speculation(&engine.selected().speculation).map(|text| ("speculative", text)));
    let parts = memory.parts().into_iter().filter(|part| part.1 > 0);
    let parts: Vec<String> = parts.map(|(name, n)| format!("{name} {}", bytes(n))).collect();
    lines.push(("memory", format!("{} = {}", bytes(memory.total()), parts.join(" + "))));
    lines
}

/// Where the threads are bound to, as words after their number; none if they are free.
pub fn pinned(selected: &Selected) -> String {
    let cpus: Vec<String> = selected.pinned.iter().map(usize::to_string).collect();
    if cpus.is_empty() { String::new() } else { format!(", pinned to CPU {}", cpus.join(", ")) }
}

/// The KV cache as it was allocated.
fn kv_cache(selected: &Selected) -> String {
    let Selected { kv, pools, page_tokens, .. } = selected;
    let layers = count(pools.layers as u64, "layer");
    let pages = count(pools.pages as u64, "page");
    let per_token = bytes(pools.bytes_per_token);
    format!("K {}, V {}, {pages} of {page_tokens} tokens, {per_token} per token in {layers}", kv.k, kv.v)
}

/// The same for scripts.
pub fn to_json(selected: &Selected) -> Value {
    let Selected { isa, threads, arch, weights, kv, pools, state_bytes, context, page_tokens, .. } = selected;
    let Selected { speculation, memory, notes, shrunk, pinned, .. } = selected;
    let weights: Vec<Value> = weights
        .iter()
        .map(|t| json!({"dtype": t.dtype.name(), "tensors": t.tensors, "bytes": t.bytes}))
        .collect();
    json!({
        "isa": isa.to_string(),
        "threads": threads,
        "pinned": pinned,
        "arch": arch.to_string(),
        "weights": weights,
        "k_type": kv.k.to_string(),
        "v_type": kv.v.to_string(),
        "kv_layers": pools.layers,
        "kv_pages": pools.pages,
        "kv_bytes": pools.bytes,
        "kv_bytes_per_token": pools.bytes_per_token,
        "state_bytes_per_sequence": state_bytes,
        "context": context,
        "page_tokens": page_tokens,
        "speculation": speculation_json(speculation),
        "memory": memory_json(memory),
        "notes": notes.iter().chain(shrunk).collect::<Vec<_>>(),
    })
}

/// How next tokens are guessed; null if they are not.
fn speculation_json(speculation: &Speculation) -> Value {
    let Speculation { most, adaptive, .. } = *speculation;
    if most == 0 {
        return Value::Null;
    }
    json!({"source": guesses_from(speculation), "most": most, "adaptive": adaptive})
}

/// Who guesses.
fn guesses_from(speculation: &Speculation) -> &'static str {
    match speculation.source {
        DraftSource::Best => "mtp",
        DraftSource::Text => "text",
    }
}

/// The same for people.
fn speculation(speculation: &Speculation) -> Option<String> {
    let Speculation { most, adaptive, .. } = *speculation;
    let up_to = if adaptive { "as many tokens as pay, up to " } else { "" };
    let source = match speculation.source {
        DraftSource::Best => "the model's prediction head (mtp)",
        DraftSource::Text => "earlier text",
    };
    (most > 0).then(|| format!("{up_to}{most} at a time, guessed by {source}"))
}

/// A memory plan for scripts.
pub fn memory_json(memory: &MemoryPlan) -> Value {
    json!({
        "weights_mapped": memory.weights_mapped,
        "weights_held": memory.weights_held,
        "weights_decoded": memory.weights_decoded,
        "kv": memory.kv,
        "kv_keys": memory.kv_keys,
        "kv_values": memory.kv - memory.kv_keys,
        "state": memory.state,
        "prefix_kv": memory.prefix_kv,
        "snapshots": memory.snapshots,
        "workspace": memory.workspace,
        "logits": memory.logits,
        "scratch": memory.scratch,
        "drafts": memory.drafts,
        "total": memory.total(),
    })
}
