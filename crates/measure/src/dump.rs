//! A safetensors file with one f32 tensor `logits` `[positions, vocab]`, written as the rows come.
//!
//! Layout: u64 little-endian header length, JSON header padded with spaces to 8 bytes, data
//! (<https://github.com/huggingface/safetensors>). The file appears under its name only when it is complete.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

use crate::MeasureError;

/// Writes logits row by row. Dropped unfinished, it leaves nothing behind.
#[derive(Debug)]
pub struct LogitsWriter {
    path: PathBuf,
    file: BufWriter<File>,
    temporary: TempPath,
    expected: u64,
    written: u64,
}

impl LogitsWriter {
    /// Starts the dump of `positions` rows of `vocab` values in a temporary file beside `path`.
    ///
    /// # Errors
    /// [`MeasureError::Write`] when the folder cannot be written, or the dump would exceed 2^64 bytes.
    pub fn create(path: &Path, positions: usize, vocab: usize) -> Result<LogitsWriter, MeasureError> {
        let failed = |source| MeasureError::Write { path: path.to_path_buf(), source };
        let expected = (positions as u64).checked_mul(vocab as u64);
        let bytes = expected.and_then(|n| n.checked_mul(4));
        let (Some(expected), Some(bytes)) = (expected, bytes) else {
            return Err(failed(std::io::Error::from(std::io::ErrorKind::FileTooLarge)));
        };

        let mut header = format!(
            r#"{{"logits":{{"dtype":"F32","shape":[{positions},{vocab}],"data_offsets":[0,{bytes}]}}}}"#
        );
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        let (file, temporary) = temporary(folder(path)).map_err(failed)?.into_parts();
        let mut file = BufWriter::new(file);
        file.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
        file.write_all(header.as_bytes()).map_err(failed)?;
        Ok(LogitsWriter { path: path.to_path_buf(), file, temporary, expected, written: 0 })
    }

    /// Appends whole rows, `[rows, vocab]`.
    ///
    /// # Errors
    /// [`MeasureError::Write`], for example when the disk is full.
    pub fn write(&mut self, logits: &[f32]) -> Result<(), MeasureError> {
        for value in logits {
            self.file.write_all(&value.to_le_bytes()).map_err(|e| self.failed(e))?;
        }
        self.written += logits.len() as u64;
        Ok(())
    }

    /// Flushes to the disk and gives the file its name. One that is there is replaced only with `replace`.
    ///
    /// # Errors
    /// [`MeasureError::Incomplete`] when rows are missing or too many, [`MeasureError::Write`] otherwise.
    pub fn finish(self, replace: bool) -> Result<(), MeasureError> {
        let LogitsWriter { path, file, temporary, expected, written: found } = self;
        if found != expected {
            return Err(MeasureError::Incomplete { path, found, expected });
        }
        let publish = || {
            let file = file.into_inner().map_err(|e| e.into_error())?;
            file.sync_all()?;
            let named = if replace { temporary.persist(&path) } else { temporary.persist_noclobber(&path) };
            named.map_err(|e| e.error)?;
            File::open(folder(&path))?.sync_all()
        };
        publish().map_err(|source| MeasureError::Write { path: path.clone(), source })
    }

    fn failed(&self, source: std::io::Error) -> MeasureError {
        MeasureError::Write { path: self.path.clone(), source }
    }
}

/// The folder that `path` lies in, `.` for a bare name.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A temporary file with the permissions of an ordinary new file.
fn temporary(folder: &Path) -> std::io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".basert-logits-").suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    // The library's message names the temporary file, which means nothing to the user.
    builder.tempfile_in(folder).map_err(|e| std::io::Error::from(e.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_dump_is_a_valid_safetensors_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l.safetensors");
        let mut writer = LogitsWriter::create(&path, 2, 3).unwrap();
        writer.write(&[1.0, 2.0, 3.0]).unwrap();
        writer.write(&[-1.0, f32::NEG_INFINITY, 0.5]).unwrap();
        writer.finish(false).unwrap();

        let bytes = std::fs::read(&path).unwrap();
        let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!((8 + header_len) % 8, 0);
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
        let expected =
            serde_json::json!({"logits": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}});
        assert_eq!(header, expected);
        let values: Vec<f32> = bytes[8 + header_len..]
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(values, [1.0, 2.0, 3.0, -1.0, f32::NEG_INFINITY, 0.5]);
        assert_eq!(names(dir.path()), ["l.safetensors"]);
    }

    #[test]
    fn an_unfinished_dump_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l.safetensors");
        let mut writer = LogitsWriter::create(&path, 2, 3).unwrap();
        writer.write(&[1.0, 2.0, 3.0]).unwrap();
        assert!(matches!(writer.finish(false), Err(MeasureError::Incomplete { found: 3, expected: 6, .. })));
        drop(LogitsWriter::create(&path, 1, 1).unwrap());
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }

    #[test]
    fn a_file_that_appeared_meanwhile_is_replaced_only_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l.safetensors");
        for (replace, survives) in [(false, true), (true, false)] {
            let mut writer = LogitsWriter::create(&path, 1, 1).unwrap();
            writer.write(&[1.0]).unwrap();
            std::fs::write(&path, "precious").unwrap();
            assert_eq!(writer.finish(replace).is_err(), survives);
            assert_eq!(std::fs::read(&path).unwrap() == b"precious", survives);
            assert_eq!(names(dir.path()), ["l.safetensors"]);
        }
    }

    #[test]
    fn a_folder_that_does_not_exist_is_named() {
        let error = LogitsWriter::create(Path::new("/no/such/folder/l.safetensors"), 1, 1).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/no/such/folder/l.safetensors") && !text.contains(".basert-"), "{text}");
    }
}
