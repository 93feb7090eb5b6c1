//! Causal depthwise convolution with SiLU, as in front of the gated delta rule.

use super::math::silu;
use crate::shared::ColumnBlock;

/// Some channels of the convolution over all tokens of a run.
pub(crate) struct ConvSilu<'a> {
    pub x: &'a [f32], // [tokens, channels]
    /// Channels of `x`.
    pub channels: usize,
    /// First of this piece's channels; the blocks below hold only these.
    pub first: usize,
    pub kernel: usize,
    /// Tokens after which the window stands; the state forgets later ones.
    pub keep: usize,
    pub weight: &'a [f32], // [width, kernel]
    /// The inputs before the run, oldest first; zero before the start of the sequence.
    pub state: ColumnBlock<'a, f32>, // [kernel - 1, width]
    pub out: ColumnBlock<'a, f32>, // [tokens, width]
}

impl ConvSilu<'_> {
    /// This piece's channels of input row `index` of the state followed by the run.
    #[inline(always)]
    pub fn input(&self, index: usize) -> &[f32] {
        match index.checked_sub(self.kernel - 1) {
            None => self.state.row(index),
            Some(token) => &self.x[token * self.channels + self.first..][..self.out.width()],
        }
    }

    /// Moves the window: the state becomes the last `kernel - 1` inputs before token `keep`.
    #[inline(always)]
    pub fn advance(&mut self) {
        for i in 0..self.kernel - 1 {
            // The source lies behind row i, so it is still the old one.
            let source = i + self.keep;
            for c in 0..self.out.width() {
                let value = self.input(source)[c];
                self.state.row_mut(i)[c] = value;
            }
        }
    }

    /// Outputs of channels `from..` of this piece.
    #[inline(always)]
    pub fn outputs(&mut self, from: usize) {
        for token in 0..self.out.rows() {
            for c in from..self.out.width() {
                let taps = &self.weight[c * self.kernel..][..self.kernel];
                let mut acc = 0.0f32;
                for (j, w) in taps.iter().enumerate() {
                    acc = w.mul_add(self.input(token + j)[c], acc);
                }
                self.out.row_mut(token)[c] = silu(acc);
            }
        }
    }
}

/// `out[t, c] = silu(acc)` with `acc = fma(w[c, j], in[t - kernel + 1 + j, c], acc)` from +0 over ascending j.
pub(crate) fn conv_silu(mut a: ConvSilu<'_>) {
    a.outputs(0);
    a.advance();
}
