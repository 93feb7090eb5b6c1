//! Linear layers and embedding lookup.

use super::Cpu;
use crate::matrix::{Coding, Matrix, Weights};
use crate::needs::{
    BLOCKS, ScratchNeeds, code_lines, nibble_registers, passes, plain_registers, set_index, with_parties,
};
use crate::reference::affine::{Activations, AffineLinear, Packed};
use crate::reference::float::{FloatLinear, decode_row};
use crate::reference::quantize::Quantize;
use crate::scratch::{Line, grown, reserve, with_local};
use crate::shared::SharedMut;
use crate::simd::affine::{BLOCK, TILE_ROWS};
use crate::simd::rows;

/// Jobs whose outputs are shared out in one dispatch.
const MAX_JOBS: usize = 8;

/// Weights below which one thread is faster than waking others.
const LEAST_WEIGHTS: usize = 1 << 16;

/// One linear layer of a [`Cpu::linear`] call: `out = x·Wᵀ`.
pub struct LinearJob<'a> {
    /// The weights `[w.rows, w.cols]`.
    pub w: Matrix<'a>,
    /// The outputs `[tokens, w.rows]`.
    pub out: &'a mut [f32],
}

/// Quantised activations, reused from call to call. Grows to the largest call and stays.
#[derive(Debug, Default)]
pub struct Scratch {
    /// By block width: 16, 32, 64.
    sets: [ActivationSet; 3],
}

/// Activations in blocks of one width, see [`Activations`].
#[derive(Debug, Default)]
struct ActivationSet {
    /// Tokens that lie together.
    party: usize,
    codes: Vec<Line<[i8; 64]>>,
    sums: Vec<i32>,
    scales: Vec<f32>,
    weighted: Vec<f32>,
    nibble: Vec<[i8; 64]>,
    plain: Vec<[i8; 64]>,
}

/// What the matrices of a call need of one block width.
#[derive(Debug, Clone, Copy, Default)]
struct Needs {
    any: bool,
    nibble: bool,
    plain: bool,
}

