//! A profile as people and scripts read it.

use std::collections::BTreeMap;
use std::time::Duration;

use basert_engine::{Cost, Engine, Needs};
use basert_measure::bench::{Case, Machine, Profile, Test};
use serde_json::{Value, json};

use crate::selected;
use crate::table::Table;
use crate::units::bytes;

/// A table for every case; operations in the order of their time, with `layers` every layer's by itself.
pub fn text(engine: &Engine, profiles: &[Profile], layers: bool) -> String {
    let selected = engine.selected();
    let kv = selected.kv;
    let mut out = format!(
        "{}, {} kernels, {} threads{}, KV {kv}\n",
        Machine::this().cpu,
        selected.isa,
        selected.threads,
        selected::pinned(selected)
    );
    for profile in profiles {
        out += &format!("\n{}\n\n{}", heading(profile), table(profile, layers).aligned());
    }
    out
}

/// What was run, and what it took.
fn heading(profile: &Profile) -> String {
    let milliseconds = 1e3 * profile.plain.median / profile.case.steps() as f64;
    let what = name(&profile.case);
    let per = per(&profile.case);
    let rate = profile.case.timed_tokens() as f64 / profile.plain.median;
    let overhead = 100.0 * profile.overhead();
    format!(
        "{what}: {milliseconds:.3} ms a {per}, {rate:.1} tokens/s; timing its operations adds {overhead:.1} %"
    )
}

/// `prefill of 512 tokens`.
pub fn name(case: &Case) -> String {
    let depth = if case.depth > 0 { format!(" behind {} tokens", case.depth) } else { String::new() };
    match case.test {
        Test::Prefill { tokens } => format!("prefill of {tokens} tokens{depth}"),
        Test::Decode { tokens, sequences: 1 } => format!("decode of {tokens} tokens{depth}"),
        Test::Decode { tokens, sequences } => {
            format!("decode of {tokens} tokens in {sequences} sequences{depth}")
        }
        Test::Verify { tokens, rows } => format!("verification of {tokens} tokens, {rows} at a time{depth}"),
    }
}

fn per(case: &Case) -> &'static str {
    match case.test {
        Test::Prefill { .. } => "prompt",
        Test::Decode { .. } | Test::Verify { .. } => "step",
    }
}

/// Sums of one line of the table.
#[derive(Clone, Copy, Default)]
struct Sum {
    calls: usize,
    time: Duration,
    needs: Needs,
}

impl Sum {
    fn add(&mut self, cost: &Cost) {
        self.calls += cost.calls;
        self.time += cost.time;
        self.needs.bytes += cost.needs.bytes;
        self.needs.multiply_adds += cost.needs.multiply_adds;
    }
}

fn table(profile: &Profile, layers: bool) -> Table {
    let mut sums: BTreeMap<(Option<usize>, String), Sum> = BTreeMap::new();
    for cost in &profile.costs {
        let layer = cost.layer.filter(|_| layers);
        sums.entry((layer, label(cost))).or_default().add(cost);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|((layer, _), sum)| (*layer, std::cmp::Reverse(sum.time)));

    let rounds = (profile.traced.samples.len() * profile.case.steps()) as f64;
    let whole = profile.traced_seconds();
    let mut lines = vec![headings(per(&profile.case), layers)];
    let mut timed = Duration::ZERO;
    for ((layer, label), sum) in sums {
        timed += sum.time;
        let layer = layers.then(|| layer.map_or_else(String::new, |layer| layer.to_string()));
        lines.push(layer.into_iter().chain(line(label, &sum, rounds, whole)).collect());
    }
    let rest = Duration::from_secs_f64((whole - timed.as_secs_f64()).max(0.0));
    let between = line("between operations".to_owned(), &Sum { time: rest, ..Sum::default() }, rounds, whole);
    lines.push(layers.then(String::new).into_iter().chain(between).collect());
    Table::of_lines(lines, if layers { 2 } else { 1 })
}

fn headings(per: &str, layers: bool) -> Vec<String> {
    let fixed = ["operation", &format!("ms a {per}"), "share", "calls", "bytes", "GB/s", "G multiply-adds/s"]
        .map(str::to_owned);
    layers.then(|| "layer".to_owned()).into_iter().chain(fixed).collect()
}

/// Calls and bytes of one prompt or step.
fn line(label: String, sum: &Sum, rounds: f64, whole: f64) -> [String; 7] {
    let seconds = sum.time.as_secs_f64();
    let some = |text: String, amount: f64| if amount > 0.0 { text } else { String::new() };
    let Needs { bytes: moved, multiply_adds } = sum.needs;
    [
        label,
        format!("{:.3}", 1e3 * seconds / rounds),
        format!("{:.1} %", 100.0 * seconds / whole),
        some(format!("{:.0}", sum.calls as f64 / rounds), sum.calls as f64),
        some(bytes((moved / rounds) as u64), moved),
        some(format!("{:.2}", moved / seconds / 1e9), moved),
        some(format!("{:.1}", multiply_adds / seconds / 1e9), multiply_adds),
    ]
}

/// The operation, for linear layers with the weights' names.
pub fn label(cost: &Cost) -> String {
    let operation = cost.operation.name();
    if cost.weights.is_empty() { operation.to_owned() } else { format!("{operation} {}", cost.weights) }
}

/// Everything, layer by layer. Seconds, bytes and multiply-adds are sums over all traced repetitions.
pub fn json(engine: &Engine, profiles: &[Profile]) -> Value {
    let profiles: Vec<Value> = profiles.iter().map(one).collect();
    json!({
        "machine": Machine::this(),
        "selected": selected::to_json(engine.selected()),
        "profiles": profiles,
    })
}

fn one(profile: &Profile) -> Value {
    let Case { test, .. } = profile.case;
    let operation = |cost: &Cost| {
        json!({
            "layer": cost.layer,
            "operation": cost.operation.name(),
            "weights": cost.weights,
            "calls": cost.calls,
            "seconds": cost.time.as_secs_f64(),
            "bytes": cost.needs.bytes,
            "multiply_adds": cost.needs.multiply_adds,
        })
    };
    json!({
        "test": test.name(),
        "tokens": test.tokens(),
        "sequences": profile.case.sequences(),
        "depth": profile.case.depth,
        "plain_s": profile.plain,
        "traced_s": profile.traced,
        "operations": profile.costs.iter().map(operation).collect::<Vec<_>>(),
    })
}
