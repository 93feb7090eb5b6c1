//! Writing a `.base` file, one tensor at a time.
//!
//! The blob's start depends on the header's length, and the header holds checksums that are known only at the
//! end. So the header's space is reserved from the plan, and the final JSON is padded with spaces up to the
//! blob.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use basert_quant::Encoding;
use tempfile::NamedTempFile;
use xxhash_rust::xxh64::xxh64;

use crate::validate::validate;
use crate::{
    BaseFile, ComputeRegion, Fault, FormatError, Header, MAGIC, MAX_HEADER_LEN, PREAMBLE_LEN, Residency,
    SlotFlags, SlotKind, TensorEntry, TensorFlags, VERSION, VERSION_KEY, blob_start, slots,
};

/// Bytes reserved beyond the planned header, for what only `finish` can add.
const SPARE: u64 = 4096;

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
/// writer that is dropped before leaves nothing behind. After an I/O error it is of no further use.
#[derive(Debug)]
pub struct BaseWriter {
    out: PathBuf,
    temp: NamedTempFile,
    /// Without its tensors.
    header: Header,
    /// Main tensors, then mmproj tensors, with offsets and (once written) checksums.
    entries: Vec<TensorEntry>,
    main_tensors: usize,
    written: usize,
    /// Start of the blob in the file.
    blob: u64,
    /// End of what is written, in bytes from the start of the file.
    position: u64,
    slots: u32,
}

impl BaseWriter {
    /// Plans the file `out`: checks `tensors`, lays them out in the given order, and opens a temporary file
    /// in the same directory.
    ///
    /// `header` comes without tensors (in `mmproj` too); its alignment decides where tensors start. In the
    /// file it has the metadata key [`VERSION_KEY`] in any case.
    ///
    /// # Errors
    /// If a tensor's shape does not fit its encoding, names repeat, the plan contradicts the header, or the
    /// temporary file cannot be made.
    pub fn create(
        out: &Path,
        header: Header,
        tensors: Vec<PlannedTensor>,
    ) -> Result<BaseWriter, FormatError> {
        let plan = plan(&header, &tensors).map_err(|fault| FormatError::new(out, fault))?;
        let temp = temp_file(out).map_err(|cause| {
            FormatError::new(out, Fault::Io { action: "create a temporary file beside it", cause })
        })?;
        let Plan { entries, main_tensors, blob } = plan;
        let out = out.to_owned();
        Ok(BaseWriter {
            out,
            temp,
            header,
            entries,
            main_tensors,
            written: 0,
            blob,
            position: blob,
            slots: 0,
        })
    }

    /// Writes the payload of the next planned tensor: codes, scales, biases.
    ///
    /// # Errors
    /// If all tensors are written, the length is not the planned one, or writing fails.
    pub fn write_tensor(&mut self, payload: &[u8]) -> Result<(), FormatError> {
        let planned = self.entries.len();
        let Some(entry) = self.entries.get_mut(self.written) else {
            return Err(self.error(Fault::TooManyTensors { planned }));
        };
        if payload.len() as u64 != entry.length {
            let (name, expected) = (entry.name.clone(), entry.length);
            return Err(self.error(Fault::PayloadLength { name, expected, found: payload.len() as u64 }));
        }
        entry.checksum_xxh64 = xxh64(payload, 0);
        let start = self.blob + entry.offset;
        self.append_at(start, payload)?;
        self.written += 1;
        Ok(())
    }

    /// Opens what is written so far as a file of its own, once all tensors are there: to try them before anything is
    /// published. The view stays valid while more is written.
    ///
    /// # Errors
    /// If tensors or the header are not valid, or writing or mapping fails.
    pub fn preview(&mut self) -> Result<BaseFile, FormatError> {
        self.check_complete()?;
        let front = self.front().map_err(|fault| self.error(fault))?;
        let file = self.temp.as_file_mut();
        let written = file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&front));
        written.map_err(|cause| self.io("write it", cause))?;
        BaseFile::open(self.temp.path())
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
    /// If tensors are missing, the edited header is invalid or too long, or writing, syncing or renaming
    /// fails.
    pub fn finish(mut self, edit: impl FnOnce(&mut Header)) -> Result<(), FormatError> {
        self.check_complete()?;
        edit(&mut self.header);
        let front = self.front().map_err(|fault| self.error(fault))?;
        let slots = (self.slots > 0).then(|| (self.slots_start(), self.slots.to_le_bytes()));
        let file = self.temp.as_file_mut();
        complete(file, &front, slots).map_err(|cause| self.io("write it", cause))?;
        let BaseWriter { out, temp, .. } = self;
        let error = |action, cause| FormatError::new(&out, Fault::Io { action, cause });
        temp.persist(&out).map_err(|persist| error("rename the finished file to it", persist.error))?;
        sync_directory(&out).map_err(|cause| error("sync its directory", cause))
    }

    /// Everything before the blob: preamble, JSON, spaces.
    fn front(&self) -> Result<Vec<u8>, Fault> {
        let header = with_tensors(&self.header, &self.entries, self.main_tensors)?;
        validate(&header, self.position - self.blob)?;
        let json = to_json(&header)?;
        let reserved = self.blob - PREAMBLE_LEN;
        if json.len() as u64 > reserved {
            return Err(Fault::HeaderOutgrown { len: json.len(), reserved });
        }
        let mut front = Vec::with_capacity(self.blob as usize);
        front.extend_from_slice(&MAGIC);
        front.extend_from_slice(&VERSION.to_le_bytes());
        front.extend_from_slice(&reserved.to_le_bytes());
        front.extend_from_slice(&json);
        front.resize(self.blob as usize, b' ');
        Ok(front)
    }

    /// Fills with zeros up to `start`, then appends `bytes`.
    fn append_at(&mut self, start: u64, bytes: &[u8]) -> Result<(), FormatError> {
        let gap = start.saturating_sub(self.position);
        let file = self.temp.as_file_mut();
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

    fn error(&self, fault: Fault) -> FormatError {
        FormatError::new(&self.out, fault)
    }

    fn io(&self, action: &'static str, cause: io::Error) -> FormatError {
        self.error(Fault::Io { action, cause })
    }
}

/// What is known before the first payload is.
struct Plan {
    entries: Vec<TensorEntry>,
    main_tensors: usize,
    blob: u64,
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
    Ok(Plan { entries, main_tensors, blob })
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

/// A file in the directory of `out` that is deleted when dropped.
fn temp_file(out: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".basert-").suffix(".tmp");
    #[cfg(unix)]
    {
        // Temporary files are private by default, but this one becomes the output: leave it to the umask.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(directory(out))
}

/// Writes what was left open, then has the disk take everything.
fn complete(file: &mut File, front: &[u8], slot_count: Option<(u64, [u8; 4])>) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(front)?;
    if let Some((start, count)) = slot_count {
        file.seek(SeekFrom::Start(start))?;
        file.write_all(&count)?;
    }
    file.sync_all()
}

fn directory(out: &Path) -> &Path {
    out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the rename last through a power cut. Only Unix can (and must) sync a directory.
fn sync_directory(out: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory(out))?.sync_all() } else { Ok(()) }
}
