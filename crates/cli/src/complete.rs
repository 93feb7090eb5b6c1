//! `basert complete`: one prompt to one answer, streamed.

use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use basert_engine::{Engine, Event, Finish, GenerateParams, Generation, SamplingParams, generate};
use basert_text::{DecodeStream, StopMatcher};
use serde_json::{Value, json};

use crate::args::CompleteArgs;
use crate::bundle::Bundle;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{Interrupt, Second};
use crate::options::PromptOptions;
use crate::units::{rate, seconds};
use crate::{output, selected};

/// Runs the command.
pub fn run(args: &CompleteArgs) -> Outcome {
    let interrupt = Interrupt::install(Second::Exits)?;
    // Everything that can be refused is refused before the weights are touched.
    let options = args.run.resolve()?;
    let bundle = Bundle::open(&args.model)?;
    let recommended = bundle.recommended();
    let sampling = args.sampling.resolve(&recommended)?;
    let prompt = prompt_ids(&args.prompt, &bundle)?;
    let stops = StopMatcher::new(&args.stop).map_err(|e| Failure::from_error(&e))?;
    if !args.stop.is_empty() {
        bundle.tokenizer()?;
    }
    remark(args, &bundle, &sampling);
    for (key, problem) in recommended.unusable.iter().filter(|(key, _)| !args.sampling.overrides(key)) {
        let model = args.model.display();
        output::note(&format!("`{key}` of the generation config in {model} {problem}; it is not used"));
    }
    let eos = if args.ignore_eos { Vec::new() } else { bundle.eos() };

    let start = Instant::now();
    let (tokenizer, file) = bundle.into_parts();
    let mut engine = Engine::load(file, &options).map_err(|e| Failure::from_error(&e))?;
    let load = start.elapsed();
    selected::show(&engine, args.verbose);

    let context = engine.selected().context;
    let max_tokens = room(prompt.len(), context, args.max_tokens)?;
    let params = GenerateParams { sampling, max_tokens, eos, prefill_chunk: None };
    let decoder = tokenizer.map(|t| match args.prompt.chat {
        true => DecodeStream::new(&t, true),
        false => DecodeStream::continuing(&t, true),
    });
    let mut answer = Answer::new(decoder, stops, !args.json, interrupt.clone());
    let generation = generate(&mut engine, &prompt, &params, &mut |event| answer.on_event(event))
        .map_err(|e| Failure::from_error(&e))?;
    let end = answer.finish(generation.finish)?;

    if args.json {
        output::print_json(&report(&engine, &prompt, &generation, &end, &params.sampling, load))?;
    } else {
        summarise(args, &generation, &end, context);
    }
    if end.reason == Reason::Interrupted { Err(interrupt.failure()) } else { Ok(()) }
}

/// The tokens that the model reads.
fn prompt_ids(options: &PromptOptions, bundle: &Bundle) -> Outcome<Vec<u32>> {
    let source = &options.source;
    if let Some(ids) = &source.prompt_ids {
        return Ok(ids.clone());
    }
    let text = match (&source.prompt, &source.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read_prompt(file)?,
        (None, None) => String::new(),
    };
    let ids = if options.chat {
        let rendered = bundle.render_chat(options.system.as_deref(), &text, options.no_think)?;
        bundle.tokenizer()?.encode(&rendered, false, true)
    } else {
        bundle.tokenizer()?.encode(&text, true, true)
    };
    let ids = ids.map_err(|e| Failure::from_error(&e))?;
    if ids.is_empty() {
        let hint = "this model has no begin-of-sequence token to start from; give at least one character";
        return Err(Failure::new("the prompt is empty").hint(hint));
    }
    Ok(ids)
}

fn read_prompt(file: &Path) -> Outcome<String> {
    let (name, bytes) = if file == Path::new("-") {
        let mut bytes = Vec::new();
        ("standard input".to_owned(), std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes))
    } else {
        (file.display().to_string(), std::fs::read(file))
    };
    let bytes = bytes.map_err(|e| Failure::new(format!("cannot read the prompt from {name}: {e}")))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::new(format!("the prompt in {name} is not UTF-8: invalid byte at offset {at}"))
    })
}

