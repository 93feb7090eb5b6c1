//! Rotation of heads before they are quantised: a Walsh-Hadamard transform, which spreads the few large elements of a key
//! or value over all of them (QuaRot, Ashkboos et al. 2024, section 4.2). It is orthonormal and its own inverse: scores of
//! rotated queries and rotated keys are those of the originals, and what rotated values add up to is turned back by
//! rotating once more.

use crate::vector::LANES;

/// Heads to rotate in place.
pub(crate) struct Rotate<'a> {
    pub x: &'a mut [f32], // [rows, width]
    /// A power of two, at least 16.
    pub width: usize,
}

/// Per row, for every power of two `h` below the width, ascending: elements `i` and `i + h` become their sum and their
/// difference, for each i in which bit h is clear. Then all are multiplied with `1 / sqrt(width)`.
#[inline(always)]
pub(crate) fn rotate(a: Rotate<'_>) {
    let factor = 1.0 / (a.width as f32).sqrt();
    for row in a.x.chunks_exact_mut(a.width) {
        row.as_chunks_mut().0.iter_mut().for_each(within_vector);
        let mut distance = LANES;
        while distance < a.width {
            for pair in row.chunks_exact_mut(2 * distance) {
                let (low, high) = pair.split_at_mut(distance);
                for (low, high) in low.iter_mut().zip(high) {
                    (*low, *high) = (*low + *high, *low - *high);
                }
            }
            distance *= 2;
        }
        row.iter_mut().for_each(|x| *x *= factor);
    }
}

/// The first four steps, which stay within sixteen elements.
#[inline(always)]
fn within_vector(x: &mut [f32; LANES]) {
    for distance in [1, 2, 4, 8] {
        for i in (0..LANES).filter(|i| i & distance == 0) {
            (x[i], x[i + distance]) = (x[i] + x[i + distance], x[i] - x[i + distance]);
        }
    }
}
