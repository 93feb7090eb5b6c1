//! What a cache takes and costs on this machine, for its record.

use std::path::Path;

use basert_engine::{Engine, Options};
use basert_measure::bench::{FullCache, Machine};
use basert_model::record::Measured;

use crate::failure::{Failure, Outcome};
use crate::locate::locate;
use crate::{bundle, options, output, selected};

/// Loads the model, fills its cache to `context` tokens, and times it.
///
/// # Errors
/// A model without weights, and a cache that does not fit.
pub fn run(name: &Path, asked: &Options, context: u64) -> Outcome<Measured> {
    let path = locate(name).ok().filter(|path| path.is_file());
    let file = path.as_deref().map(bundle::open).transpose()?.ok_or_else(|| {
        let failure = Failure::new("--measure needs the weights of a .base file");
        failure.hint("basert convert --synthetic GEOMETRY makes one, with random weights")
    })?;
    let context = usize::try_from(context).unwrap_or(usize::MAX);
    let Options { threads, kv, .. } = *asked;
    let options = Options { isa: options::isa()?, threads, kv, context: Some(context), ..Options::default() };
    let mut engine = Engine::load(file, &options).map_err(|e| {
        Failure::from_error(&e).hint("measure a shorter context with --max-context, or a narrower cache")
    })?;
    selected::show(&engine, false);
    output::aside("filling the cache");
    let full = FullCache::measure(&mut engine).map_err(|e| Failure::from_error(&e))?;
    let (machine, chosen) = (Machine::this(), engine.selected());
    Ok(Measured {
        memory_bytes: full.memory_bytes,
        decode_tok_s: full.decode_tokens_per_s,
        allocated: [full.types.k.name(), full.types.v.name()],
        machine: format!("{}, {} threads, {}", machine.cpu, chosen.threads, chosen.isa),
    })
}
