//! `basert convert --synthetic`: random weights with the geometry of a published model.

use std::path::PathBuf;

use basert_convert::{Options, Synthetic, Target, synthesize};
use basert_format::Output;
use basert_model::catalog::Catalog;
use serde_json::json;

use super::{Bar, failed, guarded, show_written, usage};
use crate::args::ConvertArgs;
use crate::failure::{Failure, Outcome};
use crate::{output, place};

/// Runs the command for `geometry`.
pub fn run(geometry: &str, args: &ConvertArgs, options: &Options) -> Outcome {
    if geometry == usage::LIST {
        return list(args.json);
    }
    let mut model = Synthetic::from_catalog(geometry, args.layers)
        .map_err(|e| failed(&e).hint("basert convert --synthetic list shows the geometries"))?;
    if args.draft_layers {
        model = model.with_draft_layers(geometry).map_err(|e| failed(&e).hint("leave out --draft-layers"))?;
    }
    let target = if options.target == Target::AUTO { Target::BASE_Q4 } else { options.target };
    let output =
        args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}-{target}.base", model.name)));
    place::check(&output, args.force)?;
    place::check_folder(&output)?;
    let place = guarded(Output::new(&output).replace(args.force))?;
    let mut bar = Bar::new();
    let result = synthesize(&model, &place, options, &mut bar);
    bar.clear();
    let report = result.map_err(|e| failed(&e))?;
    show_written(json!(report), &report.to_string(), &output, args.json)
}

/// The usable geometries, and why each of the others is not.
fn list(as_json: bool) -> Outcome {
    let catalog = Catalog::load().map_err(|e| Failure::from_error(&e))?;
    let mut usable = Vec::new();
    let mut others = Vec::new();
    for geometry in catalog.iter() {
        match geometry.config() {
            Ok(settled) => usable.push((geometry, settled)),
            Err(why) => others.push((geometry.id(), why.to_string())),
        }
    }
    if as_json {
        let usable: Vec<_> = usable
            .iter()
            .map(|(geometry, settled)| {
                json!({
                    "id": geometry.id(), "arch": settled.arch.name(), "layers": settled.config.num_hidden_layers,
                    "verification": geometry.verification(), "assumptions": settled.assumptions,
                })
            })
            .collect();
        let others: Vec<_> = others.iter().map(|(id, why)| json!({"id": id, "why": why})).collect();
        return output::print_json(&json!({"usable": usable, "unusable": others}));
    }
    let mut text = String::new();
    for (geometry, settled) in usable {
        let (arch, layers) = (settled.arch.name(), settled.config.num_hidden_layers);
        text.push_str(&format!(
            "{:<24} {arch:<10} {layers:>3} layers  {}\n",
            geometry.id(),
            geometry.verification()
        ));
    }
    text.push_str("\nnot usable:\n");
    for (_, why) in others {
        text.push_str(&format!("  {why}\n"));
    }
    output::print(&text)
}
