//! The forward pass: one walk over the layers for every architecture, every batch and every phase.
//!
//! All runs of a step go through the linear layers together; attention and the recurrent layers go
//! run by run, because they read that sequence's cache. Nothing here depends on how many tokens or runs
//! there are, so a token's result does not either.

mod attention;
mod delta;
mod draft;
mod ffn;

use std::ops::Range;

use basert_kernels::{Cpu, LinearJob, Scratch};
use basert_model::{LayerSpec, Mixer, ModelSpec};

use crate::EngineError;
use crate::cache::{Caches, LayerCache, SequenceId};
use crate::rope::Frequencies;
use crate::tensor::{Rows, Tensors, Weight};
use crate::trace::{Needs, Operation, Trace};
use crate::weights::{LayerWeights, MixerWeights, Weights};
use crate::workspace::Workspace;
pub(crate) use delta::delta_shape;

/// A run's rows in the step and its place in its sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub sequence: SequenceId,
    /// Rows `start .. start + len` of the step.
    pub start: usize,
    pub len: usize,
    /// Position of the first row in the sequence.
    pub position: usize,
    /// The last rows that are guesses: recurrent states do not keep them.
    pub drafts: usize,
}

impl Span {
    /// The span's rows of a buffer whose rows are `width` wide.
    fn of(&self, width: usize) -> std::ops::Range<usize> {
        self.start * width..(self.start + self.len) * width
    }
}

/// What the forward pass reads and does not change.
pub(crate) struct Context<'a> {
    pub cpu: &'a Cpu,
    pub tensors: Tensors<'a>,
    pub spec: &'a ModelSpec,
    pub weights: &'a Weights,
    pub rope: Option<&'a Frequencies>,
    /// Give mapped pages back after every block of rows.
    pub lean: bool,
    /// Sees the input of every linear layer.
    pub watch: Option<&'a Watch<'a>>,
    /// Times every operation.
    pub trace: Option<&'a Trace>,
}

/// Called with the input of every linear layer before it runs.
pub type Watch<'a> = dyn Fn(&LinearInput<'_>) + 'a;

/// What a linear layer is about to read.
#[derive(Clone, Debug)]
pub struct LinearInput<'a> {
    /// Canonical name of the weight.
    pub weight: &'a str,
    /// Rows of the weight that take part: all of them, or one expert's of a stack.
    pub rows: Range<usize>,
    /// Activations `[tokens, cols]`.
    pub x: &'a [f32],
    /// Inputs of the layer.
    pub cols: usize,
}

/// A linear layer: `out = x·wᵀ`, `out` `[tokens, rows of w]`.
struct Job<'a> {
    w: Rows<'a>,
    out: &'a mut [f32],
}

