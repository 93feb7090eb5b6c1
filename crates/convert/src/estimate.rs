//! How long a conversion is going to take, from measurements of a fraction of a second.
//!
//! What can be tried without writing is tried: the workers encode a few megabytes that only exist in memory, for every
//! way in which a good part of the tensors is stored, on as many threads as the conversion will have; and a sample of
//! the source is read. What a disk does with hundreds of gigabytes cannot be known from that, so the result is an
//! estimate, and it says what it rests on.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::ConvertError;
use crate::encode::{Encoded, Worker};
use crate::pipeline::no_thread;
use crate::recipe::{Data, Inventory, Op, Part, Recipe, RowOrder, SourceTensor};
use crate::source::Source;
use crate::storage::Stored;

/// Elements that are encoded at a time; the pieces of a conversion have as many.
const ELEMENTS: usize = 1 << 19;

/// How long each kind of encoding is tried.
const TRIAL: Duration = Duration::from_millis(100);

/// Kinds of encoding with less than this share of the elements are counted as the others.
const SHARE: f64 = 0.02;

/// Places in the source that are read, and bytes at each.
const SAMPLES: (u64, u64) = (8, 4 << 20);

/// Bytes that are hashed.
const HASHED: usize = 16 << 20;

/// Assumed, because a plan writes nothing: a good SATA disk. Bytes a second.
const WRITE_SPEED: f64 = 500e6;

/// An expected duration and what it rests on; speeds in bytes of the source a second, but for writing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Seconds from start to end.
    pub seconds: f64,
    /// Encoding on all threads, measured in memory.
    pub encode_bytes_per_second: f64,
    /// Threads that encode.
    pub threads: usize,
    /// SHA-256 on one thread, measured in memory.
    pub hash_bytes_per_second: f64,
    /// Reading, measured on a sample of the source, as it lies in the page cache now or does not.
    pub read_bytes_per_second: f64,
    /// Bytes of that sample.
    pub read_sample_bytes: u64,
    /// Writing the output: assumed, not measured.
    pub write_bytes_per_second_assumed: f64,
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |speed: f64| speed / 1e9;
        write!(
            f,
            "about {:.0} s, if encoding goes on at {:.2} GB/s ({} threads, tried in memory), hashing at {:.2} GB/s, \
             reading at {:.2} GB/s (a sample of {} MB) and writing at an assumed {:.2} GB/s",
            self.seconds.max(1.0),
            gb(self.encode_bytes_per_second),
            self.threads,
            gb(self.hash_bytes_per_second),
            gb(self.read_bytes_per_second),
            self.read_sample_bytes / 1_000_000,
            gb(self.write_bytes_per_second_assumed),
        )
    }
}

/// Tries what converting `source` into `tensors` takes.
///
/// # Errors
/// A source that cannot be read.
pub(crate) fn estimate(
    source: &Source,
    inventory: &Inventory<'_>,
    tensors: &[Stored],
    threads: usize,
) -> Result<Estimate, ConvertError> {
    let source_bytes: u64 = inventory.tensors().iter().map(SourceTensor::bytes).sum();
    let output_bytes: u64 = tensors.iter().map(|stored| stored.bytes).sum();
    let (source_bytes, output_bytes) = (source_bytes as f64, output_bytes as f64);
    let encoding = encoding_seconds(inventory, tensors, threads)?;
    let hash_speed = hash_speed();
    let (read, read_speed) = read_speed(source)?;
    let hashing = source_bytes / hash_speed;

    // All share the cores; besides, none is faster than alone.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let work = encoding * threads.min(cores) as f64 + hashing;
    let alone = [encoding, hashing, source_bytes / read_speed, output_bytes / WRITE_SPEED];
    Ok(Estimate {
        seconds: alone.into_iter().fold(work / cores as f64, f64::max),
        encode_bytes_per_second: source_bytes / encoding.max(f64::MIN_POSITIVE),
        threads,
        hash_bytes_per_second: hash_speed,
        read_bytes_per_second: read_speed,
        read_sample_bytes: read,
        write_bytes_per_second_assumed: WRITE_SPEED,
    })
}

/// Seconds that all threads together take to encode all tensors.
fn encoding_seconds(
    inventory: &Inventory<'_>,
    tensors: &[Stored],
    threads: usize,
) -> Result<f64, ConvertError> {
    let mut kinds: Vec<(&Stored, usize)> = Vec::new();
    let mut total = 0;
    for stored in tensors {
        let elements = stored.recipe.elements();
        total += elements;
        let same = |other: &Stored| {
            (&other.source, other.planned.encoding, other.repacked, other.recipe.op)
                == (&stored.source, stored.planned.encoding, stored.repacked, stored.recipe.op)
        };
        match kinds.iter_mut().find(|(first, _)| same(first)) {
            Some((_, count)) => *count += elements,
            None => kinds.push((stored, elements)),
        }
    }
    let (mut seconds, mut covered) = (0.0, 0);
    for (stored, elements) in kinds {
        if elements as f64 >= SHARE * total as f64 && stored.recipe.op != Op::LogOfNegative {
            seconds += elements as f64 / speed(inventory, stored, threads)?;
            covered += elements;
        }
    }
    Ok(seconds * total as f64 / covered.max(1) as f64)
}

