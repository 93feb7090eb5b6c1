//! Checksums: xxHash64 with seed 0 over whole payloads.

use xxhash_rust::xxh64::Xxh64;

use crate::{BaseFile, Fault, FormatError};

/// Bytes hashed between two calls of the progress callback.
const CHUNK: usize = 4 << 20;

impl BaseFile {
    /// Reads every payload (main tensors, mmproj tensors, slots that have a checksum) and compares it with
    /// its checksum. `progress` is called with the bytes done so far and the total, last with both equal.
    ///
    /// # Errors
    /// The first tensor or slot that differs.
    pub fn verify_checksums(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), FormatError> {
        let tensors = self.tensors().chain(self.mmproj_tensors()).map(|tensor| {
            (format!("tensor `{}`", tensor.entry.name), tensor.data, tensor.entry.checksum_xxh64)
        });
        let checked_slots = self.slots().iter().enumerate().filter(|(_, slot)| slot.xxh64 != 0);
        let slots = checked_slots.map(|(index, slot)| {
            (format!("slot {index} ({})", slot.kind), self.slot_bytes(slot), slot.xxh64)
        });
        let payloads: Vec<(String, &[u8], u64)> = tensors.chain(slots).collect();
        let total = payloads.iter().map(|(_, data, _)| data.len() as u64).sum();
        let mut done = 0;
        progress(done, total);
        for (what, data, expected) in payloads {
            let mut hash = Xxh64::new(0);
            for chunk in data.chunks(CHUNK) {
                hash.update(chunk);
                done += chunk.len() as u64;
                progress(done, total);
            }
            let found = hash.digest();
            if found != expected {
                return Err(FormatError::new(self.path(), Fault::Checksum { what, expected, found }));
            }
        }
        Ok(())
    }
}
