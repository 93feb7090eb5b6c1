//! From one row of logits to a token: bias, penalties, temperature, truncation, a counter-based draw.
//!
//! The order is the one of transformers and vLLM: logit bias, repetition penalty, presence and frequency
//! penalties, temperature, top-k, top-p, min-p. A draw depends only on the seed and on how many tokens
//! this sequence has sampled before, so neither the batch nor the lane can change it.

use std::collections::{HashMap, HashSet};

use crate::EngineError;

/// How a sequence picks its tokens. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 picks the largest logit (lowest id on ties).
    pub temperature: f32,
    /// Keep the `k` largest logits; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer; 1 is neutral
    /// (CTRL, arXiv 1909.05858).
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token in the answer so far.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the answer so far.
    pub frequency_penalty: f32,
    /// Added to single logits before anything else; may be infinite.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws. Every 64-bit value is valid and distinct.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Checks every value against its legal range.
    ///
    /// # Errors
    /// [`EngineError::Sampling`] naming the parameter and its range.
    pub fn validate(&self, vocab: usize) -> Result<(), EngineError> {
        let checks: [(&'static str, bool, &'static str); 6] = [
            ("temperature", self.temperature >= 0.0 && self.temperature.is_finite(), "0 or more"),
            ("top_p", self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            (
                "repetition_penalty",
                self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite(),
                "above 0",
            ),
            ("presence_penalty", self.presence_penalty.is_finite(), "a finite number"),
            ("frequency_penalty", self.frequency_penalty.is_finite(), "a finite number"),
        ];
        for (name, legal, range) in checks {
            if !legal {
                return Err(EngineError::Sampling { name, range });
            }
        }
        match self.logit_bias.iter().find(|(id, bias)| *id as usize >= vocab || bias.is_nan()) {
            Some((id, _)) => Err(EngineError::LogitBias { id: *id, vocab }),
            None => Ok(()),
        }
    }
}

/// Sampling state of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    in_prompt: HashSet<u32>,
    in_answer: HashMap<u32, u32>,
    drawn: u64,
    candidates: Vec<(f32, u32)>,
}

impl Sampler {
    /// A sampler for a sequence that starts with `prompt`.
    pub fn new(params: SamplingParams, prompt: &[u32]) -> Sampler {
        let in_prompt =
            if params.repetition_penalty == 1.0 { HashSet::new() } else { prompt.iter().copied().collect() };
        Sampler { params, in_prompt, in_answer: HashMap::new(), drawn: 0, candidates: Vec::new() }
    }

    /// Picks the next token from `logits` `[vocab]` (modified in place) and remembers it.
    ///
    /// # Errors
    /// [`EngineError::NotFinite`] when a logit is NaN or none is above minus infinity: such a model
    /// or input is broken, and a made-up token would hide it.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<u32, EngineError> {
        self.adjust(logits);
        let best = argmax(logits).ok_or(EngineError::NotFinite)?;
        let token = if self.params.temperature == 0.0 { best } else { self.draw(logits, best) };
        *self.in_answer.entry(token).or_insert(0) += 1;
        Ok(token)
    }

    /// Bias and penalties.
    fn adjust(&self, logits: &mut [f32]) {
        let p = &self.params;
        for &(id, bias) in &p.logit_bias {
            logits[id as usize] += bias;
        }
        if p.repetition_penalty != 1.0 {
            let only_prompt = self.in_prompt.iter().filter(|id| !self.in_answer.contains_key(id));
            for &id in only_prompt.chain(self.in_answer.keys()) {
                let logit = &mut logits[id as usize];
                *logit =
                    if *logit > 0.0 { *logit / p.repetition_penalty } else { *logit * p.repetition_penalty };
            }
        }
        if p.presence_penalty != 0.0 || p.frequency_penalty != 0.0 {
            for (&id, &count) in &self.in_answer {
                logits[id as usize] -= p.presence_penalty + p.frequency_penalty * count as f32;
            }
        }
    }

    /// Temperature, truncation and the draw.
    fn draw(&mut self, logits: &[f32], best: u32) -> u32 {
        let p = &self.params;
        let max = logits[best as usize];
        if max == f32::INFINITY {
            return best;
        }
        let weight = |logit: f32| libm::exp(f64::from((logit - max) / p.temperature));
        let keep = if p.top_k == 0 { logits.len() } else { p.top_k.min(logits.len()) };
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.extend(logits.iter().enumerate().map(|(id, &l)| (l, id as u32)));
        sort_largest(candidates, keep);
        candidates.truncate(keep);

        // With top-k, the probabilities that top-p adds up are those among the kept tokens.
        let total: f64 = candidates.iter().map(|c| weight(c.0)).sum();
        let mut cumulative = 0.0;
        let mut kept = 0;
        for &(logit, _) in candidates.iter() {
            let w = weight(logit);
            if kept > 0 && (cumulative >= f64::from(p.top_p) * total || w < f64::from(p.min_p)) {
                break;
            }
            cumulative += w;
            kept += 1;
        }

        let mut target = uniform(p.seed, self.drawn) * cumulative;
        self.drawn += 1;
        for &(logit, id) in &candidates[..kept] {
            target -= weight(logit);
            if target < 0.0 {
                return id;
            }
        }
        candidates[kept - 1].1
    }
}

/// Index of the largest logit, the lowest on ties; `None` when a logit is NaN or all are minus infinity.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (id, &logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return None;
        }
        if logit > best.map_or(f32::NEG_INFINITY, |b| b.1) {
            best = Some((id as u32, logit));
        }
    }
    best.map(|b| b.0)
}

