//! What was measured, in lines for one model, as a table for several, and as JSON.

use std::path::Path;

use basert_engine::Selected;
use basert_measure::{
    Agreement, Choices, Divergence, Estimate, Footprint, Perplexity, Plan, Recall, ToolCalls,
};
use serde_json::{Value, json};

use crate::selected;
use crate::table::Table;
use crate::units::{bytes, rate, seconds};

/// Most faulty tool calls that are listed.
const FAULTS: usize = 5;

/// One model with one setting. What was not measured is absent.
pub struct Row {
    /// The file as it was named.
    pub model: String,
    /// Types of the KV cache, as `--kv-type` spells them.
    pub kv: String,
    pub footprint: Footprint,
    pub text: Option<TextResult>,
    pub own_reference: Option<Agreement>,
    pub recall: Option<Recall>,
    pub choices: Option<Choices>,
    pub tool_calls: Option<ToolCalls>,
    selected: Value,
}

/// What a text has shown.
pub struct TextResult {
    pub plan: Plan,
    pub perplexity: Perplexity,
    /// From the reference model, if there is one.
    pub divergence: Option<Divergence>,
}

impl Row {
    /// A model of which nothing has been measured yet.
    pub fn new(model: &Path, footprint: Footprint, selected: &Selected) -> Row {
        Row {
            model: model.display().to_string(),
            kv: selected.kv.to_string(),
            footprint,
            text: None,
            own_reference: None,
            recall: None,
            choices: None,
            tool_calls: None,
            selected: selected::to_json(selected),
        }
    }

    /// For scripts: the same keys for one model and for many.
    pub fn to_json(&self) -> Value {
        let mut object = match &self.text {
            Some(text) => text.to_json(),
            None => json!({}),
        };
        object["model"] = json!(self.model);
        object["footprint"] = json!(self.footprint);
        object["selected"] = self.selected.clone();
        let mut add = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                object[key] = value;
            }
        };
        add("own_reference", self.own_reference.as_ref().map(|found| json!(found)));
        add("recall", self.recall.as_ref().map(|found| json!(found)));
        add("choices", self.choices.as_ref().map(|found| json!(found)));
        add("tool_calls", self.tool_calls.as_ref().map(|found| json!(found)));
        object
    }

    fn in_lines(&self) -> String {
        let mut lines = self.text.as_ref().map(TextResult::in_lines).unwrap_or_default();
        if let Some(found) = &self.own_reference {
            lines.push(format!(
                "own reference: KL divergence {} nats per token, same likeliest token at {:.0} % of {} positions",
                scientific(&found.kl),
                100.0 * found.top1_agreement,
                found.positions,
            ));
        }
        if let Some(recall) = &self.recall {
            lines.push(format!("recall {} of {} questions", percent(&recall.share), recall.asked));
            lines.extend(grid(recall));
        }
        if let Some(choices) = &self.choices {
            lines.push(format!(
                "choices {} of {} questions, {} by log-likelihood per byte",
                percent(&choices.accuracy),
                choices.asked,
                percent(&choices.accuracy_per_byte),
            ));
        }
        if let Some(found) = &self.tool_calls {
            let exact =
                found.exact.map(|exact| format!(", {} as expected", percent(&exact))).unwrap_or_default();
            lines.push(format!(
                "tool calls {} valid of {} requests{exact}",
                percent(&found.valid),
                found.asked
            ));
            let faults = found.problems.iter().take(FAULTS);
            lines.extend(faults.map(|fault| format!("  request {}: {}", fault.task, fault.problem)));
            if let Some(more) = found.problems.len().checked_sub(FAULTS).filter(|more| *more > 0) {
                lines.push(format!("  and {more} more; --json has them all"));
            }
        }
        lines.concat_lines()
    }
}

impl TextResult {
    fn in_lines(&self) -> Vec<String> {
        match &self.divergence {
            None => vec![perplexity_line(&self.perplexity, &self.plan)],
            Some(found) => vec![
                format!("model:      {}", perplexity_line(&found.candidate, &self.plan)),
                format!("reference:  {}", perplexity_line(&found.reference, &self.plan)),
                format!(
                    "KL divergence {} nats per token (largest {:.3e}), same likeliest token at {:.2} % of {} positions",
                    scientific(&found.kl),
                    found.max_kl,
                    100.0 * found.top1_agreement,
                    found.positions,
                ),
            ],
        }
    }

    fn to_json(&self) -> Value {
        let mut object = perplexity_json(&self.perplexity);
        object["window"] = json!(self.plan.window);
        object["stride"] = json!(self.plan.stride);
        if let Some(found) = &self.divergence {
            object["against"] = json!({
                "positions": found.positions,
                "kl": found.kl.mean,
                "kl_standard_error": found.kl.standard_error,
                "kl_max": found.max_kl,
                "top1_agreement": found.top1_agreement,
                "reference": perplexity_json(&found.reference),
            });
        }
        object
    }
}

