//! Writing a `.base` file, one tensor at a time.
//!
//! The blob's start depends on the header's length, and the header holds checksums that are known only at the
//! end. So the header's space is reserved from the plan, and the final JSON is padded with spaces up to the
//! blob.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use basert_quant::Encoding;
use xxhash_rust::xxh64::{Xxh64, xxh64};

use crate::output::Unfinished;
use crate::validate::validate;
use crate::{
    BLOB_ALIGN, BaseFile, ComputeRegion, Fault, FormatError, Header, MAGIC, MAX_HEADER_LEN, Output,
    PREAMBLE_LEN, Residency, SlotFlags, SlotKind, TensorEntry, TensorFlags, VERSION, VERSION_KEY, blob_start,
    slots,
};

/// Bytes reserved beyond the planned header, for what only `finish` can add.
const SPARE: u64 = 4096;

/// In the place of [`MAGIC`] until a file is finished, so that unfinished work never opens.
const UNFINISHED: [u8; 4] = [0; 4];

/// Bytes read at a time when kept work is checked.
const READ_BLOCK: usize = 1 << 20;

/// A tensor that is going to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedTensor {
    /// Canonical name.
    pub name: String,
    /// Row-major shape, innermost dimension last.
    pub shape: Vec<u64>,
    /// How its payload is laid out.
    pub encoding: Encoding,
    /// Where it is meant to be used; decides its alignment.
    pub region: ComputeRegion,
    /// How soon it is needed.
    pub residency: Residency,
    /// Flags.
    pub flags: TensorFlags,
    /// Whether it belongs to `mmproj`; such tensors come last.
    pub mmproj: bool,
}

/// Writes one `.base` file. The file appears under its name only when [`BaseWriter::finish`] succeeds; a
/// writer that is dropped before leaves nothing behind, unless its [`Output`] keeps unfinished work. After an I/O
/// error it is of no further use.
pub struct BaseWriter {
    output: Output,
    unfinished: Unfinished,
    /// Without its tensors.
    header: Header,
    /// Main tensors, then mmproj tensors, with offsets and (once written) checksums.
    entries: Vec<TensorEntry>,
    main_tensors: usize,
    written: usize,
    /// Bytes of the tensor being written that are in the file, and their checksum.
    part: (u64, Xxh64),
    /// Start of the blob in the file.
    blob: u64,
    /// End of what is written, in bytes from the start of the file.
    position: u64,
    slots: u32,
    /// The space between JSON and blob is zeros outside the header instead of spaces inside it.
    zero_padding: bool,
}

impl BaseWriter {
    /// Plans the file `out`, which replaces an older one; see [`BaseWriter::create_at`].
    ///
    /// # Errors
    /// As [`BaseWriter::create_at`].
    pub fn create(
        out: &Path,
        header: Header,
        tensors: Vec<PlannedTensor>,
    ) -> Result<BaseWriter, FormatError> {
        BaseWriter::create_at(&Output::new(out), header, tensors)
    }

    /// Plans the file `output`: checks `tensors`, lays them out in the given order, opens the unfinished file in the
    /// same directory, and reserves disk space for all tensors.
    ///
    /// `header` comes without tensors (in `mmproj` too); its alignment decides where tensors start. In the
    /// file it has the metadata key [`VERSION_KEY`] in any case.
    ///
    /// # Errors
    /// If a tensor's shape does not fit its encoding, names repeat, the plan contradicts the header, or the
    /// file cannot be made or does not fit the disk.
    pub fn create_at(
        output: &Output,
        header: Header,
        tensors: Vec<PlannedTensor>,
    ) -> Result<BaseWriter, FormatError> {
        let error = |fault| FormatError::new(output.path(), fault);
        let Plan { entries, main_tensors, blob, end } = plan(&header, &tensors).map_err(error)?;
        let io = |action| move |cause| error(Fault::Io { action, cause });
        let mut unfinished = output.create().map_err(io("create a file beside it"))?;
        if let Err(cause) = unfinished.reserve(end) {
            unfinished.discard_if_empty().map_err(io("remove what was begun"))?;
            return Err(io("reserve space for it")(cause));
        }
        mark_unfinished(&mut unfinished.file).map_err(io("write it"))?;
        Ok(BaseWriter {
            output: output.clone(),
            unfinished,
            header,
            entries,
            main_tensors,
            written: 0,
            part: (0, Xxh64::new(0)),
            blob,
            position: blob,
            slots: 0,
            zero_padding: false,
        })
    }

