//! Cached keys and values: blocks of vectors, and rows on their way in.

use basert_quant::FloatDtype;

use super::element::Element;
use crate::kv::{BLOCK, KvDtype, Q4_BYTES, Q8_BYTES};
use crate::reference::kv::{
    self, Q4_LEVELS, Q8_MAX, StoreKv, q4_border, q4_candidates, q4_not_finite, q8_scale,
};
use crate::vector::{LANES, Simd};

/// A cache type as the attention kernel reads it: blocks of one or two vectors.
pub(crate) trait Cached {
    /// Bytes of a block.
    type Block: Copy;

    /// Vectors of a block.
    const VECTORS: usize;

    /// Keys, or vectors of values, that are taken side by side where there are registers: fewer where decoding needs some.
    const ABREAST: usize = 2;

    /// Whole blocks.
    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// Vector `i` of a block, decoded exactly.
    fn vector<S: Simd>(s: S, block: &Self::Block, i: usize) -> S::F;
}

impl<E: Element> Cached for E {
    type Block = E::Chunk;

    const VECTORS: usize = 1;

    const ABREAST: usize = if matches!(E::DTYPE, FloatDtype::F32) { 4 } else { 2 };

    #[inline(always)]
    fn blocks(bytes: &[u8]) -> &[E::Chunk] {
        E::chunks(bytes).0
    }

    #[inline(always)]
    fn vector<S: Simd>(s: S, block: &E::Chunk, _: usize) -> S::F {
        E::load(s, block)
    }
}

/// Blocks of 8-bit codes.
pub(crate) struct Q8;

impl Cached for Q8 {
    type Block = [u8; Q8_BYTES];

    const VECTORS: usize = BLOCK / LANES;

    #[inline(always)]
    fn blocks(bytes: &[u8]) -> &[Self::Block] {
        bytes.as_chunks().0
    }

    #[inline(always)]
    fn vector<S: Simd>(s: S, block: &Self::Block, i: usize) -> S::F {
        let codes = s.load_i8(&block[2..].as_chunks().0[i]);
        s.mul(s.splat_f16([block[0], block[1]]), codes)
    }
}

/// Blocks of 4-bit codes.
pub(crate) struct Q4;

impl Cached for Q4 {
    type Block = [u8; Q4_BYTES];

    const VECTORS: usize = BLOCK / LANES;

    #[inline(always)]
    fn blocks(bytes: &[u8]) -> &[Self::Block] {
        bytes.as_chunks().0
    }

    #[inline(always)]
    fn vector<S: Simd>(s: S, block: &Self::Block, i: usize) -> S::F {
        let levels = s.load_nibbles(&block[2..].as_chunks().0[0], i == 1, &Q4_LEVELS);
        s.mul(s.splat_f16([block[0], block[1]]), levels)
    }
}

/// See [`StoreKv`].
#[inline(always)]
pub(crate) fn store_kv<S: Simd>(s: S, a: StoreKv<'_>) {
    match a.dtype {
        KvDtype::F16 if a.x.len().is_multiple_of(LANES) => {
            for (x, out) in a.x.as_chunks().0.iter().zip(a.out.as_chunks_mut().0) {
                s.store_f16(s.load(x), out);
            }
        }
        KvDtype::F32 | KvDtype::F16 | KvDtype::Bf16 => kv::store_kv(a),
        KvDtype::Q8 => {
            for (x, out) in a.x.as_chunks::<BLOCK>().0.iter().zip(a.out.as_chunks_mut().0) {
                store_q8(s, x, out);
            }
        }
        KvDtype::Q4 => {
            for (x, out) in a.x.as_chunks::<BLOCK>().0.iter().zip(a.out.as_chunks_mut().0) {
                store_q4(s, x, out);
            }
        }
    }
}

