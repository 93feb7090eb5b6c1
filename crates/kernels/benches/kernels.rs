//! Speed of the kernels as shares of what the machine can do, measured in the same run.
//!
//! `cargo bench -p basert-kernels -- [-t THREADS] [WORD…]` runs the cases whose names contain one of the words, or all.
//! Decoding is held against a loop that reads the weights, everything else against multiply-adds in registers. Every
//! case alternates with its limit, and the best of each counts: what disturbs a measurement only ever slows it down.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::{Duration, Instant};

use basert_kernels::{
    Buffer, Cpu, DeltaScratch, DeltaShape, Isa, KvDtype, KvGeometry, LinearJob, Matrix, Product, Scratch,
};
use basert_quant::{Encoding, FloatDtype, Fp4, GgmlType, ScaleDtype};

/// Columns of the matrices, and rows of those that fit a cache.
const COLS: usize = 2048;
const ROWS: usize = 1024;

/// Bytes that fit no cache.
const LARGE: usize = 384 << 20;

/// Tokens of a prompt.
const PROMPT: usize = 256;

/// How long a case is measured.
const TIME: Duration = Duration::from_millis(400);

/// Seconds of one call of each: the best of several, taken in turns after a warm-up.
fn seconds<const N: usize>(mut calls: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut best = [f64::INFINITY; N];
    calls.iter_mut().for_each(|call| call());
    let begin = Instant::now();
    while begin.elapsed() < TIME * N as u32 {
        for (call, best) in calls.iter_mut().zip(&mut best) {
            let turn = Instant::now();
            while turn.elapsed() < TIME / 20 {
                let start = Instant::now();
                call();
                *best = best.min(start.elapsed().as_secs_f64());
            }
        }
    }
    best
}

fn floats(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.0).collect()
}

