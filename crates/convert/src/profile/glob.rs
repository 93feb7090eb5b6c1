//! Patterns over canonical tensor names.
//!
//! | syntax | meaning |
//! |---|---|
//! | `.` | separates segments |
//! | `*` | any characters inside one segment, also as a part of it: `*_proj` |
//! | `**` as a whole segment | zero or more segments |
//! | `{a,b}` | alternatives, expanded first; several may follow one another, none may contain another |
//!
//! A pattern matches whole names and minds case.

/// Most alternatives that one pattern may expand to; ten pairs of braces are a mistake or an attack.
const MAX_ALTERNATIVES: usize = 1024;

/// A pattern, ready to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    /// Segments of every alternative.
    alternatives: Vec<Vec<Segment>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// `**`.
    Any,
    /// Characters, `*` among them.
    One(Vec<char>),
}

impl Glob {
    /// Reads a pattern.
    ///
    /// # Errors
    /// A sentence if it is empty, has wildcards of other grammars, its braces are unbalanced or nested, or it expands to too much.
    pub fn new(pattern: &str) -> Result<Glob, String> {
        if pattern.is_empty() {
            return Err("the pattern is empty".to_owned());
        }
        if let Some(other) = pattern.chars().find(|c| matches!(c, '?' | '[' | ']')) {
            return Err(format!("`{other}` is no wildcard here and in no name; use * and {{a,b}}"));
        }
        let segment = |text: &str| match text {
            "**" => Segment::Any,
            text => Segment::One(text.chars().collect()),
        };
        let alternatives = expand(pattern)?;
        let alternatives = alternatives.iter().map(|text| text.split('.').map(segment).collect()).collect();
        Ok(Glob { alternatives })
    }

    /// Whether the whole of `name` matches.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<Vec<char>> = name.split('.').map(|segment| segment.chars().collect()).collect();
        let segment = |pattern: &Segment, text: &Vec<char>| match pattern {
            Segment::Any => true,
            Segment::One(pattern) => wildcard(pattern, text, |c| *c == '*', |p, t| p == t),
        };
        self.alternatives
            .iter()
            .any(|pattern| wildcard(pattern, &name, |segment| *segment == Segment::Any, segment))
    }
}

/// Whether `text` matches `pattern`, in which items that are a star stand for any number of items. A mismatch is
/// retried with the last star one item longer: earlier stars need no retry, so this takes at most
/// `pattern × text` steps.
fn wildcard<P, T>(
    pattern: &[P],
    text: &[T],
    is_star: impl Fn(&P) -> bool,
    same: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(item) if is_star(item) => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(item) if same(item, &text[t]) => (p, t) = (p + 1, t + 1),
            _ => match &mut star {
                Some((after, reached)) => {
                    *reached += 1;
                    (p, t) = (*after, *reached);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(is_star)
}

/// Every text that choosing one alternative per pair of braces gives.
fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let mut texts = vec![String::new()];
    let mut rest = pattern;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, after) = rest.split_at(at);
        let inside = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        let Some((choices, after)) = inside else {
            return Err("its braces are not balanced".to_owned());
        };
        if choices.contains('{') {
            return Err("braces cannot contain braces".to_owned());
        }
        let choices: Vec<&str> = choices.split(',').collect();
        if texts.len() * choices.len() > MAX_ALTERNATIVES {
            return Err(format!("its braces expand to more than {MAX_ALTERNATIVES} patterns"));
        }
        let with = |text: &String| choices.iter().map(|c| format!("{text}{before}{c}")).collect::<Vec<_>>();
        texts = texts.iter().flat_map(with).collect();
        rest = after;
    }
    texts.iter_mut().for_each(|text| text.push_str(rest));
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names_segment_by_segment() {
        const Q: &str = "layers.0.self_attn.q_proj.weight";
        let cases = [
            (Q, Q, true),
            ("layers.*.self_attn.q_proj.weight", Q, true),
            ("layers.*.self_attn.*_proj.weight", Q, true),
            ("layers.*.self_attn.q*j.weight", Q, true),
            ("layers.*.self_attn.*k*.weight", Q, false),
            // One star stays in its segment, and a part of a name is not the name.
            ("layers.*.q_proj.weight", Q, false),
            ("layers.*.self_attn.q_proj", Q, false),
            ("self_attn.q_proj.weight", Q, false),
            ("Layers.0.self_attn.q_proj.weight", Q, false),
            ("**", Q, true),
            ("**.weight", Q, true),
            ("**.q_proj.**", Q, true),
            ("layers.**", Q, true),
            ("layers.**.layers.**", Q, false),
            // Zero segments.
            ("**.embed_tokens.weight", "embed_tokens.weight", true),
            ("embed_tokens.**.weight", "embed_tokens.weight", true),
            ("**.**", "embed_tokens.weight", true),
            // Two stars that are not a whole segment stay in it.
            ("layers.0.self_**n.q_proj.weight", Q, true),
            ("layers**weight", Q, false),
            ("layers.*.self_attn.{q,k,v}_proj.weight", Q, true),
            ("layers.*.self_attn.{k,v}_proj.weight", Q, false),
            ("{mtp.,}layers.*.self_attn.{q,o}_proj.{weight,bias}", Q, true),
            ("{mtp.,}layers.*.self_attn.{q,o}_proj.bias", "mtp.layers.1.self_attn.o_proj.bias", true),
            ("{**.mlp,layers.*.self_attn}.q_proj.weight", Q, true),
            // A star before the last must not be given up too early.
            ("**.a.**.b", "a.x.a.b.a.c.b", true),
            ("*a*b", "xaxbxab", true),
            ("*a*b", "xaxbxa", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(Glob::new(pattern).unwrap().matches(name), expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn broken_patterns_are_refused() {
        let bomb = "{a,b}".repeat(11);
        let cases = [
            ("", "empty"),
            ("layers.?.q_proj", "`?` is no wildcard"),
            ("layers.[0-3].q_proj", "`[` is no wildcard"),
            ("layers.3]", "`]` is no wildcard"),
            ("layers.{a,b", "balanced"),
            ("layers.a}", "balanced"),
            ("layers.}a{", "balanced"),
            ("layers.{a,{b,c}}", "contain"),
            (&bomb, "more than 1024"),
        ];
        for (pattern, expected) in cases {
            let error = Glob::new(pattern).unwrap_err();
            assert!(error.contains(expected), "{pattern}: {error}");
        }
    }

    #[test]
    fn matching_a_hostile_pattern_takes_no_time_to_speak_of() {
        let pattern = "*a".repeat(200) + "b";
        assert!(!Glob::new(&pattern).unwrap().matches(&"a".repeat(4000)));
        let pattern = "**.a.".repeat(200) + "b";
        assert!(!Glob::new(&pattern).unwrap().matches(&"a.".repeat(2000)));
    }
}
