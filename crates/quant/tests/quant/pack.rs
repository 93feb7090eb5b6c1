//! The bit stream of packed codes.

use basert_quant::{QuantError, pack_codes, packed_len, unpack_codes};
use proptest::prelude::*;

const WIDTHS: [u32; 6] = [2, 3, 4, 5, 6, 8];

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

/// Words as printed, most significant digit first, to the bytes of little-endian words.
fn mlx(words: &str) -> Vec<u8> {
    words.split(' ').flat_map(|word| u32::from_str_radix(word, 16).unwrap().to_le_bytes()).collect()
}

fn packed(bits: u32, codes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    pack_codes(bits, codes, &mut out).unwrap();
    out
}

fn unpacked(bits: u32, packed: &[u8], count: usize) -> Vec<u8> {
    let mut out = vec![0xAA; count];
    unpack_codes(bits, packed, &mut out).unwrap();
    out
}

/// The format's own vectors, and three measured with MLX (printed as 32-bit words) whose codes cross the borders of
/// words: reading those as `32 / bits` codes per word is the classic mistake for 3, 5 and 6 bits.
#[test]
fn published_vectors() {
    let mlx6_codes: Vec<u8> = (0..16).collect();
    let mlx5_codes: Vec<u8> = (0..32).map(|i| (7 * i + 3) % 32).collect();
    let mlx3_codes: Vec<u8> = (0..32).map(|i| (5 * i + 1) % 8).collect();
    let table: [(u32, &[u8], &[u8]); 9] = [
        (2, &[0, 1, 2, 3, 3, 2, 1, 0, 1, 1, 2, 2, 3, 3, 0, 0], &hex("e4 1b a5 0f")),
        (3, &[0, 1, 2, 3, 4, 5, 6, 7], &hex("88 c6 fa")),
        (4, &[0xA, 0xB, 0xC, 0xD, 0xE, 0xF, 1, 2], &hex("ba dc fe 21")),
        (5, &[0, 1, 2, 3, 28, 29, 30, 31], &hex("20 88 c1 bb ff")),
        (6, &[1, 2, 3, 63], &hex("81 30 fc")),
        (8, &[0, 1, 254, 255], &hex("00 01 fe ff")),
        (6, &mlx6_codes, &mlx("440c2040 a2481c61 3ce34c2c")),
        (5, &mlx5_codes, &mlx("4dfc4543 78245ba3 0753617d 4b276cf4 e55c7066")),
        (3, &mlx3_codes, &mlx("f19d50f1 50f19d50 9d50f19d")),
    ];
    for (bits, codes, bytes) in table {
        assert_eq!(packed(bits, codes), bytes, "packing {bits}-bit {codes:?}");
        assert_eq!(unpacked(bits, bytes, codes.len()), codes, "unpacking {bits}-bit {bytes:02x?}");
    }
}

/// 512 inputs are 48, 80 and 96 words of 32 bits for 3, 5 and 6 bits, not 52, 86 and 103.
#[test]
fn odd_widths_pack_without_gaps() {
    for (bits, words) in [(3, 48), (5, 80), (6, 96)] {
        assert_eq!(packed_len(bits, 512), Some(4 * words));
    }
}

#[test]
fn widths_that_do_not_exist_are_refused() {
    for bits in [0, 1, 7, 9, 16, 32, u32::MAX] {
        assert_eq!(pack_codes(bits, &[0; 8], &mut Vec::new()), Err(QuantError::Bits(bits)));
        assert_eq!(unpack_codes(bits, &[0; 8], &mut [0; 8]), Err(QuantError::Bits(bits)));
    }
}

#[test]
fn a_stream_of_the_wrong_length_is_refused() {
    for bits in WIDTHS {
        for length in [0, bits as usize - 1, bits as usize + 1] {
            let error = unpack_codes(bits, &vec![0; length], &mut [0; 8]).unwrap_err();
            assert!(matches!(error, QuantError::Length { .. }), "{bits} bits, {length} bytes: {error}");
        }
    }
}

#[test]
fn code_bits_above_the_width_do_not_leak_into_neighbours() {
    assert_eq!(packed(3, &[0xF8, 0xFF, 0xF8]), packed(3, &[0, 7, 0]));
}

fn width_and_codes() -> impl Strategy<Value = (u32, Vec<u8>)> {
    prop::sample::select(WIDTHS.to_vec())
        .prop_flat_map(|bits| (Just(bits), prop::collection::vec(0..=((1u32 << bits) - 1) as u8, 0..100)))
}

proptest! {
    #[test]
    fn unpacking_inverts_packing((bits, codes) in width_and_codes()) {
        let bytes = packed(bits, &codes);
        prop_assert_eq!(bytes.len(), (codes.len() * bits as usize).div_ceil(8));
        prop_assert_eq!(unpacked(bits, &bytes, codes.len()), codes);
    }

    #[test]
    fn every_bit_is_where_the_definition_puts_it((bits, codes) in width_and_codes()) {
        let bytes = packed(bits, &codes);
        let stream = |at: usize| bytes[at / 8] >> (at % 8) & 1;
        for (i, code) in codes.iter().enumerate() {
            for bit in 0..bits as usize {
                prop_assert_eq!(stream(i * bits as usize + bit), code >> bit & 1);
            }
        }
        for padding in codes.len() * bits as usize..bytes.len() * 8 {
            prop_assert_eq!(stream(padding), 0);
        }
    }

    #[test]
    fn packing_group_by_group_is_packing_at_once((bits, codes) in width_and_codes()) {
        let whole = codes.len() / 8 * 8;
        let mut pieces = Vec::new();
        for eight in codes[..whole].chunks(8) {
            pack_codes(bits, eight, &mut pieces).unwrap();
        }
        prop_assert_eq!(pieces, packed(bits, &codes[..whole]));
    }
}
