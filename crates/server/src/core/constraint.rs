//! What decides about tokens before they are drawn: a grammar, and the end of a thinking part that has had its tokens.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use basert_text::{DecodeStream, TextError, ThinkSplitter, Tokenizer};
use llguidance::Matcher;

/// Tokens beyond the budget in which a character that was begun may end.
const GRACE: usize = 4;

/// How long an answer may think.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    tokens: usize,
    /// What closes the thinking, within a line and at the begin of one.
    closings: [Arc<[u32]>; 2],
}

impl Budget {
    /// At most so many tokens of thinking.
    ///
    /// # Errors
    /// A tokenizer that cannot spell the closing tag.
    pub fn new(tokens: usize, tokenizer: &Tokenizer) -> Result<Budget, TextError> {
        let ids = |text| tokenizer.encode(text, false, true).map(Arc::from);
        Ok(Budget { tokens, closings: [ids("\n</think>\n\n")?, ids("</think>\n\n")?] })
    }
}

/// Holds one answer to its grammar, which begins behind the thinking part, and the thinking to its budget.
pub(crate) struct Constraint {
    matcher: Option<Matcher>,
    /// Watches the thinking part until its end.
    thinking: Option<Thinking>,
    /// Tokens that come next, whatever the model says.
    forced: VecDeque<u32>,
}

struct Thinking {
    decoder: DecodeStream,
    splitter: ThinkSplitter,
    tokens: usize,
    begins_line: bool,
    budget: Option<Budget>,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constraint")
    }
}

impl Constraint {
    /// A constraint before the first token. `thinks` says that the prompt has opened a thinking part; without that, an answer
    /// that is held to a grammar does not think.
    pub fn new(
        matcher: Option<&Matcher>,
        budget: Option<Budget>,
        tokenizer: &Tokenizer,
        thinks: bool,
    ) -> Constraint {
        let watches = thinks || (matcher.is_none() && budget.is_some());
        let thinking = watches.then(|| Thinking {
            decoder: DecodeStream::answering(tokenizer),
            splitter: ThinkSplitter::new(thinks),
            tokens: 0,
            begins_line: false,
            budget,
        });
        let forced = thinking.as_ref().map_or_else(VecDeque::new, Thinking::closing);
        Constraint { matcher: matcher.map(Matcher::deep_clone), thinking, forced }
    }

    /// Rules out the tokens that must not come next.
    ///
    /// # Errors
    /// If the grammar is too large to follow any further.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        if let Some(next) = self.forced.front() {
            keep(logits, |id| id == *next as usize);
        } else if let (None, Some(matcher)) = (&self.thinking, &mut self.matcher) {
            let mask = matcher.compute_mask_or_eos().map_err(|e| e.to_string())?;
            keep(logits, |id| id < mask.len() && mask.get(id));
        }
        Ok(())
    }

    /// Takes the token that was drawn.
    ///
    /// # Errors
    /// As [`mask`](Self::mask).
    pub fn accept(&mut self, token: u32) -> Result<(), String> {
        let is_forced = self.forced.pop_front().is_some();
        if let Some(thinking) = &mut self.thinking {
            thinking.take(token);
            if thinking.splitter.is_over() {
                self.thinking = None;
            } else if !is_forced {
                self.forced = thinking.closing();
            }
            return Ok(());
        }
        match &mut self.matcher {
            Some(matcher) if !is_forced => matcher.consume_token(token).map_err(|e| e.to_string()),
            _ => Ok(()),
        }
    }
}

impl Thinking {
    fn take(&mut self, token: u32) {
        self.tokens += usize::from(self.splitter.is_thinking());
        let text = self.decoder.push(token);
        if !text.is_empty() {
            self.begins_line = text.ends_with('\n');
        }
        self.splitter.push(&text);
    }

    /// The tokens that close the thinking, if its budget is spent.
    fn closing(&self) -> VecDeque<u32> {
        let Some(budget) = self.budget.as_ref().filter(|_| self.splitter.is_thinking()) else {
            return VecDeque::new();
        };
        let spent = self.tokens >= budget.tokens;
        if !spent || (!self.decoder.is_whole() && self.tokens < budget.tokens.saturating_add(GRACE)) {
            return VecDeque::new();
        }
        budget.closings[usize::from(self.begins_line)].iter().copied().collect()
    }
}

/// Takes away all tokens but those that may come.
fn keep(logits: &mut [f32], may_come: impl Fn(usize) -> bool) {
    for (id, logit) in logits.iter_mut().enumerate() {
        if !may_come(id) {
            *logit = f32::NEG_INFINITY;
        }
    }
}
