//! Gated activations.

use super::math::{sigmoid, silu};
use crate::reference::elementwise::{self, SigmoidMul, SiluMul};
use crate::vector::{LANES, Simd};

/// See [`SiluMul`].
#[inline(always)]
pub(crate) fn silu_mul<S: Simd>(s: S, a: SiluMul<'_>) {
    let (x, x_tail) = a.x.as_chunks_mut::<LANES>();
    let (up, up_tail) = a.up.as_chunks::<LANES>();
    for (x, up) in x.iter_mut().zip(up) {
        s.store(s.mul(silu(s, s.load(x)), s.load(up)), x);
    }
    elementwise::silu_mul(SiluMul { x: x_tail, up: up_tail });
}

/// See [`SigmoidMul`].
#[inline(always)]
pub(crate) fn sigmoid_mul<S: Simd>(s: S, a: SigmoidMul<'_>) {
    let (x, x_tail) = a.x.as_chunks_mut::<LANES>();
    let (gate, gate_tail) = a.gate.as_chunks::<LANES>();
    for (x, gate) in x.iter_mut().zip(gate) {
        s.store(s.mul(s.load(x), sigmoid(s, s.load(gate))), x);
    }
    elementwise::sigmoid_mul(SigmoidMul { x: x_tail, gate: gate_tail });
}
