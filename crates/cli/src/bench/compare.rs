//! `basert bench --compare`: whether a later result is slower than an earlier one.

use std::path::Path;

use basert_measure::bench::{Better, Spread, Verdict, judge};
use serde::Serialize;

use super::args::{BenchArgs, Format};
use super::report::{LAYOUT, Loaded, Report, Row};
use crate::bundle::quoted;
use crate::failure::{Failure, Outcome};
use crate::options::kv_name;
use crate::output;
use crate::table::Table;
use crate::units::count;

/// Fewest repetitions from which a spread can be told.
const FEWEST: usize = 3;

/// Runs the command.
pub fn run(args: &BenchArgs) -> Outcome {
    let [before, after] = &args.compare[..] else {
        return Err(Failure::new("--compare takes two files"));
    };
    if args.kv.is_typed() {
        return Err(Failure::new("--kv-type and --kv-bits do not go with --compare, which measures nothing"));
    }
    let (before, after) = (read(before)?, read(after)?);
    if !args.force {
        check_alike(&before, &after)?;
    }
    let comparison = Comparison::of(&before, &after, args.tolerance)?;
    match args.format() {
        Format::Table => output::print(&comparison.in_words())?,
        Format::Markdown => output::print(&comparison.table().markdown())?,
        Format::Csv => output::print(&comparison.table().csv())?,
        Format::Json => output::print_json(&comparison)?,
    }
    match comparison.slower {
        0 => Ok(()),
        slower => Err(Failure::new(format!(
            "{slower} of {} became slower, by more than {} % and more than their noise",
            count(comparison.rows.len() as u64, "measurement"),
            args.tolerance
        ))),
    }
}

fn read(path: &Path) -> Outcome<Report> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|e| Failure::new(format!("cannot read {shown}: {e}")))?;
    let bad = |reason: String| {
        Failure::new(format!("{shown} is not a result of `basert bench --json`: {reason}"))
            .hint(format!("make one with: basert bench MODEL --json > {}", quoted(path)))
    };
    let report: Report = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
    if report.basert_bench != LAYOUT {
        return Err(bad(format!("its layout is {}, this version reads {LAYOUT}", report.basert_bench)));
    }
    Ok(report)
}

/// Refuses results that differ in more than what a comparison is about.
fn check_alike(before: &Report, after: &Report) -> Outcome {
    let refuse = |what: String| {
        Err(Failure::new(format!("the results cannot be compared: {what}"))
            .hint("--force compares them nevertheless"))
    };
    let identities = |report: &Report| -> Vec<String> {
        report.models.iter().map(|model| model.identity.clone()).collect()
    };
    if identities(before) != identities(after) {
        return refuse("they are of different models".to_owned());
    }
    if before.machine != after.machine {
        let name = |report: &Report| {
            format!("{} with {}", report.machine.cpu, count(report.machine.cpus as u64, "CPU"))
        };
        return refuse(format!("they are of different machines, {} and {}", name(before), name(after)));
    }
    if before.isa != after.isa {
        return refuse(format!("they are of different instruction sets, {} and {}", before.isa, after.isa));
    }
    match (before.complete, after.complete) {
        (true, true) => Ok(()),
        (false, _) => refuse("the first is incomplete".to_owned()),
        (true, false) => refuse("the second is incomplete".to_owned()),
    }
}

/// What was compared, and what came out.
#[derive(Serialize)]
struct Comparison {
    tolerance_percent: f64,
    rows: Vec<Compared>,
    /// Rows and settings of each result that the other does not have.
    only_before: usize,
    only_after: usize,
    slower: usize,
    faster: usize,
}

/// One measurement in both results.
#[derive(Serialize)]
struct Compared {
    model: String,
    threads: usize,
    k_type: String,
    v_type: String,
    page_tokens: usize,
    /// `load`, `prefill`, `decode`, `verify` or `draft`.
    test: String,
    tokens: usize,
    depth: usize,
    sequences: usize,
    /// Of verification and drafting.
    rows: Option<usize>,
    /// `tokens_per_s`, `first_token_s` or `load_s`.
    metric: &'static str,
    before: Spread,
    after: Spread,
    ratio: f64,
    verdict: Verdict,
}

/// A measurement of one result: what it is of, and its repetitions.
struct Entry<'a> {
    name: &'a str,
    model: usize,
    setting: &'a Loaded,
    test: &'a str,
    tokens: usize,
    depth: usize,
    sequences: usize,
    rows: Option<usize>,
    metric: &'static str,
    spread: &'a Spread,
}

impl Entry<'_> {
    /// Models are matched by their position: with `--force` they may be different ones.
    fn is_of_the_same(&self, other: &Entry<'_>) -> bool {
        let settings = |entry: &Entry<'_>| {
            let Loaded { threads, k_type, v_type, page_tokens, .. } = entry.setting;
            (*threads, k_type.clone(), v_type.clone(), *page_tokens)
        };
        self.model == other.model
            && settings(self) == settings(other)
            && (self.test, self.metric) == (other.test, other.metric)
            && (self.tokens, self.depth, self.sequences) == (other.tokens, other.depth, other.sequences)
            && self.rows == other.rows
    }

    fn better(&self) -> Better {
        if self.metric == "tokens_per_s" { Better::Higher } else { Better::Lower }
    }
}

