//! Speed: how fast loaded models read prompts and write tokens, and how far that is from what the machine could do.
//!
//! A [`Case`] is one piece of work; [`run`] repeats all cases on all [`Subject`]s, in turns. [`Work`] counts the bytes and
//! multiply-adds that a case cannot do without, [`Roof`] measures how fast this machine moves and multiplies them, and
//! [`judge`] says whether two sets of repetitions differ. What models answer is thrown away: token ids are arbitrary,
//! the same for every repetition.

mod cache;
mod case;
mod machine;
mod profile;
mod roof;
mod run;
mod spread;
mod work;

pub use cache::FullCache;
pub use case::{Case, Sample, Test, repeat};
pub use machine::{Machine, identity, peak_memory};
pub use profile::{Profile, profile};
pub use roof::{Limits, Roof};
pub use run::{Measured, Protocol, Results, Subject, Watch, load, run};
pub use spread::{Better, Comparison, Spread, Verdict, judge};
pub use work::{Products, Work};
