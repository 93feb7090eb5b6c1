//! The layout of a KV pool: pages of tokens, each KV head's tokens adjacent within a page.
//!
//! A row is one position of one head, `head_dim` elements in a row. The quantised types cut it into blocks of
//! [`BLOCK`] neighbouring elements: a binary16 scale, then the codes. Scale and codes lie side by side, so that a block
//! is one or two cache lines and a row of any type is one run of bytes.
//!
//! | type | bytes of a block | elements |
//! |---|---|---|
//! | `q8` | 34: scale, 32 signed codes | `code · scale` |
//! | `q4` | 18: scale, 16 bytes; byte i holds code i in its low and code i + 16 in its high half | `level[code] · scale` |
//!
//! How scales and codes are chosen is defined in `reference::kv`.

/// Elements that share a scale in the quantised types.
pub(crate) const BLOCK: usize = 32;

/// Bytes of a `q8` block.
pub(crate) const Q8_BYTES: usize = 2 + BLOCK;

/// Bytes of a `q4` block.
pub(crate) const Q4_BYTES: usize = 2 + BLOCK / 2;

/// Element type of cached keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16, rounded to nearest even when stored.
    F16,
    /// bfloat16, rounded to nearest even when stored.
    Bf16,
    /// Blocks of 32 signed 8-bit codes with a binary16 scale.
    Q8,
    /// Blocks of 32 4-bit codes with a binary16 scale.
    Q4,
}

impl KvDtype {
    /// Every type, widest first.
    pub const ALL: [KvDtype; 5] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Q8, KvDtype::Q4];

    /// Elements of a block: 1 for the float types.
    pub const fn block_elements(self) -> usize {
        match self {
            KvDtype::F32 | KvDtype::F16 | KvDtype::Bf16 => 1,
            KvDtype::Q8 | KvDtype::Q4 => BLOCK,
        }
    }

    /// Bytes of a block, its scale included.
    pub const fn block_bytes(self) -> usize {
        match self {
            KvDtype::F32 => 4,
            KvDtype::F16 | KvDtype::Bf16 => 2,
            KvDtype::Q8 => Q8_BYTES,
            KvDtype::Q4 => Q4_BYTES,
        }
    }

    /// Whether heads are rotated before they are stored (see [`Cpu::rotate`](crate::Cpu::rotate)).
    pub const fn is_rotated(self) -> bool {
        self.block_elements() > 1
    }

    /// Whether heads of `head_dim` elements are whole blocks.
    pub const fn fits(self, head_dim: usize) -> bool {
        head_dim.is_multiple_of(self.block_elements())
    }

    /// Bytes of one position of one head, whose `head_dim` [fits](KvDtype::fits).
    pub const fn row_bytes(self, head_dim: usize) -> usize {
        head_dim / self.block_elements() * self.block_bytes()
    }

    /// The name that `--kv-type` takes.
    pub const fn name(self) -> &'static str {
        match self {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
            KvDtype::Bf16 => "bf16",
            KvDtype::Q8 => "q8",
            KvDtype::Q4 => "q4",
        }
    }
}

impl std::fmt::Display for KvDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Shape of the K and V pools of one layer. A pool is `[pages][kv_heads][page_tokens]` rows; the pages of a sequence
/// are listed by a page table, `pages[p]` being the page of positions `p·page_tokens..(p+1)·page_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGeometry {
    /// Heads of K and V.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Positions per page, a multiple of 32.
    pub page_tokens: usize,
    /// Element type of the K pool.
    pub k: KvDtype,
    /// Element type of the V pool.
    pub v: KvDtype,
}

impl KvGeometry {
    /// Bytes of one page of a pool of `dtype`.
    pub fn page_bytes(&self, dtype: KvDtype) -> usize {
        self.kv_heads * self.page_tokens * dtype.row_bytes(self.head_dim)
    }

    /// Index of a position's row of one head. The rows of a page's later positions follow it.
    #[inline(always)]
    pub(crate) fn row(&self, pages: &[u32], kv_head: usize, position: usize) -> usize {
        let page = pages[position / self.page_tokens] as usize;
        (page * self.kv_heads + kv_head) * self.page_tokens + position % self.page_tokens
    }
}
