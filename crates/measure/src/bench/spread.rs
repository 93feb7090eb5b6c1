//! Repetitions in two numbers, and the rule by which two sets of them differ.

use serde::{Deserialize, Serialize};

/// Half-width of a 95 % interval of the median, in median absolute deviations times √n: 1.4826 turns the deviation into
/// a standard deviation, √(π/2) is the median's larger error, 1.96 the quantile; all three for normal noise.
const INTERVAL: f64 = 1.4826 * 1.2533 * 1.96;

/// Repetitions of one measurement. Median and median absolute deviation, since a machine that does something else for a
/// moment leaves outliers on one side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Samples")]
pub struct Spread {
    /// Median; of an even number, the mean of the middle two.
    pub median: f64,
    /// Median distance from the median.
    pub mad: f64,
    /// In the order in which they were taken.
    pub samples: Vec<f64>,
}

/// The part of a stored [`Spread`] that the rest follows from.
#[derive(Deserialize)]
struct Samples {
    samples: Vec<f64>,
}

impl TryFrom<Samples> for Spread {
    type Error = &'static str;

    fn try_from(stored: Samples) -> Result<Spread, &'static str> {
        Spread::of(stored.samples).ok_or("samples must be positive numbers, at least one")
    }
}

impl Spread {
    /// Of samples; `None` if there are none or one is not a positive number.
    pub fn of(samples: Vec<f64>) -> Option<Spread> {
        if !samples.iter().all(|x| x.is_finite() && *x > 0.0) {
            return None;
        }
        let median = middle(samples.clone())?;
        let mad = middle(samples.iter().map(|x| (x - median).abs()).collect())?;
        Some(Spread { median, mad, samples })
    }

    /// Half-width of the interval in which the median lies with about 95 % confidence: `3.64 · MAD / √n`.
    pub fn margin(&self) -> f64 {
        INTERVAL * self.mad / (self.samples.len() as f64).sqrt()
    }

    /// The largest sample.
    pub fn largest(&self) -> f64 {
        self.samples.iter().copied().fold(0.0, f64::max)
    }
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

/// Which way a measurement improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Rates.
    Higher,
    /// Times.
    Lower,
}

/// What a second measurement is against a first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No difference that matters, or none that the repetitions show.
    Same,
    /// Better beyond noise and tolerance.
    Faster,
    /// Worse beyond noise and tolerance.
    Slower,
}

/// See [`judge`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Speed after by speed before: above 1 is better, for rates and for times.
    pub ratio: f64,
    /// What that means.
    pub verdict: Verdict,
}

/// Compares repetitions before and after a change. They differ if the intervals median ± [`Spread::margin`] do not
/// overlap and the medians are more than `tolerance` percent of the faster one's speed apart.
pub fn judge(before: &Spread, after: &Spread, better: Better, tolerance: f64) -> Comparison {
    let ratio = match better {
        Better::Higher => after.median / before.median,
        Better::Lower => before.median / after.median,
    };
    let apart = (after.median - before.median).abs() > before.margin() + after.margin();
    let loss = 100.0 * (1.0 - ratio.min(1.0 / ratio));
    let verdict = match apart && loss > tolerance {
        false => Verdict::Same,
        true if ratio > 1.0 => Verdict::Faster,
        true => Verdict::Slower,
    };
    Comparison { ratio, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(samples: &[f64]) -> Spread {
        Spread::of(samples.to_vec()).unwrap()
    }

    #[test]
    fn one_outlier_moves_neither_median_nor_deviation() {
        let s = spread(&[100.0, 101.0, 99.0, 100.5, 12.0]);
        assert_eq!((s.median, s.mad, s.largest()), (100.0, 1.0, 101.0));
        assert_eq!(spread(&[4.0, 1.0, 3.0, 2.0]).median, 2.5);
        assert!((s.margin() - 3.64 / 5f64.sqrt()).abs() < 0.01);
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        for bad in [&[][..], &[1.0, f64::NAN], &[0.0], &[-1.0, 2.0], &[f64::INFINITY]] {
            assert_eq!(Spread::of(bad.to_vec()), None, "{bad:?}");
        }
        let stored = |text: &str| serde_json::from_str::<Spread>(text);
        assert_eq!(stored(r#"{"median": 9.0, "mad": 9.0, "samples": [1.0]}"#).unwrap(), spread(&[1.0]));
        assert!(stored(r#"{"median": 9.0, "mad": 9.0, "samples": []}"#).is_err());
    }

    #[test]
    fn a_difference_needs_both_size_and_certainty() {
        let steady = spread(&[100.0, 100.1, 99.9, 100.2, 99.8]);
        let cases = [
            (&[90.0, 90.1, 89.9, 90.2, 89.8][..], Verdict::Slower),
            (&[110.0, 110.1, 109.9, 110.2, 109.8], Verdict::Faster),
            // Certain, but within the tolerance.
            (&[98.0, 98.1, 97.9, 98.0, 98.0], Verdict::Same),
            // Large, but so is the noise.
            (&[90.0, 104.0, 80.0, 101.0, 70.0], Verdict::Same),
        ];
        for (after, verdict) in cases {
            assert_eq!(judge(&steady, &spread(after), Better::Higher, 3.0).verdict, verdict, "{after:?}");
        }
        let (fast, slow) = (spread(&[1.0; 3]), spread(&[2.0; 3]));
        let rate = judge(&fast, &slow, Better::Higher, 3.0);
        assert_eq!((rate.ratio, rate.verdict), (2.0, Verdict::Faster));
        let time = judge(&fast, &slow, Better::Lower, 3.0);
        assert_eq!((time.ratio, time.verdict), (0.5, Verdict::Slower));
        assert_eq!(judge(&fast, &slow, Better::Lower, 60.0).verdict, Verdict::Same);
    }
}