    /// The header that [`BaseWriter::create_at`] plans, with the place of every tensor and no checksums, as JSON: what
    /// identifies the plan. Opens nothing.
    ///
    /// # Errors
    /// As [`BaseWriter::create_at`] for the plan.
    pub fn planned_header(
        output: &Output,
        header: &Header,
        tensors: &[PlannedTensor],
    ) -> Result<Vec<u8>, FormatError> {
        let planned = plan(header, tensors)
            .and_then(|plan| with_tensors(header, &plan.entries, plan.main_tensors))
            .and_then(|header| to_json(&header));
        planned.map_err(|fault| FormatError::new(output.path(), fault))
    }

    /// Goes on behind tensors that an earlier writer of the same plan left in kept work: reads the first tensors back
    /// and takes those as written whose payloads have these `checksums`, up to the first that does not (a torn write).
    /// Returns how many. `progress` is called with the index of each before it is read.
    ///
    /// # Errors
    /// If tensors are written already, or reading fails.
    pub fn take_over(
        &mut self,
        checksums: &[u64],
        progress: &mut dyn FnMut(usize),
    ) -> Result<usize, FormatError> {
        if self.position != self.blob {
            return Err(self.error(Fault::Plan("work can be taken over at the start only")));
        }
        for (index, &expected) in checksums.iter().enumerate().take(self.entries.len()) {
            progress(index);
            let (start, length) = (self.blob + self.entries[index].offset, self.entries[index].length);
            let found = self.checksum_of(start, length).map_err(|cause| self.io("read it", cause))?;
            if found != Some(expected) {
                break;
            }
            self.entries[index].checksum_xxh64 = expected;
            self.position = start + length;
            self.written = index + 1;
        }
        Ok(self.written)
    }

    /// Ends the header with its JSON, as far as the blob's start allows, and fills up with zeros: the form of the
    /// original converter.
    pub fn pad_header_with_zeros(&mut self) {
        self.zero_padding = true;
    }

    /// Writes the payload of the next planned tensor: codes, scales, biases.
    ///
    /// # Errors
    /// If all tensors are written, the length is not the planned one, or writing fails.
    pub fn write_tensor(&mut self, payload: &[u8]) -> Result<(), FormatError> {
        let found = payload.len() as u64;
        match self.entries.get(self.written) {
            Some(entry) if self.part.0 != 0 || found != entry.length => {
                let (name, expected) = (entry.name.clone(), entry.length - self.part.0);
                Err(self.error(Fault::PayloadLength { name, expected, found }))
            }
            _ => self.write_part(payload).map(drop),
        }
    }

    /// Appends to the payload of the next planned tensor. The last part, which may be all of it, gives the payload's
    /// checksum. A tensor without bytes has one empty part.
    ///
    /// # Errors
    /// If all tensors are written, the payload gets longer than planned, or writing fails.
    pub fn write_part(&mut self, part: &[u8]) -> Result<Option<u64>, FormatError> {
        let planned = self.entries.len();
        let Some(entry) = self.entries.get(self.written) else {
            return Err(self.error(Fault::TooManyTensors { planned }));
        };
        let (before, expected) = (self.part.0, entry.length);
        let length = before + part.len() as u64;
        if length > expected {
            let name = entry.name.clone();
            return Err(self.error(Fault::PayloadLength { name, expected, found: length }));
        }
        self.append_at(self.blob + entry.offset + before, part)?;
        self.part.1.update(part);
        self.part.0 = length;
        if length < expected {
            return Ok(None);
        }
        let (_, hash) = std::mem::replace(&mut self.part, (0, Xxh64::new(0)));
        let checksum = hash.digest();
        self.entries[self.written].checksum_xxh64 = checksum;
        self.written += 1;
        Ok(Some(checksum))
    }

