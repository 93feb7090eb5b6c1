//! Stored floats, sixteen at a time.

use basert_quant::FloatDtype;

use crate::reference::float::float_at;
use crate::vector::Simd;

/// A stored float type.
pub(crate) trait Element: Copy {
    /// Sixteen elements.
    type Chunk: Copy;

    /// The type's name elsewhere.
    const DTYPE: FloatDtype;

    /// Whole chunks and the bytes after them.
    fn chunks(bytes: &[u8]) -> (&[Self::Chunk], &[u8]);

    /// Widens a chunk exactly.
    fn load<S: Simd>(s: S, chunk: &Self::Chunk) -> S::F;

    /// Widens fewer than sixteen elements; the lanes after them are -0, the neutral summand of a dot product.
    #[inline(always)]
    fn tail(bytes: &[u8]) -> [f32; 16] {
        let mut lanes = [-0.0; 16];
        for (i, lane) in lanes.iter_mut().take(bytes.len() / Self::DTYPE.bytes()).enumerate() {
            *lane = float_at(Self::DTYPE, bytes, i);
        }
        lanes
    }
}

macro_rules! element {
    ($name:ident, $dtype:expr, $bytes:literal, $load:ident) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Element for $name {
            type Chunk = [u8; $bytes];

            const DTYPE: FloatDtype = $dtype;

            #[inline(always)]
            fn chunks(bytes: &[u8]) -> (&[Self::Chunk], &[u8]) {
                bytes.as_chunks()
            }

            #[inline(always)]
            fn load<S: Simd>(s: S, chunk: &Self::Chunk) -> S::F {
                s.$load(chunk)
            }
        }
    };
}

element!(F32, FloatDtype::F32, 64, load_f32);
element!(F16, FloatDtype::F16, 32, load_f16);
element!(Bf16, FloatDtype::Bf16, 32, load_bf16);
