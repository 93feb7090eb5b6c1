//! Search for the scale and bias of affine groups that decode with the least squared error.
//!
//! Round-to-nearest stretches a group's codes from its minimum to its maximum. A few large values then cost all others
//! precision; clipping them a little is cheaper. For every group the search tries ranges that shrink towards the
//! middle. For the codes that a range gives, the best scale and bias are a least-squares line through (code,
//! value), whose error follows from five sums; the best of these is refined by coding against the line and
//! fitting again (Lloyd's iteration), and by trying its neighbours in scale and offset. Errors may be weighted, and
//! are those of the values as they decode, with scale and bias rounded. Round-to-nearest itself is always a
//! candidate, so no group comes out worse.
//!
//! Everything is sums over eight fixed lanes, so a result depends on the group alone, and the loops become vector code.

use crate::affine::{self, Affine};
use crate::pack::pack;
use crate::{Encoding, QuantError, ScaleDtype};

/// Ranges to start from, as fractions of the group's; measured on normal and SmolLM2's weights, where optima of 2 bits
/// lie near 0.75 and of 8 bits near 1.
const SHRINK: [f32; 8] = [1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7];

/// Neighbours of a line: factor of its scale, and shift in scales.
const NEIGHBOURS: [(f32, f32); 8] = [
    (1.0, 0.25),
    (1.0, -0.25),
    (0.97, 0.0),
    (1.03, 0.0),
    (0.97, 0.25),
    (0.97, -0.25),
    (1.03, 0.25),
    (1.03, -0.25),
];

/// Rounds of fitting after the starting ranges and after each round of neighbours; of 64 normal values at 4 bits
/// more of either gain less than 1 %.
const REFITS: usize = 2;

impl Encoding {
    /// Encodes as [`Encoding::encode`] does, but searches affine groups for the scale and bias that decode with the
    /// least squared error, each value's square multiplied by its weight. Other encodings, and scales of 8 bits,
    /// which are too coarse to fit, are encoded by [`Encoding::encode`].
    ///
    /// # Errors
    /// As [`Encoding::encode`]; weights that are not as many as the values. Weights must be finite and not
    /// negative; a group whose weights are all zero counts as unweighted.
    pub fn encode_searched(
        &self,
        values: &[f32],
        weights: Option<&[f32]>,
        out: &mut Vec<u8>,
    ) -> Result<(), QuantError> {
        if let Some(weights) = weights.filter(|weights| weights.len() != values.len()) {
            let (expected, found) = (values.len() as u64, weights.len() as u64);
            return Err(QuantError::Length { what: "weights", expected, found });
        }
        let Encoding::Affine { bits, group, scale: scale @ (ScaleDtype::F16 | ScaleDtype::Bf16), symmetric } =
            *self
        else {
            return self.encode(values, out);
        };
        let length = self.payload_len(values.len() as u64)?;
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            return Err(QuantError::NonFinite { index, value: values[index] });
        }
        let start = out.len();
        out.reserve(usize::try_from(length).unwrap_or(0));
        let affine = Affine { bits, group, scale, symmetric };
        let result = match bits {
            2 => encode::<2>(affine, values, weights, out),
            3 => encode::<3>(affine, values, weights, out),
            4 => encode::<4>(affine, values, weights, out),
            5 => encode::<5>(affine, values, weights, out),
            6 => encode::<6>(affine, values, weights, out),
            8 => encode::<8>(affine, values, weights, out),
            bits => Err(QuantError::Bits(bits)),
        };
        if result.is_err() {
            out.truncate(start);
        }
        result
    }
}

fn encode<const B: usize>(
    affine: Affine,
    values: &[f32],
    weights: Option<&[f32]>,
    out: &mut Vec<u8>,
) -> Result<(), QuantError> {
    let groups = values.len() / affine.group;
    let mut scales = Vec::with_capacity(groups * affine.scale.bytes());
    let mut biases = Vec::with_capacity(groups * affine.scale.bytes());
    let mut codes = vec![0u8; affine.group];
    let mut search = Search::<B>::new(affine);
    for (index, group) in values.chunks_exact(affine.group).enumerate() {
        let first = index * affine.group;
        search.weigh(weights.map(|weights| &weights[first..first + affine.group]));
        let line = search.best(group);
        let stored = affine.store(line.scale, first, &mut scales)?;
        let bias = if affine.symmetric { 0.0 } else { affine.store(line.bias, first, &mut biases)? };
        quantise::<B>(affine, group, Line { scale: stored, bias }, &mut codes);
        pack::<B>(&codes, out);
    }
    out.append(&mut scales);
    out.append(&mut biases);
    Ok(())
}

