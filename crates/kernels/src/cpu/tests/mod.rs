//! Every operation: each level against the reference, the reference against f64, and independence of everything else.

mod attention;
mod delta;
mod elementwise;
mod kv;
mod linear;

use super::Cpu;
use crate::Isa;
use crate::level::Level;

/// A small reproducible generator (splitmix64).
pub(super) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }

    /// Magnitudes from 2^-8 to 2^8.
    pub fn spread(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit() * ((self.bits() % 17) as f32 - 8.0).exp2()).collect()
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.bits() as u8).collect()
    }
}

/// The reference on one thread.
pub(super) fn reference() -> Cpu {
    Cpu::new(Isa::Reference, 1).unwrap()
}

/// Every level of this machine on 1 and 3 threads.
pub(super) fn devices() -> Vec<Cpu> {
    let levels = Level::all();
    let threads = [1, 3];
    let pairs = levels.iter().flat_map(|level| threads.iter().map(move |threads| (*level, *threads)));
    pairs.map(|(level, threads)| Cpu::with_level(Isa::best(), level, threads).unwrap()).collect()
}

/// Same bits, or both NaN.
#[track_caller]
pub(super) fn assert_same(found: &[f32], expected: &[f32], what: impl std::fmt::Display) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let same = f.to_bits() == e.to_bits() || f.is_nan() && e.is_nan();
        assert!(
            same,
            "{what}: element {i} is {f:e} ({:#x}), expected {e:e} ({:#x})",
            f.to_bits(),
            e.to_bits()
        );
    }
}

/// Largest difference at most `tolerance` times the largest true magnitude.
#[track_caller]
pub(super) fn assert_close(found: &[f32], truth: &[f64], tolerance: f64, what: impl std::fmt::Display) {
    assert_eq!(found.len(), truth.len(), "{what}");
    let scale = truth.iter().fold(0.0, |max: f64, t| max.max(t.abs()));
    for (i, (f, t)) in found.iter().zip(truth).enumerate() {
        let error = (f64::from(*f) - t).abs();
        assert!(error <= tolerance * scale, "{what}: element {i} is {f}, the truth is {t}");
    }
}

#[test]
fn a_device_says_what_it_runs() {
    let cpu = Cpu::new(Isa::best(), 2).unwrap();
    assert_eq!((cpu.isa(), cpu.threads()), (Isa::best(), 2));
    assert!(format!("{cpu:?}").contains(Isa::best().name()));
}

#[test]
fn a_device_that_cannot_be_is_refused() {
    assert!(Cpu::new(Isa::Reference, 0).is_err());
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        assert!(Cpu::new(isa, 1).unwrap_err().to_string().contains(isa.name()));
    }
}

#[test]
fn pieces_cover_everything_once() {
    for cpu in devices() {
        for (len, unit, least) in [(0, 1, 1), (1, 16, 1), (100, 16, 1), (100, 1, 30), (1000, 16, 40)] {
            let seen: Vec<_> = (0..len).map(|_| std::sync::atomic::AtomicUsize::new(0)).collect();
            cpu.split(len, unit, least, &|range| {
                assert_eq!(range.start % unit, 0);
                for index in range {
                    seen[index].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
            assert!(seen.into_iter().all(|count| count.into_inner() == 1));
        }
    }
}
