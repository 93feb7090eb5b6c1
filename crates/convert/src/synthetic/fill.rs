//! Random payloads: a counter-based generator for the codes, tables for scales and floats.

use std::hash::Hasher;

use basert_model::{Role, TensorSpec};
use basert_quant::{Encoding, FloatDtype, QuantError};

/// Bytes a thread fills at a time; a multiple of every unit below.
const CHUNK: usize = 1 << 20;

/// Different floats or scales of a tensor.
const LEVELS: usize = 256;

/// Fills `payload` with the tensor's codes, scales and biases; its former content does not matter.
///
/// # Errors
/// An encoding that has no such payload.
pub(super) fn payload(
    spec: &TensorSpec,
    encoding: Encoding,
    threads: usize,
    payload: &mut Vec<u8>,
) -> Result<(), QuantError> {
    let elements: usize = spec.shape.iter().product();
    let regions = encoding.regions(elements as u64)?;
    let [codes, scales, biases] = [regions.codes, regions.scales, regions.biases].map(|bytes| bytes as usize);
    payload.resize(codes + scales + biases, 0);
    let seed = seed(&spec.name);
    let (codes, rest) = payload.split_at_mut(codes);
    let (scales, biases) = rest.split_at_mut(scales);
    let width = spec.shape.last().copied().unwrap_or(1);
    match encoding {
        Encoding::Affine { bits, scale, symmetric, .. } => {
            // Uniform codes have a variance of (4^bits - 1) / 12.
            let step = (12.0 / (4f64.powi(bits as i32) - 1.0) / width as f64).sqrt();
            let middle = f64::from((1u32 << bits) - 1) / 2.0;
            let (mut scale_table, mut bias_table) = (Vec::new(), Vec::new());
            for level in 0..LEVELS {
                let stored = scale.encode((step * jitter(level)) as f32, &mut scale_table);
                if !symmetric {
                    scale.encode((-f64::from(stored) * middle) as f32, &mut bias_table);
                }
            }
            parallel(codes, threads, |first, part| random(seed, first, part));
            let seed = mix(seed);
            parallel(scales, threads, |first, part| look_up(seed, first, &scale_table, scale.bytes(), part));
            parallel(biases, threads, |first, part| look_up(seed, first, &bias_table, scale.bytes(), part));
            Ok(())
        }
        Encoding::Float(dtype) => {
            let table = floats(spec.role, width, dtype);
            parallel(codes, threads, |first, part| look_up(seed, first, &table, dtype.bytes(), part));
            Ok(())
        }
        other => Err(QuantError::NotEncodable(other.dtype().map_or("", |dtype| dtype.name()))),
    }
}

/// Factor of a group's scale, 0.75 to 1.25 with a mean square near 1.
fn jitter(level: usize) -> f64 {
    0.75 + 0.5 * level as f64 / (LEVELS - 1) as f64
}

/// The values that a float tensor takes, encoded one after the other.
fn floats(role: Role, width: usize, dtype: FloatDtype) -> Vec<u8> {
    // -1 to 1, evenly; the mean is 0 and the variance 1/3.
    let unit = |level: usize| 2.0 * level as f64 / (LEVELS - 1) as f64 - 1.0;
    let spread = (3.0 / width as f64).sqrt();
    let value = |level: usize| match role {
        Role::Norm | Role::RopeFreqs => 1.0 + 0.1 * unit(level),
        // Decay rates of 1 to 16, as Gated DeltaNet is initialised ...
        Role::DecayLog => (8.5 + 7.5 * unit(level)).ln(),
        // ... times softplus(-5 to -1): states forget between a hundredth and all of themselves per token.
        Role::DtBias => -3.0 + 2.0 * unit(level),
        Role::Bias => 0.1 * unit(level),
        _ => spread * unit(level),
    };
    let values: Vec<f32> = (0..LEVELS).map(|level| value(level) as f32).collect();
    let mut table = Vec::with_capacity(LEVELS * dtype.bytes());
    basert_quant::float::encode(dtype, &values, &mut table);
    table
}

