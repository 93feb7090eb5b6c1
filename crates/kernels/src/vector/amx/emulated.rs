//! The instructions of AMX on processors without them, so that the kernels can be tested as they are: each one raises
//! SIGILL, whose handler does its work. Every condition under which a processor would refuse is a panic.
//!
//! Semantics: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, LDTILECFG to TILEZERO.

use std::cell::RefCell;
use std::sync::Once;

use super::PALETTE;

/// Takes over SIGILL for the whole process.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handler has the form that SA_SIGINFO asks for, and the rest of the structure may be zero.
        let status = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = emulate as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut())
        };
        assert_eq!(status, 0, "SIGILL cannot be handled");
    });
}

/// Does the instruction that the thread stopped at, and puts the thread behind it.
extern "C" fn emulate(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the third argument of a handler is the stopped thread's context.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize];
    // SAFETY: an instruction starts here; code goes on behind those of the kernels for more than its eleven bytes.
    let code = unsafe { *(at as *const [u8; 11]) };
    let Some((instruction, length)) = decode(&code, registers) else {
        panic!("an illegal instruction that is none of AMX: {code:02x?}");
    };
    STATE.with_borrow_mut(|state| state.execute(instruction));
    registers[libc::REG_RIP as usize] = at + length as i64;
}

#[derive(Debug)]
enum Instruction {
    Configure {
        from: *const u8,
    },
    Release,
    Zero {
        tile: usize,
    },
    Load {
        tile: usize,
        from: *const u8,
        stride: isize,
    },
    Store {
        tile: usize,
        to: *mut u8,
        stride: isize,
    },
    /// `signed` says how the bytes of `a` and of `b` are read.
    Multiply {
        sums: usize,
        a: usize,
        b: usize,
        signed: [bool; 2],
    },
}

/// The instruction, with its operands' addresses, and its length.
fn decode(code: &[u8; 11], registers: &[i64; 23]) -> Option<(Instruction, usize)> {
    let [0xc4, first, second, opcode, modrm, ..] = *code else { return None };
    let (is_0f38, is_w0_128) = (first & 31 == 2, second & 0x84 == 0);
    if !is_0f38 || !is_w0_128 {
        return None;
    }
    let (prefix, vector) = (second & 3, usize::from(!second >> 3 & 15));
    let (tile, other) = (usize::from(modrm >> 3 & 7), usize::from(modrm & 7));
    let in_memory = modrm >> 6 != 3;
    let instruction = match (opcode, prefix, in_memory) {
        (0x49, 0, false) => Instruction::Release,
        (0x49, 3, false) => Instruction::Zero { tile },
        (0x5e, 0..=3, false) => {
            let signed = [prefix >= 2, prefix == 1 || prefix == 3];
            Instruction::Multiply { sums: tile, a: other, b: vector, signed }
        }
        (0x49, 0, true) | (0x4b, 2 | 3, true) => {
            let (address, stride, bytes) = memory(code, registers)?;
            let instruction = match (opcode, prefix) {
                (0x49, _) => Instruction::Configure { from: address as *const u8 },
                (_, 3) => Instruction::Load { tile, from: address as *const u8, stride: stride? },
                _ => Instruction::Store { tile, to: address as *mut u8, stride: stride? },
            };
            return Some((instruction, 5 + bytes));
        }
        _ => return None,
    };
    Some((instruction, 5))
}

/// The general registers as instructions number them.
const GENERAL: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// A memory operand: base and displacement, scaled index if there is one, and the bytes behind the ModRM byte that say
/// so. Addresses without a base register are not known here.
fn memory(code: &[u8; 11], registers: &[i64; 23]) -> Option<(i64, Option<isize>, usize)> {
    let (inverted, modrm, sib) = (!code[1], code[4], code[5]);
    let register = |low: u8, high: u8| {
        let number = low & 7 | (inverted >> high & 1) << 3;
        registers[GENERAL[usize::from(number)] as usize]
    };
    let (size, has_sib) = (modrm >> 6, modrm & 7 == 4);
    let low = if has_sib { sib } else { modrm };
    if size == 0 && low & 7 == 5 {
        return None;
    }
    let rest = &code[5 + usize::from(has_sib)..];
    let (displacement, bytes) = match size {
        0 => (0, 0),
        1 => (i64::from(rest[0].cast_signed()), 1),
        _ => (i64::from(i32::from_le_bytes(*rest.first_chunk()?)), 4),
    };
    let has_index = has_sib && (sib >> 3 & 7 != 4 || inverted >> 6 & 1 == 1);
    let index = has_index.then(|| (register(sib >> 3, 6) << (sib >> 6)) as isize);
    Some((register(low, 5) + displacement, index, bytes + usize::from(has_sib)))
}

