//! The judged part of JSON Schema, checked once and held as data.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::{Map, Value};

use crate::TextError;

/// A set of JSON types. Integers and other numbers are kept apart; `number` is both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ANY: Self = Self(0x7f);
    pub(super) const STRING: Self = Self(1);
    pub(super) const OBJECT: Self = Self(1 << 1);
    pub(super) const ARRAY: Self = Self(1 << 2);
    const NULL: Self = Self(1 << 3);
    const BOOLEAN: Self = Self(1 << 4);
    const INTEGER: Self = Self(1 << 5);
    const FRACTION: Self = Self(1 << 6);
    const NUMBER: Self = Self(Self::INTEGER.0 | Self::FRACTION.0);

    /// In the order in which a message names them; an integer is named only where no other number is.
    const NAMES: [(Self, &'static str, &'static str); 7] = [
        (Self::STRING, "string", "a string"),
        (Self::NUMBER, "number", "a number"),
        (Self::INTEGER, "integer", "an integer"),
        (Self::BOOLEAN, "boolean", "true or false"),
        (Self::OBJECT, "object", "an object"),
        (Self::ARRAY, "array", "an array"),
        (Self::NULL, "null", "null"),
    ];

    /// The type of a value. `2.0` is an integer, as JSON Schema has it.
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(n) if n.as_f64().is_none_or(|n| n.fract() == 0.0) => Self::INTEGER,
            Value::Number(_) => Self::FRACTION,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known, _)| *known == name).map(|(types, ..)| *types)
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether a type is in both.
    pub(super) fn meets(self, other: Self) -> bool {
        self.and(other) != Self::NONE
    }

    /// `an integer, a string or null`.
    pub(super) fn describe(self) -> String {
        let mut left = self;
        let mut names = Vec::new();
        for (types, _, name) in Self::NAMES {
            if left.and(types) == types {
                names.push(name);
                left = Self(left.0 & !types.0);
            }
        }
        match names.split_last() {
            None => "absent".to_owned(),
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
        }
    }
}

/// A schema; keywords that are absent allow everything.
#[derive(Debug)]
pub(super) struct Schema {
    /// `type`; none for the schema `false`.
    pub(super) types: Types,
    /// `enum`, and `const` as an `enum` of one.
    pub(super) choices: Vec<Vec<Value>>,
    pub(super) properties: BTreeMap<String, Schema>,
    pub(super) required: Vec<String>,
    pub(super) additional: Option<Box<Schema>>,
    pub(super) items: Option<Box<Schema>>,
    /// Smallest and largest value.
    pub(super) range: [Option<f64>; 2],
    /// The same, where the limit itself is not allowed.
    pub(super) open_range: [Option<f64>; 2],
    /// Smallest and largest number of characters.
    pub(super) length: [Option<u64>; 2],
    /// Smallest and largest number of items.
    pub(super) count: [Option<u64>; 2],
    pub(super) all_of: Vec<Schema>,
    pub(super) any_of: Vec<Schema>,
    pub(super) one_of: Vec<Schema>,
    /// A key of [`Schemas::target`].
    pub(super) reference: Option<String>,
}

/// A function's parameters: a schema and what it refers to.
#[derive(Debug)]
pub(super) struct Schemas {
    root: Schema,
    targets: BTreeMap<String, Schema>,
}

impl Schemas {
    /// Reads a schema; `path` names it in errors.
    pub(super) fn new(value: &Value, path: &str) -> Result<Self, TextError> {
        let mut reader = Reader { pending: Vec::new() };
        let root = reader.schema(value, path)?;
        let mut targets = BTreeMap::new();
        while let Some((pointer, from)) = reader.pending.pop() {
            if let Entry::Vacant(slot) = targets.entry(pointer) {
                let pointer = slot.key();
                let nowhere = || {
                    let problem = format!("leads nowhere: there is no `{pointer}` in the schema");
                    TextError::field(from.as_str(), problem)
                };
                let target = value.pointer(pointer).ok_or_else(nowhere)?;
                let schema = reader.schema(target, &format!("{path}{}", pointer.replace('/', ".")))?;
                slot.insert(schema);
            }
        }
        Ok(Self { root, targets })
    }

    pub(super) fn root(&self) -> &Schema {
        &self.root
    }

    /// What a [`Schema::reference`] refers to.
    pub(super) fn target(&self, reference: &str) -> Option<&Schema> {
        self.targets.get(reference)
    }
}

struct Reader {
    /// References whose targets have not been read: the JSON pointer, and where it was found.
    pending: Vec<(String, String)>,
}