/// What is measured, and which cases.
struct Bench {
    cpu: Cpu,
    words: Vec<String>,
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word.as_str()))
    }

    /// Multiply-adds per second of the call, and its share of the machine's.
    fn multiply(&self, product: Product, count: usize, call: &mut dyn FnMut()) -> (f64, f64) {
        let mut done = 0;
        let [time, limit] = seconds([call, &mut || done = self.cpu.multiply(product, 20_000)]);
        let speed = count as f64 / time;
        (speed / 1e9, speed / (done as f64 / limit))
    }

    fn linears(&self) {
        for (name, encoding) in encodings() {
            let (decode, prefill) = (format!("decode/{name}"), format!("prefill/{name}"));
            let few = format!("few/3/{name}");
            if ![&decode, &prefill, &few].into_iter().any(|name| self.wants(name)) {
                continue;
            }
            let (rows, payload) = large_payload(encoding);
            let w = Matrix::new(encoding, rows, COLS, &payload).unwrap();
            if self.wants(&decode) {
                self.decode(&decode, w, &payload);
            }
            for tokens in [2, 3, 4, 8] {
                self.few(&format!("few/{tokens}/{name}"), tokens, w);
            }
            if self.wants(&prefill) {
                let product =
                    if matches!(encoding, Encoding::Float(_)) { Product::Floats } else { Product::Bytes };
                let mut call = Linear::new(w.slice_rows(0..ROWS), PROMPT);
                let (speed, share) =
                    self.multiply(product, PROMPT * ROWS * COLS, &mut || call.run(&self.cpu));
                println!("{prefill:24} {speed:8.1} GMAC/s  {:5.1} % of multiplying", share * 100.0);
            }
        }
    }

    fn decode(&self, name: &str, w: Matrix<'_>, payload: &[u8]) {
        let mut large = Linear::new(w, 1);
        let mut small = Linear::new(w.slice_rows(0..ROWS), 1);
        let [time, read, near] = seconds([
            &mut || large.run(&self.cpu),
            &mut || {
                std::hint::black_box(self.cpu.read(&[payload]));
            },
            &mut || small.run(&self.cpu),
        ]);
        let speed = payload.len() as f64 / time / 1e9;
        let cached = payload.len() as f64 * ROWS as f64 / w.rows as f64 / near / 1e9;
        println!(
            "{name:24} {speed:8.2} GB/s    {:5.1} % of reading; {cached:6.2} GB/s from the cache",
            read / time * 100.0
        );
    }

    /// Some tokens against one.
    fn few(&self, name: &str, tokens: usize, w: Matrix<'_>) {
        if !self.wants(name) {
            return;
        }
        let near = w.slice_rows(0..ROWS);
        let mut calls =
            [(w, 1), (w, tokens), (near, 1), (near, tokens)].map(|(w, tokens)| Linear::new(w, tokens));
        let [one, some, near_one, near_some] = {
            let [a, b, c, d] = &mut calls;
            let cpu = &self.cpu;
            seconds([&mut || a.run(cpu), &mut || b.run(cpu), &mut || c.run(cpu), &mut || d.run(cpu)])
        };
        let (far, near) = (some / one, near_some / near_one);
        println!("{name:24} {far:8.2} times the time of one token; {near:6.2} from the cache");
    }

    fn attention(&self) {
        let kinds = [
            ("f32", KvDtype::F32, KvDtype::F32),
            ("f16", KvDtype::F16, KvDtype::F16),
            ("bf16", KvDtype::Bf16, KvDtype::Bf16),
            ("q8", KvDtype::Q8, KvDtype::Q8),
            ("q8-q4", KvDtype::Q8, KvDtype::Q4),
            ("q4", KvDtype::Q4, KvDtype::Q4),
        ];
        let (long, dense) = ((2, 256, 8), (8, 128, 16));
        let cases = [(long, 4096, 1), (long, 16384, 1), (long, 4096, 64), (dense, 512, 512)];
        for ((kv_heads, head_dim, heads), depth, tokens) in cases {
            for (kind, k_type, v_type) in kinds {
                let name = format!("attention/{depth}/{tokens}/{kind}");
                if !self.wants(&name) {
                    continue;
                }
                let geo = KvGeometry { kv_heads, head_dim, page_tokens: depth, k: k_type, v: v_type };
                let (mut k, mut v) =
                    (Buffer::zeroed(geo.page_bytes(k_type)), Buffer::zeroed(geo.page_bytes(v_type)));
                let x = floats(depth * kv_heads * head_dim);
                self.cpu.store_kv(&geo, &mut k, &mut v, &[0], 0, &x, &x);
                let q = floats(tokens * heads * head_dim);
                let mut out = vec![0.0; q.len()];
                let first = depth - tokens;
                let mut call = || self.cpu.attention(&geo, &k, &v, &[0], first, &q, heads, 0.1, &mut out);
                let count = 2 * heads * head_dim * (first + 1..=depth).sum::<usize>();
                let (speed, share) = self.multiply(Product::Floats, count, &mut call);
                println!("{name:24} {speed:8.1} GMAC/s  {:5.1} % of multiplying", share * 100.0);
            }
        }
    }

    fn delta(&self) {
        let heads = 16;
        let shape = DeltaShape { key_heads: heads, value_heads: heads, key_dim: 128, value_dim: 128 };
        let state_len = heads * 128 * 128;
        for (name, tokens, states) in [
            ("delta/1", 1, 1),
            ("delta/1/memory", 1, LARGE / size_of::<f32>() / state_len),
            ("delta/2/memory", 2, LARGE / size_of::<f32>() / state_len),
            ("delta/64", 64, 1),
        ] {
            if !self.wants(name) {
                continue;
            }
            let (qkv, gates) = (floats(tokens * shape.qkv_width()), floats(tokens * heads));
            let decay = vec![-0.5; heads];
            let mut memory = vec![0.5; states * state_len];
            let mut states = (0..states).cycle();
            let mut out = vec![0.0; tokens * shape.value_width()];
            let mut scratch = DeltaScratch::default();
            let [time] = seconds([&mut || {
                let state = &mut memory[states.next().unwrap() * state_len..][..state_len];
                #[rustfmt::skip]
                self.cpu.gated_delta(
                    &shape, &mut scratch, &qkv, &gates, &gates, &decay, &decay, state, tokens, &mut out,
                );
            }]);
            println!("{name:24} {:8.3} us per token and head", time * 1e6 / (tokens * heads) as f64);
        }
    }

    /// What surrounds the matrices of a step of one token.
    fn small(&self) {
        let weight = floats(COLS);
        let (mut x, mut y) = (floats(COLS), floats(3 * COLS));
        let up = floats(3 * COLS);
        self.time("small/norm", &mut || self.cpu.rms_norm_inplace(&mut x, &weight, 1e-6));
        self.time("small/silu-mul", &mut || self.cpu.silu_mul_inplace(&mut y, &up));
        let (channels, taps) = (3 * COLS, floats(4 * 3 * COLS));
        let (input, mut window, mut out) = (floats(channels), floats(3 * channels), vec![0.0; channels]);
        self.time("small/convolution", &mut || {
            self.cpu.conv1d_silu(&input, &taps, &mut window, 1, &mut out);
        });
        self.time("small/barrier", &mut || {
            self.cpu.multiply(Product::Bytes, 0);
        });
        let encoding = affine(4, 64);
        let (_, payload) = part(encoding, 16);
        let mut call = Linear::new(Matrix::new(encoding, 16, COLS, &payload).unwrap(), 1);
        self.time("small/quantize+16-rows", &mut || call.run(&self.cpu));
    }

    fn time(&self, name: &str, call: &mut dyn FnMut()) {
        if self.wants(name) {
            let [time] = seconds([call]);
            println!("{name:24} {:8.3} us", time * 1e6);
        }
    }
}

