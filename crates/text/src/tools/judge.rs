//! A value against a schema.

use std::fmt;

use serde_json::{Map, Value};

use super::schema::{Schema, Schemas, Types};
use super::{CallProblem, excerpt};

/// How many schemas one judgement may visit. Calls take a few hundred; schemas that refer to themselves in several places
/// would take for ever.
const STEPS: usize = 1_000_000;
/// How deep schemas may lie in each other during one judgement; JSON itself is read to a depth of 128.
const DEPTH: usize = 300;

/// Judges values by one function's parameters.
pub(super) struct Judge<'a> {
    schemas: &'a Schemas,
    steps: usize,
    depth: usize,
}

impl<'a> Judge<'a> {
    pub(super) fn new(schemas: &'a Schemas) -> Self {
        Self { schemas, steps: STEPS, depth: DEPTH }
    }

    /// Judges the arguments of a call.
    pub(super) fn arguments(mut self, arguments: &Map<String, Value>) -> Result<(), CallProblem> {
        let verdict = self.value(self.schemas.root(), &Value::Object(arguments.clone()), &Path::Root);
        self.verdict(verdict)
    }

    /// A verdict, unless this judge has gone too far for its verdicts to count.
    pub(super) fn verdict(&self, verdict: Result<(), CallProblem>) -> Result<(), CallProblem> {
        if self.steps == 0 { Err(too_deep(&Path::Root)) } else { verdict }
    }

    /// Whether a value satisfies a schema.
    pub(super) fn satisfies(&mut self, schema: &Schema, value: &Value) -> bool {
        self.value(schema, value, &Path::Root).is_ok() && self.steps > 0
    }

    /// The schema of an argument, where there is one.
    pub(super) fn parameter(&mut self, name: &str) -> Option<&'a Schema> {
        self.property(self.schemas.root(), name)
    }

    fn property(&mut self, schema: &'a Schema, name: &str) -> Option<&'a Schema> {
        if let Some(found) = schema.properties.get(name) {
            return Some(found);
        }
        let target = schema.reference.as_ref().and_then(|r| self.schemas.target(r));
        let parts = target.into_iter().chain(&schema.all_of).chain(&schema.any_of).chain(&schema.one_of);
        let found = self.inside(|judge| parts.into_iter().find_map(|part| judge.property(part, name)));
        found.flatten().or(schema.additional.as_deref())
    }

    /// The types that a schema admits, as far as `type`, `enum`, `const`, references and combinations tell.
    pub(super) fn types(&mut self, schema: &Schema) -> Types {
        let inner = self.inside(|judge| {
            let mut types = schema.types;
            for choices in &schema.choices {
                types = types.and(choices.iter().fold(Types::NONE, |all, value| all.or(Types::of(value))));
            }
            let target = schema.reference.as_ref().and_then(|r| judge.schemas.target(r));
            for part in target.into_iter().chain(&schema.all_of) {
                types = types.and(judge.types(part));
            }
            for union in [&schema.any_of, &schema.one_of] {
                if !union.is_empty() {
                    types = types.and(union.iter().fold(Types::NONE, |all, part| all.or(judge.types(part))));
                }
            }
            types
        });
        inner.unwrap_or(Types::ANY)
    }

    fn value(&mut self, schema: &Schema, value: &Value, path: &Path<'_>) -> Result<(), CallProblem> {
        let verdict = self.inside(|judge| {
            if !schema.types.meets(Types::of(value)) {
                return Err(wrong_type(path, schema.types, value));
            }
            if let Some(choices) = schema.choices.iter().find(|c| !c.iter().any(|choice| same(choice, value)))
            {
                let listed = Value::Array(choices.clone()).to_string();
                return Err(invalid(
                    path,
                    format!("is `{}`, which is not in {}", short(value), excerpt(&listed)),
                ));
            }
            match value {
                Value::Number(number) => numeric(schema, number.as_f64().unwrap_or(f64::NAN), path)?,
                Value::String(text) => sized(schema.length, text.chars().count(), "characters", path)?,
                Value::Array(items) => judge.array(schema, items, path)?,
                Value::Object(entries) => judge.object(schema, entries, path)?,
                Value::Null | Value::Bool(_) => {}
            }
            judge.combinations(schema, value, path)
        });
        verdict.unwrap_or_else(|| Err(too_deep(path)))
    }

    fn array(&mut self, schema: &Schema, items: &[Value], path: &Path<'_>) -> Result<(), CallProblem> {
        sized(schema.count, items.len(), "items", path)?;
        let Some(rule) = &schema.items else { return Ok(()) };
        items.iter().enumerate().try_for_each(|(i, item)| self.value(rule, item, &Path::Item(path, i)))
    }

    fn object(
        &mut self,
        schema: &Schema,
        entries: &Map<String, Value>,
        path: &Path<'_>,
    ) -> Result<(), CallProblem> {
        if let Some(name) = schema.required.iter().find(|name| !entries.contains_key(*name)) {
            return Err(CallProblem::Missing { path: Path::Entry(path, name).to_string() });
        }
        for (name, value) in entries {
            let path = Path::Entry(path, name);
            match schema.properties.get(name).or(schema.additional.as_deref()) {
                None => {}
                Some(rule) if rule.types == Types::NONE => {
                    return Err(CallProblem::Unexpected { path: path.to_string() });
                }
                Some(rule) => self.value(rule, value, &path)?,
            }
        }
        Ok(())
    }

    fn combinations(&mut self, schema: &Schema, value: &Value, path: &Path<'_>) -> Result<(), CallProblem> {
        let target = schema.reference.as_ref().and_then(|r| self.schemas.target(r));
        for part in target.into_iter().chain(&schema.all_of) {
            self.value(part, value, path)?;
        }
        self.union(&schema.any_of, value, path)?;
        let fitting = schema.one_of.iter().filter(|part| self.value(part, value, path).is_ok()).count();
        if fitting > 1 {
            return Err(invalid(path, "satisfies more than one schema of `oneOf`".to_owned()));
        }
        if fitting == 0 { self.union(&schema.one_of, value, path) } else { Ok(()) }
    }

    /// Satisfied by one of several schemas. The problem is that of the only one that admits the value's type, where there
    /// is but one.
    fn union(&mut self, parts: &[Schema], value: &Value, path: &Path<'_>) -> Result<(), CallProblem> {
        let mut problems = Vec::new();
        for part in parts {
            match self.value(part, value, path) {
                Ok(()) => return Ok(()),
                Err(problem) => problems.push((part, problem)),
            }
        }
        let mut admitting = Types::NONE;
        for part in parts {
            admitting = admitting.or(self.types(part));
        }
        let mine = Types::of(value);
        problems.retain(|(part, _)| self.types(part).meets(mine));
        match problems.pop() {
            None if parts.is_empty() => Ok(()),
            None => Err(wrong_type(path, admitting, value)),
            Some((_, problem)) if problems.is_empty() => Err(problem),
            Some(_) => Err(invalid(
                path,
                format!("is `{}`, which fits none of {} schemas", short(value), parts.len()),
            )),
        }
    }

    /// Goes one schema deeper; `None` if this judgement has gone too far. Once out of steps, it stays so.
    fn inside<T>(&mut self, visit: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.steps = self.steps.saturating_sub(1);
        if self.steps == 0 || self.depth == 0 {
            self.steps = 0;
            return None;
        }
        self.depth -= 1;
        let result = visit(self);
        self.depth += 1;
        Some(result)
    }
}