impl Reader {
    fn schema(&mut self, value: &Value, path: &str) -> Result<Schema, TextError> {
        let nothing = Map::new();
        let (types, object) = match value {
            Value::Bool(true) => (Types::ANY, &nothing),
            Value::Bool(false) => (Types::NONE, &nothing),
            Value::Object(object) => (types(object, path)?, object),
            _ => return Err(TextError::field(path, "is not a schema")),
        };
        let has = |keyword| object.contains_key(keyword);
        let additional = if has("patternProperties") { None } else { object.get("additionalProperties") };
        let items = if has("prefixItems") { None } else { object.get("items").filter(|i| !i.is_array()) };
        Ok(Schema {
            types,
            choices: choices(object, path)?,
            properties: self.properties(object, path)?,
            required: required(object, path)?,
            additional: self.inner(additional, path, "additionalProperties")?,
            items: self.inner(items, path, "items")?,
            range: [number(object, path, "minimum")?, number(object, path, "maximum")?],
            open_range: [
                number(object, path, "exclusiveMinimum")?,
                number(object, path, "exclusiveMaximum")?,
            ],
            length: [size(object, path, "minLength")?, size(object, path, "maxLength")?],
            count: [size(object, path, "minItems")?, size(object, path, "maxItems")?],
            all_of: self.list(object, path, "allOf")?,
            any_of: self.list(object, path, "anyOf")?,
            one_of: self.list(object, path, "oneOf")?,
            reference: self.reference(object, path)?,
        })
    }

    fn inner(
        &mut self,
        value: Option<&Value>,
        path: &str,
        keyword: &str,
    ) -> Result<Option<Box<Schema>>, TextError> {
        value.map(|value| self.schema(value, &format!("{path}.{keyword}")).map(Box::new)).transpose()
    }

    fn properties(
        &mut self,
        object: &Map<String, Value>,
        path: &str,
    ) -> Result<BTreeMap<String, Schema>, TextError> {
        let path = format!("{path}.properties");
        match object.get("properties") {
            None => Ok(BTreeMap::new()),
            Some(Value::Object(properties)) => properties
                .iter()
                .map(|(name, value)| Ok((name.clone(), self.schema(value, &format!("{path}.{name}"))?)))
                .collect(),
            Some(_) => Err(TextError::field(path, "is not an object")),
        }
    }

    fn list(
        &mut self,
        object: &Map<String, Value>,
        path: &str,
        keyword: &str,
    ) -> Result<Vec<Schema>, TextError> {
        match object.get(keyword) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) if !list.is_empty() => {
                let schema = |(i, value)| self.schema(value, &format!("{path}.{keyword}[{i}]"));
                list.iter().enumerate().map(schema).collect()
            }
            Some(_) => Err(wrong(path, keyword, "is not a list of schemas")),
        }
    }

    fn reference(&mut self, object: &Map<String, Value>, path: &str) -> Result<Option<String>, TextError> {
        let Some(reference) = object.get("$ref") else { return Ok(None) };
        let pointer = reference.as_str().and_then(|r| r.strip_prefix('#'));
        let pointer = pointer.filter(|p| p.is_empty() || p.starts_with('/'));
        let pointer = pointer.ok_or_else(|| wrong(path, "$ref", "is not of the form `#/...`"))?;
        self.pending.push((pointer.to_owned(), format!("{path}.$ref")));
        Ok(Some(pointer.to_owned()))
    }
}

fn wrong(path: &str, keyword: &str, problem: &str) -> TextError {
    TextError::field(format!("{path}.{keyword}"), problem)
}

fn types(object: &Map<String, Value>, path: &str) -> Result<Types, TextError> {
    let one = |name: &Value| {
        name.as_str()
            .and_then(Types::named)
            .ok_or_else(|| wrong(path, "type", &format!("is {name}, which is no type")))
    };
    match object.get("type") {
        None => Ok(Types::ANY),
        Some(Value::Array(names)) => names.iter().try_fold(Types::NONE, |all, name| Ok(all.or(one(name)?))),
        Some(name) => one(name),
    }
}

fn choices(object: &Map<String, Value>, path: &str) -> Result<Vec<Vec<Value>>, TextError> {
    let listed = match object.get("enum") {
        None => None,
        Some(Value::Array(values)) => Some(values.clone()),
        Some(_) => return Err(wrong(path, "enum", "is not an array")),
    };
    let constant = object.get("const").map(|value| vec![value.clone()]);
    Ok(listed.into_iter().chain(constant).collect())
}

fn required(object: &Map<String, Value>, path: &str) -> Result<Vec<String>, TextError> {
    let name = |name: &Value| {
        name.as_str().map(str::to_owned).ok_or_else(|| wrong(path, "required", "is not a list of names"))
    };
    match object.get("required") {
        None => Ok(Vec::new()),
        Some(Value::Array(names)) => names.iter().map(name).collect(),
        Some(_) => Err(wrong(path, "required", "is not a list of names")),
    }
}

fn number(object: &Map<String, Value>, path: &str, keyword: &str) -> Result<Option<f64>, TextError> {
    let number = |value: &Value| value.as_f64().ok_or_else(|| wrong(path, keyword, "is not a number"));
    object.get(keyword).map(number).transpose()
}

fn size(object: &Map<String, Value>, path: &str, keyword: &str) -> Result<Option<u64>, TextError> {
    let size =
        |value: &Value| value.as_u64().ok_or_else(|| wrong(path, keyword, "is not a number of things"));
    object.get(keyword).map(size).transpose()
}
