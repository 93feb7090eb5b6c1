//! Numbers as people read them.

use std::time::Duration;

/// Bytes in binary units with three significant digits: `512 B`, `1.50 KiB`, `62.8 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would print as "1024.0".
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if value < 9.995 { 2 } else { 1 };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// A size as people write it: bytes, or with a binary unit (`K`, `KiB`, …, `TiB`) or a decimal one (`KB`, …, `TB`).
/// `None` for anything else, and for zero.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor)?,
        Err(_) => (number.parse::<f64>().ok()? * factor as f64) as u64,
    };
    (bytes > 0).then_some(bytes)
}

/// Seconds with the digits that matter: `0.032 s`, `4.1 s`, `95 s`.
pub fn seconds(d: Duration) -> String {
    let s = d.as_secs_f64();
    match s {
        s if s < 1.0 => format!("{s:.3} s"),
        s if s < 10.0 => format!("{s:.1} s"),
        s => format!("{s:.0} s"),
    }
}

/// Events per second, 0 when no time passed.
pub fn rate(events: usize, d: Duration) -> f64 {
    let s = d.as_secs_f64();
    if s > 0.0 { events as f64 / s } else { 0.0 }
}

/// `1 tensor`, `2 tensors`.
pub fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_three_digits_and_never_show_1024() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (20 * 1024, "20.0 KiB"),
            (1024 * 1024 - 1, "1.00 MiB"),
            (65_861_386, "62.8 MiB"),
            (5 * 1024 * 1024 * 1024, "5.00 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ];
        for (n, expected) in cases {
            assert_eq!(bytes(n), expected, "{n}");
        }
    }

    #[test]
    fn sizes_have_binary_and_decimal_units_or_none() {
        let cases = [
            ("17", Some(17)),
            ("16GiB", Some(16 << 30)),
            ("16G", Some(16 << 30)),
            ("16 gb", Some(16_000_000_000)),
            ("1.5MiB", Some(3 << 19)),
            ("0", None),
            ("", None),
            ("GiB", None),
            ("-1", None),
            ("1.2.3K", None),
            ("5 pounds", None),
            ("99999999999TiB", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_bytes(text), expected, "{text}");
        }
    }

    #[test]
    fn seconds_and_rates_survive_zero() {
        assert_eq!(seconds(Duration::ZERO), "0.000 s");
        assert_eq!(seconds(Duration::from_millis(4120)), "4.1 s");
        assert_eq!(rate(5, Duration::ZERO), 0.0);
        assert_eq!(rate(5, Duration::from_secs(2)), 2.5);
    }
}
