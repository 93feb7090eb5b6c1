//! BaseRT and llama.cpp on the same geometries, the same threads, in turns.
//!
//! See README.md.

mod contest;
mod files;
mod ours;
mod peer;
mod report;
mod runner;

use std::path::PathBuf;

use anyhow::{Context, Result};
use basert_kernels::Isa;
use clap::Parser;

use contest::{Cache, Terms};
use files::{Files, Geometry};
use runner::Work;

/// Compares BaseRT with llama.cpp and prints the results as Markdown.
///
/// Files of random weights are made once and kept, three for each geometry: 3.2 GB for qwen3.5-2b.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Geometries: any of qwen3.5-0.8b, qwen3.5-2b, qwen3.5-4b, qwen3.5-35b-a3b (four layers), qwen3-0.6b
    #[arg(long, value_delimiter = ',', value_name = "ID")]
    models: Option<Vec<String>>,

    /// Tokens of prompts
    #[arg(long, value_delimiter = ',', default_values_t = [128, 512, 2048])]
    prefill: Vec<usize>,

    /// Tokens in the cache before decoding; narrow KV types are measured from 4096 on
    #[arg(long, value_delimiter = ',', default_values_t = [0, 4096, 16384])]
    depth: Vec<usize>,

    /// Sequences of a batched decode, beside one
    #[arg(long, default_value_t = 8)]
    batch: usize,

    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,

    /// Rounds that count
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Where the files are made
    #[arg(long, default_value = "../target/benchmarks", value_name = "FOLDER")]
    folder: PathBuf,
}

/// All that is measured by default. The mixture of experts is cut to fit memory.
const GEOMETRIES: [Geometry; 5] = [
    Geometry { id: "qwen3-0.6b", layers: None },
    Geometry { id: "qwen3.5-0.8b", layers: None },
    Geometry { id: "qwen3.5-2b", layers: None },
    Geometry { id: "qwen3.5-4b", layers: None },
    Geometry { id: "qwen3.5-35b-a3b", layers: Some(4) },
];

const NARROW: [Cache; 3] = [Cache::Q8, Cache::Q84, Cache::Q4];
/// Where the cache begins to weigh.
const DEEP: usize = 4096;

fn main() -> Result<()> {
    let args = Args::parse();
    let geometries = chosen(&args)?;
    std::fs::create_dir_all(&args.folder)
        .with_context(|| format!("making the folder {}", args.folder.display()))?;
    peer::start();
    print!("{}", report::header(Isa::from_env()?.unwrap_or_else(Isa::best).name()));
    for geometry in geometries {
        let files = Files::prepare(geometry, &args.folder)?;
        println!("{}", report::table(&geometry.name()));
        for terms in all_terms(&args) {
            println!("{}", report::row(&contest::run(&files, terms)?));
        }
    }
    Ok(())
}

fn chosen(args: &Args) -> Result<Vec<Geometry>> {
    let Some(ids) = &args.models else {
        return Ok(GEOMETRIES.to_vec());
    };
    let find = |id: &String| {
        let known = GEOMETRIES.map(|geometry| geometry.id).join(", ");
        let found = GEOMETRIES.into_iter().find(|geometry| geometry.id == id);
        found.with_context(|| format!("no geometry `{id}` here; there are {known}"))
    };
    ids.iter().map(find).collect()
}

fn all_terms(args: &Args) -> Vec<Terms> {
    let mut all = Vec::new();
    for &threads in &args.threads {
        let terms = |work, cache| Terms { work, cache, threads, rounds: args.rounds };
        all.extend(args.prefill.iter().map(|&tokens| terms(Work::Prefill { tokens }, Cache::F16)));
        for &depth in &args.depth {
            let work = Work::Decode { depth, sequences: 1 };
            all.push(terms(work, Cache::F16));
            if depth >= DEEP {
                all.extend(NARROW.map(|cache| terms(work, cache)));
            }
        }
        if args.batch > 1 {
            all.push(terms(Work::Decode { depth: 0, sequences: args.batch }, Cache::F16));
        }
    }
    all
}