impl Context<'_> {
    /// Runs `tokens` through all layers; leaves the residual stream in `work.x` `[tokens, hidden]`.
    pub fn layers(
        &self,
        tokens: &[u32],
        spans: &[Span],
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        let n = tokens.len() * self.spec.hidden;
        self.enter(None);
        self.timed(Operation::Rotate, || self.fill_rope(spans, work));
        self.timed(Operation::Embed, || self.embed(&self.weights.embed, tokens, &mut work.x[..n]))?;
        for (i, (layer, weights)) in self.spec.layers.iter().zip(&self.weights.layers).enumerate() {
            self.enter(Some(i));
            self.norm(&weights.input_norm, tokens.len(), work);
            self.mixer(layer, weights, caches.layers[i], spans, caches, work)?;
            self.timed(Operation::Add, || self.cpu.add(&mut work.x[..n], &work.out[..n]));
            self.norm(&weights.post_norm, tokens.len(), work);
            self.ffn(layer, weights, tokens.len(), work)?;
            self.timed(Operation::Add, || self.cpu.add(&mut work.x[..n], &work.out[..n]));
        }
        self.enter(None);
        Ok(())
    }

    /// Logits of the given rows of `work.x`, in order, into `work.logits` `[rows, vocab]`.
    pub fn head(
        &self,
        rows: impl Iterator<Item = usize>,
        work: &mut Workspace,
    ) -> Result<usize, EngineError> {
        let hidden = self.spec.hidden;
        let mut count = 0;
        for row in rows {
            let source = &work.x[row * hidden..(row + 1) * hidden];
            work.last[count * hidden..(count + 1) * hidden].copy_from_slice(source);
            count += 1;
        }
        if count == 0 {
            return Ok(0);
        }
        let Workspace { last, last_normed, logits, scratch, .. } = work;
        let normed = &mut last_normed[..count * hidden];
        let (last, gain, eps) = (&last[..count * hidden], &self.weights.final_norm, self.spec.norm_eps);
        self.timed(Operation::Norm, || self.cpu.rms_norm(last, gain, eps, normed));
        let out = &mut logits[..count * self.spec.vocab];
        self.linear(scratch, normed, [Job { w: self.weights.output().all(), out }])?;
        Ok(count)
    }

    /// Shows the input of the head to `watch` without running the head, for the first `tokens` rows of `work.x`.
    pub fn watch_head(&self, watch: &Watch<'_>, tokens: usize, work: &mut Workspace) {
        self.norm(&self.weights.final_norm, tokens, work);
        let (cols, head) = (self.spec.hidden, self.weights.output());
        let x = &work.h[..tokens * cols];
        watch(&LinearInput { weight: head.name(), rows: 0..self.spec.vocab, x, cols });
    }

    fn enter(&self, layer: Option<usize>) {
        if let Some(trace) = self.trace {
            trace.enter(layer);
        }
    }

    /// Does `work`; counts its time if that is asked for.
    fn timed<T>(&self, operation: Operation, work: impl FnOnce() -> T) -> T {
        self.timed_with(operation, Needs::default, work)
    }

    fn timed_with<T>(
        &self,
        operation: Operation,
        needs: impl FnOnce() -> Needs,
        work: impl FnOnce() -> T,
    ) -> T {
        match self.trace {
            Some(trace) => trace.time(operation, String::new(), needs(), work),
            None => work(),
        }
    }

    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut [f32]) -> Result<(), EngineError> {
        if table.is_streamed() {
            return table.stream_rows(self.tensors, tokens, out);
        }
        self.cpu.embed(table.resident(self.tensors), tokens, out);
        Ok(())
    }

    /// Linear layers that read the same `x` `[tokens, cols]`.
    fn linear<const N: usize>(
        &self,
        scratch: &mut Scratch,
        x: &[f32],
        jobs: [Job<'_>; N],
    ) -> Result<(), EngineError> {
        if let Some(watch) = self.watch {
            for Job { w, .. } in &jobs {
                let (rows, cols) = (w.range.clone(), w.weight.cols());
                watch(&LinearInput { weight: w.weight.name(), rows, x, cols });
            }
        }
        if self.lean || jobs.iter().any(|job| job.w.weight.is_streamed()) {
            return jobs.into_iter().try_for_each(|job| self.linear_in_blocks(scratch, x, job));
        }
        let traced = self.trace.map(|trace| (trace, linear_call(trace, x, &jobs)));
        let mut jobs = jobs.map(|Job { w, out }| LinearJob { w: w.resident(self.tensors), out });
        let mut run = || self.cpu.linear(scratch, x, &mut jobs);
        match traced {
            Some((trace, (operation, weights, needs))) => trace.time(operation, weights, needs, run),
            None => run(),
        }
        Ok(())
    }

    /// One linear layer, a block of rows after the other.
    fn linear_in_blocks(&self, scratch: &mut Scratch, x: &[f32], job: Job<'_>) -> Result<(), EngineError> {
        let Job { w, out } = job;
        let (width, tokens) = (w.len(), x.len() / w.weight.cols());
        let mut part = Vec::new();
        w.each_block(self.tensors, self.cpu.threads(), |first, block| {
            part.resize(tokens * block.rows, 0.0);
            self.cpu.linear(scratch, x, &mut [LinearJob { w: block, out: &mut part }]);
            for (out, part) in out.chunks_exact_mut(width).zip(part.chunks_exact(block.rows)) {
                out[first..first + block.rows].copy_from_slice(part);
            }
            if self.lean {
                self.tensors.release_pages();
            }
            Ok(())
        })
    }

    fn fill_rope(&self, spans: &[Span], work: &mut Workspace) {
        if let Some(rope) = self.rope {
            for span in spans {
                let rows = span.of(rope.pairs());
                rope.fill(span.position, &mut work.cos[rows.clone()], &mut work.sin[rows]);
            }
        }
    }

    fn norm(&self, gain: &[f32], tokens: usize, work: &mut Workspace) {
        let n = tokens * self.spec.hidden;
        let Workspace { x, h, .. } = work;
        self.timed(Operation::Norm, || {
            self.cpu.rms_norm(&x[..n], gain, self.spec.norm_eps, &mut h[..n]);
        });
    }

    fn mixer(
        &self,
        layer: &LayerSpec,
        weights: &LayerWeights,
        slot: LayerCache,
        spans: &[Span],
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        match (&layer.mixer, &weights.mixer, slot) {
            (Mixer::Attention(a), MixerWeights::Attention(w), LayerCache::Kv(kv)) => {
                self.attention(a, w, kv, spans, caches, work)
            }
            (Mixer::GatedDelta(d), MixerWeights::GatedDelta(w), LayerCache::State(_)) => {
                self.gated_delta(d, w, slot, spans, caches, work)
            }
            _ => unreachable!("weights and caches are built from the same layer list"),
        }
    }
}

/// What a call of linear layers is in a trace.
fn linear_call(trace: &Trace, x: &[f32], jobs: &[Job<'_>]) -> (Operation, String, Needs) {
    let (mut names, mut needs) = (Vec::new(), Needs::default());
    for Job { w, .. } in jobs {
        let (elements, cols) = (w.len() * w.weight.cols(), w.weight.cols());
        needs.bytes += w.weight.bytes() as f64 * w.len() as f64 / w.weight.row_count() as f64;
        needs.multiply_adds += (elements * (x.len() / cols)) as f64;
        names.push(short_name(w.weight.name()));
    }
    let operation = if trace.is_in_layer() { Operation::Linear } else { Operation::Head };
    (operation, names.join(" "), needs)
}

/// `q_proj` of `layers.3.attn.q_proj.weight`.
fn short_name(tensor: &str) -> &str {
    let name = tensor.strip_suffix(".weight").unwrap_or(tensor);
    name.rsplit_once('.').map_or(name, |(_, last)| last)
}
