//! Mutable memory that the tasks of one parallel operation share, each task its own block of columns.
//!
//! A row-major matrix cut by columns is not a set of slices, so the borrow checker cannot follow the cut. This module
//! is the one place that makes it: [`SharedMut`] hands out [`ColumnBlock`]s, and whoever asks for one promises that no
//! two of them overlap while they live.

use std::marker::PhantomData;
use std::ops::Range;

/// A row-major matrix about to be cut into column blocks.
pub(crate) struct SharedMut<'a, T> {
    base: *mut T,
    rows: usize,
    stride: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: the only access is through blocks, which `block`'s contract keeps apart.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// The matrix `data` with rows of `stride` elements.
    ///
    /// # Panics
    /// If `data` is not whole rows.
    pub fn new(data: &'a mut [T], stride: usize) -> Self {
        let rows = data.len().checked_div(stride).unwrap_or(0);
        assert_eq!(rows * stride, data.len(), "shared matrix is not whole rows");
        SharedMut { base: data.as_mut_ptr(), rows, stride, lifetime: PhantomData }
    }

    /// The given columns of the given rows.
    ///
    /// # Safety
    /// No block that lives at the same time may contain one of these elements.
    ///
    /// # Panics
    /// If the block is not inside the matrix.
    pub unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> ColumnBlock<'_, T> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "block rows outside the matrix");
        assert!(
            columns.start <= columns.end && columns.end <= self.stride,
            "block columns outside the matrix"
        );
        ColumnBlock {
            base: self.base.wrapping_add(rows.start * self.stride + columns.start),
            rows: rows.len(),
            stride: self.stride,
            width: columns.len(),
            lifetime: PhantomData,
        }
    }
}

/// Columns of a row-major matrix, owned for writing.
pub(crate) struct ColumnBlock<'a, T> {
    base: *mut T,
    rows: usize,
    stride: usize,
    width: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: a block is exclusive access to its elements, like `&mut [T]`.
unsafe impl<T: Send> Send for ColumnBlock<'_, T> {}

impl<T> ColumnBlock<'_, T> {
    /// The same block, for a shorter time.
    pub fn reborrow(&mut self) -> ColumnBlock<'_, T> {
        let ColumnBlock { base, rows, stride, width, .. } = *self;
        ColumnBlock { base, rows, stride, width, lifetime: PhantomData }
    }

    /// Rows of the block.
    #[inline(always)]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    #[inline(always)]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Elements from a row to the next one, in memory.
    #[inline(always)]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// One row.
    #[inline(always)]
    pub fn row(&self, index: usize) -> &[T] {
        assert!(index < self.rows, "row outside the block");
        // SAFETY: `SharedMut::block` checked that all rows lie inside the matrix, and its caller promised exclusivity.
        unsafe { std::slice::from_raw_parts(self.base.add(index * self.stride), self.width) }
    }

    /// One row, to write.
    #[inline(always)]
    pub fn row_mut(&mut self, index: usize) -> &mut [T] {
        assert!(index < self.rows, "row outside the block");
        // SAFETY: as in `row`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(index * self.stride), self.width) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_see_their_own_columns_of_every_row() {
        let mut data: Vec<u32> = (0..12).collect();
        let shared = SharedMut::new(&mut data, 4);
        // SAFETY: the two blocks have no column in common.
        let (mut left, right) = unsafe { (shared.block(0..3, 0..1), shared.block(1..3, 1..4)) };
        left.row_mut(2)[0] = 100;
        assert_eq!((right.rows(), right.width()), (2, 3));
        assert_eq!(right.row(1), [9, 10, 11]);
        assert_eq!(data[8], 100);
    }
}