fn quantise<const B: usize>(affine: Affine, group: &[f32], line: Line, codes: &mut [u8]) {
    if affine.symmetric {
        affine::symmetric_codes::<B>(group, line.scale, codes);
    } else {
        affine::asymmetric_codes::<B>(group, line.scale, line.bias, codes);
    }
}

/// `code·scale + bias`; without bias, codes count from `-2^(B-1)`.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    bias: f32,
}

/// A line through (centred code, normalised value), and what is left of the values.
#[derive(Clone, Copy)]
struct Fit {
    slope: f32,
    offset: f32,
    /// Weighted mean of the codes, centred.
    mean_code: f32,
    error: f64,
}

/// One group at a time, with buffers that stay.
struct Search<const B: usize> {
    affine: Affine,
    /// Weights with mean 1.
    weights: Vec<f32>,
    /// Sum of the weights.
    total: f64,
    /// Values, shifted and in steps of the full range.
    normal: Vec<f32>,
    /// Weighted sum of the normalised values, and of their squares.
    moments: [f64; 2],
    codes: Vec<u8>,
}

impl<const B: usize> Search<B> {
    /// Largest code.
    const TOP: f32 = ((1u32 << B) - 1) as f32;

    fn new(affine: Affine) -> Search<B> {
        let of = |value| vec![value; affine.group];
        Search {
            affine,
            weights: of(1.0),
            total: affine.group as f64,
            normal: of(0.0),
            moments: [0.0; 2],
            codes: vec![0; affine.group],
        }
    }

    /// The code that counts as 0: the middle of all, or the zero point.
    fn centre(&self) -> f32 {
        if self.affine.symmetric { (1u32 << (B - 1)) as f32 } else { Self::TOP / 2.0 }
    }

    /// Takes the weights of the next group.
    fn weigh(&mut self, weights: Option<&[f32]>) {
        let Some(weights) = weights else { return };
        let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        let mean = sum / weights.len().max(1) as f64;
        for (weight, &raw) in self.weights.iter_mut().zip(weights) {
            *weight = if mean > 0.0 { (f64::from(raw) / mean) as f32 } else { 1.0 };
        }
        self.total = self.weights.iter().map(|&weight| f64::from(weight)).sum();
    }

    /// The best line for a group, not rounded yet.
    fn best(&mut self, group: &[f32]) -> Line {
        let rtn = if self.affine.symmetric {
            Line { scale: affine::symmetric_scale::<B>(group), bias: 0.0 }
        } else {
            let (scale, bias) = affine::asymmetric_scale::<B>(group);
            Line { scale, bias }
        };
        let middle = if self.affine.symmetric { 0.0 } else { rtn.bias + rtn.scale * self.centre() };
        // A constant group is exact already; a subnormal step has no reciprocal.
        if !rtn.scale.is_normal() || group.iter().all(|value| *value == group[0]) {
            return rtn;
        }
        self.normalise(group, middle, 1.0 / rtn.scale);
        let fit = self.search();
        let scale = fit.slope * rtn.scale;
        // The bias absorbs the rounding of the scale, so that the mean stays where it is.
        let rounded = self.rounded(scale);
        let mean = f64::from(middle) + self.moments[0] / self.total * f64::from(rtn.scale);
        let bias = mean - f64::from(rounded) * f64::from(fit.mean_code + self.centre());
        let found = Line { scale, bias: if self.affine.symmetric { 0.0 } else { bias as f32 } };
        if self.decoded_error(group, found) < self.decoded_error(group, rtn) { found } else { rtn }
    }

    /// A scale or bias as it decodes; infinite where it does not fit.
    fn rounded(&self, value: f32) -> f32 {
        match self.affine.scale {
            ScaleDtype::Bf16 => half::bf16::from_f32(value).to_f32(),
            _ => half::f16::from_f32(value).to_f32(),
        }
    }

