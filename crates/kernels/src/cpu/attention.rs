//! Writing and reading the KV cache.

use std::ops::Range;
use std::sync::PoisonError;

use super::Cpu;
use crate::Buffer;
use crate::kv::{KvDtype, KvGeometry};
use crate::needs::{HELD_ROWS, ROWS, decoded_vectors};
use crate::reference::attention::{
    AttentionSegment, FinishHeads, MergeSegments, SEGMENT, STATE_HEADER, TILE,
};
use crate::reference::kv::StoreKv;
use crate::scratch::{Line, grown, with_local};
use crate::shared::SharedMut;
use crate::vector::LANES;

/// Elements below which one thread is faster than waking others.
const LEAST: usize = 1 << 14;

/// The arguments of [`Cpu::attention`].
#[derive(Clone, Copy)]
struct Call<'a> {
    geometry: &'a KvGeometry,
    k: &'a [u8],
    v: &'a [u8],
    pages: &'a [u32],
    first_position: usize,
    q: &'a [f32], // [tokens, heads, head_dim]
    heads: usize,
    scale: f32,
}

impl<'a> Call<'a> {
    fn tokens(&self) -> usize {
        self.q.len().checked_div(self.heads * self.geometry.head_dim).unwrap_or(0)
    }

    /// Query heads per KV head.
    fn group(&self) -> usize {
        self.heads / self.geometry.kv_heads
    }

    /// Elements of the state of one query row of one KV head.
    fn row_state(&self) -> usize {
        self.group() * (STATE_HEADER + self.geometry.head_dim)
    }

    /// Scratch of [`AttentionSegment`], from a thread's.
    fn decoded<'s>(&self, lines: &'s mut Vec<Line<[f32; LANES]>>) -> &'s mut [Line<[f32; LANES]>] {
        grown(lines, decoded_vectors(self.geometry.head_dim), Line([0.0; LANES]))
    }

    /// Segments that the last of the first `rows` tokens sees.
    fn segments(&self, rows: usize) -> usize {
        (self.first_position + rows).div_ceil(SEGMENT)
    }

    fn segment<'s>(
        &self,
        rows: &Range<usize>,
        kv_head: usize,
        segment: usize,
        state: &'s mut [f32],
        decoded: &'s mut [Line<[f32; LANES]>],
    ) -> AttentionSegment<'s>
    where
        'a: 's,
    {
        let width = self.heads * self.geometry.head_dim;
        AttentionSegment {
            geometry: self.geometry,
            k: self.k,
            v: self.v,
            pages: self.pages,
            q: &self.q[rows.start * width..rows.end * width],
            heads: self.heads,
            scale: self.scale,
            first_position: self.first_position + rows.start,
            kv_head,
            segment,
            state,
            decoded,
        }
    }

    /// Rows of `rows` that see `segment`: all but some first ones.
    fn reaching(&self, rows: &Range<usize>, segment: usize) -> Range<usize> {
        let first = (segment * SEGMENT).saturating_sub(self.first_position);
        first.clamp(rows.start, rows.end)..rows.end
    }
}

impl Cpu {
    /// Rounds `k` and `v` `[tokens, kv_heads, head_dim]` to the cache's types and stores them at the positions from
    /// `first_position` on, in the pages that the page table `pages` names.
    pub fn store_kv(
        &self,
        geo: &KvGeometry,
        k_pool: &mut Buffer,
        v_pool: &mut Buffer,
        pages: &[u32],
        first_position: usize,
        k: &[f32],
        v: &[f32],
    ) {
        assert_eq!(k.len(), v.len(), "keys and values differ in shape");
        for (dtype, pool, x) in [(geo.k, k_pool, k), (geo.v, v_pool, v)] {
            self.store(geo, dtype, pool, pages, first_position, x);
        }
    }

