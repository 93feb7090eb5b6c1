//! From tokens to the pieces of one answer.

use basert_engine::{Finish, Token};
use basert_text::tools::Declared;
use basert_text::{DecodeStream, Part as Thought, StopMatcher, ThinkSplitter};

use super::calls::Calls;
use super::{Event, Part, Reason, Scored};

/// How the tokens of an answer are read.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    /// Ids to text.
    pub decoder: DecodeStream,
    /// Stop strings.
    pub stops: StopMatcher,
    /// Whether a thinking part is told apart from the answer, and whether the prompt has opened one.
    pub thinking: Option<bool>,
    /// Whose calls are looked for.
    pub tools: Option<Declared>,
    /// Whether the answer may have several calls.
    pub parallel_calls: bool,
    /// The prompt, if it comes before the answer: its text and its first token.
    pub echo: Option<(String, u32)>,
    /// Whether tokens are handed on with their log-probabilities.
    pub scored: bool,
}

/// An answer on its way: takes tokens, returns what has become certain.
///
/// What all events say, joined, does not depend on how the text is cut into tokens.
#[derive(Debug)]
pub(crate) struct Answer {
    decoder: Option<DecodeStream>,
    stops: Option<StopMatcher>,
    thinking: Option<ThinkSplitter>,
    calls: Option<Calls>,
    scored: bool,
    /// Tokens that no event has brought.
    scores: Vec<Scored>,
    tokens: usize,
    reasoning_tokens: usize,
    ended: Option<Reason>,
    events: Vec<Event>,
}

impl Answer {
    /// An answer before its first token.
    pub fn new(reading: Reading) -> Answer {
        let Reading { decoder, stops, thinking, tools, parallel_calls, echo, scored } = reading;
        // Nothing predicts the first token.
        let first =
            echo.as_ref().filter(|_| scored).map(|(_, id)| Scored { id: *id, logprob: None, top: vec![] });
        let text = echo.map(|(text, _)| text).filter(|text| !text.is_empty());
        let echo = text.map(|text| Event::Delta { part: Part::Content(text), scores: Vec::new() });
        Answer {
            decoder: Some(decoder),
            stops: Some(stops),
            thinking: thinking.map(ThinkSplitter::new),
            calls: tools.map(|tools| Calls::new(&tools, parallel_calls)),
            scored,
            scores: first.into_iter().collect(),
            tokens: 0,
            reasoning_tokens: 0,
            ended: None,
            events: echo.into_iter().collect(),
        }
    }

    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Those of them that were thinking.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Whether the answer needs no more tokens, though the model would go on.
    pub fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Takes the next token.
    pub fn token(&mut self, token: Token) -> Vec<Event> {
        self.tokens += 1;
        self.reasoning_tokens += usize::from(self.thinking.as_ref().is_some_and(ThinkSplitter::is_thinking));
        let text = self.decoder.as_mut().map(|decoder| decoder.push(token.id));
        if self.scored {
            self.scores.push(Scored::from(token));
        }
        self.text(&text.unwrap_or_default());
        std::mem::take(&mut self.events)
    }

    /// Takes tokens that stand beside the answer: those of an echoed prompt, or the one that ends it.
    pub fn beside(&mut self, scores: impl Iterator<Item = Scored>) {
        self.scores.extend(scores);
    }

    /// Ends the answer: what was held back is text after all.
    pub fn finish(mut self, finish: Finish) -> Vec<Event> {
        let tail = self.decoder.take().map(DecodeStream::finish).unwrap_or_default();
        self.text(&tail);
        if let Some(stops) = self.stops.take().filter(|_| !self.is_over()) {
            self.unstopped(&stops.finish());
        }
        if let Some(thinking) = self.thinking.take() {
            thinking.finish().into_iter().for_each(|part| self.thought(part));
        }
        let mut warnings = Vec::new();
        let mut calls = None;
        if let Some(mut found) = self.calls.take() {
            let over = found.is_over();
            let parts = if over { Vec::new() } else { found.finish() };
            parts.into_iter().for_each(|part| self.say(part));
            warnings = found.warnings().to_vec();
            calls = Some(found.are_complete());
        }
        let reason = self.ended.unwrap_or(match finish {
            Finish::Stop => Reason::Stop,
            Finish::Length => Reason::Length,
        });
        let reason = if reason == Reason::Stop && calls == Some(true) { Reason::ToolCalls } else { reason };
        let scores = std::mem::take(&mut self.scores);
        self.events.push(Event::Finished { reason, scores, warnings });
        self.events
    }

    fn text(&mut self, text: &str) {
        let Some(stops) = self.stops.as_mut().filter(|_| self.ended.is_none()) else { return };
        let step = stops.push(text);
        if step.stopped {
            self.ended = Some(Reason::Stop);
        }
        self.unstopped(&step.text);
    }

    fn unstopped(&mut self, text: &str) {
        match &mut self.thinking {
            Some(thinking) => thinking.push(text).into_iter().for_each(|part| self.thought(part)),
            None => self.thought(Thought::Answer(text.to_owned())),
        }
    }

    fn thought(&mut self, part: Thought) {
        let text = match part {
            Thought::Thinking(text) => return self.say(Part::Reasoning(text)),
            Thought::Answer(text) => text,
        };
        let Some(calls) = &mut self.calls else { return self.say(Part::Content(text)) };
        let parts = calls.push(&text);
        if calls.is_over() {
            self.ended = Some(Reason::ToolCalls);
        }
        parts.into_iter().for_each(|part| self.say(part));
    }

    fn say(&mut self, part: Part) {
        if !matches!(&part, Part::Content(text) | Part::Reasoning(text) if text.is_empty()) {
            let scores = std::mem::take(&mut self.scores);
            self.events.push(Event::Delta { part, scores });
        }
    }
}