/// The two vectors of a block, and whether all of it is finite: 0·x is a zero for finite x and NaN otherwise, and NaN
/// stays.
#[inline(always)]
fn load_block<S: Simd>(s: S, x: &[f32; BLOCK]) -> ([S::F; 2], bool) {
    let [x, y] = [s.load(&x.as_chunks().0[0]), s.load(&x.as_chunks().0[1])];
    let zeros = s.fma(y, s.splat(0.0), s.mul(x, s.splat(0.0)));
    ([x, y], !s.sum(zeros).is_nan())
}

/// As in the reference.
#[inline(always)]
fn store_q8<S: Simd>(s: S, x: &[f32; BLOCK], out: &mut [u8; Q8_BYTES]) {
    let (vectors, finite) = load_block(s, x);
    let amax = if finite { s.largest(s.max(s.abs(vectors[0]), s.abs(vectors[1]))) } else { 0.0 };
    let (scale, reciprocal) = q8_scale(amax, finite);
    let (head, codes) = out.split_at_mut(2);
    head.copy_from_slice(&scale.to_le_bytes());
    if reciprocal == 0.0 {
        codes.fill(0);
        return;
    }
    let (low, high) = (s.splat(-Q8_MAX), s.splat(Q8_MAX));
    for (x, codes) in vectors.into_iter().zip(codes.as_chunks_mut::<LANES>().0) {
        let rounded = s.round(s.mul(x, s.splat(reciprocal)));
        *codes = s.to_i8(s.min(s.max(rounded, low), high)).map(i8::cast_unsigned);
    }
}

/// As in the reference.
#[inline(always)]
fn store_q4<S: Simd>(s: S, x: &[f32; BLOCK], out: &mut [u8; Q4_BYTES]) {
    let (vectors, finite) = load_block(s, x);
    if !finite {
        *out = q4_not_finite();
        return;
    }
    let max = s.largest(s.max(vectors[0], vectors[1]));
    let min = -s.largest(s.max(s.neg(vectors[0]), s.neg(vectors[1])));
    let candidates = q4_candidates(max, min);
    let (mut least, mut best) = (f32::INFINITY, candidates[0]);
    for scale in candidates {
        let error = q4_error(s, vectors, scale.to_f32());
        if error < least {
            (least, best) = (error, scale);
        }
    }
    let (head, codes) = out.split_at_mut(2);
    head.copy_from_slice(&best.to_le_bytes());
    let reciprocal = s.splat(1.0 / best.to_f32());
    let low = s.to_i8(q4_code(s, s.mul(vectors[0], reciprocal)));
    let high = s.to_i8(q4_code(s, s.mul(vectors[1], reciprocal)));
    for i in 0..LANES {
        codes[i] = (low[i] | high[i] << 4).cast_unsigned();
    }
}

/// Squared error of a block.
#[inline(always)]
fn q4_error<S: Simd>(s: S, x: [S::F; 2], scale: f32) -> f32 {
    let (scale, reciprocal) = (s.splat(scale), s.splat(1.0 / scale));
    let mut sum = s.splat(0.0);
    for x in x {
        let level = q4_level(s, s.mul(x, reciprocal));
        let error = s.fma(s.neg(level), scale, x);
        sum = s.fma(error, error, sum);
    }
    s.sum(sum)
}

/// The level nearest to each lane: every border below it is a step up. All sums are small integers, so exact.
#[inline(always)]
fn q4_level<S: Simd>(s: S, x: S::F) -> S::F {
    let mut level = s.splat(f32::from(Q4_LEVELS[0]));
    for i in 0..15 {
        let step = f32::from(Q4_LEVELS[i + 1]) - f32::from(Q4_LEVELS[i]);
        level = s.add(level, s.above(x, s.splat(q4_border(i)), s.splat(step)));
    }
    level
}

/// The code of that level.
#[inline(always)]
fn q4_code<S: Simd>(s: S, x: S::F) -> S::F {
    let mut code = s.splat(0.0);
    for i in 0..15 {
        code = s.add(code, s.above(x, s.splat(q4_border(i)), s.splat(1.0)));
    }
    code
}
