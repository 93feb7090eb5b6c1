//! Attention over paged caches.

use std::ops::Range;

use super::*;
use crate::reference::attention::SEGMENT;
use crate::reference::kv::{StoreKv, cached, store_kv};
use crate::{Buffer, KvDtype, KvGeometry};

/// One sequence: queries, keys and values of all its tokens.
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    types: (KvDtype, KvDtype),
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// The pools of one layer with one sequence in them.
struct Cache {
    geo: KvGeometry,
    pages: Vec<u32>,
    k: Buffer,
    v: Buffer,
}

/// Types of K and V of a head width: all pairs of neighbours in a list, so that each is met as K and as V.
fn types(head_dim: usize) -> Vec<(KvDtype, KvDtype)> {
    let fitting: Vec<KvDtype> = KvDtype::ALL.into_iter().filter(|dtype| dtype.fits(head_dim)).collect();
    let next = |i: usize| fitting[(i + 1) % fitting.len()];
    fitting.iter().enumerate().map(|(i, dtype)| (*dtype, next(i))).collect()
}

/// What is read back of a row.
fn stored(dtype: KvDtype, x: &[f32]) -> Vec<f32> {
    let mut row = vec![0; dtype.row_bytes(x.len())];
    store_kv(StoreKv { dtype, x, out: &mut row });
    (0..x.len()).map(|i| cached(dtype, &row, i)).collect()
}

impl Case {
    fn new(heads: usize, kv_heads: usize, head_dim: usize, tokens: usize, seed: u64) -> Case {
        let types = types(head_dim);
        let mut rng = Rng::new(seed);
        Case {
            heads,
            kv_heads,
            head_dim,
            types: types[seed as usize % types.len()],
            q: rng.spread(tokens * heads * head_dim),
            k: rng.floats(tokens * kv_heads * head_dim),
            v: rng.floats(tokens * kv_heads * head_dim),
        }
    }

