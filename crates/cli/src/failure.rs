//! How a command ends when it does not end well, and how that is said: one sentence, and a hint where one helps.

use std::error::Error;
use std::io;

use basert_engine::EngineError;

/// Why a command stops early.
#[derive(Debug)]
pub enum Failure {
    /// Something is wrong; `message` says what, on which file or option, and `hint` what to do.
    Error {
        /// One sentence without a full stop.
        message: String,
        /// What to do about it, usually a command to run.
        hint: Option<String>,
    },
    /// The reader of our standard output went away (`basert … | head`). Nothing is wrong.
    ClosedPipe,
    /// The user pressed ^C, or another signal asked the process to end.
    Interrupted {
        /// Number of the signal.
        signal: u8,
    },
}

/// What to do where a context does not fit.
const LARGE: &str =
    "--fit takes narrower K and V, then a shorter context; or give -c, --kv-bits or --prefix-cache yourself";

/// What to do where nothing fits the memory that was named.
const TIGHT: &str =
    "give --fit more, or try fewer answers at a time, a smaller --prefix-cache or narrower weights";

/// What to do where the weights cannot be where they were asked to be.
const RESIDENCE: &str = "raise the limit on locked memory (ulimit -l), or use --weights prefault";

/// Result of a command or of a part of one.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// An error without a hint.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure::Error { message: message.into(), hint: None }
    }

    /// Adds or replaces the hint of an error.
    pub fn hint(self, hint: impl Into<String>) -> Failure {
        match self {
            Failure::Error { message, .. } => Failure::Error { message, hint: Some(hint.into()) },
            other => other,
        }
    }

    /// A library's error in one line, with its causes unless it already quotes them.
    pub fn from_error(error: &dyn Error) -> Failure {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let text = inner.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = inner.source();
        }
        let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Failure::new(lines.join(" "))
    }

    /// Why a model is not loaded, and what to do where the memory is short.
    pub fn from_load(error: &EngineError) -> Failure {
        let failure = Failure::from_error(error);
        match error {
            EngineError::Option { option: "context", .. } => failure.hint(LARGE),
            EngineError::Option { option: "fit", .. } => failure.hint(TIGHT),
            EngineError::Option { option: "weights", .. } => failure.hint(RESIDENCE),
            _ => failure,
        }
    }

    /// Exit status of the process: 0 where nothing is wrong, 128 and the signal's number (130 after ^C), else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Error { .. } => 1,
            Failure::ClosedPipe => 0,
            Failure::Interrupted { signal } => 128 + signal,
        }
    }
}

/// For writes to standard output only: elsewhere a broken pipe is an error like any other.
pub fn from_stdout(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::new(format!("cannot write to standard output: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(&'static str, io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.1)
        }
    }

    #[test]
    fn causes_are_quoted_once_and_on_one_line() {
        let cases = [
            ("cannot read a.base", "cannot read a.base: disk on fire"),
            ("cannot read a.base: disk on fire", "cannot read a.base: disk on fire"),
            ("cannot read\n  a.base", "cannot read a.base: disk on fire"),
            ("cannot read a  b.base", "cannot read a  b.base: disk on fire"),
        ];
        for (outer, expected) in cases {
            match Failure::from_error(&Outer(outer, io::Error::other("disk on fire"))) {
                Failure::Error { message, hint: None } => assert_eq!(message, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}
