//! A result: what was measured, on what, and everything needed to judge it later. What `--json` prints and `--compare`
//! reads.

use basert_engine::Engine;
use basert_format::BaseFile;
use basert_kernels::ARITHMETIC;
use basert_measure::Footprint;
use basert_measure::bench::{
    Case, Limits, Machine, Measured, Protocol, Results, Roof, Spread, Subject, Test, Work, identity,
    peak_memory,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::grid::Setting;
use crate::failure::{Failure, Outcome};
use crate::selected;

/// Version of the layout of [`Report`].
pub const LAYOUT: u32 = 1;

/// A whole result.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`LAYOUT`].
    pub basert_bench: u32,
    /// Whether all repetitions were done.
    pub complete: bool,
    pub version: String,
    /// Version of the kernels' arithmetic.
    pub kernels: String,
    pub isa: String,
    pub machine: Machine,
    pub repetitions: usize,
    pub warmups: usize,
    /// Of the process, from its start to the end of the measurements.
    pub peak_memory_bytes: Option<u64>,
    /// Whether one model with one setting was loaded, so that the peak is its own.
    pub peak_memory_is_of_one_setting: bool,
    /// What a reader should know, each once.
    pub notes: Vec<String>,
    pub models: Vec<Model>,
    pub settings: Vec<Loaded>,
    pub rows: Vec<Row>,
}

/// A model file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Model {
    /// As it was named.
    pub name: String,
    pub file: String,
    pub file_bytes: u64,
    /// See [`identity`].
    pub identity: String,
    pub parameters: u64,
    pub weight_bytes: u64,
    pub bits_per_weight: f64,
}

/// A model as it was loaded.
#[derive(Debug, Serialize, Deserialize)]
pub struct Loaded {
    /// Position in [`Report::models`].
    pub model: usize,
    pub threads: usize,
    pub k_type: String,
    pub v_type: String,
    /// As asked for; 0 is one page for the whole context.
    pub page_tokens: usize,
    pub step_tokens: usize,
    pub kv_bytes_per_token: u64,
    pub state_bytes: u64,
    /// What the engine says of itself.
    pub selected: Value,
    /// From the file's name to a model that can take a step, without the tokenizer.
    pub load_s: Spread,
    /// Only with `--roofline`.
    pub limits: Option<MeasuredLimits>,
}

/// What the machine can do at most with the setting's threads and instruction set.
#[derive(Debug, Serialize, Deserialize)]
pub struct MeasuredLimits {
    pub read_bytes_per_s: Spread,
    pub byte_multiply_adds_per_s: Spread,
    pub float_multiply_adds_per_s: Spread,
}

/// One case with one setting.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// Position in [`Report::settings`].
    pub setting: usize,
    /// `prefill`, `decode`, `verify`, or `draft`: the prediction head's guesses for the row before.
    pub test: String,
    /// Of the prompt, or of each sequence's answer.
    pub tokens: usize,
    pub depth: usize,
    pub sequences: usize,
    /// Of a verification: tokens in a step. Of drafting: guesses for one.
    pub rows: Option<usize>,
    /// Of all sequences together; of drafting guesses, right or wrong.
    pub tokens_per_s: Spread,
    /// Of verification and drafting: the time for one step.
    pub step_s: Option<Spread>,
    /// The same as a multiple of the time in which a step verifies one token: the median of the repetitions' ratios.
    pub step_cost: Option<f64>,
    /// Of a prompt.
    pub first_token_s: Option<Spread>,
    /// Of decoding: bytes that it has to move, where they are known.
    pub bytes_per_token: Option<f64>,
    /// Of a prompt: multiply-adds that it has to do, where they are known.
    pub byte_multiply_adds: Option<f64>,
    pub float_multiply_adds: Option<f64>,
    /// Speed as a share of its limit, with `--roofline`: decoding of reading, prefill of multiplying.
    pub share_of_limit: Option<f64>,
}

