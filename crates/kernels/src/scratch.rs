//! Scratch memory of a thread, reused from task to task.

use std::cell::RefCell;

/// One thread's scratch. It grows to the largest task and stays.
#[derive(Default)]
pub(crate) struct Local {
    pub bytes: Vec<u8>,
    pub floats: Vec<f32>,
    pub lines: Vec<Line<[f32; 16]>>,
    pub biases: Vec<Line<[f32; 16]>>,
    pub sums: Vec<Line<[f32; 16]>>,
    pub tile: Vec<Line<[u8; 64]>>,
}

/// 64 bytes that are one cache line, so that no vector of them straddles two.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub T);

impl<T, const N: usize> Line<[T; N]> {
    /// The elements of some lines, one after the other.
    pub fn flattened(lines: &[Self]) -> &[T] {
        const { assert!(size_of::<Self>() == size_of::<[T; N]>()) };
        // SAFETY: lines are arrays without padding.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * N) }
    }

    /// The same, to write.
    pub fn flattened_mut(lines: &mut [Self]) -> &mut [T] {
        const { assert!(size_of::<Self>() == size_of::<[T; N]>()) };
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * N) }
    }
}

/// The bytes of some lines of floats, little-endian where the machine is.
pub(crate) fn line_bytes(lines: &[Line<[f32; 16]>]) -> &[u8] {
    // SAFETY: a line is 64 bytes without padding, and floats are bytes without invalid values.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

thread_local! {
    static LOCAL: RefCell<Local> = RefCell::default();
}

/// Elements of a [`Local`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalSizes {
    pub bytes: usize,
    pub floats: usize,
    pub lines: usize,
    pub biases: usize,
    pub sums: usize,
    pub tile: usize,
}

impl LocalSizes {
    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        let LocalSizes { bytes, floats, lines, biases, sums, tile } = self;
        bytes + floats * size_of::<f32>() + (lines + biases + sums + tile) * size_of::<Line<[u8; 64]>>()
    }
}

impl Local {
    /// Makes room, so that tasks up to these sizes allocate nothing.
    pub fn reserve(&mut self, sizes: &LocalSizes) {
        reserve(&mut self.bytes, sizes.bytes);
        reserve(&mut self.floats, sizes.floats);
        reserve(&mut self.lines, sizes.lines);
        reserve(&mut self.biases, sizes.biases);
        reserve(&mut self.sums, sizes.sums);
        reserve(&mut self.tile, sizes.tile);
    }

    /// What is held.
    pub fn held(&self) -> LocalSizes {
        LocalSizes {
            bytes: self.bytes.capacity(),
            floats: self.floats.capacity(),
            lines: self.lines.capacity(),
            biases: self.biases.capacity(),
            sums: self.sums.capacity(),
            tile: self.tile.capacity(),
        }
    }
}

/// Makes room for `len` elements and not more.
pub(crate) fn reserve<T>(buffer: &mut Vec<T>, len: usize) {
    buffer.reserve_exact(len.saturating_sub(buffer.len()));
}

/// Runs a task with this thread's scratch.
///
/// # Panics
/// If a task calls it again.
pub(crate) fn with_local<T>(task: impl FnOnce(&mut Local) -> T) -> T {
    LOCAL.with_borrow_mut(task)
}

/// The first `len` elements of `buffer`, grown if it is too short. Their values are whatever was left there.
pub(crate) fn grown<T: Copy>(buffer: &mut Vec<T>, len: usize, zero: T) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, zero);
    }
    &mut buffer[..len]
}
