//! A result for spreadsheets: one line for each row, with everything that tells it from the rows of other results.

use super::report::{Loaded, Model, Report, Row};
use crate::table::Table;

/// A column's heading, and what it says.
type Column = (&'static str, fn(&Report, &Model, &Loaded, &Row) -> String);

const COLUMNS: [Column; 29] = [
    ("model", |_, model, _, _| model.name.clone()),
    ("file_bytes", |_, model, _, _| model.file_bytes.to_string()),
    ("identity", |_, model, _, _| model.identity.clone()),
    ("parameters", |_, model, _, _| model.parameters.to_string()),
    ("bits_per_weight", |_, model, _, _| model.bits_per_weight.to_string()),
    ("cpu", |report, _, _, _| report.machine.cpu.clone()),
    ("cpus", |report, _, _, _| report.machine.cpus.to_string()),
    ("isa", |report, _, _, _| report.isa.clone()),
    ("kernels", |report, _, _, _| report.kernels.clone()),
    ("version", |report, _, _, _| report.version.clone()),
    ("threads", |_, _, setting, _| setting.threads.to_string()),
    ("k_type", |_, _, setting, _| setting.k_type.clone()),
    ("v_type", |_, _, setting, _| setting.v_type.clone()),
    ("page_tokens", |_, _, setting, _| setting.page_tokens.to_string()),
    ("test", |_, _, _, row| row.test.clone()),
    ("tokens", |_, _, _, row| row.tokens.to_string()),
    ("depth", |_, _, _, row| row.depth.to_string()),
    ("sequences", |_, _, _, row| row.sequences.to_string()),
    ("rows", |_, _, _, row| row.rows.map_or_else(String::new, |rows| rows.to_string())),
    ("repetitions", |_, _, _, row| row.tokens_per_s.samples.len().to_string()),
    ("tokens_per_s", |_, _, _, row| row.tokens_per_s.median.to_string()),
    ("tokens_per_s_mad", |_, _, _, row| row.tokens_per_s.mad.to_string()),
    ("first_token_s", |_, _, _, row| optional(row.first_token_s.as_ref().map(|time| time.median))),
    ("step_s", |_, _, _, row| optional(row.step_s.as_ref().map(|time| time.median))),
    ("step_cost", |_, _, _, row| optional(row.step_cost)),
    ("load_s", |_, _, setting, _| setting.load_s.median.to_string()),
    ("bytes_per_token", |_, _, _, row| optional(row.bytes_per_token)),
    ("share_of_limit", |_, _, _, row| optional(row.share_of_limit)),
    ("complete", |report, _, _, _| report.complete.to_string()),
];

/// Headings, then rows.
pub fn csv(report: &Report) -> String {
    let line = |row: &Row| {
        let setting = report.settings.get(row.setting)?;
        let model = report.models.get(setting.model)?;
        Some(COLUMNS.iter().map(|(_, cell)| cell(report, model, setting, row)).collect())
    };
    let headings = COLUMNS.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    Table::of_lines([headings].into_iter().chain(report.rows.iter().filter_map(line)).collect(), 0).csv()
}

/// What is not known is an empty cell.
fn optional(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