/// All measurements of a result.
///
/// # Errors
/// Rows that name no setting, settings that name no model.
fn entries(report: &Report) -> Outcome<Vec<Entry<'_>>> {
    let broken = || Failure::new("a result is damaged: a row or setting refers to what is not there");
    let mut all = Vec::new();
    let entry = |setting: &'_ Loaded| report.models.get(setting.model).map(|model| model.name.as_str());
    for setting in &report.settings {
        let name = entry(setting).ok_or_else(broken)?;
        let (test, metric, spread) = ("load", "load_s", &setting.load_s);
        all.push(Entry {
            name,
            model: setting.model,
            setting,
            test,
            tokens: 0,
            depth: 0,
            sequences: 0,
            rows: None,
            metric,
            spread,
        });
    }
    for row in &report.rows {
        let setting = report.settings.get(row.setting).ok_or_else(broken)?;
        let name = entry(setting).ok_or_else(broken)?;
        let Row { test, tokens, depth, sequences, .. } = row;
        let (tokens, depth, sequences) = (*tokens, *depth, *sequences);
        let mut add = |metric, spread| {
            all.push(Entry {
                name,
                model: setting.model,
                setting,
                test,
                tokens,
                depth,
                sequences,
                rows: row.rows,
                metric,
                spread,
            });
        };
        add("tokens_per_s", &row.tokens_per_s);
        if let Some(spread) = &row.first_token_s {
            add("first_token_s", spread);
        }
    }
    Ok(all)
}

impl Comparison {
    fn of(before: &Report, after: &Report, tolerance_percent: f64) -> Outcome<Comparison> {
        let (before, after) = (entries(before)?, entries(after)?);
        let mut rows = Vec::new();
        for old in &before {
            if let Some(new) = after.iter().find(|new| new.is_of_the_same(old)) {
                rows.push(compared(old, new, tolerance_percent)?);
            }
        }
        if rows.iter().all(|row| row.test == "load") {
            return Err(Failure::new(
                "the results have no prefill and no decoding with the same settings in common",
            ));
        }
        let verdicts = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
        Ok(Comparison {
            tolerance_percent,
            only_before: before.len().saturating_sub(rows.len()),
            only_after: after.len().saturating_sub(rows.len()),
            slower: verdicts(Verdict::Slower),
            faster: verdicts(Verdict::Faster),
            rows,
        })
    }

    fn table(&self) -> Table {
        let headings = [
            "model", "KV", "test", "threads", "tokens", "depth", "batch", "rows", "page", "measure",
            "before", "after", "speed", "verdict",
        ];
        let line = |row: &Compared| {
            let cells: [String; 14] = [
                row.model.clone(),
                kv_name(&row.k_type, &row.v_type),
                row.test.clone(),
                row.threads.to_string(),
                row.tokens.to_string(),
                row.depth.to_string(),
                row.sequences.to_string(),
                row.rows.map_or("-".to_owned(), |rows| rows.to_string()),
                row.page_tokens.to_string(),
                row.metric.to_owned(),
                number(&row.before),
                number(&row.after),
                format!("{:.3}x", row.ratio),
                verdict(row.verdict).to_owned(),
            ];
            cells.to_vec()
        };
        let headings = headings.map(str::to_owned).to_vec();
        Table::of_lines([headings].into_iter().chain(self.rows.iter().map(line)).collect(), 3)
    }

    fn in_words(&self) -> String {
        let mut text = self.table().aligned();
        text.push_str(&format!(
            "\n{}: {} slower, {} faster, tolerance {} %\n",
            count(self.rows.len() as u64, "measurement"),
            self.slower,
            self.faster,
            self.tolerance_percent
        ));
        if self.only_before + self.only_after > 0 {
            text.push_str(&format!(
                "not compared: {} only in the first result, {} only in the second\n",
                self.only_before, self.only_after
            ));
        }
        text
    }
}

fn compared(old: &Entry<'_>, new: &Entry<'_>, tolerance: f64) -> Outcome<Compared> {
    let fewest = old.spread.samples.len().min(new.spread.samples.len());
    if fewest < FEWEST {
        return Err(Failure::new(format!(
            "{} has {} in one of the results, and {FEWEST} are needed to tell a difference from noise",
            old.test,
            count(fewest as u64, "repetition")
        ))
        .hint("measure with -r 5 or more"));
    }
    let found = judge(old.spread, new.spread, old.better(), tolerance);
    Ok(Compared {
        model: new.name.to_owned(),
        threads: new.setting.threads,
        k_type: new.setting.k_type.clone(),
        v_type: new.setting.v_type.clone(),
        page_tokens: new.setting.page_tokens,
        test: new.test.to_owned(),
        tokens: new.tokens,
        depth: new.depth,
        sequences: new.sequences,
        rows: new.rows,
        metric: new.metric,
        before: old.spread.clone(),
        after: new.spread.clone(),
        ratio: found.ratio,
        verdict: found.verdict,
    })
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same => "same",
        Verdict::Faster => "faster",
        Verdict::Slower => "SLOWER",
    }
}

/// Four digits, whatever the unit.
fn number(spread: &Spread) -> String {
    match spread.median {
        x if x >= 100.0 => format!("{x:.1}"),
        x if x >= 1.0 => format!("{x:.3}"),
        x => format!("{x:.5}"),
    }
}
