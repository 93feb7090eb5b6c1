//! Bounded reading of little-endian fields.

use super::GgufFault;

/// A position in a file. Every read is checked against what remains; nothing is copied but numbers.
pub(super) struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a [u8]) -> Cursor<'a> {
        Cursor { file, at: 0 }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes of the whole file.
    pub fn file_len(&self) -> usize {
        self.file.len()
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> u64 {
        (self.file.len() - self.at) as u64
    }

    /// The next `count` bytes; `what` names them in the error.
    pub fn take(&mut self, count: u64, what: &'static str) -> Result<&'a [u8], GgufFault> {
        let remaining = self.remaining();
        if count > remaining {
            return Err(GgufFault::Truncated { what, position: self.at, needed: count, remaining });
        }
        let start = self.at;
        self.at += count as usize;
        Ok(&self.file[start..self.at])
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufFault> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64, what)?);
        Ok(bytes)
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, GgufFault> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, GgufFault> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A string: u64 length and that many bytes of UTF-8.
    pub fn string(&mut self, what: &'static str) -> Result<&'a str, GgufFault> {
        let length = self.u64(what)?;
        let position = self.at;
        std::str::from_utf8(self.take(length, what)?).map_err(|_| GgufFault::NotUtf8 { what, position })
    }

    /// Refuses a count of items of at least `least` bytes each that cannot be in what remains.
    pub fn check_count(&self, count: u64, least: u64, what: &'static str) -> Result<(), GgufFault> {
        let remaining = self.remaining();
        if count > remaining / least {
            return Err(GgufFault::Count { what, count, remaining });
        }
        Ok(())
    }
}
