//! The caches of all geometries, as a table.

use basert_model::catalog::{Catalog, Geometry};
use basert_model::footprint::{Footprint, State};
use serde_json::{Value, json};

use super::args::Column;
use super::subject::kind;
use super::{PlanArgs, USUAL_CONTEXT, format};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::table::Table;
use crate::units::bytes;

/// A geometry's line.
struct Line<'a> {
    geometry: Geometry<'a>,
    footprint: Footprint,
    per_token: u64,
    cache: u64,
    runs: bool,
}

/// Prints the table.
pub fn run(args: &PlanArgs) -> Outcome {
    let catalog = Catalog::load().map_err(|e| Failure::from_error(&e))?;
    let context = args.max_context.unwrap_or(USUAL_CONTEXT) as u64;
    let kv = args.kv.types();
    let (k, v) = (format(kv.k).size, format(kv.v).size);
    let mut lines = Vec::new();
    let mut left_out = Vec::new();
    for geometry in catalog.iter().filter(|geometry| is_wanted(*geometry, &args.filter)) {
        let footprint = geometry.footprint().map_err(|e| Failure::from_error(&e))?;
        // A latent row has one type.
        if footprint.is_latent() && kv.k != kv.v {
            left_out.push(geometry.id());
            continue;
        }
        let (per_token, cache) = (footprint.bytes_per_token(k, v), footprint.kv_bytes(context, k, v));
        let runs = geometry.config().is_ok();
        lines.push(Line { geometry, footprint, per_token, cache, runs });
    }
    if !left_out.is_empty() {
        let models = left_out.join(", ");
        output::note(&format!("left out, because a latent row has one type for keys and values: {models}"));
    }
    if lines.is_empty() {
        return Err(
            Failure::new("no geometry has all of these texts").hint("basert plan --catalog lists all")
        );
    }
    sort(&mut lines, args.sort);
    if args.json {
        let models: Vec<Value> = lines.iter().map(|line| line.json(context)).collect();
        let types =
            json!({"k_type": kv.k.name(), "v_type": kv.v.name(), "context": context, "models": models});
        return output::print_json(&types);
    }
    let heading = ["id", "family", "layers", "runs", "src", "B/token", "x", "state", "cache"];
    let mut cells = vec![heading.map(str::to_owned).to_vec()];
    cells.extend(lines.iter().map(Line::cells));
    output::print(&Table::of_lines(cells, 5).aligned())?;
    output::print(&format!(
        "\ncache: K {}, V {} at {context} tokens; x: reduction against full attention; src: A published configuration, B retyped or \
         two accounts, C one account, D a report\n",
        kv.k, kv.v
    ))
}

fn is_wanted(geometry: Geometry<'_>, filters: &[String]) -> bool {
    let grade = format!("grade:{}", geometry.grade().letter());
    let words = [geometry.id(), geometry.family(), &kind(geometry), mechanism(geometry), &grade].join(" ");
    let words = words.to_lowercase();
    filters.iter().all(|filter| words.contains(&filter.to_lowercase()))
}

/// One word for what makes the cache small, to filter by.
fn mechanism(geometry: Geometry<'_>) -> &'static str {
    match geometry.footprint() {
        Ok(Footprint { state: State::Unverified | State::Known { .. }, .. }) => "hybrid",
        Ok(Footprint { window: Some(_), .. }) => "sliding",
        Ok(footprint) if footprint.is_latent() => "latent",
        _ => "full",
    }
}

fn sort(lines: &mut [Line<'_>], column: Option<Column>) {
    match column {
        None => {}
        Some(Column::Id) => lines.sort_by_key(|line| line.geometry.id()),
        Some(Column::Token) => lines.sort_by_key(|line| line.per_token),
        Some(Column::Cache) => lines.sort_by_key(|line| line.cache),
        Some(Column::State) => lines.sort_by_key(|line| line.footprint.state.bytes()),
        Some(Column::Reduction) => {
            lines.sort_by(|a, b| b.footprint.reduction().total_cmp(&a.footprint.reduction()));
        }
        Some(Column::Grade) => lines.sort_by_key(|line| line.geometry.grade()),
    }
}

impl Line<'_> {
    fn cells(&self) -> Vec<String> {
        let beyond = |text: String, yes: bool| if yes { format!("{text}*") } else { text };
        let state = match self.footprint.state {
            State::None => "-".to_owned(),
            State::Unverified => "not verified".to_owned(),
            State::Known { conv, .. } => {
                beyond(bytes(self.footprint.state.bytes().unwrap_or(0)), conv.is_none())
            }
        };
        vec![
            self.geometry.id().to_owned(),
            self.geometry.family().to_owned(),
            kind(self.geometry),
            if self.runs { "yes" } else { "" }.to_owned(),
            self.geometry.grade().letter().to_owned(),
            self.per_token.to_string(),
            format!("{:.2}", self.footprint.reduction()),
            state,
            bytes(self.cache),
        ]
    }

    fn json(&self, context: u64) -> Value {
        let limit = self.geometry.max_context();
        json!({
            "id": self.geometry.id(),
            "name": self.geometry.published_name(),
            "family": self.geometry.family(),
            "layers": kind(self.geometry),
            "runnable": self.runs,
            "kv_bytes_per_token": self.per_token,
            "kv_bytes": self.cache,
            "reduction": self.footprint.reduction(),
            "state_bytes_per_sequence": self.footprint.state.bytes(),
            "max_context": limit,
            "beyond_max_context": limit.map(|limit| context > limit),
            "grade": self.geometry.grade().letter(),
            "verification": self.geometry.verification(),
            "sources": self.geometry.sources(),
        })
    }
}
