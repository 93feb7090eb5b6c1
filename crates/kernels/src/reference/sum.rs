//! Sums of floats: element i belongs to lane i mod 16, lanes accumulate with fused multiply-adds in ascending order,
//! and a fixed tree adds the lanes.

use crate::vector::LANES;

/// Sixteen accumulators.
#[derive(Clone, Copy)]
pub(crate) struct Lanes([f32; LANES]);

impl Lanes {
    /// All +0.
    #[inline(always)]
    pub fn new() -> Lanes {
        Lanes([0.0; LANES])
    }

    /// Element `index`, `a·b`, into its lane.
    #[inline(always)]
    pub fn fma(&mut self, index: usize, a: f32, b: f32) {
        let lane = &mut self.0[index % LANES];
        *lane = a.mul_add(b, *lane);
    }

    /// Element `index`, `a`, into its lane.
    #[inline(always)]
    pub fn add(&mut self, index: usize, a: f32) {
        self.0[index % LANES] += a;
    }

    /// Lanes 8 apart are added, then those 4, 2 and 1 apart.
    #[inline(always)]
    pub fn sum(self) -> f32 {
        let mut lanes = self.0;
        for distance in [8, 4, 2, 1] {
            for i in 0..distance {
                lanes[i] += lanes[i + distance];
            }
        }
        lanes[0]
    }
}

/// Σ a·b over two slices of one length.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = Lanes::new();
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        lanes.fma(i, *a, *b);
    }
    lanes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_go_to_lanes_and_lanes_to_the_tree() {
        // 2^24 + 1 is not an f32: only the order in which parts meet decides what is lost.
        let big = 16_777_216.0;
        let mut x = [0.0; 33];
        (x[0], x[16], x[1]) = (big, 1.0, 1.0);
        assert_eq!(dot(&x, &[1.0; 33]), big, "each 1 meets the big one alone");
        (x[0], x[16], x[1]) = (big, 0.0, 1.0);
        x[3] = 1.0;
        assert_eq!(dot(&x, &[1.0; 33]), big + 2.0, "lanes 1 and 3 meet first");
    }

    #[test]
    fn the_product_is_not_rounded_before_it_is_added() {
        let a = 1.0 + f32::EPSILON;
        let b = 1.0 - f32::EPSILON;
        let mut x = [0.0; 17];
        let mut y = [0.0; 17];
        (x[0], y[0], x[16], y[16]) = (-1.0, 1.0, a, b);
        assert_eq!(dot(&x, &y), -f32::EPSILON * f32::EPSILON);
    }
}
