//! Lists of numbers and ranges, as llama-bench takes them: `128,512-2048*2`.

/// Most numbers in one list.
const MOST: usize = 1000;
/// Most tokens that a step verifies: 16 guesses, and the token before them.
const MOST_ROWS: usize = 17;

/// Numbers in the order in which they were named, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(pub Vec<usize>);

/// Parses a list of numbers and ranges: `first-last`, `first-last+step`, `first-last*factor`. What is named twice is
/// taken once.
pub fn numbers(s: &str) -> Result<Numbers, String> {
    let mut all = Vec::new();
    for part in s.split(',') {
        for number in range(part)? {
            if !all.contains(&number) {
                all.push(number);
            }
        }
        if all.len() > MOST {
            return Err(format!("has more than {MOST} numbers"));
        }
    }
    Ok(Numbers(all))
}

/// The same without 0.
pub fn counts(s: &str) -> Result<Numbers, String> {
    let numbers = numbers(s)?;
    if numbers.0.contains(&0) { Err("must be numbers of at least 1".to_owned()) } else { Ok(numbers) }
}

/// Tokens that one step verifies: 1, then the others that are named.
pub fn rows(s: &str) -> Result<Numbers, String> {
    let Numbers(named) = counts(s)?;
    if named.iter().any(|&rows| rows > MOST_ROWS) {
        return Err(format!("must be numbers of at most {MOST_ROWS}"));
    }
    Ok(Numbers([1].into_iter().chain(named.into_iter().filter(|&rows| rows > 1)).collect()))
}

/// One element of a list.
fn range(part: &str) -> Result<Vec<usize>, String> {
    let Some((first, rest)) = part.split_once('-') else { return Ok(vec![number(part)?]) };
    let (last, step): (_, Box<dyn Fn(usize) -> Option<usize>>) =
        if let Some((last, step)) = rest.split_once('+') {
            let step = number(step)?;
            (last, Box::new(move |n| n.checked_add(step)))
        } else if let Some((last, factor)) = rest.split_once('*') {
            let factor = number(factor)?;
            (last, Box::new(move |n| n.checked_mul(factor)))
        } else {
            (rest, Box::new(|n| n.checked_add(1)))
        };
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(format!("'{part}' ends before it begins"));
    }
    let mut values = vec![first];
    let mut at = first;
    while let Some(next) = step(at).filter(|&next| next <= last) {
        if next <= at {
            return Err(format!("'{part}' never gets from {at} to {last}"));
        }
        if values.len() > MOST {
            return Err(format!("'{part}' has more than {MOST} numbers"));
        }
        values.push(next);
        at = next;
    }
    Ok(values)
}

fn number(s: &str) -> Result<usize, String> {
    s.parse().map_err(|_| {
        format!("'{s}' is not a number, nor is it FIRST-LAST, FIRST-LAST+STEP or FIRST-LAST*FACTOR")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_become_numbers() {
        let cases: [(&str, &[usize]); 9] = [
            ("512", &[512]),
            ("128,512,2048", &[128, 512, 2048]),
            ("1-4", &[1, 2, 3, 4]),
            ("512-2048+512", &[512, 1024, 1536, 2048]),
            ("1-16*2", &[1, 2, 4, 8, 16]),
            ("1-20*2", &[1, 2, 4, 8, 16]),
            ("4,1-4,8-8", &[4, 1, 2, 3, 8]),
            ("0-2,0", &[0, 1, 2]),
            ("18446744073709551614-18446744073709551615", &[usize::MAX - 1, usize::MAX]),
        ];
        for (text, expected) in cases {
            assert_eq!(numbers(text), Ok(Numbers(expected.to_vec())), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_part_that_is_wrong() {
        let cases = [
            ("", "''"),
            ("1,", "''"),
            ("x", "'x'"),
            ("-1", "''"),
            ("1--2", "'-2'"),
            ("1.5", "'1.5'"),
            ("8-4", "'8-4' ends before"),
            ("1-8+0", "'1-8+0' never gets from 1 to 8"),
            ("2-8*1", "never gets"),
            ("0-8*2", "'0-8*2' never gets from 0 to 8"),
            ("1-8*2+1", "'8*2'"),
            ("1-100000", "more than 1000"),
            ("99999999999999999999", "is not a number"),
        ];
        for (text, words) in cases {
            let problem = numbers(text).unwrap_err();
            assert!(problem.contains(words), "{text}: {problem}");
        }
        assert!(counts("0-3").unwrap_err().contains("at least 1"));
        assert!(rows("2,18").unwrap_err().contains("at most 17"));
    }

    #[test]
    fn one_row_is_measured_whatever_else_is() {
        for (text, expected) in [("1-4", &[1, 2, 3, 4][..]), ("4,2", &[1, 4, 2]), ("3,1", &[1, 3])] {
            assert_eq!(rows(text), Ok(Numbers(expected.to_vec())), "{text}");
        }
    }
}