    fn store(
        &self,
        geo: &KvGeometry,
        dtype: KvDtype,
        pool: &mut Buffer,
        pages: &[u32],
        first_position: usize,
        x: &[f32],
    ) {
        assert!(dtype.fits(geo.head_dim), "heads of {} are not blocks of {dtype}", geo.head_dim);
        let bytes = dtype.row_bytes(geo.head_dim);
        let width = geo.kv_heads * geo.head_dim;
        let tokens = x.len().checked_div(width).unwrap_or(0);
        assert_eq!(tokens * width, x.len(), "keys and values are not [tokens, kv_heads, head_dim]");
        let slots = pool.len().checked_div(bytes).unwrap_or(0);
        let pool = SharedMut::new(&mut pool.as_bytes_mut()[..slots * bytes], bytes);
        self.split(geo.kv_heads, 1, LEAST.div_ceil(tokens.max(1) * geo.head_dim.max(1)), &|heads| {
            for (token, kv_head) in (0..tokens).flat_map(|token| heads.clone().map(move |head| (token, head)))
            {
                let slot = geo.row(pages, kv_head, first_position + token);
                // SAFETY: slots of different heads differ whatever the page table says, and each head belongs to one
                // task, in which one block lives at a time.
                let mut out = unsafe { pool.block(slot..slot + 1, 0..bytes) };
                let x = &x[token * width + kv_head * geo.head_dim..][..geo.head_dim];
                self.level.run(StoreKv { dtype, x, out: out.row_mut(0) });
            }
        });
    }

    /// Causal attention of `q` `[tokens, heads, head_dim]` at the positions from `first_position` on over the cached
    /// keys and values of all positions up to each token's own: `out = softmax(q·kᵀ·scale)·v`, `out` like `q`. Query
    /// head h reads KV head `h / (heads / kv_heads)`. The tokens' own keys and values must have been stored before.
    pub fn attention(
        &self,
        geo: &KvGeometry,
        k_pool: &Buffer,
        v_pool: &Buffer,
        pages: &[u32],
        first_position: usize,
        q: &[f32],
        heads: usize,
        scale: f32,
        out: &mut [f32],
    ) {
        assert_eq!(q.len(), out.len(), "attention changes no shape");
        assert!(geo.page_tokens.is_multiple_of(TILE), "pages of {} positions cut a tile", geo.page_tokens);
        assert!(
            geo.k.fits(geo.head_dim) && geo.v.fits(geo.head_dim),
            "heads of {} are not blocks",
            geo.head_dim
        );
        assert!(geo.kv_heads > 0 && heads.is_multiple_of(geo.kv_heads), "query heads do not share KV heads");
        let (k, v) = (k_pool.as_bytes(), v_pool.as_bytes());
        let call = Call { geometry: geo, k, v, pages, first_position, q, heads, scale };
        let blocks = call.tokens().div_ceil(ROWS);
        if call.segments(call.tokens()) > 1 && blocks * geo.kv_heads < 2 * self.threads() {
            self.attention_by_segments(&call, out);
        } else {
            self.attention_by_rows(&call, out);
        }
    }

    /// One task per KV head and block of query rows; each walks its segments one after the other.
    fn attention_by_rows(&self, call: &Call<'_>, out: &mut [f32]) {
        let (tokens, kv_heads) = (call.tokens(), call.geometry.kv_heads);
        let shared = SharedMut::new(out, call.heads * call.geometry.head_dim);
        let blocks = tokens.div_ceil(ROWS);
        self.pool.run(blocks * kv_heads, &|task| {
            // The last rows see most, so they go first.
            let (block, kv_head) = (blocks - 1 - task / kv_heads, task % kv_heads);
            let rows = block * ROWS..tokens.min((block + 1) * ROWS);
            let len = rows.len() * call.row_state();
            with_local(|local| {
                let decoded = call.decoded(&mut local.lines);
                let (state, later) = grown(&mut local.floats, 2 * len, 0.0).split_at_mut(len);
                self.level.run(call.segment(&rows, kv_head, 0, state, decoded));
                for segment in 1..call.segments(rows.end) {
                    let reaching = call.reaching(&rows, segment);
                    if !reaching.is_empty() {
                        let later = &mut later[..reaching.len() * call.row_state()];
                        self.level.run(call.segment(&reaching, kv_head, segment, later, decoded));
                        let state = &mut state[(reaching.start - rows.start) * call.row_state()..];
                        self.level.run(MergeSegments { head_dim: call.geometry.head_dim, state, later });
                    }
                }
                self.finish(call, &rows, kv_head, state, &shared);
            });
        });
    }

