//! A result as people read it.

use basert_measure::bench::Spread;
use serde_json::Value;

use super::report::{Loaded, Model, Report, Row};
use crate::options::kv_name;
use crate::table::Table;
use crate::units::{bytes, count};

/// The header in lines, then the table.
pub fn text(report: &Report) -> String {
    let lines = header(report).into_iter().map(|(label, text)| format!("{label:<9} {text}\n"));
    lines.collect::<String>() + "\n" + &table(report).aligned()
}

/// The same for a document.
pub fn markdown(report: &Report) -> String {
    let lines = header(report).into_iter().map(|(label, text)| format!("- {label}: {text}\n"));
    lines.collect::<String>() + "\n" + &table(report).markdown()
}

fn header(report: &Report) -> Vec<(&'static str, String)> {
    let machine = &report.machine;
    let mut lines = vec![(
        "machine",
        format!(
            "{}, {}; instruction set {}, kernels {}, basert {}",
            machine.cpu,
            count(machine.cpus as u64, "CPU"),
            report.isa,
            report.kernels,
            report.version
        ),
    )];
    lines.extend(report.models.iter().enumerate().map(|(index, m)| ("model", model(report, index, m))));
    lines.extend(report.settings.iter().map(|setting| ("loaded", loaded(report, setting))));
    lines.extend(report.settings.iter().filter_map(|setting| Some(("limits", limits(report, setting)?))));
    lines.extend(report.notes.iter().map(|note| ("note", note.clone())));
    lines.push(("memory", memory(report)));
    let (repetitions, warmups) = (count(report.repetitions as u64, "repetition"), report.warmups);
    let done = if report.complete { "" } else { "INCOMPLETE: ended before all " };
    lines.push((
        "runs",
        format!(
            "{done}{repetitions} in turns, after {}; median ± median absolute deviation",
            count(warmups as u64, "warm-up")
        ),
    ));
    lines
}

fn model(report: &Report, index: usize, model: &Model) -> String {
    let setting = report.settings.iter().find(|setting| setting.model == index);
    let weights = setting.and_then(|setting| setting.selected["weights"].as_array());
    let dtype = |total: &Value| {
        let name = total["dtype"].as_str().unwrap_or_default().to_owned();
        format!("{name} {}", bytes(total["bytes"].as_u64().unwrap_or(0)))
    };
    let dtypes: Vec<String> = weights.into_iter().flatten().map(dtype).collect();
    format!(
        "{}: {}, {:.1} M parameters, {:.2} bits per weight ({}); identity {}",
        model.name,
        bytes(model.file_bytes),
        model.parameters as f64 / 1e6,
        model.bits_per_weight,
        dtypes.join(", "),
        model.identity
    )
}

fn loaded(report: &Report, setting: &Loaded) -> String {
    let load = &setting.load_s;
    format!(
        "{}{}: in {:.1} ± {:.1} ms, context {}; {}",
        setting_in_words(report, setting),
        pinned(setting),
        1e3 * load.median,
        1e3 * load.mad,
        setting.selected["context"],
        cache_in_words(setting)
    )
}

/// Where the threads are bound to, if they are.
fn pinned(setting: &Loaded) -> String {
    let cpus = setting.selected["pinned"].as_array().filter(|cpus| !cpus.is_empty());
    let joined = |cpus: &Vec<Value>| cpus.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
    cpus.map(|cpus| format!(" pinned to CPU {}", joined(cpus))).unwrap_or_default()
}

/// The allocated cache.
fn cache_in_words(setting: &Loaded) -> String {
    let pages = setting.selected["kv_pages"].as_u64().unwrap_or(0);
    let state = match setting.state_bytes {
        0 => String::new(),
        n => format!(", state {} per sequence", bytes(n)),
    };
    format!(
        "{} of {} tokens, {} per token{state}",
        count(pages, "page"),
        setting.selected["page_tokens"],
        bytes(setting.kv_bytes_per_token)
    )
}

