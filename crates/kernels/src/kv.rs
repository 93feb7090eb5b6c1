//! The layout of a KV pool: pages of tokens, each KV head's tokens adjacent within a page.

/// Element type of cached keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16, rounded to nearest even when stored.
    F16,
}

impl KvDtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            KvDtype::F32 => 4,
            KvDtype::F16 => 2,
        }
    }

    /// The name that `--kv-type` takes.
    pub const fn name(self) -> &'static str {
        match self {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
        }
    }
}

impl std::fmt::Display for KvDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Shape of the K and V pools of one layer. A pool is `[pages][kv_heads][page_tokens][head_dim]`; the pages of a
/// sequence are listed by a page table, `pages[p]` being the page of positions `p·page_tokens..(p+1)·page_tokens`.
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
    /// Elements of one page of K or V.
    pub fn page_elements(&self) -> usize {
        self.kv_heads * self.page_tokens * self.head_dim
    }

    /// Index of the first element of a position's row of one head.
    #[inline(always)]
    pub(crate) fn row(&self, pages: &[u32], kv_head: usize, position: usize) -> usize {
        let page = pages[position / self.page_tokens] as usize;
        let row = (page * self.kv_heads + kv_head) * self.page_tokens + position % self.page_tokens;
        row * self.head_dim
    }
}
