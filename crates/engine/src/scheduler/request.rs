//! What is asked of a [`Scheduler`](crate::Scheduler), and what is heard of it.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::EngineError;
use crate::generate::{Finish, GenerateParams};
use crate::reader::Reuse;

/// What a request wants.
#[derive(Clone, Debug)]
pub struct Request {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// How the answer is made.
    pub params: GenerateParams,
    /// Log-probabilities with every token: of the token itself, and of so many of the likeliest.
    pub logprobs: Option<usize>,
    /// What others may share of the prompt, where the engine keeps prefixes.
    pub reuse: Reuse,
    /// Who asks: where requests have to wait, every client's get their turn.
    pub client: String,
}

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The token.
    pub id: u32,
    /// `ln p` before bias, penalties, temperature and truncation, if the request asked for it.
    pub logprob: Option<f32>,
    /// The likeliest tokens with their `ln p`, likeliest first; the lower id first among equals.
    pub top: Vec<(u32, f32)>,
}

/// What a client hears of its request.
#[derive(Clone, Debug)]
pub enum News {
    /// So many tokens of the prompt have been run.
    Prefilled {
        /// Tokens run, those that were kept from earlier prompts included.
        done: usize,
        /// Tokens that were kept from earlier prompts.
        cached: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// The next token of the answer.
    Token(Token),
    /// The answer is complete. The last news.
    Finished(Finish),
    /// The request failed. The last news.
    Failed(Arc<EngineError>),
}

/// Whoever waits for an answer. Its methods are called between steps, and hold up all requests for as long as they take.
pub trait Client: Send {
    /// Takes news. [`ControlFlow::Break`] ends the request: nothing more comes.
    fn take(&mut self, news: News) -> ControlFlow<()>;

    /// Takes away the tokens that must not come next, by logits of minus infinity. Called before a token of the answer is
    /// picked; log-probabilities are those from before.
    ///
    /// # Errors
    /// What ends the request.
    fn constrain(&mut self, logits: &mut [f32]) -> Result<(), EngineError> {
        let _ = logits;
        Ok(())
    }

    /// Whether the log-probabilities of the prompt's own tokens are wanted, with so many of the likeliest. It does not change
    /// while the request lives.
    fn wants_prompt(&self) -> Option<usize> {
        None
    }

    /// Takes the prompt's next tokens, if they are [wanted](Self::wants_prompt): all but the first one, which nothing predicts.
    fn take_prompt(&mut self, tokens: Vec<Token>) {
        let _ = tokens;
    }

    /// Takes the end-of-sequence token that ends the answer and is no part of it. Called before [`News::Finished`].
    fn take_end(&mut self, token: Token) {
        let _ = token;
    }

    /// Whether nobody waits any more. Asked before every step.
    fn is_gone(&self) -> bool {
        false
    }
}