/// A linear layer and its operands.
struct Linear<'a> {
    w: Matrix<'a>,
    x: Vec<f32>,
    out: Vec<f32>,
    scratch: Scratch,
}

impl<'a> Linear<'a> {
    fn new(w: Matrix<'a>, tokens: usize) -> Linear<'a> {
        Linear { w, x: floats(tokens * w.cols), out: vec![0.0; tokens * w.rows], scratch: Scratch::default() }
    }

    fn run(&mut self, cpu: &Cpu) {
        cpu.linear(&mut self.scratch, &self.x, &mut [LinearJob { w: self.w, out: &mut self.out }]);
    }
}

fn affine(bits: u32, group: usize) -> Encoding {
    Encoding::Affine { bits, group, scale: ScaleDtype::F16, symmetric: false }
}

fn encodings() -> Vec<(String, Encoding)> {
    let widths = [(2, 64), (3, 64), (4, 32), (4, 64), (4, 128), (5, 64), (6, 64), (8, 32), (8, 64), (8, 128)];
    let mut all: Vec<_> =
        widths.map(|(bits, group)| (format!("q{bits}/{group}"), affine(bits, group))).into();
    let others = [
        ("q4_k", Encoding::Super(GgmlType::Q4K)),
        ("q6_k", Encoding::Super(GgmlType::Q6K)),
        ("mxfp4", Encoding::Fp4(Fp4::Mx)),
        ("nvfp4", Encoding::Fp4(Fp4::Nv)),
        ("f16", Encoding::Float(FloatDtype::F16)),
        ("bf16", Encoding::Float(FloatDtype::Bf16)),
        ("f32", Encoding::Float(FloatDtype::F32)),
    ];
    all.extend(others.map(|(name, encoding)| (name.to_owned(), encoding)));
    all
}

/// A payload of some rows.
fn part(encoding: Encoding, rows: usize) -> (usize, Vec<u8>) {
    let mut part = Vec::new();
    match encoding {
        // They cannot be encoded here, and speed does not depend on the numbers.
        Encoding::Super(_) => {
            let length = encoding.payload_len((rows * COLS) as u64).unwrap();
            part.extend((0..length).map(|i| (i * 37 % 64) as u8));
        }
        _ => encoding.encode(&floats(rows * COLS), &mut part).unwrap(),
    }
    (rows, part)
}

/// A payload that no cache holds: some rows over and over. Returns its rows.
fn large_payload(encoding: Encoding) -> (usize, Vec<u8>) {
    let (rows, part) = part(encoding, ROWS);
    let regions = encoding.regions((rows * COLS) as u64).unwrap();
    let copies = LARGE / part.len() + 1;
    let mut payload = Vec::with_capacity(copies * part.len());
    let mut rest = &part[..];
    for len in [regions.codes, regions.scales, regions.biases] {
        let (region, later) = rest.split_at(len as usize);
        (0..copies).for_each(|_| payload.extend_from_slice(region));
        rest = later;
    }
    (copies * rows, payload)
}

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    let (mut threads, mut words, mut asked) = (1, Vec::new(), false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => asked = true,
            "-t" => threads = arguments.next().unwrap().parse().unwrap(),
            _ => words.push(argument),
        }
    }
    // `cargo test` runs benches too, without that flag.
    if !asked {
        return;
    }
    let isa = Isa::from_env().unwrap().unwrap_or_else(Isa::best);
    let bench = Bench { cpu: Cpu::new(isa, threads).unwrap(), words };
    println!("{:?}", bench.cpu);
    bench.linears();
    bench.attention();
    bench.delta();
    bench.small();
}
