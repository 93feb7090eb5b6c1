//! The results as Markdown.

use basert_measure::bench::{Machine, Spread};

use crate::contest::Outcome;
use crate::peer;

/// The machine, both programs and how they were measured.
pub fn header(isa: &str) -> String {
    let Machine { cpu, cpus } = Machine::this();
    format!(
        "# BaseRT and llama.cpp\n\n\
         Made by `cargo run --release` in this folder; [README](README.md) says how to read it.\n\n\
         - Machine: {cpu}, {cpus} CPUs. BaseRT runs its {isa} kernels.\n\
         - llama.cpp: {}, built for this processor: {}\n",
        peer::CRATE,
        peer::system_info(),
    )
}

/// Heading of a geometry's table.
pub fn table(geometry: &str) -> String {
    format!(
        "\n## {geometry}\n\n\
         | work | KV | threads | BaseRT | llama.cpp | ratio | its best setting | share of limit | llama.cpp's |\n\
         |---|---|---|---|---|---|---|---|---|"
    )
}

/// A line of it.
pub fn row(outcome: &Outcome) -> String {
    let Outcome { terms, ours, peer, ratio, peer_type, peer_setting, .. } = outcome;
    format!(
        "| {} | {} | {} | {} | {} | **{:.2}** ± {:.2} | {}, {} | {} | {} |",
        terms.work.name(),
        terms.cache.name(),
        terms.threads,
        rate(ours),
        rate(peer),
        ratio.median,
        ratio.margin(),
        peer_type.name(),
        peer_setting.name(),
        share(outcome.ours_share),
        share(outcome.peer_share),
    )
}

fn rate(rate: &Spread) -> String {
    format!("{:.1} ± {:.1}", rate.median, rate.margin())
}

fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", 100.0 * share))
}
