//! What templates take for granted of Python: `json.dumps`, `repr` of floats, `strftime`.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value as Jinja, escape_formatter};
use serde_json::Value;

use super::plain::is_private;

/// Adds the functions, filters and output rules.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", tojson);
    environment
        .add_filter("string", |value: &Jinja| float(value).map_or_else(|| value.to_string(), float_repr));
    environment.add_function("strftime_now", strftime_now);
    environment.set_formatter(print);
}

fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Jinja) -> Result<(), Error> {
    match float(value) {
        Some(number) => out.write_str(&float_repr(number)).map_err(Error::from),
        None => escape_formatter(out, state, value),
    }
}

fn float(value: &Jinja) -> Option<f64> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        f64::try_from(value.clone()).ok()
    } else {
        None
    }
}

/// The local date and time in a `strftime` format.
fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
}

/// transformers' `tojson`: `json.dumps(value, ensure_ascii=False)` with the same options.
fn tojson(value: &Jinja, options: Kwargs) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "tojson of an undefined value"));
    }
    let indent = options.get::<Option<usize>>("indent")?;
    let [comma, colon] = match options.get::<Option<Vec<String>>>("separators")?.map(<[String; 2]>::try_from)
    {
        Some(Ok(separators)) => separators,
        None if indent.is_some() => [",".to_owned(), ": ".to_owned()],
        None => [", ".to_owned(), ": ".to_owned()],
        Some(Err(_)) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators are not a pair"));
        }
    };
    let dump = Dump {
        indent,
        comma,
        colon,
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let value = serde_json::to_value(value);
    let value = value.map_err(|e| Error::new(ErrorKind::BadSerialization, "tojson").with_source(e))?;
    let mut out = String::new();
    dump.value(&value, 0, &mut out);
    Ok(out)
}

/// Python's `json.dumps`.
struct Dump {
    indent: Option<usize>,
    comma: String,
    colon: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl Dump {
    fn value(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Null => out.push_str("null"),
            Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Value::Number(n) => match n.as_f64().filter(|_| n.is_f64()) {
                Some(number) => out.push_str(&float_repr(number)),
                None => _ = write!(out, "{n}"),
            },
            Value::String(text) => self.string(text, out),
            Value::Array(items) => {
                self.list(['[', ']'], items.iter(), depth, out, |item, out| self.value(item, depth + 1, out));
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sort_keys {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.list(['{', '}'], entries.into_iter(), depth, out, |(key, item), out| {
                    self.string(key, out);
                    out.push_str(&self.colon);
                    self.value(item, depth + 1, out);
                });
            }
        }
    }

    fn list<T>(
        &self,
        [open, close]: [char; 2],
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        out: &mut String,
        write: impl Fn(T, &mut String),
    ) {
        let new_line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * depth));
            }
        };
        let empty = items.len() == 0;
        out.push(open);
        for (i, item) in items.enumerate() {
            if i > 0 {
                out.push_str(&self.comma);
            }
            new_line(depth + 1, out);
            write(item, out);
        }
        if !empty {
            new_line(depth, out);
        }
        out.push(close);
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                // A mark has to stay what it is, to be found again.
                c if c < ' ' || (self.ensure_ascii && c > '~' && !is_private(c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Python's `repr` of a float: the shortest digits that give it back, with an exponent below 1e-4 and from 1e16 on.
fn float_repr(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() { "nan".to_owned() } else { number.to_string() };
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if number != 0.0 && !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_as_python_spells_them() {
        for (number, want) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (2.5, "2.5"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e22, "1.5e+22"),
            (1e-4, "0.0001"),
            (1.25e-5, "1.25e-05"),
            (1e100, "1e+100"),
            (123_456_789.123, "123456789.123"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float_repr(number), want);
        }
    }
}
