//! Qwen's XML.

use std::ops::Range;

use super::super::progress::XmlSoFar;
use super::super::value::xml_call;
use super::{Ahead, Function, Label, OpenValue, State, ToolParser, lost};

pub(super) const FUNCTION: &str = "<function=";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";

impl ToolParser {
    pub(super) fn xml_name(&mut self, start: usize) -> (State, bool) {
        match self.label(&['>', '\n', '<']) {
            Label::Open => (State::XmlName { start }, false),
            Label::Closed(end) if end > start => {
                (State::Between(Function { name: start..end, parameters: Vec::new() }), true)
            }
            Label::Closed(end) | Label::Broken(end) => lost("the name of a function, and `>`", end),
        }
    }

    pub(super) fn between(&mut self, function: Function) -> (State, bool) {
        match self.after_blanks(&[PARAMETER, END_FUNCTION]) {
            Ahead::Open => (State::Between(function), false),
            Ahead::Tag(tag) => {
                self.at += tag.len();
                if tag == PARAMETER {
                    return (State::Key { function, start: self.at }, true);
                }
                let all = self.xml_so_far(&function, None);
                let call = xml_call(all.name, all.parameters.into_iter(), &self.declared);
                (State::Complete(call), true)
            }
            Ahead::Other => lost("`<parameter=` or `</function>`", self.at),
        }
    }

    pub(super) fn key(&mut self, function: Function, start: usize) -> (State, bool) {
        match self.label(&['>', '\n']) {
            Label::Open => (State::Key { function, start }, false),
            Label::Closed(end) if end > start => {
                (State::Value(OpenValue { function, key: start..end, start: self.at }), true)
            }
            Label::Closed(end) | Label::Broken(end) => lost("the name of a parameter, and `>`", end),
        }
    }

    pub(super) fn value(&mut self, value: OpenValue) -> (State, bool) {
        match self.seek(&[END_PARAMETER, END_FUNCTION]) {
            None => (State::Value(value), false),
            Some(tag) => {
                let end = self.at;
                self.at += tag.len();
                (State::Closing { value, end, tag }, true)
            }
        }
    }

    pub(super) fn closing(&mut self, value: OpenValue, end: usize, tag: &'static str) -> (State, bool) {
        let closes_value = tag == END_PARAMETER;
        let close = self.declared.dialect().close();
        let followers = if closes_value { &[PARAMETER, END_FUNCTION, close][..] } else { &[close] };
        match self.after_blanks(followers) {
            Ahead::Open => (State::Closing { value, end, tag }, false),
            Ahead::Tag(next) if next == close && closes_value => lost("`</function>`", self.at),
            Ahead::Tag(next) if next == close => lost("`</parameter>`", end),
            Ahead::Tag(_) => {
                let OpenValue { mut function, key, start } = value;
                function.parameters.push((key, start..end));
                (State::Between(function), true)
            }
            Ahead::Other => (State::Value(value), true),
        }
    }

    pub(super) fn xml_so_far<'t>(
        &'t self,
        function: &Function,
        open: Option<(&'t str, &'t str)>,
    ) -> XmlSoFar<'t> {
        let texts =
            |(key, value): &(Range<usize>, Range<usize>)| (self.part(key.clone()), self.part(value.clone()));
        let parameters = function.parameters.iter().map(texts).collect();
        XmlSoFar { name: self.part(function.name.clone()), parameters, open }
    }
}