    /// A handle with which another thread can have the disk take what is written, while this one goes on writing.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn flusher(&self) -> Result<Flusher, FormatError> {
        let file = self.unfinished.file.try_clone().map_err(|cause| self.io("open it again", cause))?;
        Ok(Flusher { out: self.output.path().to_owned(), file })
    }

    /// Writes the header as it stands and opens the unfinished file as what it is going to be, for a last look before
    /// slots and [`BaseWriter::finish`]. The file's path may mean something to this process only, and nobody else can
    /// open the file as a `.base` file: until it is finished it lacks the magic number.
    ///
    /// # Errors
    /// If tensors are missing, the header is invalid, or writing fails.
    pub fn preview(&mut self) -> Result<BaseFile, FormatError> {
        self.check_complete()?;
        self.write_front(UNFINISHED)?;
        BaseFile::open_marked(&self.unfinished.path(), UNFINISHED)
    }

    /// Gives up: removes the unfinished file even if its [`Output`] keeps such work.
    ///
    /// # Errors
    /// From the system.
    pub fn discard(self) -> Result<(), FormatError> {
        let BaseWriter { output, unfinished, .. } = self;
        let removed = unfinished.discard();
        removed.map_err(|cause| {
            FormatError::new(output.path(), Fault::Io { action: "remove what was begun", cause })
        })
    }

    /// Appends a slot, once all tensors are written.
    ///
    /// # Errors
    /// If tensors are missing, the slot is marked as compressed, or writing fails.
    pub fn write_slot(
        &mut self,
        kind: SlotKind,
        flags: SlotFlags,
        payload: &[u8],
    ) -> Result<(), FormatError> {
        self.check_complete()?;
        if flags.contains(SlotFlags::COMPRESSED_ZSTD) {
            return Err(self.error(Fault::Plan("compressed slots are not supported")));
        }
        let Some(count) = self.slots.checked_add(1) else {
            return Err(self.error(Fault::Plan("there are more slots than 32 bits can count")));
        };
        if self.slots == 0 {
            // The count is not known before the last slot; finish() fills it in.
            self.append_at(self.slots_start(), &[0; 4])?;
        }
        let mut record = Vec::with_capacity(slots::RECORD_LEN);
        record.extend_from_slice(&kind.id().to_le_bytes());
        record.extend_from_slice(&(flags.bits() as u16).to_le_bytes());
        record.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        record.extend_from_slice(&xxh64(payload, 0).to_le_bytes());
        self.append_at(self.position, &record)?;
        self.append_at(self.position, payload)?;
        self.append_at(self.position + slots::padding(payload.len()) as u64, &[])?;
        self.slots = count;
        Ok(())
    }

    /// Writes the header and makes the file appear.
    ///
    /// `edit` may change anything of the header but its tensors, which it does not see; what it adds must fit
    /// into the reserved space (at least 4 KiB beyond the planned header).
    ///
    /// # Errors
    /// If tensors are missing, the edited header is invalid or too long, writing or syncing fails, or a file of the
    /// name exists that must not be replaced.
    pub fn finish(mut self, edit: impl FnOnce(&mut Header)) -> Result<(), FormatError> {
        self.check_complete()?;
        edit(&mut self.header);
        self.write_front(MAGIC)?;
        self.unfinished.file.sync_all().map_err(|cause| self.io("write it", cause))?;
        let BaseWriter { output, unfinished, .. } = self;
        unfinished.publish().map_err(|cause| {
            let fault = match cause.kind() {
                io::ErrorKind::AlreadyExists => Fault::Exists,
                _ => Fault::Io { action: "give the finished file its name", cause },
            };
            FormatError::new(output.path(), fault)
        })
    }

    /// Writes what was left open, and cuts off what an earlier writer left behind the end.
    fn write_front(&mut self, magic: [u8; 4]) -> Result<(), FormatError> {
        let front = self.front(magic).map_err(|fault| self.error(fault))?;
        let slots = (self.slots > 0).then(|| (self.slots_start(), self.slots.to_le_bytes()));
        let end = self.position;
        let file = &mut self.unfinished.file;
        let mut write = || {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&front)?;
            if let Some((start, count)) = slots {
                file.seek(SeekFrom::Start(start))?;
                file.write_all(&count)?;
            }
            if file.metadata()?.len() > end { file.set_len(end) } else { Ok(()) }
        };
        write().map_err(|cause| self.io("write it", cause))
    }

    /// Everything before the blob: preamble, JSON, padding.
    fn front(&self, magic: [u8; 4]) -> Result<Vec<u8>, Fault> {
        let header = with_tensors(&self.header, &self.entries, self.main_tensors)?;
        validate(&header, self.position - self.blob)?;
        let json = to_json(&header)?;
        let reserved = self.blob - PREAMBLE_LEN;
        if json.len() as u64 > reserved {
            return Err(Fault::HeaderOutgrown { len: json.len(), reserved });
        }
        // A shorter header would make the blob start earlier.
        let least = (reserved + 1).saturating_sub(BLOB_ALIGN);
        let header_len = if self.zero_padding { least.max(json.len() as u64) } else { reserved };
        let mut front = Vec::with_capacity(self.blob as usize);
        front.extend_from_slice(&magic);
        front.extend_from_slice(&VERSION.to_le_bytes());
        front.extend_from_slice(&header_len.to_le_bytes());
        front.extend_from_slice(&json);
        front.resize((PREAMBLE_LEN + header_len) as usize, b' ');
        front.resize(self.blob as usize, 0);
        Ok(front)
    }

    /// Fills with zeros up to `start`, then appends `bytes`.
    fn append_at(&mut self, start: u64, bytes: &[u8]) -> Result<(), FormatError> {
        let gap = start.saturating_sub(self.position);
        let file = &mut self.unfinished.file;
        let result = file
            .seek(SeekFrom::Start(self.position))
            .and_then(|_| io::copy(&mut io::repeat(0).take(gap), file))
            .and_then(|_| file.write_all(bytes));
        result.map_err(|cause| self.io("write it", cause))?;
        self.position += gap + bytes.len() as u64;
        Ok(())
    }

    /// Where the slot section starts: at the next multiple of 8 after the last tensor.
    fn slots_start(&self) -> u64 {
        let end = self.entries.iter().map(|entry| entry.offset + entry.length).max();
        (self.blob + end.unwrap_or(0)).next_multiple_of(8)
    }

    fn check_complete(&self) -> Result<(), FormatError> {
        let (written, planned) = (self.written, self.entries.len());
        if written == planned { Ok(()) } else { Err(self.error(Fault::TooFewTensors { written, planned })) }
    }

    /// Checksum of `length` bytes of the file from `start` on; `None` if it ends before.
    fn checksum_of(&mut self, start: u64, length: u64) -> io::Result<Option<u64>> {
        let mut block = vec![0; READ_BLOCK];
        let mut hash = Xxh64::new(0);
        let mut left = length;
        let file = &mut self.unfinished.file;
        file.seek(SeekFrom::Start(start))?;
        while left > 0 {
            let want = left.min(READ_BLOCK as u64) as usize;
            let count = file.read(&mut block[..want])?;
            if count == 0 {
                return Ok(None);
            }
            hash.update(&block[..count]);
            left -= count as u64;
        }
        Ok(Some(hash.digest()))
    }

    fn error(&self, fault: Fault) -> FormatError {
        FormatError::new(self.output.path(), fault)
    }

    fn io(&self, action: &'static str, cause: io::Error) -> FormatError {
        self.error(Fault::Io { action, cause })
    }
}

