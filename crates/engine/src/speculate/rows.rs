//! What a sequence keeps of its last step, so that guesses can be forgotten or accepted.

use basert_model::{LayerSpec, Mixer, ModelSpec};

/// Sizes from which [`DraftRows`] are planned and allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DraftSizes {
    /// Most guesses in a step.
    pub most: usize,
    /// f32 elements per guess that the recurrent layers keep.
    inputs: usize,
    /// Width of the trunk's output; 0 without a prediction head.
    hidden: usize,
}

impl DraftSizes {
    pub fn new(spec: &ModelSpec, most: usize) -> DraftSizes {
        if most == 0 {
            return DraftSizes::default();
        }
        let inputs = spec.layers.iter().map(DraftSizes::layer_inputs).sum();
        DraftSizes { most, inputs, hidden: if spec.draft.is_some() { spec.hidden } else { 0 } }
    }

    /// f32 elements that a layer keeps of a guess: channels before the convolution, and both rates.
    pub fn layer_inputs(layer: &LayerSpec) -> usize {
        match &layer.mixer {
            Mixer::GatedDelta(d) => d.conv_channels() + 2 * d.value_heads,
            Mixer::Attention(_) => 0,
        }
    }

    /// Rows of trunk outputs: those of a step, and one from before for a step that nobody guessed for.
    fn outputs(&self) -> usize {
        if self.hidden > 0 { self.most + 2 } else { 0 }
    }

    /// Bytes of one sequence.
    pub fn bytes(&self) -> usize {
        let floats = self.most * self.inputs + self.outputs() * self.hidden;
        floats * size_of::<f32>() + self.outputs() * size_of::<u32>()
    }
}

/// One sequence's part in speculation.
///
/// The prediction head has a row of its own for every token of the sequence, made of that token and the trunk's output at the
/// token before. Row `r` can be entered into its cache when both are known; until then tokens and outputs wait here.
pub(crate) struct DraftRows {
    sizes: DraftSizes,
    /// Per recurrent layer, for the guesses of the last step: channels, then decay and update rates.
    inputs: Vec<f32>,
    /// Guesses of the last step that can still be accepted.
    pub proposed: usize,
    /// Rows that the head's cache holds.
    entered: usize,
    /// Tokens of the rows from `entered` on.
    tokens: Vec<u32>,
    /// The trunk's outputs before these rows and at the last of them, `[.., hidden]`.
    outputs: Vec<f32>,
}

impl DraftRows {
    /// Of a sequence that begins with `position` tokens, whose last output nobody knows.
    pub fn new(sizes: DraftSizes, position: usize) -> DraftRows {
        let mut rows = DraftRows {
            sizes,
            inputs: vec![0.0; sizes.most * sizes.inputs],
            proposed: 0,
            entered: 0,
            tokens: Vec::with_capacity(sizes.outputs()),
            outputs: Vec::with_capacity(sizes.outputs() * sizes.hidden),
        };
        rows.lose_track(position);
        rows
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        (self.inputs.capacity() + self.outputs.capacity()) * size_of::<f32>()
            + self.tokens.capacity() * size_of::<u32>()
    }

    /// Keeps what a recurrent layer read for the guesses of this step: `qkv` `[guesses, channels]`, and both rates `[guesses, value
    /// heads]`. `at` is the layer's place, in elements per guess.
    pub fn keep_inputs(&mut self, at: usize, parts: [&[f32]; 3]) {
        let mut start = at * self.sizes.most;
        for part in parts {
            self.inputs[start..start + part.len()].copy_from_slice(part);
            start += part.len();
        }
    }

    /// What was kept for the first `accepted` of the guesses, from rows of the given widths.
    pub fn inputs(&self, at: usize, widths: [usize; 3], accepted: usize) -> [&[f32]; 3] {
        let mut start = at * self.sizes.most;
        widths.map(|width| {
            let part = &self.inputs[start..start + accepted * width];
            start += self.proposed * width;
            part
        })
    }

