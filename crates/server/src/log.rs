//! The log: one JSON object per line, with what happened and how long it took, never with texts of prompts or answers.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::worker::lock;

/// Where lines go.
#[derive(Debug)]
pub(crate) struct Log {
    path: Option<PathBuf>,
    /// Standard error where there is no file.
    file: Mutex<Option<File>>,
}

impl Log {
    pub fn open(path: Option<PathBuf>) -> io::Result<Log> {
        let file = path.as_ref().map(append).transpose()?;
        Ok(Log { path, file: Mutex::new(file) })
    }

    /// Opens the file anew, after it was moved away.
    pub fn reopen(&self) {
        let Some(path) = &self.path else { return };
        match append(path) {
            Ok(file) => *lock(&self.file) = Some(file),
            Err(e) => self.write("log", serde_json::json!({"error": format!("cannot reopen: {e}")})),
        }
    }

    /// Writes one line: the time, the event, and the entries of `what`.
    pub fn write(&self, event: &str, what: Value) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut line = Map::new();
        line.insert("time".to_owned(), (time.as_millis() as f64 / 1e3).into());
        line.insert("event".to_owned(), event.into());
        if let Value::Object(what) = what {
            line.extend(what);
        }
        let text = format!("{}\n", Value::Object(line));
        // A full disk must not end the service.
        let _ = match &mut *lock(&self.file) {
            Some(file) => file.write_all(text.as_bytes()),
            None => io::stderr().lock().write_all(text.as_bytes()),
        };
    }
}

fn append(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}