fn numeric(schema: &Schema, number: f64, path: &Path<'_>) -> Result<(), CallProblem> {
    let [low, high] = schema.range;
    let [above, below] = schema.open_range;
    let broken = [
        (low.filter(|low| number < *low), "at least"),
        (high.filter(|high| number > *high), "at most"),
        (above.filter(|above| number <= *above), "more than"),
        (below.filter(|below| number >= *below), "less than"),
    ];
    match broken.iter().find_map(|(limit, word)| limit.map(|limit| (limit, word))) {
        Some((limit, word)) => Err(invalid(path, format!("must be {word} {limit}, and is {number}"))),
        None => Ok(()),
    }
}

fn sized(limits: [Option<u64>; 2], size: usize, what: &str, path: &Path<'_>) -> Result<(), CallProblem> {
    let size = size as u64;
    let [low, high] = limits;
    let low = low.filter(|low| size < *low).map(|low| (low, "at least"));
    match low.or(high.filter(|high| size > *high).map(|high| (high, "at most"))) {
        Some((limit, word)) => Err(invalid(path, format!("must have {word} {limit} {what}, and has {size}"))),
        None => Ok(()),
    }
}

/// Equality as JSON Schema has it: `1` is `1.0`, and the order of keys does not matter.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            x == y || ((x.is_f64() || y.is_f64()) && x.as_f64() == y.as_f64())
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(key, x)| y.get(key).is_some_and(|y| same(x, y)))
        }
        _ => a == b,
    }
}

/// Where a value is in the arguments.
enum Path<'a> {
    Root,
    Entry(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("*"),
            Self::Entry(Self::Root, name) => f.write_str(name),
            Self::Entry(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

fn invalid(path: &Path<'_>, problem: String) -> CallProblem {
    CallProblem::Invalid { path: path.to_string(), problem }
}

fn too_deep(path: &Path<'_>) -> CallProblem {
    invalid(path, "has a schema that refers to itself too often to be judged".to_owned())
}

fn wrong_type(path: &Path<'_>, expected: Types, value: &Value) -> CallProblem {
    CallProblem::WrongType { path: path.to_string(), expected: expected.describe(), found: short(value) }
}

fn short(value: &Value) -> String {
    excerpt(&value.to_string())
}