/// What a person reads.
pub fn in_words(rows: &[Row]) -> String {
    match rows {
        [row] => row.in_lines(),
        rows => table(rows),
    }
}

/// A column of the table: its heading, and what it says of a row.
struct Column {
    heading: &'static str,
    cell: fn(&Row) -> Option<String>,
}

const COLUMNS: [Column; 12] = [
    Column { heading: "model", cell: |row| Some(row.model.clone()) },
    Column { heading: "KV", cell: |row| Some(row.kv.clone()) },
    Column { heading: "weights", cell: |row| Some(bytes(row.footprint.weight_bytes)) },
    Column { heading: "bits/weight", cell: |row| Some(format!("{:.2}", row.footprint.bits_per_weight)) },
    Column { heading: "KV bytes/token", cell: |row| Some(row.footprint.kv_bytes_per_token.to_string()) },
    Column {
        heading: "perplexity",
        cell: |row| {
            let Estimate { mean, standard_error } = row.text.as_ref()?.perplexity.perplexity;
            Some(format!("{mean:.3} ± {standard_error:.3}"))
        },
    },
    Column { heading: "KL", cell: |row| Some(scientific(&row.text.as_ref()?.divergence.as_ref()?.kl)) },
    Column {
        heading: "same top-1",
        cell: |row| Some(format!("{:.2} %", 100.0 * row.text.as_ref()?.divergence.as_ref()?.top1_agreement)),
    },
    Column { heading: "KL to own reference", cell: |row| Some(scientific(&row.own_reference.as_ref()?.kl)) },
    Column { heading: "recall", cell: |row| Some(percent(&row.recall.as_ref()?.share)) },
    Column { heading: "choices", cell: |row| Some(percent(&row.choices.as_ref()?.accuracy)) },
    Column { heading: "tool calls", cell: |row| Some(percent(&row.tool_calls.as_ref()?.valid)) },
];

/// A line for each row, and a column for each measure that was taken. Numbers stand at the right of their column.
fn table(rows: &[Row]) -> String {
    let columns = COLUMNS.iter().filter_map(|column| {
        let cells: Vec<Option<String>> = rows.iter().map(column.cell).collect();
        let is_measured = cells.iter().any(Option::is_some);
        let text = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        is_measured
            .then(|| [column.heading.to_owned()].into_iter().chain(cells.into_iter().map(text)).collect())
    });
    Table::of_columns(columns.collect(), 2).aligned()
}

/// Found and asked by length (down) and depth (across).
fn grid(recall: &Recall) -> Vec<String> {
    let Some(first) = recall.cells.first() else { return Vec::new() };
    let depths = recall.cells.iter().take_while(|cell| cell.length == first.length);
    let heading: String =
        depths.clone().map(|cell| format!("{:>8}", format!("{:.0} %", 100.0 * cell.depth))).collect();
    let mut lines = vec![format!("  tokens{heading}   (depth of the key)")];
    for row in recall.cells.chunks(depths.count()) {
        let cells: String =
            row.iter().map(|cell| format!("{:>8}", format!("{}/{}", cell.found, cell.asked))).collect();
        lines.push(format!("{:>8}{cells}", row.first().map_or(0, |cell| cell.length)));
    }
    lines
}

trait Lines {
    fn concat_lines(self) -> String;
}

impl Lines for Vec<String> {
    fn concat_lines(self) -> String {
        self.into_iter().map(|line| line + "\n").collect()
    }
}

fn perplexity_line(p: &Perplexity, plan: &Plan) -> String {
    let Estimate { mean, standard_error } = p.perplexity;
    let windows = if p.tokens > plan.window && plan.stride < plan.window {
        format!(" in windows of {} every {}", plan.window, plan.stride)
    } else if p.tokens > plan.window {
        format!(" in {} windows of {}", p.tokens.div_ceil(plan.window), plan.window)
    } else {
        String::new()
    };
    format!(
        "perplexity {mean:.4} ± {standard_error:.4} over {} tokens{windows}, {} ({:.1} tokens/s)",
        p.scored,
        seconds(p.elapsed),
        rate(p.tokens, p.elapsed),
    )
}

fn scientific(e: &Estimate) -> String {
    format!("{:.3e} ± {:.1e}", e.mean, e.standard_error)
}

fn percent(e: &Estimate) -> String {
    format!("{:.1} % ± {:.1}", 100.0 * e.mean, 100.0 * e.standard_error)
}

fn perplexity_json(p: &Perplexity) -> Value {
    json!({
        "tokens": p.tokens,
        "scored": p.scored,
        "perplexity": p.perplexity.mean,
        "perplexity_standard_error": p.perplexity.standard_error,
        "nll": p.nll.mean,
        "nll_standard_error": p.nll.standard_error,
        "seconds": p.elapsed.as_secs_f64(),
        "tokens_per_s": rate(p.tokens, p.elapsed),
    })
}
