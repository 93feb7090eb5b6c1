//! A profile as a picture: for every case a bar of its layers, and below each layer its operations, as wide as their time.

use std::collections::BTreeMap;
use std::fmt::Write;

use basert_engine::{Cost, Operation};
use basert_measure::bench::Profile;

use super::report::{label, name};
use crate::svg::escaped;

const WIDTH: f64 = 1200.0;
const ROW: f64 = 26.0;
const MARGIN: f64 = 16.0;
/// Title, layers, operations, and room below.
const CASE: f64 = 4.5 * ROW;
/// A character's width at most, in pixels: what is narrower than its text shows it only as a tooltip.
const CHARACTER: f64 = 6.4;

/// All cases, one below the other.
pub fn svg(profiles: &[Profile]) -> String {
    let (width, height) = (WIDTH + 2.0 * MARGIN, MARGIN + CASE * profiles.len() as f64);
    let mut out = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="11">
<rect width="{width}" height="{height}" fill="#ffffff"/>
"##
    );
    for (i, profile) in profiles.iter().enumerate() {
        case(&mut out, profile, MARGIN + CASE * i as f64);
    }
    out.push_str("</svg>\n");
    out
}

fn case(out: &mut String, profile: &Profile, top: f64) {
    let rounds = (profile.traced.samples.len() * profile.case.steps()) as f64;
    let whole = profile.traced_seconds();
    let title = format!("{}: {:.3} ms", name(&profile.case), 1e3 * whole / rounds);
    // Writing to a string cannot fail.
    let _ =
        writeln!(out, r##"<text x="{MARGIN}" y="{}" font-size="13">{}</text>"##, top + 14.0, escaped(&title));
    let mut x = MARGIN;
    for (layer, costs) in by_layer(&profile.costs) {
        let start = x;
        for cost in costs {
            let seconds = cost.time.as_secs_f64();
            let width = WIDTH * seconds / whole;
            let text = label(cost);
            block(out, (x, top + 2.0 * ROW, width), colour(cost.operation), &text, 1e3 * seconds / rounds);
            x += width;
        }
        let seconds = (x - start) / WIDTH * whole;
        block(out, (start, top + ROW, x - start), "#d9dee4", &layer, 1e3 * seconds / rounds);
    }
}

/// Layers in order, first what is before and after them; their operations by time.
fn by_layer(costs: &[Cost]) -> Vec<(String, Vec<&Cost>)> {
    let mut layers: BTreeMap<Option<usize>, Vec<&Cost>> = BTreeMap::new();
    for cost in costs {
        layers.entry(cost.layer).or_default().push(cost);
    }
    let named = |(layer, mut costs): (Option<usize>, Vec<_>)| {
        costs.sort_by_key(|cost: &&Cost| std::cmp::Reverse(cost.time));
        (layer.map_or_else(|| "ends".to_owned(), |layer| format!("layer {layer}")), costs)
    };
    layers.into_iter().map(named).collect()
}

fn block(out: &mut String, (x, y, width): (f64, f64, f64), fill: &str, text: &str, milliseconds: f64) {
    let text = escaped(text);
    let _ = write!(
        out,
        r##"<g><title>{text}: {milliseconds:.4} ms</title><rect x="{x:.2}" y="{y}" width="{width:.2}" height="{}" fill="{fill}" stroke="#ffffff" stroke-width="0.5"/>"##,
        ROW - 2.0
    );
    if text.chars().count() as f64 * CHARACTER < width {
        let _ = write!(out, r##"<text x="{:.2}" y="{}">{text}</text>"##, x + 4.0, y + 16.0);
    }
    out.push_str("</g>\n");
}

fn colour(operation: Operation) -> &'static str {
    match operation {
        Operation::Linear => "#8ab4f0",
        Operation::Head | Operation::Embed => "#b3a5ea",
        Operation::Attention | Operation::StoreKv | Operation::Rotate => "#f2a46f",
        Operation::DeltaRule | Operation::Convolution => "#86cf9b",
        Operation::Norm | Operation::Gate | Operation::Add => "#e9d27a",
        Operation::Route => "#e79ab5",
    }
}
