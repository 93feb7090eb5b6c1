//! Log-probabilities in f64 from f32 logits, and means with their standard errors.

use serde::Serialize;

/// A mean over positions and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard error of the mean: sample deviation / √n, treating positions as independent.
    pub standard_error: f64,
}

/// Running mean and variance (Welford, Technometrics 1962).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Running {
    n: u64,
    mean: f64,
    /// Sum of squared deviations from the mean.
    m2: f64,
    max: f64,
}

impl Running {
    pub(crate) fn push(&mut self, x: f64) {
        self.n += 1;
        let delta = x - self.mean;
        self.mean += delta / self.n as f64;
        self.m2 += delta * (x - self.mean);
        self.max = if self.n == 1 { x } else { self.max.max(x) };
    }

    pub(crate) fn count(&self) -> u64 {
        self.n
    }

    pub(crate) fn max(&self) -> f64 {
        self.max
    }

    pub(crate) fn estimate(&self) -> Estimate {
        let n = self.n as f64;
        let standard_error = if self.n < 2 { 0.0 } else { (self.m2 / (n - 1.0) / n).sqrt() };
        Estimate { mean: self.mean, standard_error }
    }
}

/// The share of `hits` among `asked`, with the standard error of a binomial share.
pub(crate) fn share(hits: usize, asked: usize) -> Estimate {
    let mean = hits as f64 / asked as f64;
    let standard_error = if asked < 2 { 0.0 } else { (mean * (1.0 - mean) / (asked - 1) as f64).sqrt() };
    Estimate { mean, standard_error }
}

/// `ln Σ exp(logit)`; not finite when a logit is NaN or infinite upwards, or all are infinite downwards.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits
        .iter()
        .fold(f64::NEG_INFINITY, |m, &l| if l.is_nan() { f64::NAN } else { m.max(f64::from(l)) });
    if !max.is_finite() {
        return max;
    }
    max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln()
}

/// KL(p ‖ q) in nats of the softmaxes of two rows of logits over the same vocabulary, never negative.
/// `lse_p`, `lse_q`: [`log_sum_exp`] of the rows.
pub(crate) fn kl_divergence(p: &[f32], lse_p: f64, q: &[f32], lse_q: f64) -> f64 {
    let term = |(&p, &q): (&f32, &f32)| {
        let log_p = f64::from(p) - lse_p;
        let log_q = f64::from(q) - lse_q;
        // A token that p excludes contributes nothing, whatever q says.
        if log_p == f64::NEG_INFINITY { 0.0 } else { log_p.exp() * (log_p - log_q) }
    };
    let kl: f64 = p.iter().zip(q).map(term).sum();
    // Rounding can leave equal rows at minus a few ulps. Not `max`, which would turn NaN into 0.
    if kl < 0.0 { 0.0 } else { kl }
}

/// Index of the largest logit, the lowest on ties.
pub(crate) fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, &l) in logits.iter().enumerate() {
        if l > logits[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_standard_error_of_a_known_sample() {
        let mut running = Running::default();
        [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter().for_each(|x| running.push(x));
        let e = running.estimate();
        assert_eq!((running.count(), running.max(), e.mean), (8, 9.0, 5.0));
        assert!((e.standard_error - (32.0f64 / 7.0 / 8.0).sqrt()).abs() < 1e-15);
    }

    #[test]
    fn max_of_negative_numbers_is_negative() {
        let mut running = Running::default();
        running.push(-3.0);
        running.push(-2.0);
        assert_eq!(running.max(), -2.0);
    }

    #[test]
    fn log_sum_exp_survives_large_logits_and_reports_broken_ones() {
        assert!((log_sum_exp(&[1000.0, 1000.0]) - (1000.0 + 2f64.ln())).abs() < 1e-12);
        assert!((log_sum_exp(&[0.0, f32::NEG_INFINITY]) - 0.0).abs() < 1e-15);
        for broken in [[f32::NAN, 0.0], [0.0, f32::NAN], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            assert!(!log_sum_exp(&broken).is_finite(), "{broken:?}");
        }
    }

    #[test]
    fn divergence_of_known_distributions() {
        let logits = |p: [f64; 2]| p.map(|x| x.ln() as f32);
        let (p, q) = (logits([0.5, 0.5]), logits([0.25, 0.75]));
        let kl = |a: &[f32], b: &[f32]| kl_divergence(a, log_sum_exp(a), b, log_sum_exp(b));
        let expected = 0.5 * 2f64.ln() + 0.5 * (2f64 / 3.0).ln();
        assert!((kl(&p, &q) - expected).abs() < 1e-7);
        assert_eq!(kl(&p, &p), 0.0);
        assert!(kl(&p, &[p[0] + 3.0, p[1] + 3.0]) < 1e-15, "a constant shift changes no probability");
        assert_eq!(kl(&[0.0, f32::NEG_INFINITY], &[0.0, f32::NEG_INFINITY]), 0.0);
        assert_eq!(kl(&[0.0, 0.0], &[0.0, f32::NEG_INFINITY]), f64::INFINITY);
        assert!(kl(&[0.0, 0.0], &[0.0, f32::NAN]).is_nan());
    }

    #[test]
    fn argmax_prefers_the_lower_id() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
    }
}
