//! Names and seeds that nobody has seen before.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// A number from the randomness that the standard library gives every process.
pub(crate) fn number() -> u64 {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(DRAWN.fetch_add(1, Ordering::Relaxed));
    hasher.finish()
}

/// `prefix` and 24 digits.
pub(crate) fn name(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", number(), number() >> 32)
}

/// Nine digits and letters: Mistral's templates take no other names of calls.
pub(crate) fn nine_characters() -> String {
    format!("{:09x}", number() & 0xf_ffff_ffff)
}
