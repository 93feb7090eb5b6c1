//! What the models are measured on, read once and before any of them runs.

use std::path::{Path, PathBuf};

use basert_convert::same_file;
use basert_measure::{CallTask, MeasureError, Question, RecallPlan};

use crate::bundle::Bundle;
use crate::eval::EvalArgs;
use crate::failure::{Failure, Outcome};
use crate::locate::locate;
use crate::place;

/// Lengths of recall prompts unless others are asked for.
const LENGTHS: [usize; 3] = [512, 1024, 2048];
/// Context that questions and their answers get if the model has it.
const QUESTION_CONTEXT: usize = 8192;
/// Context that a reference in a file needs at most.
const REFERENCE_CONTEXT: usize = 128;

/// A text.
enum Text {
    Words(String),
    Ids(Vec<u32>),
}

/// Everything that is read.
pub struct Input {
    text: Option<Text>,
    /// Multiple choice.
    pub choices: Option<Vec<Question>>,
    /// Requests that have to be answered with tool calls.
    pub tool_calls: Option<Vec<CallTask>>,
    /// Lengths that were asked for, depths and trials; absent if recall is not measured.
    recall: Option<RecallPlan>,
    least_context: usize,
}

impl Input {
    /// Reads and checks all files that `args` names, and the places of files to be written.
    pub fn read(args: &EvalArgs) -> Outcome<Input> {
        let measures = &args.measures;
        if measures.text_file.is_none() && measures.ids_file.is_none() {
            refuse_without_text(args)?;
        }
        check_outputs(args)?;
        let text = match (&measures.text_file, &measures.ids_file) {
            (Some(file), _) => Some(Text::Words(read_text(file)?)),
            (None, Some(file)) => Some(Text::Ids(read_ids(file)?)),
            (None, None) => None,
        };
        let choices =
            measures.choices.as_deref().map(|path| questions(path, Question::parse_lines)).transpose()?;
        let tool_calls =
            measures.tool_calls.as_deref().map(|path| questions(path, CallTask::parse_lines)).transpose()?;
        let recall = measures.recall.then(|| RecallPlan {
            lengths: args.recall.lengths.clone(),
            depths: args.recall.depths.iter().map(|&percent| f64::from(percent) / 100.0).collect(),
            trials: args.recall.trials,
        });
        let reference = if measures.own_reference { REFERENCE_CONTEXT } else { 0 };
        let asked = if choices.is_some() || tool_calls.is_some() { QUESTION_CONTEXT } else { 0 };
        Ok(Input { text, choices, tool_calls, recall, least_context: reference.max(asked) })
    }

    /// Whether words are needed, and not only ids.
    pub fn asks_questions(&self) -> bool {
        self.recall.is_some() || self.choices.is_some() || self.tool_calls.is_some()
    }

    /// Context that is needed for anything but text and recall.
    pub fn least_context(&self) -> usize {
        self.least_context
    }

    /// The ids of the text for one model.
    pub fn ids(&self, bundle: &Bundle) -> Outcome<Option<Vec<u32>>> {
        match &self.text {
            Some(Text::Ids(ids)) => {
                bundle.remark_unusable_tokenizer();
                Ok(Some(ids.clone()))
            }
            Some(Text::Words(words)) => {
                let ids = bundle.tokenizer()?.encode(words, true, true);
                ids.map(Some).map_err(|e| Failure::from_error(&e))
            }
            None => Ok(None),
        }
    }

    /// Lengths of recall prompts for a model that can read `context` tokens: those that were asked for, else the usual ones
    /// that leave room for an answer.
    ///
    /// # Errors
    /// None of the usual lengths fits.
    pub fn recall_lengths(&self, context: Option<usize>) -> Outcome<Vec<usize>> {
        let Some(plan) = &self.recall else { return Ok(Vec::new()) };
        if !plan.lengths.is_empty() {
            return Ok(plan.lengths.clone());
        }
        let fits = |length: &usize| {
            let alone = RecallPlan { lengths: vec![*length], ..plan.clone() };
            context.is_none_or(|context| alone.context() <= context)
        };
        let lengths: Vec<usize> = LENGTHS.into_iter().filter(fits).collect();
        match context {
            Some(context) if lengths.is_empty() => Err(Failure::new(format!(
                "prompts of {} tokens do not fit into a context of {context}",
                LENGTHS[0]
            ))
            .hint("name shorter ones with --lengths, or give a larger -c")),
            _ => Ok(lengths),
        }
    }

    /// The recall questions with these lengths.
    pub fn recall_plan(&self, lengths: &[usize]) -> Option<RecallPlan> {
        self.recall.as_ref().map(|plan| RecallPlan { lengths: lengths.to_vec(), ..plan.clone() })
    }
}

/// Options about the text that would have no effect without one.
fn refuse_without_text(args: &EvalArgs) -> Outcome {
    let reading = &args.reading;
    let given = [
        ("--against", reading.against.is_some()),
        ("--window", reading.window.is_some()),
        ("--stride", reading.stride.is_some()),
        ("--dump-logits", reading.dump_logits.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::new(format!("{option} needs a text"))
            .hint("name one with --text-file, or token ids with --ids-file")),
        None => Ok(()),
    }
}

/// Refuses to write onto what is read, or without `--force` onto anything.
fn check_outputs(args: &EvalArgs) -> Outcome {
    let measures = &args.measures;
    let files = [&measures.text_file, &measures.ids_file, &measures.choices, &measures.tool_calls];
    let models = args.models.iter().chain(&args.reading.against).map(|model| locate(model));
    let files = files.into_iter().flatten().map(|file| Ok(file.clone()));
    let inputs: Vec<PathBuf> = files.chain(models).collect::<Outcome<_>>()?;
    for (option, output) in [("--dump-logits", &args.reading.dump_logits), ("--picture", &args.picture)] {
        let Some(output) = output else { continue };
        if let Some(input) = inputs.iter().find(|input| same_file(input, output)) {
            return Err(Failure::new(format!("the output would replace {}, which is read", input.display()))
                .hint(format!("give another name with {option}")));
        }
        place::check(output, args.force)?;
        place::check_folder(output)?;
    }
    Ok(())
}

fn read_text(file: &Path) -> Outcome<String> {
    std::fs::read_to_string(file).map_err(|e| Failure::new(format!("cannot read {}: {e}", file.display())))
}

fn read_ids(file: &Path) -> Outcome<Vec<u32>> {
    serde_json::from_str(&read_text(file)?).map_err(|e| {
        Failure::new(format!("{} is not a JSON array of token ids: {e}", file.display()))
            .hint("such a file looks like [9707, 11, 1879]; for text use --text-file")
    })
}

/// The questions in a file.
fn questions<T>(file: &Path, parse: impl Fn(&str) -> Result<Vec<T>, MeasureError>) -> Outcome<Vec<T>> {
    let text = read_text(file)?;
    parse(&text).map_err(|e| {
        Failure::new(format!("{}: {e}", file.display()))
            .hint("`basert help eval` shows what a line looks like")
    })
}
