//! The gated delta rule, sixteen or 32 value columns at a time.

use super::prefetch;
use crate::needs::VECTORS;
use crate::reference::delta::{self, DeltaColumns, DeltaToken};
use crate::scratch::{Line, grown};
use crate::shared::ColumnBlock;
use crate::vector::{LANES, Simd, lanes, lanes_mut};

/// Sixteen columns of a row of the state.
type Columns = Line<[f32; LANES]>;

/// Vectors of columns that one token updates together: a row's part is a few whole cache lines.
const WIDE: usize = 4;

/// Rows of the state ahead of the current one that are asked for.
const AHEAD: usize = 12;

/// See [`DeltaColumns`].
///
/// The block of state moves to contiguous scratch for the run: in its place its rows lie a multiple of the value width
/// apart and would fight for a few sets of the cache.
#[inline(always)]
pub(crate) fn delta_columns<S: Simd>(s: S, mut a: DeltaColumns<'_>) {
    let width = a.out.width();
    if !width.is_multiple_of(LANES) {
        return delta::delta_columns(a);
    }
    if a.out.rows() == 1 && a.shape.key_dim.is_multiple_of(4) {
        return step(s, a);
    }
    let mut buffer = std::mem::take(&mut a.local.lines);
    let mut c = 0;
    while c < width {
        c += if S::ROOMY && c + VECTORS * LANES <= width {
            run::<S, VECTORS>(s, &mut a, c, &mut buffer)
        } else {
            run::<S, 1>(s, &mut a, c, &mut buffer)
        };
    }
    a.local.lines = buffer;
}

/// One token over all columns. The state is updated in its place: it comes from memory and goes back there.
#[inline(always)]
fn step<S: Simd>(s: S, mut a: DeltaColumns<'_>) {
    let (width, mut c) = (a.out.width(), 0);
    while c < width {
        c += if S::ROOMY && c + WIDE * LANES <= width {
            step_columns::<S, WIDE>(s, &mut a, c)
        } else {
            step_columns::<S, 1>(s, &mut a, c)
        };
    }
}

/// One token over `VECTORS` times sixteen columns from `c` on; returns how many columns that is.
#[inline(always)]
fn step_columns<S: Simd, const VECTORS: usize>(s: S, a: &mut DeltaColumns<'_>, c: usize) -> usize {
    let now = a.token(0);
    let decay = s.splat(now.decay);
    let m = step_recall::<S, VECTORS>(s, &a.state, c, now.k, decay);
    let mut d = m;
    for v in 0..VECTORS {
        d[v] = s.mul(s.sub(s.load(lanes(now.v, c + v * LANES)), m[v]), s.splat(now.beta));
    }
    let out = step_update::<S, VECTORS>(s, &mut a.state, c, now, d);
    for (v, out) in out.into_iter().enumerate() {
        s.store(out, lanes_mut(a.out.row_mut(0), c + v * LANES));
    }
    VECTORS * LANES
}

/// `Σ (S·decay)·k` of the columns.
#[inline(always)]
fn step_recall<S: Simd, const VECTORS: usize>(
    s: S,
    state: &ColumnBlock<'_, f32>,
    c: usize,
    k: &[f32],
    decay: S::F,
) -> [S::F; VECTORS] {
    let mut chains = [[s.splat(0.0); VECTORS]; 4];
    for first in (0..state.rows()).step_by(4) {
        for (i, chain) in chains.iter_mut().enumerate() {
            let row = state.row(first + i);
            let k = s.splat(k[first + i]);
            for (v, chain) in chain.iter_mut().enumerate() {
                let columns = lanes(row, c + v * LANES);
                prefetch(columns.as_ptr().wrapping_add(AHEAD * state.stride()).cast());
                *chain = s.fma(s.mul(s.load(columns), decay), k, *chain);
            }
        }
    }
    add_chains(s, chains)
}

