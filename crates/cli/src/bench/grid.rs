//! What the options ask for: every case, and every setting of every model.

use std::path::PathBuf;

use basert_engine::{KvTypes, Options, Residence, Speculation};
use basert_format::BaseFile;
use basert_kernels::default_threads;
use basert_measure::bench::{Case, Test};

use super::args::BenchArgs;
use super::numbers::{Numbers, counts};
use crate::failure::{Failure, Outcome};
use crate::options::isa;

/// Environment variable of the thread count, as in all commands; here it may be a list.
const THREADS: &str = "BASERT_THREADS";

/// A model with one setting.
pub struct Setting {
    /// Position of the model among those that were named.
    pub model: usize,
    /// Where it is.
    pub path: PathBuf,
    /// Tokens per page as asked for; 0 is one page.
    pub page_tokens: usize,
    /// For the engine.
    pub options: Options,
}

/// All tests at all depths: prompts, answers in batches of growing size, then answers that are verified.
///
/// # Errors
/// When there are none.
pub fn cases(args: &BenchArgs) -> Outcome<Vec<Case>> {
    let prompts = args.prompt.0.iter().filter(|&&tokens| tokens > 0);
    let prefill = prompts.map(|&tokens| Test::Prefill { tokens });
    let decode = answers(args)
        .flat_map(|tokens| args.batch.0.iter().map(move |&sequences| Test::Decode { tokens, sequences }));
    let rows = args.verify.iter().flat_map(|Numbers(rows)| rows);
    let verify = rows.flat_map(|&rows| answers(args).map(move |tokens| Test::Verify { tokens, rows }));
    let tests: Vec<Test> = prefill.chain(decode).chain(verify).collect();
    if tests.is_empty() {
        return Err(Failure::new("there is nothing to measure: -p and -n are both 0"));
    }
    if args.verify.is_some() && answers(args).next().is_none() {
        return Err(Failure::new("--verify runs the tokens of an answer, and -n is 0"));
    }
    let at = |&depth: &usize| tests.iter().map(move |&test| Case { test, depth });
    Ok(args.depth.0.iter().flat_map(at).collect())
}

fn answers(args: &BenchArgs) -> impl Iterator<Item = usize> {
    args.decode.0.iter().copied().filter(|&tokens| tokens > 0)
}

/// Every model with every KV type, page size and thread count, those of one model next to each other.
///
/// # Errors
/// Options that cannot be honoured.
pub fn settings(args: &BenchArgs, files: &[BaseFile], cases: &[Case]) -> Outcome<Vec<Setting>> {
    let threads = threads(args)?;
    let types = args.kv.each(&args.with_kv)?;
    let base = Options { pin: args.pin, ..room(cases, args.weights)? };
    let mut all = Vec::new();
    for (model, file) in files.iter().enumerate() {
        for &kv in &types {
            for &page_tokens in &args.paged_kv.0 {
                for &threads in &threads {
                    let options = setting(&base, kv, page_tokens, threads);
                    all.push(Setting { model, path: file.path().to_owned(), page_tokens, options });
                }
            }
        }
    }
    Ok(all)
}

fn setting(base: &Options, kv: KvTypes, page_tokens: usize, threads: usize) -> Options {
    let page_tokens = Some(page_tokens).filter(|&tokens| tokens > 0);
    Options { kv, page_tokens, threads: Some(threads), ..base.clone() }
}

/// Options that have room for all cases.
fn room(cases: &[Case], weights: Residence) -> Outcome<Options> {
    let sequences = cases.iter().map(Case::sequences).max().unwrap_or(1);
    let defaults = Options::default();
    Ok(Options {
        isa: isa()?,
        context: cases.iter().map(Case::context).max(),
        sequences,
        step_tokens: defaults.step_tokens.max(sequences),
        logit_rows: sequences,
        speculation: speculation(cases),
        weights,
        ..defaults
    })
}

/// Room for the guesses of all cases, and the prediction head to make them.
fn speculation(cases: &[Case]) -> Speculation {
    Speculation::always(cases.iter().map(Case::guesses).max().unwrap_or(0))
}

fn threads(args: &BenchArgs) -> Outcome<Vec<usize>> {
    if let Some(Numbers(threads)) = &args.threads {
        return Ok(threads.clone());
    }
    match std::env::var_os(THREADS).filter(|value| !value.is_empty()) {
        None => Ok(vec![default_threads()]),
        Some(value) => {
            let parsed = counts(&value.to_string_lossy());
            parsed.map(|numbers| numbers.0).map_err(|e| Failure::new(format!("{THREADS}: {e}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches};

    use super::*;

    /// What is typed, and the tests and depths that it means.
    type Asked<'a> = (&'a [&'a str], Vec<(Test, usize)>);

    fn args(words: &[&str]) -> BenchArgs {
        let grammar = BenchArgs::augment_args(Command::new("bench"));
        let matches = grammar.try_get_matches_from([&["bench", "m"], words].concat()).unwrap();
        BenchArgs::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn the_grid_is_the_product_and_zero_leaves_a_test_out() {
        let prefill = |tokens| Test::Prefill { tokens };
        let decode = |tokens, sequences| Test::Decode { tokens, sequences };
        let verify = |tokens, rows| Test::Verify { tokens, rows };
        let cases: [Asked<'_>; 5] = [
            (
                &["-p", "0", "-n", "4", "--verify", "2,3"],
                vec![(decode(4, 1), 0), (verify(4, 1), 0), (verify(4, 2), 0), (verify(4, 3), 0)],
            ),
            (&[], vec![(prefill(512), 0), (decode(128, 1), 0)]),
            (
                &["-p", "0", "-n", "4", "-b", "1-4*2"],
                vec![(decode(4, 1), 0), (decode(4, 2), 0), (decode(4, 4), 0)],
            ),
            (&["-p", "1,2", "-n", "0", "-b", "3"], vec![(prefill(1), 0), (prefill(2), 0)]),
            (
                &["-p", "8", "-n", "4", "-d", "0,16"],
                vec![(prefill(8), 0), (decode(4, 1), 0), (prefill(8), 16), (decode(4, 1), 16)],
            ),
        ];
        for (words, expected) in cases {
            let found: Vec<_> =
                super::cases(&args(words)).unwrap().iter().map(|c| (c.test, c.depth)).collect();
            assert_eq!(found, expected, "{words:?}");
        }
        assert!(super::cases(&args(&["-p", "0", "-n", "0"])).is_err());
        assert!(super::cases(&args(&["-n", "0", "--verify", "2"])).is_err());
    }

    #[test]
    fn there_is_room_for_the_longest_and_the_widest_case() {
        let cases = super::cases(&args(&["-p", "8", "-n", "4", "-d", "0,16", "-b", "1,600"])).unwrap();
        let room = room(&cases, Residence::Mapped).unwrap();
        assert_eq!((room.context, room.sequences, room.logit_rows), (Some(24), 600, 600));
        assert!(room.step_tokens >= 600 && room.speculation == Speculation::OFF);
        let cases = super::cases(&args(&["-p", "0", "-n", "4", "-d", "16", "--verify", "3"])).unwrap();
        let room = super::room(&cases, Residence::Mapped).unwrap();
        assert_eq!((room.context, room.speculation), (Some(16 + 6), Speculation::always(2)));
    }
}
