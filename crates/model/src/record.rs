//! Records of KV-cache efficiency: a model's bytes per token with the derivation, the numbers substituted, and what was not
//! measured left null.

use serde_json::{Value, json};

use crate::footprint::{Footprint, KeyValues, State};
use crate::plan::ElementSize;

/// A type of cached elements by its name.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Such as `f16` or `q8`.
    pub name: &'static str,
    /// Bytes of its blocks.
    pub size: ElementSize,
}

/// What a record is about.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Short name, e.g. `qwen3.5-35b-a3b`.
    pub id: String,
    /// Published name, or the id.
    pub name: String,
    /// Where the geometry comes from.
    pub sources: Vec<String>,
    /// How far it can be trusted, as a letter and in words.
    pub verification: String,
    /// Draft layers beside the trunk, if known.
    pub draft_layers: Option<u64>,
}

const METHODOLOGY: &str = "derived from the geometry, nothing timed; bytes are those that BaseRT allocates or would allocate for one \
sequence, block metadata included; weights, workspace and draft layers are left out; engine_id names the engine whose block formats \
were used";

const MEASURED: &str = "sizes are derived from the geometry: bytes are those that BaseRT allocates for one sequence, block metadata \
included; weights, workspace and draft layers are left out. Memory and speed were measured with engine_id on the machine named: the \
cache was allocated and filled with arbitrary keys and values to the end of context_length, in the types that the pools were \
allocated with; measured_memory_gb (10^9 bytes) is the growth of the process's resident memory meanwhile, \
measured_decode_tok_s the inverse of the median time of the last 9 tokens of the context, one sequence";

/// What was found by allocating, filling and timing a cache.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Growth of the process while the cache was filled, in bytes, if the system says.
    pub memory_bytes: Option<u64>,
    /// Tokens per second at the end of the context.
    pub decode_tok_s: f64,
    /// Types of the allocated pools.
    pub allocated: [&'static str; 2],
    /// Processor, threads, instruction set.
    pub machine: String,
}

/// The record of `footprint` with keys and values of these types, stated at `context` tokens. What was not measured is null.
pub fn kv_record(
    subject: &Subject,
    footprint: &Footprint,
    (k, v): (Format, Format),
    context: u64,
    measured: Option<&Measured>,
) -> Value {
    let thousandths = |x: f64| (x * 1000.0).round() / 1000.0;
    let memory = measured.and_then(|measured| measured.memory_bytes);
    let formats = |measured: &Measured| json!({"requested": [k.name, v.name], "allocated": measured.allocated, "equal": measured.allocated == [k.name, v.name]});
    let per_token = footprint.bytes_per_token(k.size, v.size);
    let full_stack = footprint.full_stack_bytes_per_token(k.size, v.size);
    let windowed = footprint.window.map(|window| window.kv.bytes(k.size, v.size) * window.tokens);
    let draft = subject.draft_layers.filter(|_| footprint.full.layers > 0);
    json!({
        "id": id(subject, footprint, k, v, context),
        "type": "kv_efficiency",
        "model": {"id": subject.id, "name": subject.name},
        "kv_bytes_per_token": per_token,
        "kv_bytes_basis": basis(footprint, k, v),
        "full_stack_bytes_per_token": full_stack,
        "baseline_basis": baseline(footprint, k, v),
        "reduction_vs_full_attention": (footprint.reduction() * 1000.0).round() / 1000.0,
        "context_length": context,
        "kv_gib": gib(footprint.kv_bytes(context, k.size, v.size)),
        "full_stack_gib": gib(full_stack.saturating_mul(context)),
        "cache_layers": footprint.full.layers + footprint.window.map_or(0, |window| window.kv.layers),
        "k_format": format_json(k),
        "v_format": if footprint.is_latent() { Value::Null } else { format_json(v) },
        "state_bytes_per_sequence": footprint.state.bytes(),
        "state_format": "f32",
        "state_is_complete": !matches!(footprint.state, State::Unverified | State::Known { conv: None, .. }),
        "sliding_cap_bytes": windowed,
        "mtp_kv_bytes_per_token": draft.map(|layers| one_layer(footprint).bytes(k.size, v.size) * layers),
        "geometry_source": subject.sources,
        "geometry_verification": subject.verification,
        "methodology": if measured.is_some() { MEASURED } else { METHODOLOGY },
        "measured_memory_gb": memory.map(|bytes| thousandths(bytes as f64 / 1e9)),
        "measured_decode_tok_s": measured.map(|measured| thousandths(measured.decode_tok_s)),
        "measured_on": measured.map(|measured| &measured.machine),
        "requested_vs_actual": measured.map(formats),
        "engine_id": "basert",
    })
}