/// Elements a second that `threads` workers convert like `stored`.
fn speed(inventory: &Inventory<'_>, stored: &Stored, threads: usize) -> Result<f64, ConvertError> {
    let Some(part) = stored.recipe.parts.first() else { return Ok(f64::INFINITY) };
    let real = inventory.tensor(part.tensor);
    let (width, rows) = (stored.recipe.width, (ELEMENTS / stored.recipe.width.max(1)).max(1));
    let blank = Blank::like(real, rows, width);
    let tensor = SourceTensor { shape: vec![rows, width], data: blank.data(real), ..real.clone() };
    let inventory = &Inventory::new(inventory.path(), vec![tensor], str::to_owned)?;
    let recipe = Recipe {
        shape: vec![rows, width],
        parts: vec![Part { tensor: 0, first_row: 0, rows, order: RowOrder::Straight }],
        ..stored.recipe.clone()
    };
    let stored =
        &Stored { recipe, planned: stored.planned.clone(), source: String::new(), scaling: None, ..*stored };
    let trial = || -> Result<f64, ConvertError> {
        let (mut worker, mut out) = (Worker::new(inventory, stored, None), Encoded::default());
        // The first time buffers grow.
        worker.convert(0, rows, &mut out)?;
        let (started, mut elements) = (Instant::now(), 0);
        while started.elapsed() < TRIAL {
            worker.convert(0, rows, &mut out)?;
            elements += rows * width;
        }
        Ok(elements as f64 / started.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, trial).map_err(no_thread(threads));
        let trials = (0..threads).map(start).collect::<Result<Vec<_>, _>>()?;
        let mut sum = 0.0;
        for trial in trials {
            sum += trial.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(sum)
    })
}

/// Bytes in the place of a tensor's own.
struct Blank([Vec<u8>; 3]);

impl Blank {
    /// For `rows` rows of `width` elements. Floats are small and differ; blocks and modules are zero, which takes as long
    /// as anything else.
    fn like(tensor: &SourceTensor<'_>, rows: usize, width: usize) -> Blank {
        let lengths = match &tensor.data {
            Data::Blocks { ty, .. } => [rows * width / ty.block_size() * ty.block_bytes(), 0, 0],
            Data::Module(_) => tensor.row_bytes(0..1, width).map(|row| row.len() * rows),
            Data::Unreadable { .. } => [0; 3],
        };
        let mut bytes = lengths.map(|length| vec![0u8; length]);
        if let Some(float) = tensor.float() {
            for (index, element) in bytes[0].chunks_exact_mut(float.bytes()).enumerate() {
                element[0] = (index * 37) as u8;
                element[float.bytes() - 1] = 0x3c;
            }
        }
        Blank(bytes)
    }

    fn data<'b>(&'b self, tensor: &SourceTensor<'b>) -> Data<'b> {
        let [codes, scales, biases] = &self.0;
        let mut data = tensor.data.clone();
        match &mut data {
            Data::Blocks { bytes, .. } | Data::Unreadable { bytes, .. } => *bytes = codes,
            Data::Module(module) => {
                (module.arrays.codes, module.arrays.scales, module.arrays.biases) = (codes, scales, biases);
            }
        }
        data
    }
}

/// Bytes a second that SHA-256 takes in.
fn hash_speed() -> f64 {
    let block = vec![0u8; 1 << 20];
    let started = Instant::now();
    let mut hash = Sha256::new();
    (0..HASHED / block.len()).for_each(|_| hash.update(&block));
    std::hint::black_box(hash.finalize());
    HASHED as f64 / started.elapsed().as_secs_f64()
}

/// Bytes that were read of the largest file, and how many a second.
fn read_speed(source: &Source) -> Result<(u64, f64), ConvertError> {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
    let Some(path) = source.files().iter().max_by_key(|path| size(path)) else {
        return Ok((0, f64::INFINITY));
    };
    let (places, length) = SAMPLES;
    let size = size(path);
    let mut file = File::open(path).map_err(ConvertError::io(path, "open it"))?;
    let mut bytes = vec![0; length.min(size / places + 1) as usize];
    let (mut read, mut seconds) = (0, 0.0);
    for place in 0..places {
        let started = Instant::now();
        let mut fill = || {
            file.seek(SeekFrom::Start(size / places * place))?;
            file.read(&mut bytes)
        };
        read += fill().map_err(ConvertError::io(path, "read it"))? as u64;
        seconds += started.elapsed().as_secs_f64();
    }
    Ok((read, read as f64 / seconds))
}
