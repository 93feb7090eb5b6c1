//! What goes into a step, and what comes out of it.

use crate::cache::SequenceId;

/// Which rows of a run need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantLogits {
    /// None: a prefill chunk that is not the last.
    None,
    /// The last row.
    Last,
    /// Every row.
    All,
    /// The last so many tokens are guesses: their rows, and the one before. The sequence ends before them until
    /// [`Engine::accept`](crate::Engine::accept) says how many of them were right.
    Verify(usize),
}

impl WantLogits {
    /// Rows of a run of `len` tokens.
    pub(crate) fn rows(self, len: usize) -> usize {
        match self {
            WantLogits::None => 0,
            WantLogits::Last => 1,
            WantLogits::All => len,
            WantLogits::Verify(drafts) => drafts + 1,
        }
    }

    /// Guesses at the end of a run.
    pub(crate) fn drafts(self) -> usize {
        if let WantLogits::Verify(drafts) = self { drafts } else { 0 }
    }
}

/// Tokens of one sequence in a step: a prefill chunk or a decode token.
#[derive(Clone, Copy, Debug)]
pub struct TokenRun<'a> {
    /// The sequence that is continued.
    pub sequence: SequenceId,
    /// At least one token.
    pub tokens: &'a [u32],
    /// Rows that need logits.
    pub logits: WantLogits,
}

/// Logits of a step, in the order of its runs.
#[derive(Debug)]
pub struct Logits<'a> {
    /// Row width.
    pub vocab: usize,
    /// `[rows, vocab]`.
    pub data: &'a mut [f32],
}

impl Logits<'_> {
    /// Row `i`.
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.vocab..(i + 1) * self.vocab]
    }
}

/// What one sequence keeps of a Gated DeltaNet layer.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentState<'a> {
    /// Delta-rule state `[value heads, key dim, value dim]`.
    pub delta: &'a [f32],
    /// Last inputs of the convolution `[kernel - 1, channels]`, oldest first.
    pub conv: &'a [f32],
}
