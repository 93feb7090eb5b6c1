//! How the parts of an answer look.

use basert_text::Part;

use crate::output;

/// Writes out one answer, part by part.
pub struct Screen {
    look: Look,
    /// Whether the last part was thinking.
    thinking: bool,
    ends_line: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// The answer and nothing else.
    Plain,
    /// Thinking dim.
    Coloured,
    /// Thinking between its tags.
    Uncoloured,
}

impl Screen {
    /// For one answer, on a terminal or not; the environment decides on colours.
    pub fn new(on_terminal: bool) -> Screen {
        let look = match (on_terminal, output::no_color()) {
            (false, _) => Look::Plain,
            (true, false) => Look::Coloured,
            (true, true) => Look::Uncoloured,
        };
        Screen { look, thinking: false, ends_line: false }
    }

    /// What to write for the next part.
    pub fn show(&mut self, part: &Part) -> String {
        let (text, thinks) = match part {
            Part::Thinking(text) => (text, true),
            Part::Answer(text) => (text, false),
        };
        if thinks && self.look == Look::Plain {
            return String::new();
        }
        let between = match (self.thinking, thinks, self.look) {
            (false, true, Look::Uncoloured) => "<think>\n",
            (true, false, Look::Uncoloured) => "\n</think>\n\n",
            (true, false, _) => "\n\n",
            _ => "",
        };
        self.thinking = thinks;
        self.ends_line = text.ends_with('\n');
        match self.look {
            // Every piece by itself, so that nothing else turns dim whenever the output stops.
            Look::Coloured if thinks => format!("{between}{}", output::dim(text)),
            _ => format!("{between}{text}"),
        }
    }

    /// What ends the answer: it ends its line.
    pub fn end(&self) -> String {
        if self.ends_line { String::new() } else { "\n".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(look: Look, parts: &[Part]) -> String {
        let mut screen = Screen { look, thinking: false, ends_line: false };
        let mut text: String = parts.iter().map(|part| screen.show(part)).collect();
        text += &screen.end();
        text
    }

    #[test]
    fn thinking_is_hidden_in_a_pipe_dim_on_a_terminal_and_between_tags_without_colours() {
        let think = |text: &str| Part::Thinking(text.to_owned());
        let answer = |text: &str| Part::Answer(text.to_owned());
        let both = [think("a"), think("\nb"), answer("c"), answer("d")];
        assert_eq!(shown(Look::Plain, &both), "cd\n");
        assert_eq!(shown(Look::Coloured, &both), "\x1b[2ma\x1b[0m\x1b[2m\nb\x1b[0m\n\ncd\n");
        assert_eq!(shown(Look::Uncoloured, &both), "<think>\na\nb\n</think>\n\ncd\n");
        for look in [Look::Plain, Look::Coloured, Look::Uncoloured] {
            assert_eq!(shown(look, &[answer("x\n")]), "x\n");
            assert_eq!(shown(look, &[]), "\n");
        }
        assert_eq!(shown(Look::Plain, &[think("a")]), "\n");
        assert_eq!(shown(Look::Coloured, &[think("a")]), "\x1b[2ma\x1b[0m\n");
    }
}
