//! An answer on its way to the reader, as `complete` and `chat` make it: where it has room, when it ends, how fast it was.

use std::ops::ControlFlow;

use basert_engine::{Event, Finish, Generation, SamplingParams, Speculated};
use basert_text::{DecodeStream, StopMatcher};
use serde_json::{Value, json};

use crate::bundle::Bundle;
use crate::failure::{Failure, Outcome};
use crate::options::{Recommended, SamplingOptions};
use crate::output;
use crate::units::{rate, seconds};

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Stop,
    Length,
    Interrupted,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Reason::Stop => "stop",
            Reason::Length => "length",
            Reason::Interrupted => "interrupted",
        }
    }
}

/// Tokens on their way to the reader: text as soon as it is final, never a part of a stop string.
pub struct Answer<'a> {
    decoder: Option<DecodeStream>,
    /// Taken when the answer is over.
    stops: Option<StopMatcher>,
    /// Where the text goes.
    sink: &'a mut dyn FnMut(&str) -> Outcome,
    /// Whether the user wants no more.
    cancelled: &'a dyn Fn() -> bool,
    reason: Option<Reason>,
    failure: Option<Failure>,
}

impl<'a> Answer<'a> {
    /// `decoder` is absent for a model without one: its answer has ids only, which are streamed as numbers.
    pub fn new(
        decoder: Option<DecodeStream>,
        stops: StopMatcher,
        sink: &'a mut dyn FnMut(&str) -> Outcome,
        cancelled: &'a dyn Fn() -> bool,
    ) -> Answer<'a> {
        Answer { decoder, stops: Some(stops), sink, cancelled, reason: None, failure: None }
    }

    /// Takes what happens; for [`basert_engine::generate`].
    pub fn on_event(&mut self, event: Event) -> ControlFlow<()> {
        match event {
            Event::Token(id) => self.push(id),
            Event::Prefilled { .. } if (self.cancelled)() => {
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
        } else if (self.cancelled)() {
            self.reason = Some(Reason::Interrupted);
        }
        if self.reason.is_some() || self.failure.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn emit(&mut self, text: &str) {
        if self.failure.is_none()
            && !text.is_empty()
            && let Err(failure) = (self.sink)(text)
        {
            self.failure = Some(failure);
        }
    }

    /// Releases what was held back.
    ///
    /// # Errors
    /// What the sink could not take.
    pub fn finish(mut self, finish: Finish) -> Outcome<Reason> {
        if self.reason != Some(Reason::Stop) {
            self.release_held_text();
        }
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(self.reason.unwrap_or(match finish {
                Finish::Stop => Reason::Stop,
                Finish::Length => Reason::Length,
            })),
        }
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

/// How many tokens may be generated: what was asked, as far as the context goes; `None` if that is nothing.
pub fn room(prompt: usize, context: usize, asked: Option<usize>) -> Option<usize> {
    let room = context.checked_sub(prompt).filter(|&room| room > 0)?;
    Some(asked.unwrap_or(room).min(room))
}

/// A context that has room for an answer to so long a prompt.
pub fn larger_context(prompt: usize) -> usize {
    (prompt + 256).next_multiple_of(256)
}

/// Tokens per second of the decode steps: the first token comes with the prompt.
pub fn decode_rate(generation: &Generation) -> f64 {
    rate(decoded(generation), generation.decode)
}

/// Tokens that came from decode steps.
pub fn decoded(generation: &Generation) -> usize {
    generation.ids.len().saturating_sub(1)
}

/// How guessing went; `None` if nothing was guessed.
pub fn guessed(speculated: &Speculated) -> Option<String> {
    let Speculated { steps, drafted, accepted, drafting } = *speculated;
    (drafted > 0).then(|| {
        let per_step = speculated.tokens_per_step();
        let time = seconds(drafting);
        format!("{per_step:.2} tokens a step: {accepted} of {drafted} guesses were right in {steps} steps; guessing took {time}")
    })
}

/// The same for scripts.
pub fn speculated_json(speculated: &Speculated) -> Value {
    let Speculated { steps, drafted, accepted, drafting } = *speculated;
    json!({
        "steps": steps,
        "drafted": drafted,
        "accepted": accepted,
        "tokens_per_step": speculated.tokens_per_step(),
        "drafting_s": drafting.as_secs_f64(),
    })
}

/// Says which sampling options cannot have an effect, and which recommendations cannot be followed.
pub fn remark_sampling(
    options: &SamplingOptions,
    params: &SamplingParams,
    recommended: &Recommended,
    bundle: &Bundle,
) {
    let idle = options.idle_when_greedy();
    if params.temperature == 0.0 && !idle.is_empty() {
        output::note(&format!(
            "at temperature 0 the likeliest token is taken; {} changes nothing",
            idle.join(", ")
        ));
    }
    for (key, problem) in recommended.unusable.iter().filter(|(key, _)| !options.overrides(key)) {
        let model = bundle.path().display();
        output::note(&format!("`{key}` of the generation config in {model} {problem}; it is not used"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_and_answer_share_the_context() {
        let cases = [
            (511, 512, None, Some(1)),
            (5, 512, Some(8), Some(8)),
            (510, 512, Some(8), Some(2)),
            (1, 2, Some(1), Some(1)),
            (512, 512, Some(1), None),
            (513, 512, None, None),
        ];
        for (prompt, context, asked, expected) in cases {
            assert_eq!(room(prompt, context, asked), expected, "{prompt} of {context}");
        }
        assert_eq!((larger_context(512), larger_context(513)), (768, 1024));
    }
}
