//! Zeroed, 64-byte aligned memory for KV pools.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

use crate::KernelError;

/// One cache line, and the widest vector.
const ALIGN: usize = 64;

/// What is asked of the allocator. Up to this alignment it has zeroed memory of large sizes straight from the operating
/// system; beyond it the standard library would write every byte itself.
const ALLOCATED_ALIGN: usize = 16;

/// Owned bytes that start at a multiple of 64 and are zero at first. Pages of large buffers that are never touched cost
/// nothing.
pub struct Buffer {
    /// Start of the allocation, `len + ALIGN` bytes; dangling if `len` is 0.
    allocation: NonNull<u8>,
    /// First multiple of [`ALIGN`] in it.
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its bytes; shared access only reads.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes. Ends the process when the memory cannot be had, as the standard collections do; sizes that
    /// come from a user go through [`Buffer::try_zeroed`].
    pub fn zeroed(len: usize) -> Buffer {
        match Buffer::try_zeroed(len) {
            Ok(buffer) => buffer,
            Err(_) => handle_alloc_error(Layout::new::<u8>()),
        }
    }

    /// `len` zero bytes.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn try_zeroed(len: usize) -> Result<Buffer, KernelError> {
        let failed = || KernelError::OutOfMemory { bytes: len };
        if len == 0 {
            let nothing = NonNull::dangling();
            return Ok(Buffer { allocation: nothing, start: nothing, len });
        }
        let layout = layout(len).ok_or_else(failed)?;
        // SAFETY: the layout's size is not zero.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(failed)?;
        let offset = allocation.as_ptr().align_offset(ALIGN);
        // SAFETY: the offset is less than `ALIGN`, which the allocation has beyond `len`.
        let start = unsafe { allocation.add(offset) };
        Ok(Buffer { allocation, start, len })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes of ours are at `start` (or `len` is 0).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_bytes`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Layout of the allocation behind `len` bytes.
fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len.checked_add(ALIGN)?, ALLOCATED_ALIGN).ok()
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let (1.., Some(layout)) = (self.len, layout(self.len)) {
            // SAFETY: `allocation` came from `alloc_zeroed` with this very layout.
            unsafe { dealloc(self.allocation.as_ptr(), layout) }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_and_aligned() {
        for len in [0, 1, 63, 64, 65, 1 << 20] {
            let mut buffer = Buffer::zeroed(len);
            assert_eq!((buffer.len(), buffer.is_empty()), (len, len == 0));
            assert!(buffer.as_bytes().iter().all(|&byte| byte == 0));
            if len > 0 {
                assert_eq!(buffer.as_bytes().as_ptr() as usize % 64, 0);
                buffer.as_bytes_mut()[len - 1] = 7;
                assert_eq!(buffer.as_bytes()[len - 1], 7);
            }
        }
    }

    #[test]
    fn absurd_sizes_are_an_error_not_an_abort() {
        for len in [usize::MAX, isize::MAX as usize] {
            let error = Buffer::try_zeroed(len).unwrap_err().to_string();
            assert!(error.contains(&len.to_string()), "{error}");
        }
    }
}
