//! A whole answer, from the events of its stream.

use super::{Event, Part, Reason, Scored};

/// A call, as far as it was generated.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FoldedCall {
    pub id: String,
    pub name: String,
    /// JSON, or the begin of it.
    pub arguments: String,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Folded {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<FoldedCall>,
    pub scores: Vec<Scored>,
    pub reason: Option<Reason>,
    pub warnings: Vec<String>,
}

impl Folded {
    /// Takes the next event.
    pub fn take(&mut self, event: Event) {
        match event {
            Event::Progress { .. } => {}
            Event::Delta { part, scores } => {
                self.scores.extend(scores);
                self.part(part);
            }
            Event::Finished { reason, scores, warnings } => {
                self.scores.extend(scores);
                self.reason = Some(reason);
                self.warnings.extend(warnings);
            }
        }
    }

    fn part(&mut self, part: Part) {
        match part {
            Part::Reasoning(text) => self.reasoning.push_str(&text),
            Part::Content(text) => self.content.push_str(&text),
            Part::CallOpened { id, name, .. } => {
                self.calls.push(FoldedCall { id, name, arguments: String::new() });
            }
            Part::CallArguments { index, text } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&text);
                }
            }
        }
    }
}