fn setting_in_words(report: &Report, setting: &Loaded) -> String {
    let name = report.models.get(setting.model).map_or("", |model| &model.name);
    let pages = match setting.page_tokens {
        0 => String::new(),
        tokens => format!(", pages of {tokens}"),
    };
    format!(
        "{name}, K {}, V {}{pages}, {}",
        setting.k_type,
        setting.v_type,
        count(setting.threads as u64, "thread")
    )
}

fn limits(report: &Report, setting: &Loaded) -> Option<String> {
    let found = setting.limits.as_ref()?;
    let giga = |spread: &Spread| format!("{:.1} G ({:.1})", spread.largest() / 1e9, spread.median / 1e9);
    Some(format!(
        "{}, best (median) per second: read {} bytes, multiply-add {} bytes or {} floats",
        setting_in_words(report, setting),
        giga(&found.read_bytes_per_s),
        giga(&found.byte_multiply_adds_per_s),
        giga(&found.float_multiply_adds_per_s),
    ))
}

fn memory(report: &Report) -> String {
    match report.peak_memory_bytes {
        None => "the system does not say".to_owned(),
        Some(peak) if report.peak_memory_is_of_one_setting => {
            format!("at most {}, pages of the model file included", bytes(peak))
        }
        Some(peak) => format!(
            "at most {}, everything that is loaded together: no model or setting has a peak of its own",
            bytes(peak)
        ),
    }
}

fn table(report: &Report) -> Table {
    let paged = report.settings.iter().any(|setting| setting.page_tokens > 0);
    let limited = report.rows.iter().any(|row| row.share_of_limit.is_some());
    let verified = report.rows.iter().any(|row| row.rows.is_some());
    let mut headings =
        vec!["model", "KV", "test", "threads", "tokens", "depth", "batch", "tokens/s", "first token"];
    headings.extend(verified.then_some(["rows", "step", "of one row"]).into_iter().flatten());
    headings.extend(paged.then_some("page"));
    headings.extend(limited.then_some("of limit"));
    let line = |row: &Row| {
        let setting = report.settings.get(row.setting)?;
        let mut cells = vec![
            report.models.get(setting.model)?.name.clone(),
            kv_name(&setting.k_type, &setting.v_type),
            row.test.clone(),
            setting.threads.to_string(),
            row.tokens.to_string(),
            row.depth.to_string(),
            row.sequences.to_string(),
            format!("{:.2} ± {:.2}", row.tokens_per_s.median, row.tokens_per_s.mad),
            row.first_token_s.as_ref().map_or("-".to_owned(), |time| format!("{:.1} ms", 1e3 * time.median)),
        ];
        cells.extend(verified.then(|| step(row)).into_iter().flatten());
        cells.extend(paged.then(|| setting.page_tokens.to_string()));
        cells.extend(limited.then(|| share(row)));
        Some(cells)
    };
    let headings = headings.into_iter().map(str::to_owned).collect();
    Table::of_lines([headings].into_iter().chain(report.rows.iter().filter_map(line)).collect(), 3)
}

/// Tokens that a step verifies, or guesses that are made for it; its time; and its cost against one of a single token.
fn step(row: &Row) -> [String; 3] {
    let none = || "-".to_owned();
    let time = |step: &Spread| format!("{:.2} ± {:.2} ms", 1e3 * step.median, 1e3 * step.mad);
    [
        row.rows.map_or_else(none, |rows| rows.to_string()),
        row.step_s.as_ref().map_or_else(none, time),
        row.step_cost.map_or_else(none, |cost| format!("{cost:.2}x")),
    ]
}

fn share(row: &Row) -> String {
    let limit = if row.test == "prefill" { "multiply" } else { "read" };
    row.share_of_limit.map_or("-".to_owned(), |share| format!("{:.1} % {limit}", 100.0 * share))
}
