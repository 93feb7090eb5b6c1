//! GPT-2's byte alphabet: every byte spelled as one printable character, so that a vocabulary of byte strings is text.

/// The character that stands for each byte. Printable Latin-1 stands for itself; the other 68 bytes (controls, space,
/// 0x7F-0xA0 and, easy to miss, 0xAD, the soft hyphen) take U+0100 upward in order.
const ALPHABET: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut next = 0x100;
    let mut byte = 0;
    while byte < 256 {
        let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if printable { byte as u32 } else { next };
        if !printable {
            next += 1;
        }
        if let Some(c) = char::from_u32(code) {
            table[byte] = c;
        }
        byte += 1;
    }
    table
};

/// One past the last character of the alphabet.
const END: usize = 0x144;

/// The byte for each character below [`END`], or `NONE`.
const INVERSE: [u16; END] = {
    let mut table = [NONE; END];
    let mut byte = 0;
    while byte < 256 {
        table[ALPHABET[byte] as usize] = byte as u16;
        byte += 1;
    }
    table
};
const NONE: u16 = u16::MAX;

/// Appends `bytes` to `out` in the byte alphabet.
pub(crate) fn spell(bytes: &[u8], out: &mut String) {
    out.extend(bytes.iter().map(|&b| ALPHABET[usize::from(b)]));
}

/// The bytes that `text` spells, or `None` if a character is not of the alphabet.
pub(crate) fn read(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|c| INVERSE.get(c as usize).and_then(|&b| u8::try_from(b).ok())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_and_all_pairs_come_back() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                let mut text = String::new();
                spell(&[a, b], &mut text);
                assert_eq!(read(&text), Some(vec![a, b]));
            }
        }
    }

    #[test]
    fn the_soft_hyphen_byte_is_the_68th_mapped_byte() {
        let mut text = String::new();
        spell(&[0xAC, 0xAD, 0xAE, b' ', b'\n', 0x7F], &mut text);
        assert_eq!(text, "\u{ac}\u{143}\u{ae}\u{120}\u{10a}\u{121}");
    }

    #[test]
    fn characters_outside_the_alphabet_are_not_bytes() {
        for text in [" ", "\n", "\u{ad}", "\u{144}", "a b", "漢"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
