//! The multi-token prediction head: `norm(layer(fc(norm(embedding of a token), norm(the trunk's output before it))))`, then the
//! output layer. Its attention has a cache of its own in the sequence's pages.
//!
//! Where a guess of its own takes the place of a token, its own output takes that of the trunk.

use basert_model::{Attention, LayerSpec, Mixer};

use super::{Context, Job, Span};
use crate::EngineError;
use crate::cache::{Caches, Sequence, SequenceId, StateSlot};
use crate::sampler::argmax;
use crate::weights::{AttentionWeights, DraftWeights, MixerWeights};
use crate::workspace::Workspace;

/// The head as it is loaded.
#[derive(Clone, Copy)]
struct Head<'a> {
    layer: &'a LayerSpec,
    attention: &'a Attention,
    weights: &'a DraftWeights,
    mixer: &'a AttentionWeights,
}

impl<'a> Context<'a> {
    fn draft_head(&self) -> Option<Head<'a>> {
        let (layer, weights) = (self.spec.draft.as_ref()?, self.weights.draft.as_ref()?);
        let MixerWeights::Attention(mixer) = &weights.layer.mixer else { return None };
        Some(Head { layer, attention: layer.mixer.attention()?, weights, mixer })
    }

    /// Makes room for the rows of a step, before the trunk runs.
    pub fn make_room(
        &self,
        spans: &[Span],
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        for span in spans {
            let sequence = caches.parts(span.sequence)?.0;
            sequence.draft.truncate(span.position);
            let Some(head) = self.draft_head() else { continue };
            let draft = &mut sequence.draft;
            if draft.has_room(span.position, span.len) || draft.waiting() == 0 {
                continue;
            }
            let start = draft.entered();
            let (tokens, outputs) = draft.rows();
            let len = tokens.len();
            work.draft_tokens.clear();
            work.draft_tokens.extend_from_slice(tokens);
            let n = len * self.spec.hidden;
            work.out[..n].copy_from_slice(&outputs[..n]);
            draft.settle();
            work.draft_spans.clear();
            work.draft_spans.push(Span { start: 0, len, position: start, drafts: 0, ..*span });
            self.enter_rows(head, caches, work)?;
        }
        Ok(())
    }

    /// Takes the trunk's outputs in `work.x` after a step: few wait for the next guess, those of prompts are entered.
    pub fn follow(
        &self,
        tokens: &[u32],
        spans: &[Span],
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        let Some(head) = self.draft_head() else { return Ok(()) };
        let width = self.spec.hidden;
        self.norm(&self.weights.final_norm, tokens.len(), work);
        work.draft_tokens.clear();
        work.draft_spans.clear();
        for span in spans {
            let draft = &mut caches.parts(span.sequence)?.0.draft;
            let (tokens, outputs) = (&tokens[span.start..][..span.len], &work.h[span.of(width)]);
            if draft.has_room(span.position, span.len) {
                draft.push(span.position, tokens, outputs);
                continue;
            }
            // A row that was entered when it was guessed from is not entered again.
            let skip = draft.entered().saturating_sub(span.position).min(span.len);
            let start = work.draft_tokens.len();
            let rows = &mut work.out[start * width..];
            let first = if skip == 0 { draft.last_output() } else { &outputs[(skip - 1) * width..][..width] };
            rows[..width].copy_from_slice(first);
            let rest = &outputs[skip * width..(span.len - 1) * width];
            rows[width..width + rest.len()].copy_from_slice(rest);
            work.draft_tokens.extend_from_slice(&tokens[skip..]);
            draft.restart(span.position + span.len, &outputs[(span.len - 1) * width..]);
            let (len, position) = (span.len - skip, span.position + skip);
            work.draft_spans.push(Span { start, len, position, ..*span });
        }
        if work.draft_tokens.is_empty() { Ok(()) } else { self.enter_rows(head, caches, work) }
    }

    /// Predicts what follows `token`, the next one of a sequence: its row is entered, after those that wait.
    pub fn predict(
        &self,
        id: SequenceId,
        token: u32,
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<Option<u32>, EngineError> {
        let sequence = caches.parts(id)?.0;
        let (position, draft) = (sequence.position, &mut sequence.draft);
        draft.truncate(position);
        if !draft.is_ready() {
            return Ok(None);
        }
        let (tokens, outputs) = draft.rows();
        work.draft_tokens.clear();
        work.draft_tokens.extend_from_slice(tokens);
        work.draft_tokens.push(token);
        work.out[..outputs.len()].copy_from_slice(outputs);
        let first = draft.entered();
        draft.run_ahead(position);
        self.predict_rows(id, first, caches, work)
    }

    /// Predicts what follows the guess `token` at `position`, right after it was made.
    pub fn predict_on(
        &self,
        id: SequenceId,
        token: u32,
        position: usize,
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<Option<u32>, EngineError> {
        let width = self.spec.hidden;
        work.draft_tokens.clear();
        work.draft_tokens.push(token);
        work.out[..width].copy_from_slice(&work.last_normed[..width]);
        self.predict_rows(id, position, caches, work)
    }

    /// Runs the rows of `work.draft_tokens` and `work.out` from position `first` on through the head; the token that follows the last.
    fn predict_rows(
        &self,
        sequence: SequenceId,
        first: usize,
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<Option<u32>, EngineError> {
        let (Some(head), Some(kv)) = (self.draft_head(), caches.draft) else { return Ok(None) };
        let len = work.draft_tokens.len();
        let (n, spans) =
            (len * self.spec.hidden, [Span { sequence, start: 0, len, position: first, drafts: 0 }]);
        self.join(head, work)?;
        self.fill_rope(&spans, work);
        let layer = &head.weights.layer;
        self.norm(&layer.input_norm, len, work);
        self.attention(head.attention, head.mixer, kv, &spans, caches, work)?;
        self.cpu.add(&mut work.x[..n], &work.out[..n]);
        self.norm(&layer.post_norm, len, work);
        self.ffn(head.layer, layer, len, work)?;
        self.cpu.add(&mut work.x[..n], &work.out[..n]);
        self.likeliest(head, len - 1, work)
    }

    /// The likeliest token by the head's row `row` of `work.x`; its normed output stays in `work.last_normed`.
    fn likeliest(
        &self,
        head: Head<'_>,
        row: usize,
        work: &mut Workspace,
    ) -> Result<Option<u32>, EngineError> {
        let width = self.spec.hidden;
        let Workspace { x, last_normed, logits, scratch, .. } = work;
        let normed = &mut last_normed[..width];
        self.cpu.rms_norm(&x[row * width..(row + 1) * width], &head.weights.norm, self.spec.norm_eps, normed);
        let matrix = head.weights.head.as_ref().unwrap_or(self.weights.output());
        let out = &mut logits[..self.spec.vocab];
        self.linear(scratch, normed, [Job { w: matrix.all(), out: &mut *out }])?;
        Ok(argmax(out))
    }

    /// Enters keys and values of the rows of `work.draft_tokens` and `work.out`, in `work.draft_spans`.
    fn enter_rows(
        &self,
        head: Head<'_>,
        caches: &mut Caches,
        work: &mut Workspace,
    ) -> Result<(), EngineError> {
        let Some(kv) = caches.draft else { return Ok(()) };
        let spans = std::mem::take(&mut work.draft_spans);
        let len = work.draft_tokens.len();
        self.join(head, work)?;
        self.fill_rope(&spans, work);
        self.norm(&head.weights.layer.input_norm, len, work);
        self.queries_keys_values(head.attention, head.mixer, len, work)?;
        let stored = self.store_keys_values(head.attention, kv, &spans, caches, work);
        work.draft_spans = spans;
        stored
    }

    /// `fc` of the normed embeddings of `work.draft_tokens` beside the normed trunk outputs in `work.out`; the result is in `work.x`.
    fn join(&self, head: Head<'_>, work: &mut Workspace) -> Result<(), EngineError> {
        let (width, eps, weights) = (self.spec.hidden, self.spec.norm_eps, head.weights);
        let Workspace { x, h, out, joint, draft_tokens, scratch, .. } = work;
        let n = draft_tokens.len() * width;
        let (h, out, joint) = (&mut h[..n], &mut out[..n], &mut joint[..2 * n]);
        self.cpu.rms_norm(out, &weights.norm_hidden, eps, h);
        beside(joint, h, width, 1);
        let table = weights.embed.as_ref().unwrap_or(&self.weights.embed);
        self.embed(table, draft_tokens, out)?;
        self.cpu.rms_norm(out, &weights.norm_embedding, eps, h);
        beside(joint, h, width, 0);
        self.linear(scratch, joint, [Job { w: weights.fc.all(), out: &mut x[..n] }])
    }

    /// Moves a recurrent layer's state over the first `accepted` guesses of the last step.
    pub fn replay(
        &self,
        index: usize,
        slot: StateSlot,
        accepted: usize,
        sequence: &mut Sequence,
        work: &mut Workspace,
    ) {
        let (Mixer::GatedDelta(d), MixerWeights::GatedDelta(w)) =
            (&self.spec.layers[index].mixer, &self.weights.layers[index].mixer)
        else {
            return;
        };
        let widths = [d.conv_channels(), d.value_heads, d.value_heads];
        let inputs = sequence.draft.inputs(slot.kept, widths, accepted);
        let convolved = &mut work.inner[..accepted * d.conv_channels()];
        let out = &mut work.mixed[..accepted * d.value_width()];
        let state = slot.split(&mut sequence.state);
        self.recur((d, w), inputs, accepted, state, &mut work.delta, [convolved, out]);
    }
}

/// Copies the rows of `x` into half `half` of the twice as wide rows of `joint`.
fn beside(joint: &mut [f32], x: &[f32], width: usize, half: usize) {
    for (joint, x) in joint.chunks_exact_mut(2 * width).zip(x.chunks_exact(width)) {
        joint[half * width..(half + 1) * width].copy_from_slice(x);
    }
}