/// Registers of a thread.
struct State {
    /// Rows and bytes of a row of every register, once configured.
    shapes: Option<[(usize, usize); 8]>,
    tiles: [[[u8; 64]; 16]; 8],
}

thread_local! {
    static STATE: RefCell<State> = const { RefCell::new(State { shapes: None, tiles: [[[0; 64]; 16]; 8] }) };
}

impl State {
    fn execute(&mut self, instruction: Instruction) {
        match instruction {
            Instruction::Configure { from } => {
                // SAFETY: the instruction reads 64 bytes there.
                self.configure(unsafe { &*from.cast() });
            }
            Instruction::Release => self.reset(None),
            Instruction::Zero { tile } => {
                self.shape(tile);
                self.tiles[tile] = [[0; 64]; 16];
            }
            Instruction::Load { tile, from, stride } => {
                let (rows, bytes) = self.shape(tile);
                self.tiles[tile] = [[0; 64]; 16];
                for (row, data) in self.tiles[tile][..rows].iter_mut().enumerate() {
                    // SAFETY: the instruction reads so many bytes of every row there.
                    unsafe { from.offset(row as isize * stride).copy_to(data.as_mut_ptr(), bytes) };
                }
            }
            Instruction::Store { tile, to, stride } => {
                let (rows, bytes) = self.shape(tile);
                for (row, data) in self.tiles[tile][..rows].iter().enumerate() {
                    // SAFETY: the instruction writes so many bytes of every row there.
                    unsafe { to.offset(row as isize * stride).copy_from(data.as_ptr(), bytes) };
                }
            }
            Instruction::Multiply { sums, a, b, signed } => self.multiply(sums, a, b, signed),
        }
    }

    fn reset(&mut self, shapes: Option<[(usize, usize); 8]>) {
        *self = State { shapes, tiles: [[[0; 64]; 16]; 8] };
    }

    fn configure(&mut self, bytes: &[u8; 64]) {
        assert_eq!(bytes[0], PALETTE, "the palette");
        let reserved = [&bytes[1..16], &bytes[32..48], &bytes[56..]];
        assert!(reserved.into_iter().flatten().all(|byte| *byte == 0), "reserved bytes of {bytes:?}");
        let shapes = std::array::from_fn(|i| {
            let row_bytes = u16::from_le_bytes([bytes[16 + 2 * i], bytes[17 + 2 * i]]);
            (usize::from(bytes[48 + i]), usize::from(row_bytes))
        });
        for (rows, bytes) in shapes {
            assert!(rows <= 16 && bytes <= 64 && (rows == 0) == (bytes == 0), "{rows} rows of {bytes} bytes");
        }
        self.reset(Some(shapes));
    }

    fn shape(&self, tile: usize) -> (usize, usize) {
        let shape = self.shapes.map_or((0, 0), |shapes| shapes[tile]);
        assert!(shape.0 > 0, "register {tile} is configured");
        shape
    }

    /// `sums[m][n] += Σ a[m][4k + i]·b[k][4n + i]`.
    fn multiply(&mut self, sums: usize, a: usize, b: usize, signed: [bool; 2]) {
        assert!(sums != a && sums != b && a != b, "the registers of a product differ");
        let [(m, n), (a_rows, a_bytes), (b_rows, b_bytes)] = [sums, a, b].map(|tile| self.shape(tile));
        let fit = a_rows == m && b_bytes == n && a_bytes == 4 * b_rows && n % 4 == 0;
        assert!(fit, "[{a_rows}, {a_bytes}] times [{b_rows}, {b_bytes}] into [{m}, {n}]");
        let value = |byte: u8, signed| if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) };
        let (a, b) = (self.tiles[a], self.tiles[b]);
        for (row, a) in self.tiles[sums][..m].iter_mut().zip(a) {
            for (column, sum) in row.as_chunks_mut::<4>().0[..n / 4].iter_mut().enumerate() {
                let products = (0..4 * b_rows).map(|i| {
                    let (k, i) = (i / 4, i % 4);
                    value(a[4 * k + i], signed[0]) * value(b[k][4 * column + i], signed[1])
                });
                *sum = products.fold(i32::from_le_bytes(*sum), i32::wrapping_add).to_le_bytes();
            }
        }
    }
}
