//! What the kernels refuse, before any arithmetic runs.

use basert_quant::QuantError;
use thiserror::Error;

use crate::Isa;

/// A weight matrix, instruction set or thread count that the kernels cannot honour.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// `BASERT_ISA` or a caller named an instruction set that does not exist.
    #[error("unknown instruction set {name:?}: use one of {}", Isa::ALL.map(Isa::name).join(", "))]
    UnknownIsa {
        /// What was given.
        name: String,
    },
    /// The instruction set exists but this processor (or its operating system) lacks it.
    #[error("instruction set {isa} is not available on this processor: use {best} or leave it unset")]
    UnavailableIsa {
        /// What was asked for.
        isa: Isa,
        /// The best one this machine has.
        best: Isa,
    },
    /// No thread was asked for.
    #[error("the thread count must be at least 1")]
    NoThreads,
    /// The operating system would not start a worker thread.
    #[error("cannot start a worker thread ({threads} threads asked for): {source}")]
    Spawn {
        /// Threads asked for, the caller's own included.
        threads: usize,
        /// Why.
        source: std::io::Error,
    },
    /// Threads were to be bound to CPUs on a system that this cannot do that on.
    #[error("threads can be pinned to CPUs on Linux only: leave out --pin")]
    NoPinning,
    /// More threads were to be bound to a CPU of their own than there are.
    #[error(
        "{threads} threads cannot be pinned to a CPU each, this process may use {cpus}: use fewer or leave out --pin"
    )]
    FewCpus {
        /// Threads asked for, the caller's own included.
        threads: usize,
        /// CPUs that the process may use.
        cpus: usize,
    },
    /// The operating system would not bind a thread.
    #[error("cannot pin a thread to CPU {cpu}: {source}")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// Why.
        source: std::io::Error,
    },
    /// A group size outside 16, 32 and the multiples of 64.
    #[error("weight groups of {group} have no kernel (16, 32 or a multiple of 64): decode them to f32 first")]
    Group {
        /// Elements per scale.
        group: usize,
    },
    /// Groups that straddle rows.
    #[error("rows of {cols} weights do not divide into groups of {group}: decode them to f32 first")]
    Straddle {
        /// Elements per row.
        cols: usize,
        /// Elements per scale.
        group: usize,
    },
    /// The payload is not the size that its shape and encoding ask for.
    #[error("payload of a {rows} x {cols} matrix has {found} bytes, its encoding needs {expected}")]
    Payload {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Bytes needed.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// A shape whose element count does not fit the address space.
    #[error("a {rows} x {cols} matrix is too large")]
    TooLarge {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// The encoding's own parameters do not make sense.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// A buffer could not be allocated.
    #[error("cannot allocate {bytes} bytes: use a smaller context or fewer sequences")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
}
