//! Intel AMX: detection, and products of tiles of bytes.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and the kernel's
//! Documentation/arch/x86/xstate.rst. Rust has no stable intrinsics for it; the compiler never uses the tile registers
//! by itself.

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod emulated;

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, __get_cpuid_max, _xgetbv};
use std::marker::PhantomData;
use std::sync::LazyLock;

use super::{MatrixUnit, Products};
use crate::simd::tile::Unit;

/// Whether this process may use tiles of bytes: the processor has them, the system saves their registers, and it has
/// permitted their use, for which it is asked here. Nothing is executed that the processor might not know.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: LazyLock<bool> = LazyLock::new(|| has_tiles() && saves_tiles() && request_permission());
    *AVAILABLE
}

/// Tiles of at least 16 rows of 64 bytes in eight registers, and their products of bytes.
fn has_tiles() -> bool {
    const TILES_AND_BYTES: u32 = 1 << 24 | 1 << 25;
    let (last, _) = __get_cpuid_max(0);
    if last < 0x1d || __cpuid_count(7, 0).edx & TILES_AND_BYTES != TILES_AND_BYTES {
        return false;
    }
    let palette = __cpuid_count(0x1d, u32::from(PALETTE));
    let (row_bytes, registers, rows) = (palette.ebx & 0xffff, palette.ebx >> 16, palette.ecx & 0xffff);
    row_bytes >= 64 && registers >= 8 && rows >= 16
}

/// Whether the system saves the registers' configuration and data.
fn saves_tiles() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled_states() -> u64 {
        // SAFETY: register 0 exists wherever XGETBV does.
        unsafe { _xgetbv(0) }
    }
    const CONFIGURATION_AND_DATA: u64 = 1 << 17 | 1 << XTILEDATA;
    // AVX-512 is reported only where the system has enabled XGETBV.
    let can_ask = is_x86_feature_detected!("xsave") && is_x86_feature_detected!("avx512f");
    // SAFETY: the feature was found.
    can_ask && unsafe { enabled_states() } & CONFIGURATION_AND_DATA == CONFIGURATION_AND_DATA
}

/// The number of the tile data among the states of XSAVE.
const XTILEDATA: u64 = 18;

/// Asks Linux for the tile data's 8 KiB, once for all threads of the process.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    // SAFETY: the call takes two numbers and changes nothing but the permission.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

/// The layout of registers that every processor with AMX has: up to 16 rows of up to 64 bytes.
const PALETTE: u8 = 1;

/// Rows and bytes of a row of a register.
type Shape = (usize, usize);

/// What LDTILECFG reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// This thread's registers while they are configured; dropping it gives them back.
struct Registers(PhantomData<*const ()>);

impl Registers {
    /// Gives the first registers their shapes, and zeroes all.
    ///
    /// # Safety
    /// AMX [is available](is_available), and the shapes are of 1 to 16 rows of 1 to 64 bytes.
    unsafe fn configure(shapes: &[Shape]) -> Registers {
        let (row_bytes, rows) = ([0; 16], [0; 16]);
        let mut all = Configuration { palette: PALETTE, start_row: 0, reserved: [0; 14], row_bytes, rows };
        for (register, (rows, bytes)) in shapes.iter().enumerate() {
            (all.rows[register], all.row_bytes[register]) = (*rows as u8, *bytes as u16);
        }
        // SAFETY: AMX is there, and the configuration is one that the palette allows.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const all, options(nostack, preserves_flags)) };
        Registers(PhantomData)
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: they were configured, so there is AMX.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

/// The matrix unit, set up for products of one width.
pub(crate) struct Tiles {
    /// Columns of a product.
    block: usize,
    /// 0 sums and 1 activations of sixteen tokens, 2 weights, 3 sums and 4 activations of eight tokens.
    _registers: Registers,
}

impl Tiles {
    /// For products over `block` columns.
    ///
    /// # Safety
    /// AMX [is available](is_available).
    ///
    /// # Panics
    /// If they are not 16, 32 or 64.
    pub unsafe fn new(block: usize) -> Tiles {
        assert!(matches!(block, 16 | 32 | 64));
        let shapes = [(16, 64), (16, block), (block / 4, 64), (8, 64), (8, block)];
        // SAFETY: AMX is there, and these are shapes of registers.
        Tiles { block, _registers: unsafe { Registers::configure(&shapes) } }
    }
}

impl MatrixUnit for Tiles {
    #[inline(always)]
    fn products<const TOKENS: usize>(&self, codes: &[i8], units: &[Unit], sums: &mut Products) {
        const { assert!(TOKENS == 8 || TOKENS == 16) };
        assert!(codes.len() >= TOKENS * self.block && units.len() >= self.block / 4);
        let (codes, units, sums, line) =
            (codes.as_ptr(), units.as_ptr(), sums.as_mut_ptr(), size_of::<Unit>());
        // SAFETY: the registers are configured, and all their rows lie inside the three slices.
        unsafe {
            if TOKENS == 16 {
                asm!(
                    "tilezero tmm0",
                    "tileloadd tmm1, [{codes} + {block}]",
                    "tileloadd tmm2, [{units} + {line}]",
                    "tdpbsud tmm0, tmm1, tmm2",
                    "tilestored [{sums} + {line}], tmm0",
                    codes = in(reg) codes, block = in(reg) self.block,
                    units = in(reg) units, line = in(reg) line, sums = in(reg) sums,
                    options(nostack, preserves_flags)
                );
            } else {
                asm!(
                    "tilezero tmm3",
                    "tileloadd tmm4, [{codes} + {block}]",
                    "tileloadd tmm2, [{units} + {line}]",
                    "tdpbsud tmm3, tmm4, tmm2",
                    "tilestored [{sums} + {line}], tmm3",
                    codes = in(reg) codes, block = in(reg) self.block,
                    units = in(reg) units, line = in(reg) line, sums = in(reg) sums,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

/// `rounds` times four products of whole tiles that do not wait for each other; returns the number of multiply-adds.
///
/// # Safety
/// AMX [is available](is_available).
pub(crate) unsafe fn multiply_bytes(rounds: usize) -> u64 {
    // SAFETY: AMX is there, and these are shapes of registers.
    let _registers = unsafe { Registers::configure(&[(16, 64); 8]) };
    for _ in 0..rounds {
        // SAFETY: the registers are configured.
        unsafe {
            asm!(
                "tdpbsud tmm0, tmm4, tmm6",
                "tdpbsud tmm1, tmm4, tmm7",
                "tdpbsud tmm2, tmm5, tmm6",
                "tdpbsud tmm3, tmm5, tmm7",
                options(nostack, preserves_flags)
            );
        }
    }
    (rounds * 4 * 16 * 16 * 64) as u64
}
