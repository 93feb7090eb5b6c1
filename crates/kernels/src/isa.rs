//! Which instruction set runs, by name: detection, parsing and the `BASERT_ISA` override.

use std::fmt;
use std::str::FromStr;

use crate::KernelError;

/// Environment variable that forces an instruction set. Results do not depend on it.
const VARIABLE: &str = "BASERT_ISA";

/// An implementation of the kernels. All of them give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// The plain Rust definition of every operation.
    Reference,
    /// AVX2 with FMA, F16C and BMI2 (x86-64-v3); AVX-VNNI is used where the processor has it.
    Avx2,
    /// AVX-512 F, BW, DQ and VL (x86-64-v4); VNNI, and VBMI with GFNI, are used where the processor has them.
    Avx512,
    /// AMX with tiles of bytes, on top of AVX-512 with all of these: prompts and batches in quantised layers.
    Amx,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Reference, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// The fastest instruction set of this machine.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Reference)
    }

    /// Whether this processor and its operating system support it.
    pub fn is_available(self) -> bool {
        crate::level::Level::detect(self).is_some()
    }

    /// The instruction set named by `BASERT_ISA`; `None` if the variable is unset or empty.
    ///
    /// # Errors
    /// If the name is unknown or the machine lacks that instruction set.
    pub fn from_env() -> Result<Option<Isa>, KernelError> {
        match std::env::var_os(VARIABLE) {
            None => Ok(None),
            Some(name) => Isa::from_setting(&name.to_string_lossy()),
        }
    }

    /// What a value of `BASERT_ISA` asks for.
    fn from_setting(name: &str) -> Result<Option<Isa>, KernelError> {
        if name.is_empty() {
            return Ok(None);
        }
        let isa: Isa = name.parse()?;
        if isa.is_available() { Ok(Some(isa)) } else { Err(isa.unavailable()) }
    }

    pub(crate) fn unavailable(self) -> KernelError {
        KernelError::UnavailableIsa { isa: self, best: Isa::best() }
    }

    /// The name that `BASERT_ISA` takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Reference => "reference",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }
}

impl FromStr for Isa {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Isa, KernelError> {
        let known = Isa::ALL.into_iter().find(|isa| isa.name() == name);
        known.ok_or_else(|| KernelError::UnknownIsa { name: name.to_owned() })
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse::<Isa>().unwrap(), isa);
        }
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        for name in ["AVX2", "avx", "scalar", "avx512vnni", " avx2", "AMX", "neon"] {
            let error = Isa::from_setting(name).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("reference, avx2, avx512, amx"), "{error}");
        }
    }

    #[test]
    fn an_empty_setting_asks_for_nothing() {
        assert_eq!(Isa::from_setting("").unwrap(), None);
    }

    #[test]
    fn a_set_the_machine_lacks_is_refused_and_one_it_has_is_taken() {
        for isa in Isa::ALL {
            match Isa::from_setting(isa.name()) {
                Ok(found) => assert_eq!((found, isa.is_available()), (Some(isa), true)),
                Err(error) => {
                    assert!(!isa.is_available());
                    assert!(error.to_string().contains(&format!("{isa} is not available")), "{error}");
                }
            }
        }
        assert!(Isa::Reference.is_available());
        assert!(Isa::best().is_available());
    }
}
