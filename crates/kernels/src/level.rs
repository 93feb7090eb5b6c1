//! Dispatch: one kernel, run by its reference or compiled for the instruction set that was detected.

use crate::Isa;
use crate::vector::Simd;
#[cfg(target_arch = "x86_64")]
use crate::vector::{avx2::Avx2, avx512::Avx512};

/// One piece of work of one operation: its arguments, its definition and its vectorised form. Both give the same bits
/// for every input (two NaNs count as the same).
pub(crate) trait Kernel {
    /// Whether the vectorised form has integer dot products, so that it is compiled for VNNI as well.
    const INTEGER: bool = false;

    /// The definition, in plain Rust.
    fn reference(self);

    /// The same over the virtual vector. Must be `#[inline(always)]` all the way down.
    fn vectorized<S: Simd>(self, simd: S);
}

/// An instruction set that this processor was found to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reference,
    /// The generic kernels without any instruction set.
    #[cfg(test)]
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

impl Level {
    /// Looks for `isa` on this processor.
    pub fn detect(isa: Isa) -> Option<Level> {
        match isa {
            Isa::Reference => Some(Level(Kind::Reference)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => has_avx2().then_some(Level(Kind::Avx2)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => has_avx512().then(|| {
                Level(if is_x86_feature_detected!("avx512vnni") { Kind::Avx512Vnni } else { Kind::Avx512 })
            }),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => None,
        }
    }

    /// Every level of this machine, also those that `detect` hides behind a better one.
    #[cfg(test)]
    pub fn all() -> Vec<Level> {
        let mut levels = vec![Level(Kind::Reference), Level(Kind::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(has_avx2().then_some(Level(Kind::Avx2)));
            levels.extend(has_avx512().then_some(Level(Kind::Avx512)));
            levels.extend(Level::detect(Isa::Avx512).filter(|&level| level != Level(Kind::Avx512)));
        }
        levels
    }

    /// Runs a kernel on this level.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) {
        match self.0 {
            Kind::Reference => kernel.reference(),
            #[cfg(test)]
            Kind::Portable => kernel.vectorized(crate::vector::portable::Portable),
            // SAFETY: these kinds exist only where `detect` or `all` found their features.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { run_avx2(kernel) },
            // SAFETY: as above; VNNI is a superset.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni if K::INTEGER => unsafe { run_avx512_vnni(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx512Vnni => unsafe { run_avx512(kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi2")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn run_avx2<K: Kernel>(kernel: K) {
    // SAFETY: this function's features are the token's.
    kernel.vectorized(unsafe { Avx2::new_unchecked() });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
fn run_avx512<K: Kernel>(kernel: K) {
    // SAFETY: this function's features are the token's.
    kernel.vectorized(unsafe { Avx512::<false>::new_unchecked() });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn run_avx512_vnni<K: Kernel>(kernel: K) {
    // SAFETY: this function's features are the token's.
    kernel.vectorized(unsafe { Avx512::<true>::new_unchecked() });
}
