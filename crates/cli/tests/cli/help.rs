//! Help teaches: every command has examples, every option is explained, usage errors exit with 2.

use std::process::Command;

use crate::common::{Said, basert};

const COMMANDS: [&str; 11] = [
    "convert", "export", "verify", "inspect", "chat", "complete", "serve", "eval", "plan", "bench", "profile",
];

#[test]
fn the_first_screen_names_every_command_and_the_first_steps() {
    let said = run!("--help").ok();
    for words in COMMANDS.iter().chain(&["First steps:", "basert convert ./Qwen3-0.6B -o qwen3.base"]) {
        assert!(said.out.contains(words), "no '{words}' in {said:?}");
    }
}

#[test]
fn without_arguments_the_help_is_shown_as_a_usage_error() {
    let said = run!();
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("First steps:"), "{said:?}");
}

#[test]
fn the_version_is_the_packages() {
    assert_eq!(run!("--version").ok().out, format!("basert {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_command_shows_examples_and_explains_every_option() {
    for command in COMMANDS {
        let said = run!(command, "--help").ok();
        assert!(said.out.contains("Examples:\n  basert "), "{command}");
        let options = said.out.lines().filter(|l| l.trim_start().starts_with('-')).count();
        assert!(options >= 4, "{command}: {options} options");
        let mut lines = said.out.lines().peekable();
        while let Some(line) = lines.next() {
            if line.trim_start().starts_with('-') && line.starts_with("  ") {
                let on_this_line = line.trim().split("  ").filter(|s| !s.is_empty()).count() > 1;
                let on_the_next = lines.peek().is_some_and(|l| l.starts_with("          "));
                assert!(on_this_line || on_the_next, "{command}: {line}");
            }
        }
    }
}

#[test]
fn options_that_a_script_may_set_name_their_environment_variable() {
    let help = run!("complete", "--help").ok().out;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let variables =
        ["BASERT_THREADS", "BASERT_CONTEXT", "BASERT_KV_BITS", "BASERT_KV_TYPE", "BASERT_SPECULATIVE"];
    for variable in variables {
        assert!(help.contains(&format!("[env: {variable}]")), "{variable}: {help}");
    }
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_is_wrong() {
    let cases: [(&[&str], &str); 14] = [
        (&["no-such-command"], "no-such-command"),
        (&["complete", "m.base"], "--prompt"),
        (&["complete", "m.base", "-p", "a", "--prompt-ids", "1"], "--prompt-ids"),
        (&["complete", "m.base", "-p", "a", "--system", "b"], "--chat"),
        (&["complete", "m.base", "-p", "a", "--no-think"], "--chat"),
        (&["complete", "m.base", "--prompt-ids", "1,x"], "--prompt-ids"),
        (&["complete", "m.base", "-p", "a", "--stop", ""], "empty"),
        (&["complete", "m.base", "-p", "a", "-t", "0"], "at least 1"),
        (&["complete", "m.base", "-p", "a", "--kv-bits", "16", "--kv-type", "f16"], "--kv-type"),
        (&["complete", "m.base", "-p", "a", "--kv-bits", "5"], "16, 8, 4, 84"),
        (&["complete", "m.base", "-p", "a", "--kv-type", "k=f64"], "f64"),
        (&["complete", "m.base", "-p", "a", "--logit-bias", "5"], "ID=V"),
        (&["convert", "src", "--target", "q7"], "base-q4"),
        (&["eval", "m.base", "--ids-file", "a", "--against", "b", "--dump-logits", "c"], "--against"),
    ];
    for (args, words) in cases {
        let output = basert().args(args).output().unwrap();
        let said = Said::from(output);
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        assert!(said.err.contains(words), "{args:?}: {said:?}");
    }
}

#[test]
fn help_into_a_closed_pipe_is_no_error() {
    let shell = format!("'{}' complete --help | true", env!("CARGO_BIN_EXE_basert"));
    let said = Said::from(Command::new("sh").args(["-c", &shell]).output().unwrap());
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
}
