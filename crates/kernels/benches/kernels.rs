//! Speed of the kernels as ratios: against the reference, and against a loop that only reads the weights.
//!
//! `cargo bench -p basert-kernels`. Absolute numbers depend on the machine; the ratio to the read loop says how far
//! decoding is from the memory's limit.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use basert_kernels::{
    Buffer, Cpu, DeltaScratch, DeltaShape, Isa, KvDtype, KvGeometry, LinearJob, Matrix, Scratch,
    default_threads,
};
use basert_quant::{Encoding, FloatDtype, Fp4, GgmlType, ScaleDtype};

/// Rows and columns of a matrix whose activations and outputs fit the caches.
const ROWS: usize = 1024;
const COLS: usize = 2048;

/// Bytes that fit no cache.
const LARGE: usize = 128 << 20;

/// Seconds of one call: the best of several after a warm-up.
fn seconds(mut call: impl FnMut()) -> f64 {
    call();
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 0.3 {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn floats(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.0).collect()
}

/// Bytes per second of reading `bytes` on all of the device's threads' behalf: one plain loop per thread.
fn read_speed(bytes: &[u8], threads: usize) -> f64 {
    let time = seconds(|| {
        std::thread::scope(|scope| {
            for part in bytes.chunks(bytes.len().div_ceil(threads)) {
                scope.spawn(move || {
                    let words = part.as_chunks::<8>().0;
                    black_box(
                        words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))),
                    );
                });
            }
        });
    });
    bytes.len() as f64 / time
}

fn linear(cpu: &Cpu, w: Matrix<'_>, tokens: usize) -> f64 {
    let (x, mut out) = (floats(tokens * w.cols), vec![0.0; tokens * w.rows]);
    let mut scratch = Scratch::default();
    seconds(|| cpu.linear(&mut scratch, &x, &mut [LinearJob { w, out: &mut out }]))
}

fn linears(fast: &Cpu, plain: &Cpu) {
    let affine = |bits, group| Encoding::Affine { bits, group, scale: ScaleDtype::F16, symmetric: false };
    let cases = [
        ("q2/32", affine(2, 32)),
        ("q3/32", affine(3, 32)),
        ("q4/32", affine(4, 32)),
        ("q4/64", affine(4, 64)),
        ("q5/64", affine(5, 64)),
        ("q6/64", affine(6, 64)),
        ("q8/32", affine(8, 32)),
        ("q8/128", affine(8, 128)),
        ("q4_k", Encoding::Super(GgmlType::Q4K)),
        ("q6_k", Encoding::Super(GgmlType::Q6K)),
        ("mxfp4", Encoding::Fp4(Fp4::Mx)),
        ("nvfp4", Encoding::Fp4(Fp4::Nv)),
        ("f16", Encoding::Float(FloatDtype::F16)),
        ("bf16", Encoding::Float(FloatDtype::Bf16)),
        ("f32", Encoding::Float(FloatDtype::F32)),
    ];
    for (name, encoding) in cases {
        let (rows, payload) = large_payload(encoding);
        let w = Matrix::new(encoding, rows, COLS, &payload).unwrap();
        let few = w.slice_rows(0..ROWS);
        let (one, many, single) = (linear(fast, w, 1), linear(fast, few, 128), linear(fast, few, 1));
        let reference = linear(plain, few, 1);
        let speed = payload.len() as f64 / one;
        println!(
            "{name:8} decode {:5.1} GB/s, {:4.2} of a read loop, {:5.1}x reference; 128 tokens {:6.1} GMAC/s, {:4.1}x decode",
            speed / 1e9,
            speed / read_speed(&payload, fast.threads()),
            reference / single,
            (128 * ROWS * COLS) as f64 / many / 1e9,
            128.0 * one * ROWS as f64 / rows as f64 / many,
        );
    }
}

/// A payload that no cache holds: some rows over and over. Returns its rows.
fn large_payload(encoding: Encoding) -> (usize, Vec<u8>) {
    let mut part = Vec::new();
    match encoding {
        // They cannot be encoded here, and speed does not depend on the numbers.
        Encoding::Super(_) => {
            let length = encoding.payload_len((ROWS * COLS) as u64).unwrap();
            part.extend((0..length).map(|i| (i * 37 % 64) as u8));
        }
        _ => encoding.encode(&floats(ROWS * COLS), &mut part).unwrap(),
    }
    let regions = encoding.regions((ROWS * COLS) as u64).unwrap();
    let copies = LARGE / part.len() + 1;
    let mut payload = Vec::with_capacity(copies * part.len());
    let mut rest = &part[..];
    for len in [regions.codes, regions.scales, regions.biases] {
        let (region, later) = rest.split_at(len as usize);
        (0..copies).for_each(|_| payload.extend_from_slice(region));
        rest = later;
    }
    (copies * ROWS, payload)
}

fn attention(cpu: &Cpu, plain: &Cpu) {
    for dtype in KvDtype::ALL {
        let geo = KvGeometry { kv_heads: 2, head_dim: 128, page_tokens: 32, k: dtype, v: dtype };
        let (heads, context) = (16, 4096);
        let pages: Vec<u32> = (0..context / 32).collect();
        let pool = || Buffer::zeroed(pages.len() * geo.page_bytes(dtype));
        let (mut k, mut v) = (pool(), pool());
        let x = floats(context as usize * 2 * 128);
        let store = seconds(|| cpu.store_kv(&geo, &mut k, &mut v, &pages, 0, &x, &x));
        println!("{dtype:4} store: {:.0} M elements/s", 2.0 * x.len() as f64 / store / 1e6);
        for tokens in [1, 64] {
            let q = floats(tokens * heads * 128);
            let mut out = vec![0.0; q.len()];
            let first = context as usize - tokens;
            let mut time =
                |cpu: &Cpu| seconds(|| cpu.attention(&geo, &k, &v, &pages, first, &q, heads, 0.1, &mut out));
            let (fast, reference) = (time(cpu), time(plain));
            let macs = (2 * tokens * heads * 128 * context as usize) as f64;
            println!(
                "{dtype:4} attention over {context}, {tokens:2} tokens: {:.1} GMAC/s, {:.1}x reference",
                macs / fast / 1e9,
                reference / fast
            );
        }
    }
}

fn delta(cpu: &Cpu, plain: &Cpu) {
    let shape = DeltaShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128 };
    for tokens in [1, 64] {
        let qkv = floats(tokens * shape.qkv_width());
        let gates = floats(tokens * 32);
        let decay = vec![-0.5; 32];
        let mut state = vec![0.0; 32 * 128 * 128];
        let mut out = vec![0.0; tokens * shape.value_width()];
        let mut scratch = DeltaScratch::default();
        let mut time = |cpu: &Cpu| {
            seconds(|| {
                cpu.gated_delta(
                    &shape,
                    &mut scratch,
                    &qkv,
                    &gates,
                    &gates,
                    &decay,
                    &decay,
                    &mut state,
                    &mut out,
                );
            })
        };
        let (fast, reference) = (time(cpu), time(plain));
        println!(
            "gated delta, {tokens:2} tokens: {:.2} us per token and head, {:.1}x reference",
            fast * 1e6 / (tokens * 32) as f64,
            reference / fast
        );
    }
}

fn main() {
    // `cargo test` runs benches too, with this flag missing.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let threads = default_threads();
    let fast = Cpu::new(Isa::from_env().unwrap().unwrap_or_else(Isa::best), threads).unwrap();
    let plain = Cpu::new(Isa::Reference, threads).unwrap();
    println!("{fast:?}");
    linears(&fast, &plain);
    attention(&fast, &plain);
    delta(&fast, &plain);
}
