//! Rotary tables: angles in f64 from the position, cosines and sines rounded once to f32.

use basert_model::Rope;

/// Inverse frequencies of one rotary embedding, `[dims / 2]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frequencies(Vec<f64>);

impl Frequencies {
    /// `theta^(-2i/dims)`, scaled as the model asks. `divisors` `[dims / 2]` are the explicit factors
    /// that GGUF files carry as `rope_freqs`.
    pub fn new(rope: &Rope, divisors: Option<&[f32]>) -> Frequencies {
        let inverse = (0..rope.dims / 2).map(|i| {
            let f = libm::pow(rope.theta, -(2.0 * i as f64) / rope.dims as f64);
            divisors.map_or_else(|| rope.scaling.apply(f), |d| f / f64::from(d[i]))
        });
        Frequencies(inverse.collect())
    }

    /// Pairs per head.
    pub fn pairs(&self) -> usize {
        self.0.len()
    }

    /// Fills `cos` and `sin` `[positions, pairs]` for consecutive positions from `first` on.
    pub fn fill(&self, first: usize, cos: &mut [f32], sin: &mut [f32]) {
        let rows = cos.chunks_exact_mut(self.pairs()).zip(sin.chunks_exact_mut(self.pairs()));
        for (row, (cos, sin)) in rows.enumerate() {
            let position = (first + row) as f64;
            for (i, f) in self.0.iter().enumerate() {
                let (s, c) = libm::sincos(position * f);
                cos[i] = c as f32;
                sin[i] = s as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use basert_model::{RopePairing, RopeScaling};

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { dims: 8, theta: 10_000.0, pairing: RopePairing::Half, scaling }
    }

    #[test]
    fn position_zero_is_the_identity() {
        let (mut cos, mut sin) = ([0.0; 8], [9.0; 8]);
        Frequencies::new(&rope(RopeScaling::None), None).fill(0, &mut cos, &mut sin);
        assert_eq!(cos[..4], [1.0; 4]);
        assert_eq!(sin[..4], [0.0; 4]);
        assert_eq!(cos[4], 1f64.cos() as f32);
        assert_eq!(sin[5], 0.1f64.sin() as f32);
    }

    #[test]
    fn llama3_keeps_short_and_stretches_long_wavelengths() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 256.0,
        };
        // Wavelengths 2π, 20π, 200π, 2000π: kept, kept, beyond 256, beyond 256.
        let scaled = Frequencies::new(&rope(scaling), None).0;
        let plain = Frequencies::new(&rope(RopeScaling::None), None).0;
        let ratio: Vec<f64> = plain.iter().zip(&scaled).map(|(p, s)| p / s).collect();
        assert_eq!(ratio, [1.0, 1.0, 8.0, 8.0]);
    }

    #[test]
    fn explicit_divisors_replace_the_scaling_rule() {
        let divided = Frequencies::new(&rope(RopeScaling::None), Some(&[1.0, 2.0, 4.0, 8.0])).0;
        let plain = Frequencies::new(&rope(RopeScaling::None), None).0;
        assert_eq!(divided[3] * 8.0, plain[3]);
        assert_eq!(divided[0], plain[0]);
    }
}
