//! A picture of what quality costs: SVG, one panel against bits per weight and one against KV bytes per token.

use std::fmt::Write;

use crate::eval::report::Row;
use crate::svg::escaped;

/// Size of a panel and of the margins around its axes, in pixels.
const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 48.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 36.0;

/// What the vertical axis shows.
struct Quality {
    title: &'static str,
    of: fn(&Row) -> Option<f64>,
    /// Whether equal ratios are equal distances.
    is_logarithmic: bool,
}

/// In order of preference: the first that all rows have is drawn. Every measure is here, so there always is one.
const QUALITIES: [Quality; 6] = [
    Quality {
        title: "KL divergence, nats per token",
        of: |row| Some(row.text.as_ref()?.divergence.as_ref()?.kl.mean),
        is_logarithmic: true,
    },
    Quality {
        title: "perplexity",
        of: |row| Some(row.text.as_ref()?.perplexity.perplexity.mean),
        is_logarithmic: true,
    },
    Quality {
        title: "KL to own reference, nats per token",
        of: |row| Some(row.own_reference.as_ref()?.kl.mean),
        is_logarithmic: true,
    },
    Quality {
        title: "recall, %",
        of: |row| Some(100.0 * row.recall.as_ref()?.share.mean),
        is_logarithmic: false,
    },
    Quality {
        title: "choices, %",
        of: |row| Some(100.0 * row.choices.as_ref()?.accuracy.mean),
        is_logarithmic: false,
    },
    Quality {
        title: "valid tool calls, %",
        of: |row| Some(100.0 * row.tool_calls.as_ref()?.valid.mean),
        is_logarithmic: false,
    },
];

/// A point with its name.
struct Point {
    x: f64,
    y: f64,
    name: String,
}

/// Both panels.
pub fn svg(rows: &[Row]) -> String {
    let has_all = |quality: &&Quality| rows.iter().all(|row| (quality.of)(row).is_some());
    let quality = QUALITIES.iter().find(has_all);
    let mut out = String::new();
    let (width, height) = (2.0 * WIDTH, HEIGHT);
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="11">
<rect width="{width}" height="{height}" fill="#ffffff"/>"##
    );
    if let Some(quality) = quality {
        let points = |x: fn(&Row) -> f64| -> Vec<Point> {
            let point = |row: &Row| Some(Point { x: x(row), y: (quality.of)(row)?, name: name(row) });
            rows.iter().filter_map(point).collect()
        };
        panel(&mut out, 0.0, quality, "bits per weight", &points(|row| row.footprint.bits_per_weight));
        panel(
            &mut out,
            WIDTH,
            quality,
            "KV bytes per token",
            &points(|row| row.footprint.kv_bytes_per_token as f64),
        );
    }
    out.push_str("</svg>\n");
    out
}

/// The file's stem and its KV type.
fn name(row: &Row) -> String {
    let file = row.model.rsplit('/').next().unwrap_or(&row.model);
    format!("{} {}", file.strip_suffix(".base").unwrap_or(file), row.kv)
}

fn panel(out: &mut String, left: f64, quality: &Quality, title: &str, points: &[Point]) {
    let x = Axis::new(points.iter().map(|p| p.x), false, left + LEFT, left + WIDTH - RIGHT);
    let y = Axis::new(points.iter().map(|p| p.y), quality.is_logarithmic, HEIGHT - BOTTOM, TOP);
    let (x0, x1, y0, y1) = (x.from, x.to, y.from, y.to);
    let _ = writeln!(
        out,
        r##"<text x="{}" y="20" text-anchor="middle" font-size="13">{} against {title}</text>
<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#333333"/>"##,
        (x0 + x1) / 2.0,
        escaped(quality.title),
    );
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = writeln!(
            out,
            r##"<path d="M{at:.1} {y0}v5" stroke="#333333"/><text x="{at:.1}" y="{}" text-anchor="middle">{}</text>"##,
            y0 + 18.0,
            number(tick)
        );
    }
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ = writeln!(
            out,
            r##"<path d="M{x0} {at:.1}H{x1}" stroke="#e4e4e4"/><text x="{}" y="{:.1}" text-anchor="end">{}</text>"##,
            x0 - 6.0,
            at + 4.0,
            number(tick)
        );
    }
    let _ = writeln!(
        out,
        r##"<text x="{}" y="{}" text-anchor="middle">{title}</text>"##,
        (x0 + x1) / 2.0,
        y0 + 38.0
    );
    for point in points {
        let (px, py) = (x.at(point.x), y.at(point.y));
        // Names stand on the side that has more room.
        let (anchor, dx) = if px > (x0 + x1) / 2.0 { ("end", -7.0) } else { ("start", 7.0) };
        let _ = writeln!(
            out,
            r##"<circle cx="{px:.1}" cy="{py:.1}" r="4" fill="#1f6feb"><title>{} {} at {}</title></circle><text x="{:.1}" y="{:.1}" text-anchor="{anchor}">{}</text>"##,
            escaped(&point.name),
            number(point.y),
            number(point.x),
            px + dx,
            py - 4.0,
            escaped(&point.name),
        );
    }
}

/// Values to pixels.
struct Axis {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis with some room at both ends. Values that a logarithm has no place for stand at its lower end.
    fn new(values: impl Iterator<Item = f64> + Clone, is_logarithmic: bool, from: f64, to: f64) -> Axis {
        let scaled = values.filter(|v| v.is_finite() && (!is_logarithmic || *v > 0.0));
        let scaled = scaled.map(|v| if is_logarithmic { v.log10() } else { v });
        let (low, high) = scaled.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let room = if high > low { 0.08 * (high - low) } else { 0.5_f64.max(0.1 * high.abs()) };
        Axis { low: low - room, high: high + room, is_logarithmic, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let scaled = match self.is_logarithmic {
            true if value > 0.0 => value.log10(),
            true => self.low,
            false => value,
        };
        self.from + (scaled - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Round values along the axis: 1, 2 or 5 times a power of ten.
    fn ticks(&self) -> Vec<f64> {
        if self.is_logarithmic {
            let decades = self.low.floor() as i32..=self.high.ceil() as i32;
            let all = decades.flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e)));
            return all.filter(|v| (self.low..=self.high).contains(&v.log10())).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }
}

/// With the digits that matter.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v < 0.001 => format!("{value:.0e}"),
        v if v < 10.0 => {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_has_a_place_in_the_picture() {
        let titles = QUALITIES.map(|quality| quality.title).join(" ");
        for word in ["KL", "perplexity", "own reference", "recall", "choices", "tool calls"] {
            assert!(titles.contains(word), "{word}");
        }
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let ticks = |values: &[f64], log| Axis::new(values.iter().copied(), log, 0.0, 100.0).ticks();
        assert_eq!(ticks(&[2.5, 8.5], false), [4.0, 6.0, 8.0]);
        assert_eq!(ticks(&[0.003, 0.4], true), [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]);
        assert!(!ticks(&[5.0], false).is_empty(), "one value");
        assert!(!ticks(&[0.0], true).is_empty(), "a divergence of zero has no logarithm");
    }

    #[test]
    fn values_lie_between_the_ends_of_their_axis() {
        let axis = Axis::new([1.0, 10.0].into_iter(), true, 300.0, 20.0);
        let at = [1.0, 3.0, 10.0].map(|v| axis.at(v));
        assert!(300.0 > at[0] && at[0] > at[1] && at[1] > at[2] && at[2] > 20.0, "{at:?}");
    }
}