/// Takes the magic number off work that was kept when it was all but finished.
fn mark_unfinished(file: &mut File) -> io::Result<()> {
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&UNFINISHED)?;
    }
    Ok(())
}

/// See [`BaseWriter::flusher`].
#[derive(Debug)]
pub struct Flusher {
    out: PathBuf,
    file: File,
}

impl Flusher {
    /// Returns when everything that was written before is on the disk.
    ///
    /// # Errors
    /// A write that failed after the system had accepted it. It is reported once, here or by the writer.
    pub fn flush(&self) -> Result<(), FormatError> {
        let flushed = self.file.sync_data();
        flushed.map_err(|cause| FormatError::new(&self.out, Fault::Io { action: "write it", cause }))
    }
}

impl fmt::Debug for BaseWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = (self.written, self.entries.len());
        f.debug_struct("BaseWriter")
            .field("output", &self.output)
            .field("written", &progress)
            .finish_non_exhaustive()
    }
}

/// What is known before the first payload is.
struct Plan {
    entries: Vec<TensorEntry>,
    main_tensors: usize,
    blob: u64,
    /// End of the last tensor, from the start of the file.
    end: u64,
}

fn plan(header: &Header, tensors: &[PlannedTensor]) -> Result<Plan, Fault> {
    header.alignment.check()?;
    let main_tensors = tensors.iter().take_while(|tensor| !tensor.mmproj).count();
    if tensors[main_tensors..].iter().any(|tensor| !tensor.mmproj) {
        return Err(Fault::Plan("main tensors must come before mmproj tensors"));
    }
    let (entries, end) = lay_out(header, tensors)?;
    let planned = with_tensors(header, &entries, main_tensors)?;
    validate(&planned, end)?;
    let reserved = to_json(&planned)?.len() as u64 + SPARE;
    let too_long = Fault::HeaderTooLong { len: reserved };
    let blob = blob_start(reserved).filter(|blob| blob - PREAMBLE_LEN <= MAX_HEADER_LEN).ok_or(too_long)?;
    // The slot section starts at a multiple of 8 after the last tensor.
    let file_end = blob.checked_add(end).and_then(|end| end.checked_next_multiple_of(8));
    file_end.ok_or(Fault::Plan(TOO_LARGE))?;
    Ok(Plan { entries, main_tensors, blob, end: blob + end })
}

