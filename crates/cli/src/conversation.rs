//! What was said so far, and what of it a model reads.

use basert_text::{ChatTemplate, RenderedChat, Tokenizer};
use serde_json::{Map, Value, json};

use crate::bundle::Bundle;
use crate::failure::{Failure, Outcome};
use crate::output;

/// Whether a model is to think before it answers; what the template does by itself unless one of the two is given.
#[derive(Clone, Copy)]
pub struct Thinking {
    /// `--think`.
    pub think: bool,
    /// `--no-think`.
    pub no_think: bool,
}

impl Thinking {
    fn wanted(self) -> Option<bool> {
        (self.think || self.no_think).then_some(self.think)
    }

    /// Says that there is nothing to switch, if a flag was given in vain.
    pub fn remark(self, bundle: &Bundle) {
        let Some(wanted) = self.wanted().filter(|_| !bundle.can_switch_thinking()) else { return };
        let flag = if wanted { "--think" } else { "--no-think" };
        output::note(&format!(
            "this model's chat template has no switch for thinking; {flag} changes nothing"
        ));
    }
}

/// A conversation in the words of one model.
#[derive(Clone)]
pub struct Conversation {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    kwargs: Map<String, Value>,
    messages: Vec<Value>,
    /// How many messages every conversation begins with.
    opening: usize,
}

impl Conversation {
    /// A conversation in which nothing was said yet but the system message, if there is one.
    pub fn new(
        tokenizer: Tokenizer,
        template: ChatTemplate,
        system: Option<String>,
        thinking: Thinking,
    ) -> Conversation {
        let mut kwargs = Map::from_iter([("add_generation_prompt".to_owned(), json!(true))]);
        if let Some(wanted) = thinking.wanted() {
            kwargs.insert("enable_thinking".to_owned(), json!(wanted));
        }
        let messages: Vec<Value> =
            system.into_iter().map(|text| json!({"role": "system", "content": text})).collect();
        Conversation { tokenizer, template, kwargs, opening: messages.len(), messages }
    }

    /// What was said so far.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// Goes on from what was said earlier. Where this conversation has a system message, it must be the same.
    ///
    /// # Errors
    /// A system message that differs.
    pub fn restore(&mut self, messages: Vec<Value>) -> Outcome {
        if !messages.starts_with(&self.messages) {
            let hint = "leave out --system, or name another file";
            return Err(Failure::new("the session began with another system message").hint(hint));
        }
        let is_system = |message: &&Value| message["role"] == "system";
        self.opening = messages.iter().take_while(is_system).count();
        self.messages = messages;
        Ok(())
    }

    /// The user says something.
    pub fn ask(&mut self, text: &str) {
        self.messages.push(json!({"role": "user", "content": text}));
    }

    /// Takes the last message back.
    pub fn take_back(&mut self) {
        if self.messages.len() > self.opening {
            self.messages.pop();
        }
    }

    /// The model has said something, and thought something before it.
    pub fn answer(&mut self, text: &str, thinking: &str) {
        // Always with both: a template that misses the thinking would look for it in the text.
        self.messages.push(json!({"role": "assistant", "content": text, "reasoning_content": thinking}));
    }

    /// Forgets everything but the system message.
    pub fn clear(&mut self) {
        self.messages.truncate(self.opening);
    }

    /// The whole conversation as the model reads it, up to where its answer begins.
    ///
    /// # Errors
    /// What the template refuses, in its own words.
    pub fn prompt(&self) -> Outcome<RenderedChat> {
        let messages = Value::Array(self.messages.clone());
        let rendered = self.template.encode(&self.tokenizer, &messages, None, &self.kwargs);
        rendered.map_err(|e| Failure::from_error(&e))
    }
}