/// What a report is made of.
pub struct Parts<'a> {
    /// As they were named.
    pub names: Vec<String>,
    pub files: &'a [BaseFile],
    pub settings: &'a [Setting],
    pub protocol: Protocol,
    pub subjects: &'a [Subject],
    /// Load times of each subject.
    pub load_seconds: Vec<Vec<f64>>,
    pub results: Results,
}

impl Report {
    /// Puts everything together.
    ///
    /// # Errors
    /// A clock that stood still.
    pub fn new(parts: Parts<'_>) -> Outcome<Report> {
        let Parts { names, files, settings, protocol, subjects, load_seconds, results } = parts;
        let of_model = |index: usize| {
            let position = settings.iter().position(|setting| setting.model == index);
            position.map(|position| &subjects[position].engine)
        };
        let models = names.into_iter().zip(files).enumerate();
        let models = models.filter_map(|(index, (name, file))| Some(model(name, file, of_model(index)?)));
        let loads = settings.iter().zip(subjects).zip(load_seconds);
        let works: Vec<Option<Work>> = subjects.iter().map(|subject| Work::of(&subject.engine)).collect();
        let limits: Vec<Option<Limits>> =
            subjects.iter().map(|subject| subject.roof.as_ref().and_then(Roof::limits)).collect();
        let isa = subjects.first().map(|subject| subject.engine.selected().isa.to_string());
        Ok(Report {
            basert_bench: LAYOUT,
            complete: results.complete,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernels: ARITHMETIC.to_owned(),
            isa: isa.unwrap_or_default(),
            machine: Machine::this(),
            repetitions: protocol.repetitions,
            warmups: protocol.warmups,
            peak_memory_bytes: peak_memory(),
            peak_memory_is_of_one_setting: settings.len() == 1,
            notes: notes(subjects),
            models: models.collect::<Outcome<_>>()?,
            settings: loads
                .zip(&limits)
                .map(|(((setting, subject), seconds), limits)| {
                    loaded(setting, &subject.engine, seconds, limits)
                })
                .collect::<Outcome<_>>()?,
            rows: rows(&results.measured, &works, &limits),
        })
    }
}

/// What engines remark on their load, and what a benchmark adds.
fn notes(subjects: &[Subject]) -> Vec<String> {
    let mut notes = Vec::new();
    for Subject { engine, roof } in subjects {
        let selected = engine.selected();
        notes.extend(selected.notes.iter().cloned());
        if let Some(max) = engine.spec().max_context.filter(|&max| max < selected.context) {
            notes.push(format!(
                "the context of {} is beyond the {max} that the model was made for",
                selected.context
            ));
        }
        if roof.is_some() && Work::of(engine).is_none() {
            let shares = "there are no shares of limits: some matrices were decoded to f32 at load";
            notes.push(shares.to_owned());
        }
    }
    let mut seen = std::collections::HashSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    notes
}

fn model(name: String, file: &BaseFile, engine: &Engine) -> Outcome<Model> {
    let path = file.path();
    let meta = path.metadata().map_err(|e| Failure::new(format!("cannot read {}: {e}", path.display())))?;
    let footprint = Footprint::of(engine);
    Ok(Model {
        name,
        file: path.display().to_string(),
        file_bytes: meta.len(),
        identity: identity(file).map_err(|e| Failure::from_error(&e))?,
        parameters: footprint.parameters,
        weight_bytes: footprint.weight_bytes,
        bits_per_weight: footprint.bits_per_weight,
    })
}

fn loaded(setting: &Setting, engine: &Engine, seconds: Vec<f64>, limits: &Option<Limits>) -> Outcome<Loaded> {
    let chosen = engine.selected();
    Ok(Loaded {
        model: setting.model,
        threads: chosen.threads,
        k_type: chosen.kv.k.to_string(),
        v_type: chosen.kv.v.to_string(),
        page_tokens: setting.page_tokens,
        step_tokens: engine.step_tokens(),
        kv_bytes_per_token: chosen.pools.bytes_per_token,
        state_bytes: chosen.state_bytes,
        selected: selected::to_json(chosen),
        load_s: Spread::of(seconds).ok_or_else(|| Failure::new("the clock stood still during a load"))?,
        limits: limits.as_ref().map(|limits| MeasuredLimits {
            read_bytes_per_s: limits.read.clone(),
            byte_multiply_adds_per_s: limits.bytes.clone(),
            float_multiply_adds_per_s: limits.floats.clone(),
        }),
    })
}