/// `S = fma(k, d, S·decay)` and `Σ S·q` of the columns.
#[inline(always)]
fn step_update<S: Simd, const VECTORS: usize>(
    s: S,
    state: &mut ColumnBlock<'_, f32>,
    c: usize,
    now: DeltaToken<'_>,
    d: [S::F; VECTORS],
) -> [S::F; VECTORS] {
    let decay = s.splat(now.decay);
    let mut chains = [[s.splat(0.0); VECTORS]; 4];
    for first in (0..state.rows()).step_by(4) {
        for (i, chain) in chains.iter_mut().enumerate() {
            let (k, q) = (s.splat(now.k[first + i]), s.splat(now.q[first + i]));
            let row = state.row_mut(first + i);
            for (v, chain) in chain.iter_mut().enumerate() {
                let columns = lanes_mut(row, c + v * LANES);
                let value = s.fma(k, d[v], s.mul(s.load(columns), decay));
                s.store(value, columns);
                *chain = s.fma(value, q, *chain);
            }
        }
    }
    add_chains(s, chains)
}

/// (0 + 1) + (2 + 3)
#[inline(always)]
fn add_chains<S: Simd, const VECTORS: usize>(s: S, chains: [[S::F; VECTORS]; 4]) -> [S::F; VECTORS] {
    let mut sums = chains[0];
    for v in 0..VECTORS {
        sums[v] = s.add(s.add(chains[0][v], chains[1][v]), s.add(chains[2][v], chains[3][v]));
    }
    sums
}

/// All tokens over `VECTORS` times sixteen columns from `c` on; returns how many columns that is.
#[inline(always)]
fn run<S: Simd, const VECTORS: usize>(
    s: S,
    a: &mut DeltaColumns<'_>,
    c: usize,
    buffer: &mut Vec<Columns>,
) -> usize {
    let (block, _) = grown(buffer, a.shape.key_dim * VECTORS, Line([0.0; LANES])).as_chunks_mut::<VECTORS>();
    for (i, row) in block.iter_mut().enumerate() {
        for (v, columns) in row.iter_mut().enumerate() {
            let stored = lanes(a.state.row(i), c + v * LANES);
            prefetch(stored.as_ptr().wrapping_add(AHEAD * a.state.stride()).cast());
            columns.0 = *stored;
        }
    }
    let tokens = a.out.rows();
    let nothing = [s.splat(0.0); VECTORS];
    let mut m = nothing;
    if tokens > 0 {
        m = walk::<S, VECTORS, false, true>(s, block, a.token(0), nothing, a.token(0)).m;
    }
    for token in 0..tokens {
        if token + 2 < tokens {
            fetch::<VECTORS>(a, token + 2, c);
        }
        let now = a.token(token);
        let mut d = nothing;
        for v in 0..VECTORS {
            let value = s.load(lanes(now.v, c + v * LANES));
            d[v] = s.mul(s.sub(value, m[v]), s.splat(now.beta));
        }
        let out = if token + 1 == tokens {
            walk::<S, VECTORS, true, false>(s, block, now, d, now).o
        } else {
            let next = a.token(token + 1);
            let sums = both::<S, VECTORS>(s, block, now, d, next);
            m = sums.m;
            sums.o
        };
        for (v, out) in out.into_iter().enumerate() {
            s.store(out, lanes_mut(a.out.row_mut(token), c + v * LANES));
        }
    }
    for (i, row) in block.iter().enumerate() {
        for (v, columns) in row.iter().enumerate() {
            *lanes_mut(a.state.row_mut(i), c + v * LANES) = columns.0;
        }
    }
    VECTORS * LANES
}

/// Asks for a token's part of what `VECTORS` times sixteen columns from `c` on read and write: the rows of tokens lie pages apart.
#[inline(always)]
fn fetch<const VECTORS: usize>(a: &DeltaColumns<'_>, token: usize, c: usize) {
    let DeltaToken { k, q, v, .. } = a.token(token);
    for i in (0..a.shape.key_dim).step_by(LANES) {
        prefetch(k[i..].as_ptr().cast());
        prefetch(q[i..].as_ptr().cast());
    }
    for i in (c..c + VECTORS * LANES).step_by(LANES) {
        prefetch(v[i..].as_ptr().cast());
        prefetch(a.out.row(token)[i..].as_ptr().cast());
    }
}