/// How many tokens may be generated: what was asked, as far as the context goes.
fn room(prompt: usize, context: usize, asked: Option<usize>) -> Outcome<usize> {
    match context.checked_sub(prompt) {
        Some(room @ 1..) => Ok(asked.unwrap_or(room).min(room)),
        _ => Err(Failure::new(format!(
            "the prompt has {prompt} tokens, which leaves no room for an answer in the context of {context}"
        ))
        .hint(format!(
            "shorten the prompt or raise the context, such as -c {}",
            (prompt + 256).next_multiple_of(256)
        ))),
    }
}

/// Says which options cannot have an effect.
fn remark(args: &CompleteArgs, bundle: &Bundle, sampling: &SamplingParams) {
    if args.prompt.source.prompt_ids.is_some() {
        bundle.remark_unusable_tokenizer();
    }
    if args.prompt.no_think && !bundle.can_switch_thinking() {
        output::note("this model's chat template has no switch for thinking; --no-think changes nothing");
    }
    let idle = args.sampling.idle_when_greedy();
    if sampling.temperature == 0.0 && !idle.is_empty() {
        output::note(&format!(
            "at temperature 0 the likeliest token is taken; {} changes nothing",
            idle.join(", ")
        ));
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    Stop,
    Length,
    Interrupted,
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Reason::Stop => "stop",
            Reason::Length => "length",
            Reason::Interrupted => "interrupted",
        }
    }
}

/// A finished answer.
struct End {
    text: Option<String>,
    reason: Reason,
}

/// Tokens on their way to the reader: text as soon as it is final, never a part of a stop string.
struct Answer {
    decoder: Option<DecodeStream>,
    /// Taken when the answer is over.
    stops: Option<StopMatcher>,
    text: String,
    stream: bool,
    interrupt: Interrupt,
    reason: Option<Reason>,
    failure: Option<Failure>,
}

impl Answer {
    /// `decoder` is absent for a model without one: its answer has ids only, which are streamed as numbers.
    fn new(decoder: Option<DecodeStream>, stops: StopMatcher, stream: bool, interrupt: Interrupt) -> Answer {
        Answer {
            decoder,
            stops: Some(stops),
            text: String::new(),
            stream,
            interrupt,
            reason: None,
            failure: None,
        }
    }

    fn on_event(&mut self, event: Event) -> ControlFlow<()> {
        match event {
            Event::Token(id) => self.push(id),
            Event::Prefilled { .. } if self.interrupt.requested() => {
                self.reason = Some(Reason::Interrupted);
                ControlFlow::Break(())
            }
            Event::Prefilled { .. } => ControlFlow::Continue(()),
        }
    }

