//! Reading, encoding and writing side by side, in bounded memory.
//!
//! The output is cut into pieces of about half a million elements. Workers take them in order, each with a free
//! buffer; the caller's thread takes the encoded pieces in order, writes their codes at once, and keeps only scales and
//! biases until the tensor's codes are complete. There are so many buffers and no more, so a slow disk holds the
//! workers up. Nothing depends on which worker made a piece: the bytes, the sums of errors, and which of several
//! errors is reported are the same for any number of threads.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use basert_format::BaseWriter;

use crate::encode::{self, Encoded, Measured, Worker, spans};
use crate::recipe::Inventory;
use crate::storage::Stored;
use crate::trail::Trail;
use crate::{ConvertError, Importance};

/// Elements of a piece: the source's and the output's share of one stay below 4 MiB.
const PIECE_ELEMENTS: usize = 1 << 19;

/// Bytes after which the disk is asked to take what is written. The system would let gigabytes pile up, and the end of
/// the conversion would wait for all of them.
const FLUSH_BYTES: u64 = 64 << 20;

/// Rows of one tensor that are converted at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    tensor: usize,
    row: usize,
    rows: usize,
    /// The tensor's last.
    last: bool,
}

/// Hears what happens to the tensors.
pub(crate) trait Watch {
    /// Tensor `index` begins.
    fn begun(&mut self, index: usize);

    /// Tensor `index` is written.
    ///
    /// # Errors
    /// If that cannot be put on record.
    fn written(&mut self, index: usize, measured: Measured, checksum: u64) -> Result<(), ConvertError>;
}

/// What is converted.
pub(crate) struct Pipeline<'a> {
    /// The source's tensors.
    pub inventory: &'a Inventory<'a>,
    /// The output's tensors.
    pub tensors: &'a [Stored],
    /// The way through the source's files.
    pub trail: &'a Trail<'a>,
    /// What errors are weighted by.
    pub importance: Option<&'a Importance>,
    /// Encoding threads.
    pub threads: usize,
}

/// An encoded piece, or why there is none.
type Outcome = Result<Result<Encoded, ConvertError>, Box<dyn Any + Send>>;

