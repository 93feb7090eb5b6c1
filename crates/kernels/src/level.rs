//! Dispatch: one kernel, run by its reference or compiled for the instruction set that was detected.

use crate::Isa;
use crate::simd::affine;
use crate::vector::Simd;
#[cfg(target_arch = "x86_64")]
use crate::vector::{amx, avx2::Avx2, avx512::Avx512};

/// One piece of work of one operation: its arguments, its definition and its vectorised form. Both give the same bits
/// for every input (two NaNs count as the same).
pub(crate) trait Kernel: Vectorized {
    /// Whether the vectorised form has integer dot products, so that it is compiled for VNNI as well.
    const INTEGER: bool = false;

    /// The definition, in plain Rust.
    fn reference(self);
}

/// Work over the virtual vector that becomes a function of its own for every instruction set.
pub(crate) trait Vectorized {
    /// Does it. Must be `#[inline(always)]` all the way down, except for what is [outlined](Simd::outline).
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
    /// The same with a matrix unit.
    #[cfg(test)]
    PortableMatrix,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// VNNI, VBMI and GFNI, which came with Ice Lake and Zen 4.
    #[cfg(target_arch = "x86_64")]
    Avx512Vbmi,
    /// The former with tiles of bytes, which came with Sapphire Rapids.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

impl Level {
    /// Looks for `isa` on this processor.
    pub fn detect(isa: Isa) -> Option<Level> {
        match isa {
            Isa::Reference => Some(Level(Kind::Reference)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2_levels().last(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512_levels().last(),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => amx_level(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Amx => None,
        }
    }

    /// Every level of this machine, also those that `detect` hides behind a better one, and AMX emulated where only that
    /// is missing.
    #[cfg(test)]
    pub fn all() -> Vec<Level> {
        let mut levels = vec![Level(Kind::Reference), Level(Kind::Portable), Level(Kind::PortableMatrix)];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(avx2_levels());
            levels.extend(avx512_levels());
            levels.extend(amx_level().or_else(emulated_amx_level));
        }
        levels
    }

    /// How many of `tokens` tokens lie together for the quantised layers, see [`affine::party`].
    pub fn party(self, tokens: usize) -> usize {
        match self.0 {
            Kind::Reference => 1,
            #[cfg(test)]
            Kind::Portable => affine::party(tokens, true, false),
            #[cfg(test)]
            Kind::PortableMatrix => affine::party(tokens, true, true),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 | Kind::Avx2Vnni => affine::party(tokens, false, false),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx512Vnni | Kind::Avx512Vbmi => affine::party(tokens, true, false),
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => affine::party(tokens, true, true),
        }
    }

    /// Runs a kernel on this level.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) {
        match self.0 {
            Kind::Reference => kernel.reference(),
            #[cfg(test)]
            Kind::Portable => kernel.vectorized(crate::vector::portable::Portable::<false>),
            #[cfg(test)]
            Kind::PortableMatrix => kernel.vectorized(crate::vector::portable::Portable::<true>),
            // SAFETY: these kinds exist only where their features were found.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Vnni if K::INTEGER => unsafe { run_avx2_vnni(kernel) },
            // SAFETY: as above; VNNI comes on top of AVX2.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 | Kind::Avx2Vnni => unsafe { run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni if K::INTEGER => unsafe { run_avx512_vnni(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vbmi if K::INTEGER => unsafe { run_avx512_vbmi(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Amx if K::INTEGER => unsafe { run_amx(kernel) },
            // SAFETY: as above; VNNI, VBMI and AMX come on top of the others.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx512Vnni | Kind::Avx512Vbmi | Kind::Amx => unsafe { run_avx512(kernel) },
        }
    }
}

/// Levels of AVX2 that this processor has, slowest first.
#[cfg(target_arch = "x86_64")]
fn avx2_levels() -> impl Iterator<Item = Level> {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi2");
    let vnni = avx2 && is_x86_feature_detected!("avxvnni");
    [(avx2, Kind::Avx2), (vnni, Kind::Avx2Vnni)]
        .into_iter()
        .filter_map(|(has, kind)| has.then_some(Level(kind)))
}

/// Levels of AVX-512 that this processor has, slowest first.
#[cfg(target_arch = "x86_64")]
fn avx512_levels() -> impl Iterator<Item = Level> {
    let avx512 = avx2_levels().next().is_some()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
    let vbmi = vnni && is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("gfni");
    [(avx512, Kind::Avx512), (vnni, Kind::Avx512Vnni), (vbmi, Kind::Avx512Vbmi)]
        .into_iter()
        .filter_map(|(has, kind)| has.then_some(Level(kind)))
}

/// AMX, if this processor has it and everything below.
#[cfg(target_arch = "x86_64")]
fn amx_level() -> Option<Level> {
    let vbmi = avx512_levels().last() == Some(Level(Kind::Avx512Vbmi));
    (vbmi && amx::is_available()).then_some(Level(Kind::Amx))
}

/// The level of AMX, its instructions emulated, if this processor has everything below.
#[cfg(all(test, target_arch = "x86_64"))]
fn emulated_amx_level() -> Option<Level> {
    if !cfg!(target_os = "linux") || avx512_levels().last() != Some(Level(Kind::Avx512Vbmi)) {
        return None;
    }
    #[cfg(target_os = "linux")]
    amx::emulated::install();
    Some(Level(Kind::Amx))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
#[inline(never)]
pub(crate) fn run_avx2<K: Vectorized>(kernel: K) {
    // SAFETY: this function's features are the token's.
    kernel.vectorized(unsafe { Avx2::<false>::new_unchecked() });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2,avxvnni")]
#[inline(never)]
pub(crate) fn run_avx2_vnni<K: Vectorized>(kernel: K) {
    // SAFETY: this function's features are the token's.
    kernel.vectorized(unsafe { Avx2::<true>::new_unchecked() });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline(never)]
pub(crate) fn run_avx512<K: Vectorized>(kernel: K) {
    // SAFETY: this function's features are the token's.
    kernel.vectorized(unsafe { Avx512::<false, false>::new_unchecked() });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline(never)]
pub(crate) fn run_avx512_vnni<K: Vectorized>(kernel: K) {
    // SAFETY: this function's features are the token's.
    kernel.vectorized(unsafe { Avx512::<true, false>::new_unchecked() });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline(never)]
pub(crate) fn run_avx512_vbmi<K: Vectorized>(kernel: K) {
    // SAFETY: this function's features are the token's.
    kernel.vectorized(unsafe { Avx512::<true, true>::new_unchecked() });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline(never)]
pub(crate) fn run_amx<K: Vectorized>(kernel: K) {
    // SAFETY: this function's features are the token's, but for AMX, without which nothing comes here.
    kernel.vectorized(unsafe { Avx512::<true, true, true>::new_unchecked() });
}