    fn push(&mut self, id: u32) -> ControlFlow<()> {
        let piece = match &mut self.decoder {
            Some(decoder) => decoder.push(id),
            None => format!("{id} "),
        };
        let Some(stops) = &mut self.stops else { return ControlFlow::Break(()) };
        let step = stops.push(&piece);
        self.emit(&step.text);
        if step.stopped {
            self.reason = Some(Reason::Stop);
        } else if self.interrupt.requested() {
            self.reason = Some(Reason::Interrupted);
        }
        if self.reason.is_some() || self.failure.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn emit(&mut self, text: &str) {
        self.text.push_str(text);
        if self.stream
            && self.failure.is_none()
            && !text.is_empty()
            && let Err(failure) = output::print_generated(text)
        {
            self.failure = Some(failure);
        }
    }

    /// Releases what was held back and ends the line.
    fn finish(mut self, finish: Finish) -> Outcome<End> {
        let has_text = self.decoder.is_some();
        if self.reason != Some(Reason::Stop) {
            self.release_held_text();
        }
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if self.stream && !self.text.ends_with('\n') {
            output::print_generated("\n")?;
        }
        let reason = self.reason.unwrap_or(match finish {
            Finish::Stop => Reason::Stop,
            Finish::Length => Reason::Length,
        });
        Ok(End { text: has_text.then_some(self.text), reason })
    }

    /// The answer is over: half a character and half a stop string are text after all.
    fn release_held_text(&mut self) {
        let tail = self.decoder.take().map(DecodeStream::finish).unwrap_or_default();
        let Some(mut stops) = self.stops.take() else { return };
        let step = stops.push(&tail);
        self.emit(&step.text);
        if step.stopped {
            self.reason = Some(Reason::Stop);
        } else {
            self.emit(&stops.finish());
        }
    }
}

/// Speed, and why the answer ended where that is not obvious.
fn summarise(args: &CompleteArgs, generation: &Generation, end: &End, context: usize) {
    let (prompt, answer) = (generation.prompt_tokens, generation.ids.len());
    let cut = end.reason == Reason::Length && args.max_tokens != Some(answer);
    if cut {
        output::note(&format!(
            "the answer ends at the context of {context} tokens ({prompt} of the prompt, {answer} generated)"
        ));
    }
    if args.verbose || output::stderr_is_terminal() {
        let speed =
            |tokens, time: Duration| format!("{} ({:.1} tokens/s)", seconds(time), rate(tokens, time));
        output::say(&format!(
            "prompt {prompt} tokens in {}, answer {answer} tokens in {}",
            speed(prompt, generation.prefill),
            speed(decoded(generation), generation.decode),
        ));
    }
}

/// Tokens that came from decode steps: the first one comes with the prompt.
fn decoded(generation: &Generation) -> usize {
    generation.ids.len().saturating_sub(1)
}

fn report(
    engine: &Engine,
    prompt: &[u32],
    generation: &Generation,
    end: &End,
    sampling: &SamplingParams,
    load: Duration,
) -> Value {
    json!({
        "prompt_ids": prompt,
        "ids": generation.ids,
        "text": end.text,
        "finish_reason": end.reason.name(),
        "timings": {
            "load_s": load.as_secs_f64(),
            "prompt_tokens": generation.prompt_tokens,
            "prefill_s": generation.prefill.as_secs_f64(),
            "prefill_tokens_per_s": rate(generation.prompt_tokens, generation.prefill),
            "first_token_s": generation.first_token.as_secs_f64(),
            "generated_tokens": generation.ids.len(),
            "decode_s": generation.decode.as_secs_f64(),
            "decode_tokens_per_s": rate(decoded(generation), generation.decode),
        },
        "sampling": {
            "temperature": decimal(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": decimal(sampling.top_p),
            "min_p": decimal(sampling.min_p),
            "repetition_penalty": decimal(sampling.repetition_penalty),
            "presence_penalty": decimal(sampling.presence_penalty),
            "frequency_penalty": decimal(sampling.frequency_penalty),
            "seed": sampling.seed,
        },
        "selected": selected::to_json(engine.selected()),
    })
}

/// The double that prints with the digits of the float: 0.95 and not 0.949999988079071.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_and_answer_share_the_context() {
        let cases = [(511, 512, None, 1), (5, 512, Some(8), 8), (510, 512, Some(8), 2), (1, 2, Some(1), 1)];
        for (prompt, context, asked, expected) in cases {
            assert_eq!(room(prompt, context, asked).ok(), Some(expected), "{prompt} of {context}");
        }
    }

    #[test]
    fn a_prompt_that_fills_the_context_is_refused_with_both_numbers() {
        for (prompt, larger) in [(512, "-c 768"), (513, "-c 1024")] {
            let Err(Failure::Error { message, hint }) = room(prompt, 512, Some(1)) else {
                panic!("{prompt}")
            };
            assert!(message.contains(&prompt.to_string()) && message.contains("512"), "{message}");
            assert!(hint.unwrap().ends_with(larger), "{prompt}");
        }
    }
}
