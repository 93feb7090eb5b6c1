//! A plan as lines and as JSON.

use basert_model::record::basis;
use serde_json::{Value, json};

use super::{Answer, PlanArgs, format, weights};
use crate::failure::Outcome;
use crate::plan::subject::Model;
use crate::units::{bytes, count};
use crate::{output, selected};

/// Prints a plan.
pub fn show(model: &Model, answer: &Answer, budget: Option<u64>, args: &PlanArgs) -> Outcome {
    if args.json {
        output::print_json(&to_json(model, answer, budget))
    } else {
        lines(model, answer, budget, args)
    }
}

/// Whether everything that is computed fits; `None` where no memory is known.
fn fits(answer: &Answer, budget: Option<u64>) -> Option<bool> {
    budget.map(|budget| answer.plan.total() <= budget)
}

fn lines(model: &Model, answer: &Answer, budget: Option<u64>, args: &PlanArgs) -> Outcome {
    let Answer { options, context, plan, found, shrunk } = answer;
    let kv = options.kv;
    let mut text = String::new();
    let mut line = |label: &str, words: &str| text.push_str(&format!("{label:<18} {words}\n"));
    line("model", &format!("{}: {}", model.subject.id, model.kind));
    let sequences = count(options.sequences as u64, "sequence");
    line("context", &format!("{context} tokens, {sequences}, K {}, V {}", kv.k, kv.v));
    if let Some(found) = found {
        line("", found);
    }
    for (label, part) in plan.parts() {
        let remark = match (label, weights(model)) {
            ("weights (mapped)", Some((_, stored))) => format!("  {stored}"),
            _ => String::new(),
        };
        if part > 0 {
            line(label, &format!("{:>10}{remark}", bytes(part)));
        }
    }
    line("total", &format!("{:>10}  ({} bytes)", bytes(plan.total()), plan.total()));
    let (k, v) = (format(kv.k), format(kv.v));
    line("KV per token", &format!("{} bytes", model.footprint.bytes_per_token(k.size, v.size)));
    line("", &basis(&model.footprint, k, v));
    let full = model.footprint.full_stack_bytes_per_token(k.size, v.size);
    line(
        "full attention",
        &format!("{full} bytes per token, {:.2} times as many", model.footprint.reduction()),
    );
    if let Some(budget) = budget {
        let place = if args.fit.is_some() { "asked for" } else { "free here" };
        let verdict = if fits(answer, Some(budget)) == Some(true) { "fits" } else { "does not fit" };
        line("memory", &format!("{verdict}: {} {place}", bytes(budget)));
    }
    line("geometry", &model.subject.verification);
    for note in model.notes.iter().chain(shrunk) {
        line("note", note);
    }
    output::print(&text)
}

fn to_json(model: &Model, answer: &Answer, budget: Option<u64>) -> Value {
    let Answer { options, context, plan, found, shrunk } = answer;
    let kv = options.kv;
    let (k, v) = (format(kv.k), format(kv.v));
    json!({
        "model": model.subject.id,
        "name": model.subject.name,
        "layers": model.kind,
        "context": context,
        "parallel": options.sequences,
        "k_type": kv.k.to_string(),
        "v_type": kv.v.to_string(),
        "found": found,
        "memory": selected::memory_json(plan),
        "runnable": model.runnable.is_some(),
        "weights": weights(model).map(|(_, stored)| stored),
        "kv_bytes_per_token": model.footprint.bytes_per_token(k.size, v.size),
        "kv_bytes_basis": basis(&model.footprint, k, v),
        "full_stack_bytes_per_token": model.footprint.full_stack_bytes_per_token(k.size, v.size),
        "reduction": model.footprint.reduction(),
        "state_bytes_per_sequence": model.footprint.state.bytes(),
        "budget_bytes": budget,
        "fits": fits(answer, budget),
        "geometry": {"verification": model.subject.verification, "sources": model.subject.sources},
        "notes": model.notes.iter().chain(shrunk).collect::<Vec<_>>(),
    })
}