impl Scratch {
    /// Makes room, so that no call up to these sizes allocates.
    pub fn reserve(&mut self, needs: &ScratchNeeds) {
        for (set, block) in self.sets.iter_mut().zip(BLOCKS) {
            set.reserve(needs, block);
        }
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> u64 {
        self.sets.iter().map(|set| set.bytes() as u64).sum()
    }
}

impl Cpu {
    /// Several linear layers on the same input in one dispatch: every job's `out = x·Wᵀ` for `x` `[tokens, cols]`.
    ///
    /// Float weights: every output is a sixteen-lane dot product. Quantised weights: `x` is quantised per row in blocks
    /// of `min(64, group)` columns and products are integers inside a block.
    pub fn linear(&self, scratch: &mut Scratch, x: &[f32], jobs: &mut [LinearJob<'_>]) {
        for jobs in jobs.chunks_mut(MAX_JOBS) {
            self.linear_jobs(scratch, x, jobs);
        }
    }

    fn linear_jobs(&self, scratch: &mut Scratch, x: &[f32], jobs: &mut [LinearJob<'_>]) {
        let cols = jobs.first().map_or(0, |job| job.w.cols);
        if cols == 0 || x.is_empty() {
            jobs.iter_mut().for_each(|job| job.out.fill(0.0));
            return;
        }
        let tokens = x.len() / cols;
        assert_eq!(tokens * cols, x.len(), "input is not rows of {cols}");
        self.quantize(scratch, x, cols, jobs);
        let sets = &scratch.sets;
        let activations = |block: usize| sets[set_index(block)].view(tokens, cols, block);

        let mut weights = [None; MAX_JOBS];
        let mut outs = [const { None }; MAX_JOBS];
        for ((job, weight), out) in jobs.iter_mut().zip(&mut weights).zip(&mut outs) {
            assert_eq!(job.w.cols, cols, "all matrices of a call read the same input");
            assert_eq!(job.out.len(), tokens * job.w.rows, "output is not [tokens, rows]");
            *weight = Some(job.w);
            *out = Some(SharedMut::new(job.out, job.w.rows));
        }
        let jobs = || weights.iter().flatten().zip(outs.iter().flatten());

        let rows = jobs().map(|(w, _)| w.rows).sum();
        let size = self.piece(rows, TILE_ROWS, LEAST_WEIGHTS.div_ceil(cols * tokens));
        let pieces = jobs().map(|(w, _)| w.rows.div_ceil(size)).sum();
        self.pool.run(pieces, &|mut piece| {
            for (w, out) in jobs() {
                let count = w.rows.div_ceil(size);
                if piece >= count {
                    piece -= count;
                    continue;
                }
                let range = piece * size..w.rows.min((piece + 1) * size);
                // SAFETY: every piece is another job or another range of its output columns.
                let out = unsafe { out.block(0..tokens, range.clone()) };
                if let Weights::Float { dtype, data } = w.slice_rows(range.clone()).weights {
                    self.level.run(FloatLinear { dtype, data, cols, x, out });
                } else if let Some(weights) = w.quantized() {
                    let (first_row, x) = (range.start, activations(weights.block()));
                    with_local(|local| self.level.run(AffineLinear { weights, first_row, x, out, local }));
                }
                return;
            }
        });
    }

    /// Fills the activation sets that the quantised matrices of a call read.
    fn quantize(&self, scratch: &mut Scratch, x: &[f32], cols: usize, jobs: &[LinearJob<'_>]) {
        let mut needs = [Needs::default(); 3];
        for matrix in jobs.iter().filter_map(|job| job.w.quantized()) {
            let need = &mut needs[set_index(matrix.block())];
            let nibble = matches!(matrix.coding, Coding::Fp4 | Coding::Affine { bits: 4, .. });
            need.any = true;
            need.nibble |= nibble;
            need.plain |= !nibble;
        }
        for ((set, need), block) in scratch.sets.iter_mut().zip(needs).zip(BLOCKS) {
            if need.any {
                self.quantize_set(set, x, cols, block);
                if set.party == 1 && x.len() <= rows::TOKENS * cols {
                    set.pack(x.len() / cols, cols, block, need);
                }
            }
        }
    }

    fn quantize_set(&self, set: &mut ActivationSet, x: &[f32], cols: usize, block: usize) {
        let (tokens, blocks) = (x.len() / cols, cols / block);
        let party = self.level.party(tokens);
        set.party = party;
        let parties = tokens.div_ceil(party);
        let (codes, numbers) = (parties * party * cols, parties * party * blocks);
        let lines = grown(&mut set.codes, codes.div_ceil(64), Line([0; 64]));
        let codes = SharedMut::new(&mut Line::flattened_mut(lines)[..codes], party * cols);
        let sums = SharedMut::new(grown(&mut set.sums, numbers, 0), party * blocks);
        let scales = SharedMut::new(grown(&mut set.scales, numbers, 0.0), party * blocks);
        let weighted = SharedMut::new(grown(&mut set.weighted, numbers, 0.0), party * blocks);
        self.split(parties, 1, LEAST_WEIGHTS / (party * cols), &|range| {
            for index in range {
                let (row, numbers) = (index..index + 1, 0..party * blocks);
                // SAFETY: every party is its own row of all four.
                let (mut codes, mut sums, mut scales, mut weighted) = unsafe {
                    (
                        codes.block(row.clone(), 0..party * cols),
                        sums.block(row.clone(), numbers.clone()),
                        scales.block(row.clone(), numbers.clone()),
                        weighted.block(row, numbers),
                    )
                };
                for (t, x) in x[index * party * cols..].chunks(cols).take(party).enumerate() {
                    self.level.run(Quantize {
                        x,
                        block,
                        stride: party,
                        codes: &mut codes.row_mut(0)[t * block..],
                        sums: &mut sums.row_mut(0)[t..],
                        scales: &mut scales.row_mut(0)[t..],
                        weighted: &mut weighted.row_mut(0)[t..],
                    });
                }
            }
        });
    }

    /// Decoded rows of an embedding table: `out[i, :] = table[ids[i], :]`, `out` `[ids, cols]`. Quantised rows decode to
    /// `code·scale + bias`, rounded after each of the two operations.
    ///
    /// # Panics
    /// If an id is not a row of the table.
    pub fn embed(&self, table: Matrix<'_>, ids: &[u32], out: &mut [f32]) {
        assert_eq!(out.len(), ids.len() * table.cols, "output is not [ids, cols]");
        let rows = SharedMut::new(out, table.cols);
        self.split(ids.len(), 1, LEAST_WEIGHTS.div_ceil(table.cols.max(1)), &|range| {
            for index in range {
                let id = ids[index] as usize;
                assert!(id < table.rows, "token id {id} of a table of {}", table.rows);
                // SAFETY: every index is its own row.
                let mut row = unsafe { rows.block(index..index + 1, 0..table.cols) };
                with_local(|local| decode_row(&table, id, row.row_mut(0), local));
            }
        });
    }
}

impl ActivationSet {
    fn reserve(&mut self, needs: &ScratchNeeds, block: usize) {
        let cols = needs.matrices.inputs[set_index(block)];
        let blocks = with_parties(needs.tokens) * (cols / block);
        reserve(&mut self.codes, code_lines(needs.tokens, cols));
        reserve(&mut self.sums, blocks);
        reserve(&mut self.scales, blocks);
        reserve(&mut self.weighted, blocks);
        reserve(&mut self.nibble, needs.packed_tokens() * nibble_registers(cols, block));
        reserve(&mut self.plain, needs.packed_tokens() * plain_registers(cols));
    }

    fn bytes(&self) -> usize {
        let numbers = self.sums.capacity() + self.scales.capacity() + self.weighted.capacity();
        let registers = self.nibble.capacity() + self.plain.capacity();
        let lines = self.codes.capacity() + registers;
        numbers * size_of::<f32>() + lines * size_of::<[i8; 64]>()
    }

    fn view(&self, tokens: usize, cols: usize, block: usize) -> Activations<'_> {
        let all = tokens.next_multiple_of(self.party);
        let blocks = all * cols / block;
        Activations {
            tokens,
            cols,
            block,
            party: self.party,
            codes: &Line::flattened(&self.codes)[..all * cols],
            packed: Packed {
                nibble: self.nibble.get(..tokens * nibble_registers(cols, block)).unwrap_or_default(),
                plain: self.plain.get(..tokens * plain_registers(cols)).unwrap_or_default(),
            },
            sums: &self.sums[..blocks],
            scales: &self.scales[..blocks],
            weighted: &self.weighted[..blocks],
        }
    }

    /// Arranges the codes for the row kernels.
    fn pack(&mut self, tokens: usize, cols: usize, block: usize, need: Needs) {
        let rows = Line::flattened(&self.codes).chunks_exact(cols).take(tokens);
        if need.nibble {
            let registers = nibble_registers(cols, block);
            let nibble = grown(&mut self.nibble, tokens * registers, [0; 64]);
            for (codes, out) in rows.clone().zip(nibble.chunks_exact_mut(registers)) {
                pack_nibbles(codes, block, out);
            }
        }
        if need.plain {
            let registers = plain_registers(cols);
            let plain = grown(&mut self.plain, tokens * registers, [0; 64]);
            for (codes, out) in rows.zip(plain.chunks_exact_mut(registers)) {
                let out = out.as_flattened_mut();
                out[..cols].copy_from_slice(codes);
                out[cols..].fill(0);
            }
        }
    }
}

/// One token of [`Packed::nibble`].
fn pack_nibbles(codes: &[i8], block: usize, out: &mut [[i8; 64]]) {
    let passes = passes(block);
    let per_pass = out.len() / passes;
    for (pass, out) in out.chunks_exact_mut(per_pass).enumerate() {
        for (columns, out) in codes.chunks(2 * BLOCK).zip(out.as_chunks_mut().0) {
            let mut natural = [0; 2 * BLOCK];
            natural[..columns.len()].copy_from_slice(columns);
            if passes == 2 {
                natural.chunks_exact_mut(16).skip(1 - pass).step_by(2).for_each(|x| x.fill(0));
            }
            let [even, odd] = out;
            for (i, pair) in natural.as_chunks::<2>().0.iter().enumerate() {
                [even[i], odd[i]] = *pair;
            }
        }
    }
}