/// The rows of all cases, those of which no repetition was finished left out.
fn rows(measured: &[Measured], works: &[Option<Work>], limits: &[Option<Limits>]) -> Vec<Row> {
    let of = |one: &Measured| {
        let (work, limits) = (works[one.subject].as_ref(), limits[one.subject].as_ref());
        let row = row(one, work, limits);
        let Test::Verify { tokens, rows } = one.case.test else { return [row, None] };
        let single = Case { test: Test::Verify { tokens, rows: 1 }, ..one.case };
        let single = measured.iter().find(|other| other.subject == one.subject && other.case == single);
        let single = single.and_then(|single| step(single, &single.seconds));
        let verified = row.map(|row| stepped(row, one, &one.seconds, rows, single.as_ref()));
        [verified, draft(one, single.as_ref())]
    };
    measured.iter().flat_map(of).flatten().collect()
}

/// A row; `None` where no repetition was finished.
fn row(measured: &Measured, work: Option<&Work>, limits: Option<&Limits>) -> Option<Row> {
    let Measured { case, subject, seconds, first_token, .. } = measured;
    let total = case.timed_tokens() as f64;
    let tokens_per_s = Spread::of(seconds.iter().map(|seconds| total / seconds).collect())?;
    let (test, tokens) = (case.test, case.test.tokens());
    let products = work.filter(|_| matches!(test, Test::Prefill { .. }));
    let products = products.map(|work| work.multiply_adds(case));
    let bytes = work.filter(|_| matches!(test, Test::Decode { .. }));
    let share = |(limits, work): (&Limits, &Work)| limits.share(case, work, tokens_per_s.median);
    Some(Row {
        setting: *subject,
        test: test.name().to_owned(),
        tokens,
        depth: case.depth,
        sequences: case.sequences(),
        rows: None,
        first_token_s: Spread::of(first_token.clone()),
        step_s: None,
        step_cost: None,
        bytes_per_token: bytes.map(|work| work.bytes_per_token(case.depth, tokens, case.sequences())),
        byte_multiply_adds: products.map(|products| products.bytes),
        float_multiply_adds: products.map(|products| products.floats),
        share_of_limit: limits.zip(work).and_then(share),
        tokens_per_s,
    })
}

/// The time of one step, of the times of all.
fn step(measured: &Measured, seconds: &[f64]) -> Option<Spread> {
    let steps = measured.case.steps() as f64;
    Spread::of(seconds.iter().map(|seconds| seconds / steps).collect())
}

/// `row` with what a step of `rows` tokens takes, alone and against one of a `single` token.
fn stepped(row: Row, measured: &Measured, seconds: &[f64], rows: usize, single: Option<&Spread>) -> Row {
    let step_s = step(measured, seconds);
    // Repetition by repetition, because those of one round were measured next to each other.
    let ratios = |(step, single): (&Spread, &Spread)| {
        let pairs = step.samples.iter().zip(&single.samples);
        Some(Spread::of(pairs.map(|(step, single)| step / single).collect())?.median)
    };
    let step_cost = step_s.as_ref().zip(single).and_then(ratios);
    Row { rows: Some(rows), step_s, step_cost, ..row }
}

/// What the prediction head took for the guesses of a verification, if it made any.
fn draft(verified: &Measured, single: Option<&Spread>) -> Option<Row> {
    let guesses = verified.case.guesses();
    let made = (guesses * verified.case.steps()) as f64;
    let tokens_per_s = Spread::of(verified.drafting.iter().map(|seconds| made / seconds).collect())?;
    let row = Row { test: "draft".to_owned(), tokens_per_s, ..row(verified, None, None)? };
    Some(stepped(row, verified, &verified.drafting, guesses, single))
}