/// `kv-efficiency/<model>-<mechanism>-<context>`.
fn id(subject: &Subject, footprint: &Footprint, k: Format, v: Format, context: u64) -> String {
    let mechanism = match (footprint.is_latent(), footprint.window.is_some(), footprint.state) {
        (true, _, State::None) => "mla",
        (true, ..) => "hybrid-mla",
        (_, true, _) => "sliding",
        (_, _, State::None) => "full",
        _ => "hybrid",
    };
    let formats = match (k.name == v.name || footprint.is_latent(), k.name) {
        (true, "f16") => String::new(),
        (true, name) => format!("-{name}"),
        (false, name) => format!("-{name}-{}", v.name),
    };
    let length =
        if context.is_multiple_of(1024) { format!("{}k", context / 1024) } else { context.to_string() };
    let slug = |text: &str| text.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    format!("kv-efficiency/{}-{mechanism}-kv{formats}-{length}", slug(&subject.id))
}

/// The derivation of the bytes of a token, with its numbers.
pub fn basis(footprint: &Footprint, k: Format, v: Format) -> String {
    let mut text = product(footprint.full, footprint.bytes_per_token(k.size, v.size), k, v);
    if let Some(window) = footprint.window {
        let bytes = window.kv.bytes(k.size, v.size);
        text += &format!(
            "; and, for the last {} tokens only, {}",
            window.tokens,
            product(window.kv, bytes, k, v)
        );
    }
    match footprint.state {
        State::None => {}
        State::Unverified => text += "; the recurrent state is not verified",
        State::Known { layers, recurrent, conv } => {
            let conv = conv.map_or("a convolution tail that is not verified".to_owned(), |n| n.to_string());
            text += &format!(
                "; and once per sequence {layers} recurrent layers x ({recurrent} + {conv}) elements x 4 bytes = {}",
                footprint.state.bytes().unwrap_or(0)
            );
        }
    }
    text
}

fn baseline(footprint: &Footprint, k: Format, v: Format) -> String {
    let layers = footprint.mixing_layers + footprint.windowed_layers;
    format!(
        "all {layers} layers that mix tokens keep every token, each with its own heads: {} bytes per token",
        footprint.full_stack_bytes_per_token(k.size, v.size)
    )
}

fn product(kv: KeyValues, bytes: u64, k: Format, v: Format) -> String {
    let side = |dim: u64, format: Format| {
        let ElementSize { bytes, per } = format.size;
        match per {
            1 => format!("{dim} elements x {bytes} bytes"),
            _ => format!("{} blocks of {per} x {bytes} bytes", dim.div_ceil(per)),
        }
    };
    let KeyValues { layers, heads, k_dim, v_dim } = kv;
    match v_dim {
        0 => format!(
            "{layers} layers x one latent row ({} {}) = {bytes} bytes per token",
            side(k_dim, k),
            k.name
        ),
        _ => format!(
            "{layers} layers x {heads} KV heads x (K {} {} + V {} {}) = {bytes} bytes per token",
            side(k_dim, k),
            k.name,
            side(v_dim, v),
            v.name
        ),
    }
}

fn one_layer(footprint: &Footprint) -> KeyValues {
    KeyValues { layers: 1, ..footprint.full }
}

fn format_json(format: Format) -> Value {
    json!({"name": format.name, "block_elements": format.size.per, "block_bytes": format.size.bytes})
}

/// Exact for sizes that are whole parts of a GiB.
fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}
