//! A model with its words: what tasks put questions to.

use std::ops::ControlFlow;

use basert_engine::{Engine, GenerateParams, SamplingParams, SequenceId, TokenRun, WantLogits, generate};
use basert_text::{ChatTemplate, DecodeStream, Tokenizer};
use serde_json::{Map, Value, json};

use crate::MeasureError;
use crate::perplexity::surprise;
use crate::stats::log_sum_exp;

/// A loaded model, its tokenizer, and its chat template if it has one.
pub struct Speaker<'a> {
    /// Runs the model.
    pub engine: &'a mut Engine,
    /// Makes ids of words.
    pub tokenizer: &'a Tokenizer,
    /// Makes a prompt of messages; a model without one continues plain text.
    pub template: Option<&'a ChatTemplate>,
    /// Ids that end an answer.
    pub eos: &'a [u32],
}

impl Speaker<'_> {
    /// The ids of a raw text, in which control tokens count.
    pub(crate) fn plain(&self, text: &str) -> Result<Vec<u32>, MeasureError> {
        Ok(self.tokenizer.encode(text, true, true)?)
    }

    /// The ids of a conversation up to where the answer begins, without a thinking part where the template has a switch.
    pub(crate) fn rendered(
        &self,
        template: &ChatTemplate,
        messages: &Value,
        tools: Option<&Value>,
    ) -> Result<Vec<u32>, MeasureError> {
        let switches = [("add_generation_prompt", json!(true)), ("enable_thinking", json!(false))];
        let kwargs = Map::from_iter(switches.map(|(key, value)| (key.to_owned(), value)));
        Ok(template.encode(self.tokenizer, messages, tools, &kwargs)?.ids)
    }

    /// The likeliest answer to a prompt, of at most `max_tokens`, as text. Control tokens are left out of it, but for the
    /// tags that structure an answer.
    pub(crate) fn answer(&mut self, prompt: &[u32], max_tokens: usize) -> Result<String, MeasureError> {
        let params = GenerateParams {
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            max_tokens,
            eos: self.eos.to_vec(),
            prefill_chunk: None,
        };
        let generation = generate(self.engine, prompt, &params, &mut |_| ControlFlow::Continue(()))?;
        let mut decoder = DecodeStream::answering(self.tokenizer);
        let mut text: String = generation.ids.iter().map(|&id| decoder.push(id)).collect();
        text += &decoder.finish();
        Ok(text)
    }

    /// `ln p` of the ids from `first` on, each given all before it, in nats. `first` is at least 1.
    pub(crate) fn log_likelihood(&mut self, ids: &[u32], first: usize) -> Result<f64, MeasureError> {
        let sequence = self.engine.new_sequence()?;
        let result = self.feed_and_score(sequence, ids, first);
        self.engine.release(sequence);
        result
    }

    fn feed_and_score(
        &mut self,
        sequence: SequenceId,
        ids: &[u32],
        first: usize,
    ) -> Result<f64, MeasureError> {
        let (context, scored) = ids[..ids.len() - 1].split_at(first - 1);
        for tokens in context.chunks(self.engine.step_tokens()) {
            self.engine.step(&[TokenRun { sequence, tokens, logits: WantLogits::None }])?;
        }
        let (mut sum, mut position) = (0.0, first - 1);
        for tokens in scored.chunks(self.engine.step_tokens().min(self.engine.logit_rows())) {
            let logits = self.engine.step(&[TokenRun { sequence, tokens, logits: WantLogits::All }])?;
            for row in logits.data.chunks_exact(logits.vocab) {
                sum -= surprise(row, log_sum_exp(row), ids[position + 1], position)?;
                position += 1;
            }
        }
        Ok(sum)
    }
}
