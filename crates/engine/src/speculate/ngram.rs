//! Guesses from earlier text: what followed the last tokens where they were there before ("prompt lookup").

/// Fewest tokens that have to be the same.
const SHORTEST: usize = 2;
/// More are not better.
const LONGEST: usize = 5;

/// Appends to `out` up to `count` tokens that followed the last of `tokens` and `next` where most of them were there before, the
/// latest such place first.
pub(crate) fn guess(tokens: &[u32], next: u32, count: usize, out: &mut Vec<u32>) {
    let mut best = (SHORTEST - 1, 0);
    // `end` is behind a place that reads like the end of the text.
    for end in (1..=tokens.len()).rev().filter(|&end| tokens[end - 1] == next) {
        let earlier = tokens[..end - 1].iter().rev();
        let same = 1 + earlier.zip(tokens.iter().rev()).take(LONGEST - 1).take_while(|(a, b)| a == b).count();
        if same > best.0 {
            best = (same, end);
        }
        if same == LONGEST {
            break;
        }
    }
    let (same, end) = best;
    if same >= SHORTEST {
        // Behind the end of what is known the same tokens are expected once more.
        let known = tokens[end..].iter().chain([&next]);
        out.extend(known.cycle().take(count));
    }
}

#[cfg(test)]
mod tests {
    use super::guess;

    fn guessed(tokens: &[u32], next: u32, count: usize) -> Vec<u32> {
        let mut out = Vec::new();
        guess(tokens, next, count, &mut out);
        out
    }

    #[test]
    fn the_longest_and_then_the_latest_match_is_followed() {
        assert_eq!(guessed(&[1, 2, 3, 4, 9, 1, 2], 3, 2), [4, 9]);
        assert_eq!(guessed(&[7, 1, 2, 5, 1, 2, 6, 8, 1], 2, 1), [6], "the latest of two");
        assert_eq!(guessed(&[7, 1, 2, 5, 1, 2, 6, 7, 1], 2, 1), [5], "the longer of two");
        assert_eq!(guessed(&[4, 5, 4, 5, 4], 5, 5), [4, 5, 4, 5, 4], "a loop goes on");
        assert_eq!(guessed(&[1, 2, 3], 4, 3), [0; 0]);
        assert_eq!(guessed(&[9, 3, 1], 3, 3), [0; 0], "one token says little");
        assert_eq!(guessed(&[], 3, 3), [0; 0]);
    }
}
