//! What can be asked of a load, and what was made of it.

use basert_format::DtypeTotal;
use basert_kernels::Isa;
use basert_model::Arch;

use crate::kv::{KvPools, KvTypes};
use crate::plan::{MemoryPlan, available_memory};
use crate::residence::Residence;
use crate::speculate::Speculation;

/// How to load a model. `None` means the documented default.
#[derive(Clone, Debug)]
pub struct Options {
    /// Instruction set; default: `BASERT_ISA`, else the best this CPU has.
    pub isa: Option<Isa>,
    /// Worker threads; default: what CPU affinity and control group allow.
    pub threads: Option<usize>,
    /// Bind every thread to a CPU of its own, the one that runs the steps included.
    pub pin: bool,
    /// KV cache element types.
    pub kv: KvTypes,
    /// Let K and V be narrower than [`kv`](Self::kv) where a context that was asked for, or with [`fit`](Self::fit) the model's
    /// own, does not fit otherwise: the widest of q8, q8 with q4, and q4 that does.
    pub narrow_kv: bool,
    /// Context in tokens; default: the model's own, shortened until it fits half the free memory.
    pub context: Option<usize>,
    /// Bytes that everything has to fit into, weights included; where it does not, K and V give way as far as
    /// [`narrow_kv`](Self::narrow_kv) lets them, then the context. Without, a context that does not fit the free memory is
    /// refused.
    pub fit: Option<u64>,
    /// Of the free memory, the bytes that other models of this process leave, which may not have touched all of theirs yet.
    pub left: Option<u64>,
    /// Tokens per KV page, a multiple of 32; default: one page for the whole context.
    pub page_tokens: Option<usize>,
    /// Sequences that can be live at once.
    pub sequences: usize,
    /// Bytes for prefixes that are kept from one sequence to the next; 0 keeps none. With it, a page that no one chose has 64
    /// tokens.
    pub prefix_cache: u64,
    /// Most tokens in one step.
    pub step_tokens: usize,
    /// Most rows of logits in one step.
    pub logit_rows: usize,
    /// Where the weights are.
    pub weights: Residence,
    /// Whether [`Session`](crate::Session) and [`Scheduler`](crate::Scheduler) guess next tokens. It changes no result.
    pub speculation: Speculation,
    /// Decode quantised matrices to f32 at load, to measure what integer activations cost.
    pub dequantize: bool,
    /// Hold as little as possible, for one pass over a few tokens: what has to be decoded is decoded block by block at
    /// every use, and the map's pages are given back after every block of rows. Changes no result.
    pub lean: bool,
}

impl Options {
    /// Memory that the model may take: what is free, and no more than others leave.
    pub fn free_memory(&self) -> Option<u64> {
        available_memory().into_iter().chain(self.left).min()
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            isa: None,
            threads: None,
            pin: false,
            kv: KvTypes::default(),
            narrow_kv: false,
            context: None,
            fit: None,
            left: None,
            page_tokens: None,
            sequences: 1,
            prefix_cache: 0,
            step_tokens: 512,
            logit_rows: 1,
            weights: Residence::Mapped,
            speculation: Speculation::OFF,
            dequantize: false,
            lean: false,
        }
    }
}

/// What was selected at load, for `-v`, `/props` and benchmark headers.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Instruction set in use.
    pub isa: Isa,
    /// Threads in use, the caller's own included.
    pub threads: usize,
    /// The CPUs that the threads are bound to, the caller's first; none if they are free.
    pub pinned: Vec<usize>,
    /// Architecture family.
    pub arch: Arch,
    /// Tensors and bytes per dtype in the file.
    pub weights: Vec<DtypeTotal>,
    /// Element types of the KV cache, as it was allocated.
    pub kv: KvTypes,
    /// The allocated KV cache.
    pub pools: KvPools,
    /// Recurrent state of one sequence, in bytes.
    pub state_bytes: u64,
    /// Context in tokens.
    pub context: usize,
    /// Tokens per KV page.
    pub page_tokens: usize,
    /// Whether next tokens are guessed; the source is the one that guesses.
    pub speculation: Speculation,
    /// Memory by part.
    pub memory: MemoryPlan,
    /// Anything a user should know about this load, one line each.
    pub notes: Vec<String>,
    /// What is less than what was asked for, or than the model's own context, to fit the memory; one line each.
    pub shrunk: Vec<String>,
}
