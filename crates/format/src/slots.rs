//! Slots: typed records after the weights. Nothing that is written today needs them; they are listed, and
//! their payloads handed out.

use std::fmt;
use std::ops::Range;

use crate::{Fault, SlotFlags};

/// Bytes of a slot record before its payload: kind, flags, payload length, checksum.
pub(crate) const RECORD_LEN: usize = 20;

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotKind {
    /// Adapter weights: u16 rank, u32 count, entries and data.
    LoraWeights,
    /// A compute graph: u8 platform, bytes.
    ComputeGraph,
    /// Token ids to warm the KV cache with: u32 count, u32 each.
    KvWarmup,
    /// A reference trace: 16 token ids, u32 vocabulary size, f32 logits.
    TraceReference,
    /// Rope tables: u32 positions, u8 dtype, cosines, sines.
    RopeTables,
    /// Calibration data as JSON.
    CalibrationData,
    /// Vendor data.
    Custom,
    /// A kind that the format does not define.
    Unknown(u16),
}

impl SlotKind {
    const KNOWN: [(SlotKind, u16, &str); 7] = [
        (SlotKind::LoraWeights, 0x01, "LoraWeights"),
        (SlotKind::ComputeGraph, 0x02, "ComputeGraph"),
        (SlotKind::KvWarmup, 0x03, "KvWarmup"),
        (SlotKind::TraceReference, 0x04, "TraceReference"),
        (SlotKind::RopeTables, 0x05, "RopeTables"),
        (SlotKind::CalibrationData, 0x06, "CalibrationData"),
        (SlotKind::Custom, 0xff, "Custom"),
    ];

    /// The kind with number `id`.
    pub fn from_id(id: u16) -> SlotKind {
        let known = Self::KNOWN.into_iter().find(|(_, known, _)| *known == id);
        known.map_or(SlotKind::Unknown(id), |(kind, ..)| kind)
    }

    /// The number in the file.
    pub fn id(self) -> u16 {
        match self {
            SlotKind::Unknown(id) => id,
            _ => Self::KNOWN.into_iter().find(|(kind, ..)| *kind == self).map_or(0, |(_, id, _)| id),
        }
    }
}

impl fmt::Display for SlotKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::KNOWN.into_iter().find(|(kind, ..)| kind == self) {
            Some((.., name)) => f.pad(name),
            None => write!(f, "0x{:02x}", self.id()),
        }
    }
}

/// One slot of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotInfo {
    /// What it holds.
    pub kind: SlotKind,
    /// Its flags.
    pub flags: SlotFlags,
    /// Checksum of the payload, 0 if there is none.
    pub xxh64: u64,
    /// Payload, in bytes from the start of the file.
    pub(crate) range: Range<usize>,
}

impl SlotInfo {
    /// Bytes of the payload.
    pub fn payload_len(&self) -> usize {
        self.range.len()
    }
}

/// Reads the slot section at `start`; a file that ends there, or inside the padding before it, has none.
///
/// # Errors
/// If a record or payload reaches past the end of the file, bytes are left over, or a slot of unknown kind is
/// marked as required.
pub(crate) fn parse(file: &[u8], start: usize) -> Result<Vec<SlotInfo>, Fault> {
    if file.len() <= start {
        return Ok(Vec::new());
    }
    let mut at = start;
    let count = take::<4>(file, &mut at).map(u32::from_le_bytes);
    let count = count.ok_or_else(|| section(format!("{} bytes follow the weights", file.len() - start)))?;
    // Each record takes its 20 bytes, which bounds the count before anything is allocated for it.
    let room = (file.len() - at) / RECORD_LEN;
    if count as usize > room {
        return Err(section(format!("it announces {count} slots, but has room for {room} at most")));
    }
    let mut slots = Vec::with_capacity(count as usize);
    for index in 0..count as usize {
        slots.push(record(file, &mut at, index)?);
    }
    match file.len().saturating_sub(at) {
        0 => Ok(slots),
        left => Err(section(format!("{left} bytes are left over after {count} slots"))),
    }
}

fn record(file: &[u8], at: &mut usize, index: usize) -> Result<SlotInfo, Fault> {
    let fields = (|| {
        let kind = take::<2>(file, at).map(u16::from_le_bytes)?;
        let flags = take::<2>(file, at).map(u16::from_le_bytes)?;
        let len = take::<8>(file, at).map(u64::from_le_bytes)?;
        let xxh64 = take::<8>(file, at).map(u64::from_le_bytes)?;
        Some((SlotKind::from_id(kind), SlotFlags::from_bits_truncate(u32::from(flags)), len, xxh64))
    })();
    let (kind, flags, len, xxh64) =
        fields.ok_or_else(|| section(format!("the file ends inside the record of slot {index}")))?;
    if flags.contains(SlotFlags::REQUIRED) && matches!(kind, SlotKind::Unknown(_)) {
        return Err(Fault::SlotRequired { index, kind });
    }
    let left = file.len().saturating_sub(*at);
    let len = usize::try_from(len).ok().filter(|len| *len <= left).ok_or_else(|| {
        section(format!("`payload_len` of slot {index} is {len}, but only {left} bytes are left"))
    })?;
    let range = *at..*at + len;
    // The padding after the last payload may be missing.
    *at = (range.end + padding(len)).min(file.len());
    Ok(SlotInfo { kind, flags, xxh64, range })
}

/// Zero bytes after a payload of `len` bytes.
pub(crate) fn padding(len: usize) -> usize {
    len.wrapping_neg() % 8
}

fn take<const N: usize>(file: &[u8], at: &mut usize) -> Option<[u8; N]> {
    let bytes = file.get(*at..)?.first_chunk::<N>()?;
    *at += N;
    Some(*bytes)
}

fn section(problem: String) -> Fault {
    Fault::SlotSection(problem)
}