/// A number for every name. The generator of the standard library's hash maps may change; xxHash does not.
fn seed(name: &str) -> u64 {
    let mut hasher = xxhash_rust::xxh64::Xxh64::new(0);
    hasher.write(name.as_bytes());
    hasher.finish()
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every output bit depends on every input bit.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Eight random bytes for every counter.
fn word(seed: u64, counter: usize) -> [u8; 8] {
    mix(seed.wrapping_add((counter as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
}

/// Fills bytes from byte `first` of a region on; `first` is a multiple of 8.
fn random(seed: u64, first: usize, out: &mut [u8]) {
    let (words, rest) = out.as_chunks_mut::<8>();
    for (counter, bytes) in (first / 8..).zip(words.iter_mut()) {
        *bytes = word(seed, counter);
    }
    let last = word(seed, first / 8 + words.len());
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Fills a region with entries of `table`, `size` bytes each and chosen by a random byte each.
fn look_up(seed: u64, first: usize, table: &[u8], size: usize, out: &mut [u8]) {
    match size {
        2 => look_up_sized::<2>(seed, first, table, out),
        4 => look_up_sized::<4>(seed, first, table, out),
        _ => look_up_sized::<1>(seed, first, table, out),
    }
}

fn look_up_sized<const SIZE: usize>(seed: u64, first: usize, table: &[u8], out: &mut [u8]) {
    let entries = table.as_chunks::<SIZE>().0;
    for (counter, run) in (first / SIZE / 8..).zip(out.chunks_mut(8 * SIZE)) {
        for (entry, index) in run.as_chunks_mut::<SIZE>().0.iter_mut().zip(word(seed, counter)) {
            if let Some(value) = entries.get(usize::from(index)) {
                *entry = *value;
            }
        }
    }
}

/// Runs `fill` over chunks of `region`, with each chunk's place in it.
fn parallel(region: &mut [u8], threads: usize, fill: impl Fn(usize, &mut [u8]) + Sync) {
    let chunks = region.len().div_ceil(CHUNK);
    let threads = threads.clamp(1, chunks.max(1));
    if threads == 1 {
        fill(0, region);
        return;
    }
    let share = chunks.div_ceil(threads) * CHUNK;
    std::thread::scope(|scope| {
        for (index, part) in region.chunks_mut(share).enumerate() {
            let fill = &fill;
            scope.spawn(move || fill(index * share, part));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use basert_quant::ScaleDtype;

    fn decoded(encoding: Encoding) -> Vec<f32> {
        let spec =
            TensorSpec { name: "t".to_owned(), shape: vec![512, 256], role: Role::Linear, optional: false };
        let elements = 512 * 256;
        let mut bytes = vec![7; 3];
        payload(&spec, encoding, 1, &mut bytes).unwrap();
        let mut values = vec![0.0; elements];
        encoding.decode(&bytes, elements, 0, &mut values).unwrap();
        values
    }

    #[test]
    fn weights_have_zero_mean_and_a_variance_of_one_over_their_inputs() {
        let affine = |bits| Encoding::Affine { bits, group: 64, scale: ScaleDtype::F16, symmetric: false };
        let floats = [FloatDtype::F32, FloatDtype::F16, FloatDtype::Bf16].map(Encoding::Float);
        for encoding in [2, 3, 4, 5, 6, 8].map(affine).into_iter().chain(floats) {
            let values = decoded(encoding);
            let count = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
            let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / count;
            assert!(mean.abs() < 1e-3, "{encoding:?}: mean {mean}");
            assert!((square * 256.0 - 1.0).abs() < 0.05, "{encoding:?}: variance {square}");
        }
    }

    #[test]
    fn regions_do_not_depend_on_the_number_of_threads() {
        let mut reference = vec![0; 5 * CHUNK + 13];
        parallel(&mut reference, 1, |first, part| random(3, first, part));
        for threads in [2, 3, 7] {
            let mut region = vec![1; reference.len()];
            parallel(&mut region, threads, |first, part| random(3, first, part));
            assert!(region == reference, "{threads} threads");
        }
    }
}
