//! The GGUF container, version 3, written in one pass.
//!
//! Value types are those of llama.cpp's own converter: whole numbers are u32, in arrays i32, other numbers f32.

use std::io::{BufWriter, Write};

use basert_format::{Output, Unfinished};
use basert_quant::GgmlType;
use serde_json::Value;

use crate::ConvertError;

/// Data and every tensor start at a multiple of this, the default of `general.alignment`.
const ALIGNMENT: u64 = 32;

/// Metadata in file order.
pub(super) type Metadata = Vec<(String, Value)>;

/// What is said about a tensor before the data.
pub(super) struct TensorInfo<'a> {
    /// Name in the GGUF.
    pub name: &'a str,
    /// Row-major shape.
    pub shape: &'a [usize],
    /// Element type.
    pub ty: GgmlType,
    /// Bytes of the payload.
    pub bytes: u64,
}

/// A file in the making: it appears under its name when [`GgufWriter::finish`] succeeds.
pub(super) struct GgufWriter {
    out: Output,
    file: BufWriter<Unfinished>,
}

impl GgufWriter {
    /// Opens the file and writes everything before the data.
    pub fn create(
        out: &Output,
        metadata: &Metadata,
        tensors: &[TensorInfo<'_>],
    ) -> Result<GgufWriter, ConvertError> {
        let io = ConvertError::io(out.path(), "create it");
        let file = BufWriter::with_capacity(1 << 20, out.create().map_err(io)?);
        let mut writer = GgufWriter { out: out.clone(), file };
        let mut front = b"GGUF".to_vec();
        front.extend(3u32.to_le_bytes());
        front.extend((tensors.len() as u64).to_le_bytes());
        front.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            put_text(&mut front, key);
            put_value(&mut front, value).map_err(|why| {
                ConvertError::Option(format!("{}: metadata key `{key}` {why}", out.path().display()))
            })?;
        }
        let mut offset = 0u64;
        for TensorInfo { name, shape, ty, bytes } in tensors {
            put_text(&mut front, name);
            front.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|&dim| front.extend((dim as u64).to_le_bytes()));
            front.extend(ty.id().to_le_bytes());
            front.extend(offset.to_le_bytes());
            offset += bytes.next_multiple_of(ALIGNMENT);
        }
        writer.write(&front)?;
        Ok(writer)
    }

    /// Appends a payload, and zeros up to the next multiple of the alignment.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ConvertError> {
        let padding = (bytes.len() as u64).next_multiple_of(ALIGNMENT) - bytes.len() as u64;
        let zeros = [0; ALIGNMENT as usize];
        let written =
            self.file.write_all(bytes).and_then(|()| self.file.write_all(&zeros[..padding as usize]));
        written.map_err(ConvertError::io(self.out.path(), "write it"))
    }

    /// Makes the file appear.
    pub fn finish(self) -> Result<(), ConvertError> {
        let GgufWriter { out, file } = self;
        let io = |action| ConvertError::io(out.path(), action);
        let file = file.into_inner().map_err(|error| io("write it")(error.into_error()))?;
        file.file.sync_all().map_err(io("sync it"))?;
        file.publish().map_err(io("give the finished file its name"))
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Type numbers of the container.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

fn put_value(out: &mut Vec<u8>, value: &Value) -> Result<(), &'static str> {
    match value {
        Value::Array(items) => {
            let ty = items.first().map_or(Ok(STRING), |first| kind(first, I32))?;
            out.extend(ARRAY.to_le_bytes());
            out.extend(ty.to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            items.iter().try_for_each(|item| put_scalar(out, item, ty))
        }
        scalar => {
            let ty = kind(scalar, U32)?;
            out.extend(ty.to_le_bytes());
            put_scalar(out, scalar, ty)
        }
    }
}

/// The type of a scalar, `whole` for whole numbers.
fn kind(value: &Value, whole: u32) -> Result<u32, &'static str> {
    match value {
        Value::String(_) => Ok(STRING),
        Value::Bool(_) => Ok(BOOL),
        Value::Number(number) if number.is_f64() => Ok(F32),
        Value::Number(_) => Ok(whole),
        _ => Err("is no scalar"),
    }
}

fn put_scalar(out: &mut Vec<u8>, value: &Value, ty: u32) -> Result<(), &'static str> {
    const MIXED: &str = "has elements of several types, or numbers beyond 32 bits";
    match (ty, value) {
        (STRING, Value::String(text)) => put_text(out, text),
        (BOOL, Value::Bool(flag)) => out.push(u8::from(*flag)),
        (F32, Value::Number(number)) => {
            out.extend((number.as_f64().ok_or(MIXED)? as f32).to_le_bytes());
        }
        (U32, Value::Number(number)) => {
            let whole = number.as_u64().and_then(|whole| u32::try_from(whole).ok());
            out.extend(whole.ok_or(MIXED)?.to_le_bytes());
        }
        (I32, Value::Number(number)) => {
            let whole = number.as_i64().and_then(|whole| i32::try_from(whole).ok());
            out.extend(whole.ok_or(MIXED)?.to_le_bytes());
        }
        _ => return Err(MIXED),
    }
    Ok(())
}