const TOO_LARGE: &str = "the tensors take more bytes than a file can have";

/// Places the tensors one after the other, each at the alignment of its region; returns the end of the last.
fn lay_out(header: &Header, tensors: &[PlannedTensor]) -> Result<(Vec<TensorEntry>, u64), Fault> {
    let mut entries = Vec::with_capacity(tensors.len());
    let mut end = 0u64;
    for tensor in tensors {
        let entry = TensorEntry::planned(tensor);
        let mut entry = entry.map_err(|problem| Fault::Tensor { name: tensor.name.clone(), problem })?;
        let start = end.checked_next_multiple_of(header.alignment.bytes(tensor.region));
        entry.offset = start.ok_or(Fault::Plan(TOO_LARGE))?;
        end = entry.offset.checked_add(entry.length).ok_or(Fault::Plan(TOO_LARGE))?;
        entries.push(entry);
    }
    Ok((entries, end))
}

/// `header` as it goes into the file: with the tensor lists, which only the writer fills, and marked as ours.
fn with_tensors(header: &Header, entries: &[TensorEntry], main_tensors: usize) -> Result<Header, Fault> {
    let (main, mmproj) = entries.split_at(main_tensors);
    let mut header = header.clone();
    let given = header.mmproj.as_ref().map_or(0, |list| list.tensors.len()) + header.tensors.len();
    if given > 0 {
        return Err(Fault::Plan("the header must come without tensors"));
    }
    header.metadata.entry(VERSION_KEY.to_owned()).or_insert_with(|| env!("CARGO_PKG_VERSION").into());
    header.tensors = main.to_vec();
    match &mut header.mmproj {
        Some(list) => list.tensors = mmproj.to_vec(),
        None if mmproj.is_empty() => {}
        None => return Err(Fault::Plan("mmproj tensors need `mmproj` in the header")),
    }
    Ok(header)
}

fn to_json(header: &Header) -> Result<Vec<u8>, Fault> {
    serde_json::to_vec(header).map_err(|cause| Fault::HeaderJson {
        field: ".".to_owned(),
        tensor: None,
        cause,
    })
}