    /// One task per KV head and segment, for few query rows over a long context; then the merge. As many segments at a time
    /// as there is room for states, which does not depend on the context.
    fn attention_by_segments(&self, call: &Call<'_>, out: &mut [f32]) {
        let held = HELD_ROWS * self.threads();
        let mut states = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        let states = grown(&mut states, held * call.row_state(), 0.0);
        let out = SharedMut::new(out, call.heads * call.geometry.head_dim);
        for first in (0..call.tokens()).step_by(ROWS) {
            let rows = first..call.tokens().min(first + ROWS);
            // Few rows of few heads: there is room for two segments at least.
            let slots = (held / (call.geometry.kv_heads * rows.len())).min(call.segments(rows.end));
            let stride = slots * rows.len() * call.row_state();
            let states = &mut states[..call.geometry.kv_heads * stride];
            self.rows_by_segments(call, &rows, slots, states);
            for (kv_head, states) in states.chunks_exact(stride).enumerate() {
                self.finish(call, &rows, kv_head, &states[..rows.len() * call.row_state()], &out);
            }
        }
    }

    /// The states of some query rows over all segments, in the first of `slots` places that `states` has for every KV head.
    fn rows_by_segments(&self, call: &Call<'_>, rows: &Range<usize>, slots: usize, states: &mut [f32]) {
        let (kv_heads, len) = (call.geometry.kv_heads, rows.len() * call.row_state());
        let segments = call.segments(rows.end);
        let mut next = 0;
        while next < segments {
            // The first place has what came before.
            let taken = usize::from(next > 0);
            let count = (slots - taken).min(segments - next);
            let places = SharedMut::new(&mut *states, len);
            self.pool.run(kv_heads * count, &|task| {
                let (kv_head, index) = (task / count, task % count);
                let place = kv_head * slots + taken + index;
                // SAFETY: every task has its own place.
                let mut state = unsafe { places.block(place..place + 1, 0..len) };
                with_local(|local| {
                    let decoded = call.decoded(&mut local.lines);
                    self.level.run(call.segment(rows, kv_head, next + index, state.row_mut(0), decoded));
                });
            });
            let heads = SharedMut::new(&mut *states, slots * len);
            self.pool.run(kv_heads, &|kv_head| {
                // SAFETY: every task has its own row.
                let mut states = unsafe { heads.block(kv_head..kv_head + 1, 0..slots * len) };
                let (state, later) = states.row_mut(0).split_at_mut(len);
                let later = later.chunks_exact(len).take(count + taken - 1);
                for (segment, later) in (next + 1 - taken..).zip(later) {
                    let first = (call.reaching(rows, segment).start - rows.start) * call.row_state();
                    let (state, later) = (&mut state[first..], &later[first..]);
                    self.level.run(MergeSegments { head_dim: call.geometry.head_dim, state, later });
                }
            });
            next += count;
        }
    }

    /// Writes the outputs of some rows of one KV head.
    fn finish(
        &self,
        call: &Call<'_>,
        rows: &Range<usize>,
        kv_head: usize,
        state: &[f32],
        out: &SharedMut<'_, f32>,
    ) {
        let (width, head_dim) = (call.group() * call.geometry.head_dim, call.geometry.head_dim);
        for (row, state) in rows.clone().zip(state.chunks_exact(call.row_state())) {
            // SAFETY: every task calls this for its own rows and KV head.
            let mut out = unsafe { out.block(row..row + 1, kv_head * width..(kv_head + 1) * width) };
            self.level.run(FinishHeads { state, head_dim, out: out.row_mut(0) });
        }
    }
}
