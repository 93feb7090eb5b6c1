//! Bit flags. In the header they are JSON strings such as `"0x00000401"`; in slot records they are plain
//! integers.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Defines a set of named bits.
macro_rules! flags {
    ($(#[$meta:meta])* $name:ident { $($(#[$flag_meta:meta])* $flag:ident = $bit:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            $($(#[$flag_meta])* pub const $flag: $name = $name(1 << $bit);)+

            const NAMED: &'static [($name, &'static str)] = &[$(($name::$flag, stringify!($flag)),)+];

            /// The set with the known bits of `bits`; unknown bits are dropped.
            pub fn from_bits_truncate(bits: u32) -> $name {
                let known = Self::NAMED.iter().fold(0, |known, (flag, _)| known | flag.0);
                $name(bits & known)
            }

            /// The set as an integer.
            pub const fn bits(self) -> u32 {
                self.0
            }

            /// Whether no flag is set.
            pub const fn is_empty(&self) -> bool {
                self.0 == 0
            }

            /// Whether every flag of `other` is set.
            pub const fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }
        }

        impl BitOr for $name {
            type Output = $name;

            fn bitor(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: $name) {
                self.0 |= other.0;
            }
        }

        impl fmt::Display for $name {
            /// Names joined by ` | `, or `none`.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let set = Self::NAMED.iter().filter(|(flag, _)| self.contains(*flag));
                let names: Vec<&str> = set.map(|(_, name)| *name).collect();
                f.write_str(if names.is_empty() { "none" } else { "" })?;
                f.write_str(&names.join(" | "))
            }
        }
    };
}

/// Adds the JSON form: an eight-digit hexadecimal string.
macro_rules! flags_as_string {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&format_args!("0x{:08x}", self.0))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let text = String::deserialize(deserializer)?;
                match parse(&text) {
                    Some(bits) => Ok($name::from_bits_truncate(bits)),
                    None => Err(de::Error::invalid_value(
                        de::Unexpected::Str(&text),
                        &"a 32-bit number as a string, e.g. \"0x00000401\"",
                    )),
                }
            }
        }
    };
}

/// Reads `0x…`, `0X…` or a decimal number.
fn parse(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (text, 10),
    };
    // from_str_radix would also take a sign.
    if digits.starts_with('+') {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

flags! {
    /// Flags of a whole file. Hints for people; a model's structure never follows from them.
    HeaderFlags {
        /// Always set, also in float files.
        QUANTIZED = 0,
        /// Has mixture-of-experts layers.
        HAS_MOE = 1,
        /// Has state-space or linear-attention layers.
        HAS_SSM = 2,
        /// Has both those and attention layers.
        HAS_HYBRID = 3,
        /// Carries adapter weights.
        HAS_LORA = 4,
        /// Carries the weights of a speculative head (`mtp.*`).
        HAS_SPECULATOR = 5,
        /// Carries a compute graph slot.
        HAS_COMPUTE_GRAPH = 6,
        /// Carries a KV warm-up slot.
        HAS_KV_WARMUP = 7,
        /// Carries a reference trace slot.
        HAS_TRACE_REF = 8,
        /// Carries rope tables.
        ROPE_PRECOMPUTED = 9,
        /// The output head is the embedding table.
        TIED_EMBEDDINGS = 10,
        /// Has sliding-window attention.
        SLIDING_WINDOW = 11,
        /// Carries a signature.
        SIGNED = 12,
    }
}
flags_as_string!(HeaderFlags);

flags! {
    /// Flags of one tensor.
    TensorFlags {
        /// Stored transposed. No writer sets it and nothing defines it, so it is refused on reading.
        TRANSPOSED = 0,
        /// Belongs to an expert.
        EXPERT_WEIGHT = 1,
        /// Shared between layers.
        SHARED = 2,
        /// The decay parameter of a state-space layer; must be `f32` in region `cpu`.
        SSM_A_MATRIX = 3,
        /// An adapter.
        LORA_DELTA = 4,
        /// Used twice.
        TIED = 5,
    }
}
flags_as_string!(TensorFlags);

flags! {
    /// Flags of one slot.
    SlotFlags {
        /// A reader that does not know the slot's kind must refuse the file.
        REQUIRED = 0,
        /// The payload is a zstd stream. Reserved; no writer sets it.
        COMPRESSED_ZSTD = 1,
    }
}
