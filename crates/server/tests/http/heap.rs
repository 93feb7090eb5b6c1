//! What this process has on its heap: bytes that were asked for and not given back, which unlike its memory in the system's
//! view do not depend on how the allocator cuts its arenas.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

/// Blocks up to this size are counted by their size.
const LARGEST: usize = 4096;

struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);
static BLOCKS: [AtomicIsize; LARGEST + 1] = [const { AtomicIsize::new(0) }; LARGEST + 1];

fn count(size: usize, blocks: isize) {
    BYTES.fetch_add(size as isize * blocks, Relaxed);
    if let Some(of_size) = BLOCKS.get(size) {
        of_size.fetch_add(blocks, Relaxed);
    }
}

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(size, 1);
        // SAFETY: the caller's promises are the same.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The heap at some time. Holds nothing of it.
pub struct Heap {
    /// Bytes in all blocks.
    pub bytes: isize,
    blocks: [isize; LARGEST + 1],
}

impl Heap {
    pub fn now() -> Heap {
        let blocks = std::array::from_fn(|size| BLOCKS[size].load(Relaxed));
        Heap { bytes: BYTES.load(Relaxed), blocks }
    }

    /// The sizes of small blocks of which there are more than at another time, with how many more, those with most bytes
    /// first.
    pub fn more_than(&self, before: &Heap) -> Vec<(usize, isize)> {
        let more = self.blocks.iter().zip(&before.blocks).map(|(now, then)| now - then);
        let mut more: Vec<_> = more.enumerate().filter(|(_, blocks)| *blocks > 0).collect();
        more.sort_by_key(|(size, blocks)| std::cmp::Reverse(*size as isize * blocks));
        more
    }
}