    fn normalise(&mut self, group: &[f32], middle: f32, inverse: f32) {
        let mut moments = [[0.0f32; 8]; 2];
        let chunks = group.as_chunks::<8>().0.iter().zip(self.weights.as_chunks::<8>().0);
        for ((values, weights), out) in chunks.zip(self.normal.as_chunks_mut::<8>().0) {
            for lane in 0..8 {
                let value = (values[lane] - middle) * inverse;
                out[lane] = value;
                moments[0][lane] += weights[lane] * value;
                moments[1][lane] += weights[lane] * value * value;
            }
        }
        self.moments = moments.map(sum);
    }

    /// The line with the least error among those that are tried.
    fn search(&self) -> Fit {
        let mut best = self.fit(SHRINK[0], 0.0);
        for slope in &SHRINK[1..] {
            best = better(best, self.fit(*slope, 0.0));
        }
        best = self.refit(best);
        for _ in 0..REFITS {
            let base = best;
            for (factor, shift) in NEIGHBOURS {
                let shift = if self.affine.symmetric { 0.0 } else { shift * base.slope };
                best = better(best, self.fit(base.slope * factor, base.offset + shift));
            }
            if best.error >= base.error {
                break;
            }
            best = self.refit(best);
        }
        best
    }

    fn refit(&self, mut fit: Fit) -> Fit {
        for _ in 0..REFITS {
            let next = self.fit(fit.slope, fit.offset);
            if next.error >= fit.error {
                break;
            }
            fit = next;
        }
        fit
    }

    /// Codes the values against a line, and fits a line through these codes.
    fn fit(&self, slope: f32, offset: f32) -> Fit {
        let centre = self.centre();
        let inverse = 1.0 / slope;
        let mut sums = [[0.0f32; 8]; 3];
        let chunks = self.normal.as_chunks::<8>().0.iter().zip(self.weights.as_chunks::<8>().0);
        for (values, weights) in chunks {
            for lane in 0..8 {
                let place = (values[lane] - offset) * inverse + centre;
                let place = if place > 0.0 { place } else { 0.0 };
                let place = if place < Self::TOP { place } else { Self::TOP };
                let code = nearest(place) - centre;
                let weighted = weights[lane] * code;
                sums[0][lane] += weighted;
                sums[1][lane] += weighted * code;
                sums[2][lane] += weighted * values[lane];
            }
        }
        let [code, square, product] = sums.map(sum);
        let [value, value_square] = self.moments;
        let (slope, offset) = if self.affine.symmetric {
            (product / square, 0.0)
        } else {
            let slope = (self.total * product - code * value) / (self.total * square - code * code);
            (slope, (value - slope * code) / self.total)
        };
        let error = value_square - slope * product - offset * value;
        let mean_code = (code / self.total) as f32;
        // One code for all values leaves nothing to fit.
        let error = if slope.is_finite() && slope > 1e-6 { error } else { f64::INFINITY };
        Fit { slope: slope as f32, offset: offset as f32, mean_code, error }
    }

    /// Weighted squared error of the values as they decode; infinite if the line cannot be stored.
    fn decoded_error(&mut self, group: &[f32], line: Line) -> f64 {
        let line = Line { scale: self.rounded(line.scale), bias: self.rounded(line.bias) };
        if !line.scale.is_finite() || !line.bias.is_finite() {
            return f64::INFINITY;
        }
        quantise::<B>(self.affine, group, line, &mut self.codes);
        let zero_point = if self.affine.symmetric { self.centre() } else { 0.0 };
        let mut sums = [0.0f32; 8];
        let chunks = group.as_chunks::<8>().0.iter().zip(self.weights.as_chunks::<8>().0);
        for ((values, weights), codes) in chunks.zip(self.codes.as_chunks::<8>().0) {
            for lane in 0..8 {
                let decoded = (f32::from(codes[lane]) - zero_point) * line.scale + line.bias;
                let error = values[lane] - decoded;
                sums[lane] += weights[lane] * error * error;
            }
        }
        sum(sums)
    }
}

fn better(first: Fit, second: Fit) -> Fit {
    if second.error < first.error { second } else { first }
}

fn sum(lanes: [f32; 8]) -> f64 {
    lanes.into_iter().map(f64::from).sum()
}

/// The nearest integer of a value from 0 to 255: adding 1.5·2^23 leaves no bits for a fraction.
#[inline(always)]
fn nearest(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}
