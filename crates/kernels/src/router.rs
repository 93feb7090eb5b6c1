//! Expert selection of mixture-of-experts layers.

use crate::reference::math::exp;
use crate::reference::sum::Lanes;
use crate::scratch::{grown, with_local};

/// Selects experts for one token: softmax over all `logits`, the `top_k` largest probabilities (ties: lower index
/// first), in ascending order of expert index, as `(expert, weight)`.
///
/// The weight is the probability, divided by the selected probabilities' sum if `renormalise`. The softmax's sum is
/// taken in sixteen lanes like every sum of floats, the sum over the selected in ascending index.
///
/// # Panics
/// If `out` does not have `top_k` elements or there are fewer experts than that.
pub fn route(logits: &[f32], top_k: usize, renormalise: bool, out: &mut [(u32, f32)]) {
    assert!(out.len() == top_k && top_k <= logits.len(), "{top_k} of {} experts", logits.len());
    with_local(|local| {
        let p = grown(&mut local.floats, logits.len(), 0.0);
        softmax(logits, p);
        for slot in 0..top_k {
            let (taken, rest) = out.split_at_mut(slot);
            let free = |expert: &usize| taken.iter().all(|&(t, _)| t as usize != *expert);
            // A later expert must be strictly better, which also settles NaN: it never is.
            let best = (0..p.len()).filter(free).reduce(|best, e| if p[e] > p[best] { e } else { best });
            let best = best.unwrap_or_default();
            rest[0] = (best as u32, p[best]);
        }
    });
    out.sort_unstable_by_key(|&(expert, _)| expert);
    if renormalise {
        let sum: f32 = out.iter().map(|&(_, p)| p).sum();
        out.iter_mut().for_each(|(_, p)| *p /= sum);
    }
}

/// `e^(x - max) / Σ`.
fn softmax(logits: &[f32], p: &mut [f32]) {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
    let mut lanes = Lanes::new();
    for (i, (p, x)) in p.iter_mut().zip(logits).enumerate() {
        *p = exp(x - max);
        lanes.add(i, *p);
    }
    let sum = lanes.sum();
    p.iter_mut().for_each(|p| *p /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(logits: &[f32], top_k: usize, renormalise: bool) -> Vec<(u32, f32)> {
        let mut out = vec![(0, 0.0); top_k];
        route(logits, top_k, renormalise, &mut out);
        out
    }

    #[test]
    fn the_largest_experts_come_in_ascending_order() {
        let logits = [0.0, 3.0, -1.0, 2.0, 2.5];
        let found = routed(&logits, 3, false);
        assert_eq!(found.iter().map(|r| r.0).collect::<Vec<_>>(), [1, 3, 4]);
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        for (expert, p) in found {
            let truth = f64::from(logits[expert as usize]).exp() / sum;
            assert!((f64::from(p) - truth).abs() < 1e-6 * truth, "expert {expert}: {p} for {truth}");
        }
    }

    #[test]
    fn renormalised_weights_sum_to_one_and_keep_their_ratios() {
        let logits: Vec<f32> = (0..60).map(|i| ((i * 37) % 60) as f32 * 0.1).collect();
        let (plain, scaled) = (routed(&logits, 8, false), routed(&logits, 8, true));
        let total: f32 = scaled.iter().map(|r| r.1).sum();
        assert!((total - 1.0).abs() < 1e-6);
        for (a, b) in plain.iter().zip(&scaled) {
            assert_eq!(a.0, b.0);
            assert!((a.1 / plain[0].1 - b.1 / scaled[0].1).abs() < 1e-5);
        }
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        assert_eq!(routed(&[1.0; 6], 2, true), [(0, 0.5), (1, 0.5)]);
        let mut logits = [0.0; 20];
        (logits[19], logits[7], logits[3]) = (1.0, 1.0, 1.0);
        assert_eq!(routed(&logits, 2, true).iter().map(|r| r.0).collect::<Vec<_>>(), [3, 7]);
    }

    #[test]
    fn broken_logits_still_select_distinct_experts() {
        for logits in [[f32::NAN; 4], [f32::NEG_INFINITY; 4], [0.0, f32::NAN, f32::INFINITY, 1.0]] {
            let experts: Vec<u32> = routed(&logits, 3, true).iter().map(|r| r.0).collect();
            assert!(experts.is_sorted_by(|a, b| a < b), "{logits:?} gave {experts:?}");
        }
    }
}
