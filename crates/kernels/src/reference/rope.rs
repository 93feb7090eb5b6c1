//! Rotary position embedding (Su et al. 2021).

/// Which elements of a head rotate together, within the rotary dimensions `r`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// Element i with element i + r/2 (Hugging Face, "rotate half").
    Half,
    /// Element 2i with element 2i + 1 (the original; llama in GGUF).
    Interleaved,
}

/// Rotates in place the first `r` elements of every head; `r/2` is the width of the tables.
pub(crate) struct Rope<'a> {
    pub x: &'a mut [f32], // [tokens, heads, head_dim]
    pub heads: usize,
    pub head_dim: usize,
    pub cos: &'a [f32], // [tokens, r/2]
    pub sin: &'a [f32], // [tokens, r/2]
    pub pairing: Pairing,
}

/// Pair (a, b) becomes (fma(-b, sin, a·cos), fma(a, sin, b·cos)).
#[inline(always)]
pub(crate) fn rope(a: Rope<'_>) {
    let width = a.heads * a.head_dim;
    let pairs = a.cos.len() / (a.x.len() / width.max(1)).max(1);
    if pairs == 0 {
        return;
    }
    let tables = a.cos.chunks_exact(pairs).zip(a.sin.chunks_exact(pairs));
    for (token, (cos, sin)) in a.x.chunks_exact_mut(width).zip(tables) {
        for head in token.chunks_exact_mut(a.head_dim) {
            match a.pairing {
                Pairing::Half => rotate_half(head, cos, sin),
                Pairing::Interleaved => rotate_interleaved(head, cos, sin),
            }
        }
    }
}

#[inline(always)]
fn rotate_half(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, rest) = head.split_at_mut(cos.len());
    for (((x0, x1), cos), sin) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
        (*x0, *x1) = rotate(*x0, *x1, *cos, *sin);
    }
}

#[inline(always)]
fn rotate_interleaved(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for (([x0, x1], cos), sin) in head.as_chunks_mut().0.iter_mut().zip(cos).zip(sin) {
        (*x0, *x1) = rotate(*x0, *x1, *cos, *sin);
    }
}

#[inline(always)]
fn rotate(x0: f32, x1: f32, cos: f32, sin: f32) -> (f32, f32) {
    ((-x1).mul_add(sin, x0 * cos), x0.mul_add(sin, x1 * cos))
}