impl Pipeline<'_> {
    /// Converts the tensors from `first` on.
    ///
    /// # Errors
    /// The first in output order: values that cannot be stored, or an output that cannot be written.
    pub fn run(
        &self,
        first: usize,
        writer: &mut BaseWriter,
        watch: &mut dyn Watch,
    ) -> Result<(), ConvertError> {
        let pieces = pieces(self.tensors, first);
        let (free, buffers) = channel();
        let (done, encoded) = channel();
        let threads = self.threads.clamp(1, pieces.len().max(1));
        (0..buffer_count(threads as u64)).for_each(|_| {
            // The other end is open: it is below.
            let _ = free.send(Encoded::default());
        });
        let next = Mutex::new((buffers, 0));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (pieces, next, done) = (&pieces, &next, done.clone());
                let worker = Builder::new().spawn_scoped(scope, move || self.work(pieces, next, &done));
                worker.map_err(no_thread(threads))?;
            }
            drop(done);
            let flusher = writer.flusher()?;
            let (flush, requests) = sync_channel::<()>(1);
            let flush_all = move || requests.iter().try_for_each(|()| flusher.flush());
            let flushing = Builder::new().spawn_scoped(scope, flush_all).map_err(no_thread(threads))?;
            // All ends go when this returns, which ends the workers and the flushing.
            let written = self.write(&pieces, (free, encoded, flush), writer, watch);
            flushing.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            written
        })
    }

    /// What a worker does: take a buffer and the next piece, convert it, hand it over; until nothing is left.
    fn work(
        &self,
        pieces: &[Piece],
        next: &Mutex<(Receiver<Encoded>, usize)>,
        done: &Sender<(usize, Outcome)>,
    ) {
        let Some(tensor) = pieces.first().and_then(|piece| self.tensors.get(piece.tensor)) else { return };
        let mut worker = Worker::new(self.inventory, tensor, self.importance);
        loop {
            // Pieces are taken in order and only with a buffer, so the one the writer waits for is never stuck.
            let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
            let (index, piece) = match pieces.get(next.1) {
                Some(&piece) => (next.1, piece),
                None => return,
            };
            let Ok(mut buffer) = next.0.recv() else { return };
            next.1 += 1;
            drop(next);
            let result = catch_unwind(AssertUnwindSafe(|| {
                self.convert(&mut worker, piece, &mut buffer).map(|()| buffer)
            }));
            let stop = !matches!(result, Ok(Ok(_)));
            if done.send((index, result)).is_err() || stop {
                return;
            }
        }
    }

    fn convert<'w>(
        &'w self,
        worker: &mut Worker<'w>,
        piece: Piece,
        buffer: &mut Encoded,
    ) -> Result<(), ConvertError> {
        let stored = &self.tensors[piece.tensor];
        let (spans, width) = (spans(&stored.recipe, piece.row, piece.rows), stored.recipe.width);
        self.trail.reach(&spans, width);
        worker.turn_to(stored);
        let result = worker.convert(piece.row, piece.rows, buffer);
        self.trail.release(&spans, width);
        result
    }

    /// Writes the pieces in order as they come.
    fn write(
        &self,
        pieces: &[Piece],
        (free, encoded, flush): (Sender<Encoded>, Receiver<(usize, Outcome)>, SyncSender<()>),
        writer: &mut BaseWriter,
        watch: &mut dyn Watch,
    ) -> Result<(), ConvertError> {
        let mut early: BTreeMap<usize, Outcome> = BTreeMap::new();
        let mut tensor = OpenTensor::default();
        let mut unflushed = 0;
        for (index, piece) in pieces.iter().enumerate() {
            let result = loop {
                match early.remove(&index) {
                    Some(result) => break result,
                    // Workers stop after the last piece or a failed one, and say so before; if they ever went without
                    // a word, the writer would refuse to finish.
                    None => match encoded.recv() {
                        Ok((index, result)) => early.insert(index, result),
                        Err(_) => return Ok(()),
                    },
                };
            };
            let buffer = result.unwrap_or_else(|panic| resume_unwind(panic))?;
            if piece.row == 0 {
                watch.begun(piece.tensor);
            }
            if let Some(checksum) = tensor.write(writer, &buffer, piece.last)? {
                watch.written(piece.tensor, tensor.measured, checksum)?;
                tensor = OpenTensor::default();
            }
            unflushed += buffer.regions.iter().map(|region| region.len() as u64).sum::<u64>();
            if unflushed >= FLUSH_BYTES {
                unflushed = 0;
                // A request that is waiting covers this one too; a flush that failed has its own error.
                if let Err(TrySendError::Disconnected(())) = flush.try_send(()) {
                    return Ok(());
                }
            }
            // No worker is left to take it when the last pieces are on their way.
            let _ = free.send(buffer);
        }
        Ok(())
    }
}

/// The tensor whose codes are being written.
#[derive(Default)]
struct OpenTensor {
    scales: Vec<u8>,
    biases: Vec<u8>,
    measured: Measured,
}

impl OpenTensor {
    /// Writes a piece, and after the last one what was kept back; then returns the checksum.
    fn write(
        &mut self,
        writer: &mut BaseWriter,
        piece: &Encoded,
        last: bool,
    ) -> Result<Option<u64>, ConvertError> {
        let [codes, scales, biases] = &piece.regions;
        self.measured = self.measured.join(piece.measured);
        self.scales.extend_from_slice(scales);
        self.biases.extend_from_slice(biases);
        let mut checksum = writer.write_part(codes)?;
        if last {
            for region in [&self.scales, &self.biases].into_iter().filter(|region| !region.is_empty()) {
                checksum = writer.write_part(region)?;
            }
        }
        Ok(checksum)
    }
}

/// The pieces of all tensors from `first` on; a tensor without elements has one, of no rows.
fn pieces(tensors: &[Stored], first: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (tensor, stored) in tensors.iter().enumerate().skip(first) {
        let (total, step) = (stored.recipe.rows(), piece_rows(stored));
        let mut row = 0;
        loop {
            let rows = step.min(total - row);
            let last = row + rows == total;
            pieces.push(Piece { tensor, row, rows, last });
            row += rows;
            if last {
                break;
            }
        }
    }
    pieces
}

fn piece_rows(stored: &Stored) -> usize {
    (PIECE_ELEMENTS / stored.recipe.width.max(1)).max(1)
}

/// One buffer for every worker, and as many that wait for the writer.
fn buffer_count(threads: u64) -> u64 {
    2 * threads + 2
}

/// Bytes that the program takes by itself: its code, buffers of the hash, what the allocator keeps.
const PROGRAM: u64 = 20 << 20;

/// Pages that the system may map at once, at both ends of what a worker looks at.
const LARGE_PAGE: u64 = 2 << 20;

/// Most bytes that workers and pieces may take together; more threads than fit are not started, if one fits.
const BUDGET: u64 = 1 << 30;