    fn tokens(&self) -> usize {
        self.q.len() / (self.heads * self.head_dim)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Outputs of all tokens, fed in chunks, on pages of `page_tokens` in scrambled order.
    fn run(&self, cpu: &Cpu, page_tokens: usize, chunks: &[usize]) -> Vec<f32> {
        let mut cache = self.cache(page_tokens);
        let mut out = Vec::new();
        let mut at = 0;
        for chunk in chunks {
            self.store(cpu, &mut cache, at..at + chunk);
            out.extend(self.attend(cpu, &cache, at..at + chunk));
            at += chunk;
        }
        assert_eq!(at, self.tokens());
        out
    }

    fn cache(&self, page_tokens: usize) -> Cache {
        let (k, v) = self.types;
        let geo = KvGeometry { kv_heads: self.kv_heads, head_dim: self.head_dim, page_tokens, k, v };
        let count = self.tokens().div_ceil(page_tokens) as u32;
        let pages: Vec<u32> = (0..count).map(|page| (page * 7 + 3) % (7 * count + 1)).collect();
        let pool = |dtype| Buffer::zeroed((7 * count as usize + 1) * geo.page_bytes(dtype));
        let (k, v) = (pool(k), pool(v));
        Cache { geo, pages, k, v }
    }

    fn store(&self, cpu: &Cpu, cache: &mut Cache, tokens: Range<usize>) {
        let width = self.kv_heads * self.head_dim;
        let rows = tokens.start * width..tokens.end * width;
        let Cache { geo, pages, k, v } = cache;
        cpu.store_kv(geo, k, v, pages, tokens.start, &self.k[rows.clone()], &self.v[rows]);
    }

    fn attend(&self, cpu: &Cpu, cache: &Cache, tokens: Range<usize>) -> Vec<f32> {
        let width = self.heads * self.head_dim;
        let q = &self.q[tokens.start * width..tokens.end * width];
        let mut out = vec![0.0; q.len()];
        let Cache { geo, pages, k, v } = cache;
        cpu.attention(geo, k, v, pages, tokens.start, q, self.heads, self.scale(), &mut out);
        out
    }

    /// Softmax attention in f64 over the cached values.
    fn truth(&self, tokens: Range<usize>) -> Vec<f64> {
        let rows = |dtype, x: &[f32]| -> Vec<f32> {
            x.chunks(self.head_dim).flat_map(|row| stored(dtype, row)).collect()
        };
        let (k, v) = (rows(self.types.0, &self.k), rows(self.types.1, &self.v));
        let (hd, group) = (self.head_dim, self.heads / self.kv_heads);
        let mut out = Vec::new();
        for t in tokens {
            for h in 0..self.heads {
                let q = &self.q[(t * self.heads + h) * hd..][..hd];
                let row = |j: usize| (j * self.kv_heads + h / group) * hd;
                let scores: Vec<f64> = (0..=t)
                    .map(|j| {
                        let k = &k[row(j)..][..hd];
                        let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                        dot * f64::from(self.scale())
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                for i in 0..hd {
                    let weighted =
                        scores.iter().enumerate().map(|(j, s)| (s - max).exp() * f64::from(v[row(j) + i]));
                    out.push(weighted.sum::<f64>() / sum);
                }
            }
        }
        out
    }
}

/// Heads, KV heads, head width.
const SHAPES: [(usize, usize, usize); 10] = [
    (1, 1, 16),
    (4, 2, 64),
    (6, 2, 32),
    (9, 3, 64),
    (8, 1, 128),
    (3, 1, 96),
    (5, 1, 80),
    (7, 1, 16),
    (2, 1, 8),
    (3, 3, 20),
];

#[test]
fn attention_follows_the_textbook() {
    for (heads, kv_heads, head_dim) in SHAPES {
        for seed in 0..types(head_dim).len() {
            let case = Case::new(heads, kv_heads, head_dim, 70, seed as u64);
            let out = case.run(&reference(), 32, &[70]);
            let what = format_args!("{heads}/{kv_heads} heads of {head_dim}, {:?}", case.types);
            assert_close(&out, &case.truth(0..70), 2e-5, what);
        }
    }
}

#[test]
fn every_device_page_size_and_chunking_has_the_references_bits() {
    let devices = devices();
    for (heads, kv_heads, head_dim) in SHAPES {
        for seed in 0..types(head_dim).len() {
            let case = Case::new(heads, kv_heads, head_dim, 70, seed as u64);
            let expected = case.run(&reference(), 96, &[70]);
            for cpu in &devices {
                for (page_tokens, chunks) in
                    [(96, &[70][..]), (32, &[70]), (64, &[1; 70]), (32, &[31, 1, 1, 33, 4]), (1024, &[2, 68])]
                {
                    let out = case.run(cpu, page_tokens, chunks);
                    let types = case.types;
                    let what = format_args!(
                        "{heads}/{kv_heads} heads of {head_dim}, {types:?}, {page_tokens}, {chunks:?} on {cpu:?}"
                    );
                    assert_same(&out, &expected, what);
                }
            }
        }
    }
}

#[test]
fn long_contexts_are_cut_into_segments_the_same_way_everywhere() {
    let tokens = 3 * SEGMENT + 5;
    let case = Case::new(2, 1, 16, tokens, 1);
    let (reference, devices) = (reference(), devices());
    let mut cache = case.cache(1024);
    case.store(&reference, &mut cache, 0..tokens);
    // Queries that end on, before and after the borders of segments.
    for border in [SEGMENT, 2 * SEGMENT, 3 * SEGMENT] {
        let range = border - 4..border + 5;
        let expected = case.attend(&reference, &cache, range.clone());
        assert_close(&expected, &case.truth(range.clone()), 2e-5, format_args!("around {border}"));
        for cpu in &devices {
            let whole = case.attend(cpu, &cache, range.clone());
            assert_same(&whole, &expected, format_args!("around {border} on {cpu:?}"));
            let single: Vec<f32> = range.clone().flat_map(|t| case.attend(cpu, &cache, t..t + 1)).collect();
            assert_same(&single, &expected, format_args!("around {border}, token by token on {cpu:?}"));
        }
    }
    // Many rows, so that heads and rows are split instead of segments.
    let range = SEGMENT - 40..SEGMENT + 40;
    let expected = case.attend(&reference, &cache, range.clone());
    for cpu in &devices {
        assert_same(
            &case.attend(cpu, &cache, range.clone()),
            &expected,
            format_args!("many rows on {cpu:?}"),
        );
    }
}

/// There is room for the states of a few segments of sixteen rows, or of many segments of one, on one thread.
#[test]
fn more_segments_than_there_is_room_for_are_walked_in_turns() {
    let tokens = 7 * SEGMENT + 20;
    let case = Case::new(4, 1, 16, tokens, 3);
    let (reference, devices) = (reference(), devices());
    let mut cache = case.cache(1024);
    case.store(&reference, &mut cache, 0..tokens);
    for rows in [1, 3, 16, 20] {
        let range = tokens - rows..tokens;
        let expected: Vec<f32> =
            range.clone().flat_map(|t| case.attend(&reference, &cache, t..t + 1)).collect();
        assert_close(&expected, &case.truth(range.clone()), 2e-5, format_args!("{rows} rows"));
        for cpu in &devices {
            let found = case.attend(cpu, &cache, range.clone());
            assert_same(&found, &expected, format_args!("{rows} rows on {cpu:?}"));
        }
    }
}

#[test]
fn broken_queries_keys_and_values_stay_in_their_lane() {
    for seed in 0..types(32).len() {
        let mut case = Case::new(4, 2, 32, 40, seed as u64);
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
        for (i, x) in special.into_iter().enumerate() {
            case.q[(7 + i) * 128 + 3] = x;
            case.k[(20 + i) * 64 + 5] = x;
            case.v[(30 + i) * 64 + 20] = x;
        }
        let expected = case.run(&reference(), 32, &[40]);
        assert!(expected[..7 * 128].iter().all(|x| x.is_finite()), "earlier tokens are untouched");
        for cpu in devices() {
            let what = format_args!("{:?} on {cpu:?}", case.types);
            assert_same(&case.run(&cpu, 64, &[40]), &expected, what);
            assert_same(&case.run(&cpu, 64, &[1; 40]), &expected, what);
        }
    }
}

#[test]
fn what_lies_behind_a_query_is_not_read() {
    for (k, v) in types(32) {
        let case = Case::new(2, 1, 32, 33, 0);
        let geo = KvGeometry { kv_heads: 1, head_dim: 32, page_tokens: 32, k, v };
        for cpu in devices() {
            let mut pools = [k, v].map(|dtype| Buffer::zeroed(2 * geo.page_bytes(dtype)));
            // NaN everywhere but at the stored positions: all bits set are one in every type, as element or as scale.
            pools.iter_mut().for_each(|pool| pool.as_bytes_mut().fill(0xff));
            let [k_pool, v_pool] = &mut pools;
            cpu.store_kv(&geo, k_pool, v_pool, &[1, 0], 0, &case.k, &case.v);
            let mut out = vec![0.0; case.q.len()];
            cpu.attention(&geo, k_pool, v_pool, &[1, 0], 0, &case.q, 2, case.scale(), &mut out);
            assert!(out.iter().all(|x| x.is_finite()), "{k}, {v} on {cpu:?}");
        }
    }
}

#[test]
fn stored_values_are_rounded_to_the_cache_type() {
    let geo = KvGeometry { kv_heads: 2, head_dim: 16, page_tokens: 32, k: KvDtype::F16, v: KvDtype::F32 };
    let mut rng = Rng::new(5);
    let mut x = rng.spread(3 * 32);
    x[..6].copy_from_slice(&[65519.0, 65520.0, 1e-8, -6e-8, f32::INFINITY, -0.0]);
    for cpu in devices() {
        let (mut k, mut v) = (Buffer::zeroed(2 * 1024 * 2), Buffer::zeroed(2 * 1024 * 4));
        cpu.store_kv(&geo, &mut k, &mut v, &[1], 4, &x, &x);
        for (i, x) in x.iter().enumerate() {
            let (token, head, dim) = (i / 32, i / 16 % 2, i % 16);
            let index = ((2 + head) * 32 + 4 + token) * 16 + dim;
            assert_eq!(k.as_bytes()[2 * index..][..2], half::f16::from_f32(*x).to_le_bytes(), "{x}");
            assert_eq!(v.as_bytes()[4 * index..][..4], x.to_le_bytes());
        }
    }
}