/// What a walk over the rows sums up.
#[derive(Clone, Copy)]
struct Sums<S: Simd, const VECTORS: usize> {
    /// `Σ S·k` of the next token.
    m: [S::F; VECTORS],
    /// `Σ S·q` of this token.
    o: [S::F; VECTORS],
}

/// This token's update and the next token's decay: in one walk over the state, which is read and written once for both,
/// if there are registers for it.
#[inline(always)]
fn both<S: Simd, const VECTORS: usize>(
    s: S,
    block: &mut [[Columns; VECTORS]],
    now: DeltaToken<'_>,
    d: [S::F; VECTORS],
    next: DeltaToken<'_>,
) -> Sums<S, VECTORS> {
    if S::ROOMY {
        return walk::<S, VECTORS, true, true>(s, block, now, d, next);
    }
    let o = walk::<S, VECTORS, true, false>(s, block, now, d, next).o;
    let m = walk::<S, VECTORS, false, true>(s, block, now, d, next).m;
    Sums { m, o }
}

/// Over all rows of the state: with `UPDATE`, `S = fma(k, d, S)` and `o = Σ S·q` for this token; then, with `DECAY`,
/// `S = S·decay` and `m = Σ S·k` for the next one.
#[inline(always)]
fn walk<S: Simd, const VECTORS: usize, const UPDATE: bool, const DECAY: bool>(
    s: S,
    block: &mut [[Columns; VECTORS]],
    now: DeltaToken<'_>,
    d: [S::F; VECTORS],
    next: DeltaToken<'_>,
) -> Sums<S, VECTORS> {
    let mut chains = [Sums { m: [s.splat(0.0); VECTORS], o: [s.splat(0.0); VECTORS] }; 4];
    let decay = s.splat(next.decay);
    let rows = block.len();
    let (fours, tail) = block.as_chunks_mut::<4>();
    let (q, q_tail) = now.q[..rows].as_chunks::<4>();
    let (k, k_tail) = now.k[..rows].as_chunks::<4>();
    let (next_k, next_tail) = next.k[..rows].as_chunks::<4>();
    for (((rows, q), k), next_k) in fours.iter_mut().zip(q).zip(k).zip(next_k) {
        for i in 0..4 {
            let keys = Keys { q: q[i], k: k[i], next: next_k[i] };
            one_row::<S, VECTORS, UPDATE, DECAY>(s, &mut rows[i], keys, d, decay, &mut chains[i]);
        }
    }
    for (i, row) in tail.iter_mut().enumerate() {
        let keys = Keys { q: q_tail[i], k: k_tail[i], next: next_tail[i] };
        one_row::<S, VECTORS, UPDATE, DECAY>(s, row, keys, d, decay, &mut chains[i]);
    }
    let [first, second, third, fourth] = chains;
    Sums {
        m: add_chains(s, [first.m, second.m, third.m, fourth.m]),
        o: add_chains(s, [first.o, second.o, third.o, fourth.o]),
    }
}

/// What the tokens' keys and queries have for one row of the state.
#[derive(Clone, Copy)]
struct Keys {
    q: f32,
    k: f32,
    /// The next token's.
    next: f32,
}

/// One row of [`walk`].
#[inline(always)]
fn one_row<S: Simd, const VECTORS: usize, const UPDATE: bool, const DECAY: bool>(
    s: S,
    row: &mut [Columns; VECTORS],
    keys: Keys,
    d: [S::F; VECTORS],
    decay: S::F,
    chain: &mut Sums<S, VECTORS>,
) {
    for v in 0..VECTORS {
        let mut value = s.load(&row[v].0);
        if UPDATE {
            value = s.fma(s.splat(keys.k), d[v], value);
            chain.o[v] = s.fma(value, s.splat(keys.q), chain.o[v]);
        }
        if DECAY {
            value = s.mul(value, decay);
            chain.m[v] = s.fma(value, s.splat(keys.next), chain.m[v]);
        }
        s.store(value, &mut row[v].0);
    }
}
