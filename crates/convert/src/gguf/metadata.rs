//! Key-value metadata to JSON.

use serde_json::{Map, Number, Value};

use super::GgufFault;
use super::cursor::Cursor;

/// Elements of all arrays together. A JSON value takes some thirty times the memory of a byte in the file, so the
/// length of the file alone does not bound it; the largest vocabularies come to about two million.
pub(super) const MAX_VALUES: u64 = 1 << 23;

/// Least bytes of a key and its value: u64 length, one character, u32 type, one byte.
const LEAST_ENTRY: u64 = 14;

/// Alignment of the data when the metadata does not say.
const DEFAULT_ALIGNMENT: u64 = 32;

const ALIGNMENT_KEY: &str = "general.alignment";

/// The number of the one type `general.alignment` may have.
const U32: u32 = 4;

/// Reads `count` keys and their values.
pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Map<String, Value>, GgufFault> {
    cursor.check_count(count, LEAST_ENTRY, "metadata keys")?;
    let mut metadata = Map::new();
    let mut budget = MAX_VALUES;
    for _ in 0..count {
        let position = cursor.position();
        let key = cursor.string("a metadata key")?;
        if key.is_empty() {
            return Err(GgufFault::EmptyKey(position));
        }
        if metadata.contains_key(key) {
            return Err(GgufFault::DuplicateKey(key.to_owned()));
        }
        let ty = cursor.u32("a value type")?;
        if key == ALIGNMENT_KEY && ty != U32 {
            return Err(GgufFault::KeyType { key: key.to_owned(), expected: "a u32" });
        }
        let value = value(cursor, ty, &mut budget)
            .map_err(|cause| GgufFault::Key { key: key.to_owned(), cause: Box::new(cause) })?;
        metadata.insert(key.to_owned(), value);
    }
    Ok(metadata)
}

/// The alignment of tensor data: a power of two.
pub(super) fn alignment(metadata: &Map<String, Value>) -> Result<u64, GgufFault> {
    let alignment = metadata.get(ALIGNMENT_KEY).and_then(Value::as_u64).unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() {
        return Err(GgufFault::Alignment(alignment));
    }
    Ok(alignment)
}

fn value(cursor: &mut Cursor<'_>, ty: u32, budget: &mut u64) -> Result<Value, GgufFault> {
    const ARRAY: u32 = 9;
    if ty != ARRAY {
        return scalar(cursor, ty);
    }
    let ty = cursor.u32("an array's element type")?;
    if ty == ARRAY {
        return Err(GgufFault::NestedArray);
    }
    let count = cursor.u64("an array's length")?;
    cursor.check_count(count, least_bytes(ty)?, "array elements")?;
    *budget = budget.checked_sub(count).ok_or(GgufFault::TooManyValues)?;
    (0..count).map(|_| scalar(cursor, ty)).collect::<Result<_, _>>().map(Value::Array)
}

/// A value that is not an array.
fn scalar(cursor: &mut Cursor<'_>, ty: u32) -> Result<Value, GgufFault> {
    let what = "a value";
    Ok(match ty {
        0 => u8::from_le_bytes(cursor.array(what)?).into(),
        1 => i8::from_le_bytes(cursor.array(what)?).into(),
        2 => u16::from_le_bytes(cursor.array(what)?).into(),
        3 => i16::from_le_bytes(cursor.array(what)?).into(),
        U32 => cursor.u32(what)?.into(),
        5 => i32::from_le_bytes(cursor.array(what)?).into(),
        6 => float(f32::from_le_bytes(cursor.array(what)?).into())?,
        7 => match u8::from_le_bytes(cursor.array(what)?) {
            byte @ 0..=1 => Value::Bool(byte == 1),
            byte => return Err(GgufFault::Bool(byte)),
        },
        8 => cursor.string(what)?.into(),
        10 => cursor.u64(what)?.into(),
        11 => i64::from_le_bytes(cursor.array(what)?).into(),
        12 => float(f64::from_le_bytes(cursor.array(what)?))?,
        _ => return Err(GgufFault::ValueType(ty)),
    })
}

/// Bytes that a value of a scalar type takes at least; an empty string is its length.
fn least_bytes(ty: u32) -> Result<u64, GgufFault> {
    match ty {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        U32 | 5 | 6 => Ok(4),
        8 | 10..=12 => Ok(8),
        _ => Err(GgufFault::ValueType(ty)),
    }
}

fn float(value: f64) -> Result<Value, GgufFault> {
    Number::from_f64(value).map(Value::Number).ok_or(GgufFault::NonFinite(value))
}