/// Brings the `keep` largest logits to the front, in descending order, lower ids first on ties.
fn sort_largest(candidates: &mut [(f32, u32)], keep: usize) {
    let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if keep < candidates.len() {
        candidates.select_nth_unstable_by(keep, order);
    }
    candidates[..keep].sort_unstable_by(order);
}

/// The `counter`-th uniform number in [0, 1) of a seed: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)
/// addressed by counter, with the seed itself mixed first so that neighbouring seeds are unrelated.
fn uniform(seed: u64, counter: u64) -> f64 {
    let start = mix(seed);
    let bits = mix(start.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(params: &SamplingParams, logits: &[f32], n: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(params.clone(), &[]);
        (0..n).map(|_| sampler.sample(&mut logits.to_vec()).unwrap()).collect()
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_equal_logits() {
        assert_eq!(draws(&SamplingParams::default(), &[1.0, 3.0, 3.0, 2.0], 1), [1]);
    }

    #[test]
    fn nan_logits_are_an_error_and_not_token_zero() {
        let mut sampler = Sampler::new(SamplingParams::default(), &[]);
        assert!(matches!(sampler.sample(&mut [f32::NAN, f32::NAN]), Err(EngineError::NotFinite)));
        assert!(matches!(sampler.sample(&mut [f32::NEG_INFINITY; 3]), Err(EngineError::NotFinite)));
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [1.0f32, 2.0, 0.0, -1.0];
        let params = SamplingParams { temperature: 1.0, seed: 7, ..Default::default() };
        let n = 40_000;
        let ids = draws(&params, &logits, n);
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        for (id, &logit) in logits.iter().enumerate() {
            let expected = f64::from(logit).exp() / total;
            let seen = ids.iter().filter(|&&i| i as usize == id).count() as f64 / n as f64;
            assert!((seen - expected).abs() < 0.01, "token {id}: {seen} against {expected}");
        }
    }

    #[test]
    fn truncations_keep_exactly_the_tokens_they_promise() {
        // Probabilities 0.5, 0.3, 0.15, 0.05.
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        let base = SamplingParams { temperature: 1.0, ..Default::default() };
        let cases = [
            (SamplingParams { top_k: 2, ..base.clone() }, 2),
            (SamplingParams { top_p: 0.79, ..base.clone() }, 2),
            (SamplingParams { top_p: 0.81, ..base.clone() }, 3),
            (SamplingParams { min_p: 0.25, ..base.clone() }, 3),
            (SamplingParams { top_p: 1e-6, ..base.clone() }, 1),
            (base, 4),
        ];
        for (params, kept) in cases {
            let mut seen = draws(&params, &logits, 2000);
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, (0..kept).collect::<Vec<u32>>(), "{params:?}");
        }
    }

    #[test]
    fn same_seed_same_tokens_and_every_seed_counts() {
        let logits = vec![0.0; 50];
        let with_seed =
            |seed| draws(&SamplingParams { temperature: 1.0, seed, ..Default::default() }, &logits, 20);
        assert_eq!(with_seed(42), with_seed(42));
        let distinct: std::collections::HashSet<_> =
            [0, 1, 2, 1 << 63, u64::MAX].into_iter().map(with_seed).collect();
        assert_eq!(distinct.len(), 5);
    }

    #[test]
    fn penalties_move_the_logits_they_name() {
        let mut params = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
        let mut sampler = Sampler::new(params.clone(), &[0, 1]);
        let mut logits = [4.0, -1.0, 1.0];
        assert_eq!(sampler.sample(&mut logits).unwrap(), 0);
        assert_eq!(logits, [2.0, -2.0, 1.0]);

        params = SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..Default::default() };
        sampler = Sampler::new(params, &[0, 1]);
        assert_eq!(sampler.sample(&mut [4.0, 0.0, 0.0]).unwrap(), 0);
        assert_eq!(sampler.sample(&mut [4.0, 0.0, 0.0]).unwrap(), 0);
        let mut logits = [4.0, 0.0, 0.0];
        sampler.sample(&mut logits).unwrap();
        assert_eq!(logits, [3.0, 0.0, 0.0]);
    }

    #[test]
    fn logit_bias_can_ban_and_force() {
        let ban = SamplingParams { logit_bias: vec![(1, f32::NEG_INFINITY)], ..Default::default() };
        assert_eq!(draws(&ban, &[0.0, 9.0, 1.0], 1), [2]);
        let force =
            SamplingParams { temperature: 1.0, logit_bias: vec![(0, f32::INFINITY)], ..Default::default() };
        assert_eq!(draws(&force, &[0.0, 9.0, 1.0], 1), [0]);
        assert!(ban.validate(2).is_ok());
        assert!(ban.validate(1).is_err());
    }

    #[test]
    fn out_of_range_parameters_are_named() {
        let cases = [
            SamplingParams { temperature: -1.0, ..Default::default() },
            SamplingParams { temperature: f32::NAN, ..Default::default() },
            SamplingParams { top_p: 0.0, ..Default::default() },
            SamplingParams { min_p: 1.5, ..Default::default() },
            SamplingParams { repetition_penalty: 0.0, ..Default::default() },
        ];
        for params in cases {
            assert!(matches!(params.validate(10), Err(EngineError::Sampling { .. })), "{params:?}");
        }
    }
}