/// More threads than any machine has use for; the memory for them lets fewer start anyway.
const MAX_THREADS: usize = 256;

/// A number of threads from here on is a mistake.
const ABSURD_THREADS: usize = 4096;

/// Bytes that a conversion takes.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    /// An encoded piece.
    piece: u64,
    /// A worker's buffers and the pages of the source that it is at.
    worker: u64,
    /// Scales and biases that are kept back.
    kept: u64,
}

impl Footprint {
    fn with(self, threads: u64) -> u64 {
        buffer_count(threads).saturating_mul(self.piece).saturating_add(threads.saturating_mul(self.worker))
    }

    /// `threads`, or as many as have their memory in the budget.
    fn limit(self, threads: usize) -> usize {
        let each = self.worker.saturating_add(2 * self.piece).max(1);
        let fitting = BUDGET.saturating_sub(2 * self.piece) / each;
        threads.min(MAX_THREADS).min(fitting as usize).max(1)
    }
}

/// The threads that converting `tensors` gets when `wanted` are allowed: no more than there are pieces, and than have
/// their memory.
///
/// # Errors
/// If so many are wanted that it must be a mistake.
pub(crate) fn workers(
    inventory: &Inventory<'_>,
    tensors: &[Stored],
    wanted: usize,
) -> Result<usize, ConvertError> {
    if wanted >= ABSURD_THREADS {
        let why = format!("no machine has use for more than {}", ABSURD_THREADS - 1);
        return Err(ConvertError::Threads { count: wanted, why });
    }
    Ok(footprint(inventory, tensors).limit(wanted).min(pieces(tensors, 0).len().max(1)))
}

/// The error of a system that starts no more threads.
pub(crate) fn no_thread(count: usize) -> impl Fn(std::io::Error) -> ConvertError {
    move |cause| ConvertError::Threads { count, why: cause.to_string() }
}

/// About the most bytes that converting `tensors` takes at a time: the program, workers' buffers, the pages of the source
/// that they are at, pieces on their way to the writer, scales and biases that are kept back.
pub(crate) fn peak_bytes(inventory: &Inventory<'_>, tensors: &[Stored], threads: usize) -> u64 {
    let footprint = footprint(inventory, tensors);
    let threads = footprint.limit(threads) as u64;
    PROGRAM.saturating_add(footprint.with(threads)).saturating_add(footprint.kept)
}

fn footprint(inventory: &Inventory<'_>, tensors: &[Stored]) -> Footprint {
    let (mut worker, mut source, mut piece, mut kept) = (0, 0, 0, 0);
    for stored in tensors {
        let recipe = &stored.recipe;
        let rows = piece_rows(stored).min(recipe.rows());
        let elements = (rows * recipe.width) as u64;
        worker = worker.max(encode::buffer_bytes(recipe.width));
        let share = u128::from(stored.bytes) * u128::from(elements) / (recipe.elements() as u128).max(1);
        piece = piece.max(share as u64);
        if let Ok(regions) = stored.planned.encoding.regions(recipe.elements() as u64) {
            kept = kept.max(regions.scales + regions.biases);
        }
        let spans = spans(recipe, 0, rows);
        let bytes = spans.iter().flat_map(|span| {
            inventory.tensor(span.tensor).row_bytes(span.rows.clone(), recipe.width).map(<[u8]>::len)
        });
        source = source.max(bytes.sum::<usize>() as u64);
    }
    Footprint { piece, worker: worker + source + 2 * LARGE_PAGE, kept }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_stays_in_the_budget_with_any_number_of_threads() {
        let mib = |count: u64| count << 20;
        // f32 pieces, usual rows; rows of a few million elements; one that alone is more than the budget.
        let cases = [
            (Footprint { piece: mib(2), worker: mib(7), kept: 0 }, 92),
            (Footprint { piece: mib(60), worker: mib(300), kept: 0 }, 2),
            (Footprint { piece: mib(900), worker: mib(4000), kept: 0 }, 1),
            (Footprint { piece: 1, worker: 1, kept: 0 }, MAX_THREADS),
            (Footprint { piece: 0, worker: 0, kept: 0 }, MAX_THREADS),
        ];
        for (footprint, expected) in cases {
            for threads in [512, usize::MAX] {
                assert_eq!(footprint.limit(threads), expected, "{footprint:?}");
            }
            assert_eq!(footprint.limit(1), 1);
            assert_eq!(footprint.limit(0), 1);
            assert!(expected == 1 || footprint.with(expected as u64) <= BUDGET, "{footprint:?}");
        }
    }
}
