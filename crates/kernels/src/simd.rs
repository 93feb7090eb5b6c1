//! The vectorised kernels: each algorithm once, over the virtual vector.
//!
//! Everything here is `#[inline(always)]` so that it is compiled inside the instruction set's entry function (see
//! `level`), and avoids closures around vectors, which would be functions of their own. Operations that the compiler
//! vectorises by itself run their reference, compiled for the instruction set.
// Small tiles of vectors are indexed side by side; zipped iterators would hide which row meets which token.
#![allow(clippy::needless_range_loop)]

pub(crate) mod affine;
mod attention;
mod conv;
mod delta;
mod element;
mod elementwise;
mod float;
mod kv;
mod math;
mod matrix_unit;
mod norm;

mod quantize;
pub(crate) mod rows;
mod scales;
mod supers;
pub(crate) mod tile;

use crate::level::{Kernel, Vectorized};
use crate::reference::{self, affine::AffineLinear};
use crate::vector::Simd;

/// Connects an operation's arguments with its reference and its vectorised form; without one, the reference runs.
macro_rules! kernel {
    ($arguments:ty, $reference:path $(, $vectorized:path)?) => {
        impl Kernel for $arguments {
            fn reference(self) {
                $reference(self);
            }
        }

        impl Vectorized for $arguments {
            #[inline(always)]
            fn vectorized<S: Simd>(self, _simd: S) {
                kernel!(@call self, _simd, $reference $(, $vectorized)?);
            }
        }
    };
    (@call $self:ident, $simd:ident, $reference:path) => { $reference($self) };
    (@call $self:ident, $simd:ident, $reference:path, $vectorized:path) => { $vectorized($simd, $self) };
}

kernel!(reference::norm::RmsNorm<'_>, reference::norm::rms_norm, norm::rms_norm);
kernel!(reference::norm::GatedRmsNorm<'_>, reference::norm::gated_rms_norm, norm::gated_rms_norm);
kernel!(reference::elementwise::SiluMul<'_>, reference::elementwise::silu_mul, elementwise::silu_mul);
kernel!(
    reference::elementwise::SigmoidMul<'_>,
    reference::elementwise::sigmoid_mul,
    elementwise::sigmoid_mul
);
kernel!(reference::elementwise::AddScaled<'_>, reference::elementwise::add_scaled);
kernel!(reference::elementwise::SigmoidScaleRows<'_>, reference::elementwise::sigmoid_scale_rows);
kernel!(reference::rope::Rope<'_>, reference::rope::rope);
kernel!(reference::quantize::Quantize<'_>, reference::quantize::quantize, quantize::quantize);
kernel!(reference::float::FloatLinear<'_>, reference::float::float_linear, float::float_linear);
kernel!(
    reference::attention::AttentionSegment<'_>,
    reference::attention::attention_segment,
    attention::attention_segment
);
kernel!(reference::attention::MergeSegments<'_>, reference::attention::merge_segments);
kernel!(reference::attention::FinishHeads<'_>, reference::attention::finish_heads);
kernel!(reference::kv::StoreKv<'_>, reference::kv::store_kv, kv::store_kv);
kernel!(reference::rotate::Rotate<'_>, reference::rotate::rotate);
kernel!(reference::conv::ConvSilu<'_>, reference::conv::conv_silu, conv::conv_silu);
kernel!(reference::delta::NormalizeKeys<'_>, reference::delta::normalize_keys, norm::normalize_keys);
kernel!(reference::delta::DeltaColumns<'_>, reference::delta::delta_columns, delta::delta_columns);

impl Kernel for AffineLinear<'_> {
    const INTEGER: bool = true;

    fn reference(self) {
        reference::affine::affine_linear(self);
    }
}

impl Vectorized for AffineLinear<'_> {
    #[inline(always)]
    fn vectorized<S: Simd>(self, simd: S) {
        affine::affine_linear(simd, self);
    }
}

/// Asks for the cache line at `at`. Any address will do: nothing is read and nothing faults.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch has no effect but on the caches.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
