//! One piece of work, done by both in turns.

use anyhow::{Context, Result};
use basert_engine::KvTypes;
use basert_measure::bench::{Case, Limits, Roof, Spread, Test, Work as Needed};
use llama_cpp_sys_2 as llama;

use crate::files::{Files, PeerType};
use crate::ours::Ours;
use crate::peer::{Kv, Peer, Setting};
use crate::runner::{DECODE_STEPS, Work};

/// KV types that both have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    F16,
    Q8,
    /// Keys in 8 bits, values in 4.
    Q84,
    Q4,
}

impl Cache {
    pub fn name(self) -> &'static str {
        match self {
            Cache::F16 => "f16",
            Cache::Q8 => "q8",
            Cache::Q84 => "84",
            Cache::Q4 => "q4",
        }
    }

    fn ours(self) -> KvTypes {
        use basert_kernels::KvDtype::{F16, Q4, Q8};
        let (k, v) = match self {
            Cache::F16 => (F16, F16),
            Cache::Q8 => (Q8, Q8),
            Cache::Q84 => (Q8, Q4),
            Cache::Q4 => (Q4, Q4),
        };
        KvTypes { k, v }
    }

    fn peer(self) -> Kv {
        use llama::{GGML_TYPE_F16 as F16, GGML_TYPE_Q4_0 as Q4, GGML_TYPE_Q8_0 as Q8};
        let (k, v) = match self {
            Cache::F16 => (F16, F16),
            Cache::Q8 => (Q8, Q8),
            Cache::Q84 => (Q8, Q4),
            Cache::Q4 => (Q4, Q4),
        };
        Kv { k, v }
    }
}

/// What both are told.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub work: Work,
    pub cache: Cache,
    pub threads: usize,
    pub rounds: usize,
}

/// What came out. Rates are tokens per second.
pub struct Outcome {
    pub terms: Terms,
    pub ours: Spread,
    pub peer: Spread,
    /// Our rate by the peer's, round by round.
    pub ratio: Spread,
    pub peer_type: PeerType,
    pub peer_setting: Setting,
    /// Our share of the limit of reading (decode) or multiplying (prefill); `None` where sizes are not the file's.
    pub ours_share: Option<f64>,
    /// The peer's, as if it had our bytes and multiplications.
    pub peer_share: Option<f64>,
}

/// A round that is not counted, then all others, ours and the peer's next to each other.
pub fn run(files: &Files, terms: Terms) -> Result<Outcome> {
    let (peer_type, peer_setting) = choose(files, terms)?;
    let Terms { work, cache, threads, rounds } = terms;
    let (context, sequences) = (work.context(rounds), work.sequences());
    let mut ours = Ours::load(&files.bundle, cache.ours(), threads, context, sequences)?;
    let mut peer = load(files, peer_type, peer_setting, terms, context)?;
    work.prepare(&mut ours)?;
    work.prepare(&mut peer)?;
    let mut roof = Roof::of(&ours.engine)?;
    let (mut our_rates, mut peer_rates) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let (our_rate, peer_rate) = (work.rate(work.round(&mut ours)?), work.rate(work.round(&mut peer)?));
        if round > 0 {
            our_rates.push(our_rate);
            peer_rates.push(peer_rate);
            roof.sample(&ours.engine);
        }
    }
    let ratios = our_rates.iter().zip(&peer_rates).map(|(a, b)| a / b).collect();
    let spread = |rates| Spread::of(rates).context("no rounds");
    let (ours_rate, peer_rate) = (spread(our_rates)?, spread(peer_rates)?);
    let share = |rate: &Spread| share(&ours, roof.limits().as_ref()?, work, rate.median);
    Ok(Outcome {
        terms,
        ours_share: share(&ours_rate),
        peer_share: share(&peer_rate),
        ours: ours_rate,
        peer: peer_rate,
        ratio: spread(ratios)?,
        peer_type,
        peer_setting,
    })
}

fn share(ours: &Ours, limits: &Limits, work: Work, rate: f64) -> Option<f64> {
    let needed = Needed::of(&ours.engine)?;
    let case = match work {
        Work::Prefill { tokens } => Case { test: Test::Prefill { tokens }, depth: 0 },
        Work::Decode { depth, sequences } => {
            Case { test: Test::Decode { tokens: DECODE_STEPS, sequences }, depth }
        }
    };
    limits.share(&case, &needed, rate)
}

/// The peer's fastest type and setting: types and repacking by a short form of the work, then flash attention by a longer one.
/// Quantised values need flash attention.
fn choose(files: &Files, terms: Terms) -> Result<(PeerType, Setting)> {
    let mut heats = Vec::new();
    for kind in PeerType::ALL {
        for setting in Setting::ALL.into_iter().filter(|setting| setting.flash_attention) {
            heats.push((kind, setting));
        }
    }
    let (kind, setting) = fastest(files, terms, shortened(terms.work, 128, 0), heats)?;
    if terms.cache != Cache::F16 {
        return Ok((kind, setting));
    }
    let without = Setting { flash_attention: false, ..setting };
    fastest(files, terms, shortened(terms.work, 512, 4096), vec![(kind, setting), (kind, without)])
}

fn fastest(
    files: &Files,
    terms: Terms,
    work: Work,
    heats: Vec<(PeerType, Setting)>,
) -> Result<(PeerType, Setting)> {
    let mut best: Option<(f64, (PeerType, Setting))> = None;
    for heat in heats {
        let mut peer = load(files, heat.0, heat.1, terms, work.context(2))?;
        work.prepare(&mut peer)?;
        let rate = work.rate(work.round(&mut peer)?.min(work.round(&mut peer)?));
        if best.is_none_or(|(fastest, _)| rate > fastest) {
            best = Some((rate, heat));
        }
    }
    best.map(|(_, heat)| heat).context("no setting of the peer was tried")
}

fn shortened(work: Work, most_tokens: usize, most_depth: usize) -> Work {
    match work {
        Work::Prefill { tokens } => Work::Prefill { tokens: tokens.min(most_tokens) },
        Work::Decode { depth, sequences } => Work::Decode { depth: depth.min(most_depth), sequences },
    }
}

fn load(files: &Files, kind: PeerType, setting: Setting, terms: Terms, context: usize) -> Result<Peer> {
    Peer::load(&files.gguf(kind), setting, terms.cache.peer(), terms.threads, context, terms.work.sequences())
}