    /// Rows whose tokens wait.
    pub fn waiting(&self) -> usize {
        self.tokens.len()
    }

    /// The first row that is not entered.
    pub fn entered(&self) -> usize {
        self.entered
    }

    /// The tokens that wait, and the trunk's outputs before each of them and after the last.
    pub fn rows(&self) -> (&[u32], &[f32]) {
        (&self.tokens, &self.outputs)
    }

    /// The trunk's output before `position`, if nothing waits and no row behind it was entered.
    pub fn last_output(&self) -> &[f32] {
        &self.outputs[self.outputs.len().saturating_sub(self.sizes.hidden)..]
    }

    /// What waits of a sequence that ends at `position`, to be kept: the first row that is not entered, the tokens that wait, and
    /// the trunk's outputs; `None` if nothing is known.
    pub fn waits(&self, position: usize) -> Option<(usize, &[u32], &[f32])> {
        let waiting = position.checked_sub(self.entered)?;
        let outputs = self.outputs.get(..(waiting + 1) * self.sizes.hidden)?;
        (self.sizes.hidden > 0).then_some((self.entered, self.tokens.get(..waiting)?, outputs))
    }

    /// Goes on from what [`waits`](Self::waits) of a sequence that ended at `position`, if there is room for it.
    pub fn resume(&mut self, position: usize, entered: usize, tokens: &[u32], outputs: &[f32]) {
        let rows = tokens.len() + 1;
        let fits = rows <= self.sizes.outputs() && outputs.len() == rows * self.sizes.hidden;
        if !fits || entered + tokens.len() != position {
            return self.lose_track(position);
        }
        self.restart(entered, outputs);
        self.tokens.extend_from_slice(tokens);
    }

    /// Whether outputs are known up to the row that follows the sequence's last token.
    pub fn is_ready(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Forgets rows from `position` on, where the sequence now ends.
    pub fn truncate(&mut self, position: usize) {
        self.proposed = 0;
        if self.sizes.hidden == 0 || (self.entered == position + 1 && self.outputs.is_empty()) {
            return;
        }
        let known = (self.outputs.len() / self.sizes.hidden + self.entered).saturating_sub(1);
        if self.entered > position || known < position {
            return self.lose_track(position);
        }
        self.tokens.truncate(position - self.entered);
        self.outputs.truncate((position - self.entered + 1) * self.sizes.hidden);
    }

    /// Whether the rows of a step of `len` tokens at `position` can wait.
    pub fn has_room(&self, position: usize, len: usize) -> bool {
        (position + len).saturating_sub(self.entered) < self.sizes.outputs()
    }

    /// Lets the rows of a step at `position` wait: its tokens, and the trunk's `outputs` at them.
    pub fn push(&mut self, position: usize, tokens: &[u32], outputs: &[f32]) {
        self.tokens.extend_from_slice(&tokens[self.entered.saturating_sub(position).min(tokens.len())..]);
        self.outputs.extend_from_slice(outputs);
    }

    /// Everything before `position` was entered; `output` is the trunk's before it.
    pub fn restart(&mut self, position: usize, output: &[f32]) {
        self.entered = position;
        self.tokens.clear();
        self.outputs.clear();
        self.outputs.extend_from_slice(output);
    }

    /// What waits was entered; the last output goes on waiting.
    pub fn settle(&mut self) {
        let kept = self.outputs.len().saturating_sub(self.sizes.hidden);
        self.outputs.drain(..kept);
        self.entered += self.tokens.len();
        self.tokens.clear();
    }

    /// Everything up to `position` was entered, the token at it included: the trunk's output there is not known yet.
    pub fn run_ahead(&mut self, position: usize) {
        self.restart(position + 1, &[]);
    }

    fn lose_track(&mut self, position: usize) {
        self.restart(position, &[]);
        self.outputs.resize(self.sizes.hidden, 0.0);
    }
}
