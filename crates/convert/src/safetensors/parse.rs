//! The header of one file, checked.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{Dtype, Header, SafetensorsFault, TensorInfo};

/// Longest header accepted, that of the reference implementation.
pub(super) const MAX_HEADER: u64 = 100_000_000;

/// Bytes of the length prefix.
const PREFIX: usize = 8;

/// Reads and checks the header of a whole file.
///
/// # Errors
/// The first thing found wrong, naming the tensor if there is one.
pub fn parse(file: &[u8]) -> Result<Header, SafetensorsFault> {
    let Some((prefix, rest)) = file.split_first_chunk::<PREFIX>() else {
        return Err(SafetensorsFault::TooShort(file.len()));
    };
    let claimed = u64::from_le_bytes(*prefix);
    let available = rest.len() as u64;
    if claimed > available {
        return Err(SafetensorsFault::HeaderPastEnd { claimed, available });
    }
    if claimed > MAX_HEADER {
        return Err(SafetensorsFault::HeaderTooLong(claimed));
    }
    let (json, data) = rest.split_at(claimed as usize);
    if json.first() != Some(&b'{') {
        return Err(SafetensorsFault::NotAnObject);
    }
    let json = std::str::from_utf8(json).map_err(|error| SafetensorsFault::NotUtf8(error.valid_up_to()))?;
    let Object(entries) = serde_json::from_str(json).map_err(SafetensorsFault::Json)?;

    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    let mut metadata = BTreeMap::new();
    let data_start = PREFIX + json.len();
    for (name, value) in entries {
        if !names.insert(name.clone()) {
            return Err(SafetensorsFault::DuplicateName(name));
        }
        if name == "__metadata__" {
            metadata = strings(value)?;
        } else {
            tensors.push(tensor(name, value, data_start, data.len() as u64)?);
        }
    }
    tensors.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    check_layout(&tensors, data_start, file.len())?;
    Ok(Header { tensors, metadata })
}

/// The members of a JSON object in order, repeated keys included, values unparsed. A map would silently keep one
/// of two equal keys.
#[derive(Debug)]
pub(super) struct Object<V>(pub Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Object<V> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Object<V>, D::Error> {
        struct Members<V>(std::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Members<V> {
            type Value = Object<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<V>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Members(std::marker::PhantomData))
    }
}

/// A tensor's description. Repeated and unknown members are errors of the derived parser.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

fn strings(value: &RawValue) -> Result<BTreeMap<String, String>, SafetensorsFault> {
    let Object(members) = serde_json::from_str::<Object<String>>(value.get())
        .map_err(|cause| SafetensorsFault::Entry { tensor: "__metadata__".to_owned(), cause })?;
    let mut strings = BTreeMap::new();
    for (key, value) in members {
        if strings.contains_key(&key) {
            return Err(SafetensorsFault::DuplicateName(key));
        }
        strings.insert(key, value);
    }
    Ok(strings)
}

fn tensor(
    name: String,
    value: &RawValue,
    data_start: usize,
    available: u64,
) -> Result<TensorInfo, SafetensorsFault> {
    let Entry { dtype, shape, data_offsets: (begin, end) } = match serde_json::from_str(value.get()) {
        Ok(entry) => entry,
        Err(cause) => return Err(SafetensorsFault::Entry { tensor: name, cause }),
    };
    let Some(dtype) = Dtype::from_name(&dtype) else {
        return Err(SafetensorsFault::UnknownDtype { tensor: name, dtype });
    };
    if begin > end {
        return Err(SafetensorsFault::Reversed { tensor: name, begin, end });
    }
    if end > available {
        return Err(SafetensorsFault::PastEnd { tensor: name, end, available });
    }
    let bits = shape.iter().try_fold(dtype.bits(), |bits, &dim| bits.checked_mul(dim as u64));
    let Some(bits) = bits else {
        return Err(SafetensorsFault::Overflow { tensor: name });
    };
    if bits % 8 != 0 || bits / 8 != end - begin {
        return Err(SafetensorsFault::Size { tensor: name, expected: bits.div_ceil(8), found: end - begin });
    }
    // Both are within the file, whose length is a usize.
    let (start, end) = (data_start + begin as usize, data_start + end as usize);
    Ok(TensorInfo { name, dtype, shape, start, end })
}

/// Tensors, sorted by position, must fill the data exactly.
fn check_layout(tensors: &[TensorInfo], data_start: usize, file_len: usize) -> Result<(), SafetensorsFault> {
    let mut previous: Option<&TensorInfo> = None;
    let mut at = data_start;
    for tensor in tensors {
        if tensor.start > at {
            let bytes = (tensor.start - at) as u64;
            return Err(SafetensorsFault::Hole { tensor: tensor.name.clone(), bytes });
        }
        if tensor.start < at {
            let first = previous.map_or_else(String::new, |tensor| tensor.name.clone());
            return Err(SafetensorsFault::Overlap { first, second: tensor.name.clone() });
        }
        at = tensor.end;
        previous = Some(tensor);
    }
    if at != file_len {
        return Err(SafetensorsFault::TrailingBytes((file_len - at) as u64));
    }
    Ok(())
}
