//! Prompts become text, through the real binary.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use crate::common::{
    Said, basert, comma_separated, converted, fixture, golden, hybrid, ids, interrupt, llama, names, prompt,
};
use serde_json::{Value, json};

/// Greedy tokens of `model` after a golden prompt.
fn greedy(model: &Path, prompt: &[u32], more: &[&str]) -> Value {
    let prompt = comma_separated(prompt);
    let mut command = basert();
    command.arg("complete").arg(model).args(["--prompt-ids", &prompt, "--temp", "0", "--json"]).args(more);
    Said::from(command.output().unwrap()).ok().json()
}

#[test]
fn greedy_tokens_are_those_of_transformers() {
    for name in ["llama-tiny", "qwen3-dense-tiny", "qwen3-moe-tiny", "qwen35-dense-tiny"] {
        let (_dir, model) = converted(name, "f32");
        let golden = golden(name);
        for case in golden["greedy"].as_array().unwrap() {
            let prompt = prompt(&golden, case["prompt"].as_str().unwrap());
            let expected = ids(&case["ids"]);
            // The answer may part where the reference itself is undecided.
            let margins = case["margins"].as_array().unwrap();
            let sure = margins.iter().position(|m| m.as_f64().unwrap() < 1e-2).unwrap_or(expected.len());
            let n = expected.len().to_string();
            let found = greedy(&model, &prompt, &["-n", &n, "--ignore-eos", "--kv-type", "f32"]);
            assert_eq!(ids(&found["ids"])[..sure], expected[..sure], "{name} {}", case["prompt"]);
            assert_eq!(ids(&found["prompt_ids"]), prompt);
            assert_eq!(found["finish_reason"], "length");
            assert_eq!(found["timings"]["generated_tokens"], expected.len());
        }
    }
}

#[test]
fn threads_and_instruction_set_change_nothing() {
    let (_dir, model) = converted("qwen35-dense-tiny", "q4");
    let run = |threads: &str, isa: Option<&str>| {
        let mut command = basert();
        command.arg("complete").arg(&model).args([
            "--prompt-ids",
            "293,83,13,1986,198",
            "--temp",
            "1",
            "--seed",
            "7",
        ]);
        command.args(["-n", "24", "--json", "-t", threads]);
        isa.map(|isa| command.env("BASERT_ISA", isa));
        let said = Said::from(command.output().unwrap()).ok().json();
        assert_eq!(said["selected"]["threads"].to_string(), threads);
        ids(&said["ids"])
    };
    let one = run("1", None);
    assert_eq!(one, run("2", None));
    assert_eq!(one, run("3", None));
    assert_eq!(one, run("1", Some("reference")));
}

#[test]
fn streamed_text_is_the_text_of_the_object() {
    let object = greedy(llama(), &[311], &["-n", "40"]);
    let text = object["text"].as_str().unwrap();
    let said = run!("complete", llama(), "--prompt-ids", "311", "--temp", "0", "-n", "40").ok();
    assert_eq!(said.out, if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") });
    assert_eq!(said.err, "", "quiet in a pipe");
}

#[test]
fn a_prompt_is_the_same_as_option_file_and_standard_input() {
    let text = "The quick brown fox, café and 客单价.\n";
    let by_option = run!("complete", llama(), "-p", text, "--temp", "0", "-n", "8", "--json").ok().json();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    fs::write(&file, text).unwrap();
    let by_file =
        run!("complete", llama(), "--prompt-file", &file, "--temp", "0", "-n", "8", "--json").ok().json();
    let mut child = basert()
        .arg("complete")
        .arg(llama())
        .args(["--prompt-file", "-", "--temp", "0", "-n", "8", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let by_pipe = Said::from(child.wait_with_output().unwrap()).ok().json();
    for other in [by_file, by_pipe] {
        assert_eq!((&other["prompt_ids"], &other["ids"]), (&by_option["prompt_ids"], &by_option["ids"]));
    }
    assert!(ids(&by_option["prompt_ids"]).len() > 5);
}

#[test]
fn a_stop_string_ends_the_answer_before_it() {
    let text = greedy(llama(), &[311], &["-n", "40"])["text"].as_str().unwrap().to_owned();
    // A stop of three characters from the middle, so that it spans tokens.
    let chars: Vec<char> = text.chars().collect();
    let stop: String = chars[chars.len() / 2..][..3].iter().collect();
    let before = &text[..text.find(&stop).unwrap()];
    let object = greedy(llama(), &[311], &["-n", "40", "--stop", "no such words", "--stop", &stop]);
    assert_eq!(object["text"], before);
    assert_eq!(object["finish_reason"], "stop");
    let said =
        run!("complete", llama(), "--prompt-ids", "311", "--temp", "0", "-n", "40", "--stop", &stop).ok();
    assert_eq!(said.out.strip_suffix('\n').unwrap_or(&said.out), before.strip_suffix('\n').unwrap_or(before));
}

#[test]
fn an_end_of_sequence_token_ends_the_answer_unless_ignored() {
    // 1986 and 1984 are the ends that generation_config.json lists.
    for end in ["1986", "1984"] {
        let bias = format!("{end}=inf");
        let object = greedy(llama(), &[311], &["-n", "3", "--logit-bias", &bias]);
        assert_eq!((&object["ids"], &object["finish_reason"]), (&json!([]), &json!("stop")));
        let object = greedy(llama(), &[311], &["-n", "3", "--logit-bias", &bias, "--ignore-eos"]);
        assert_eq!(comma_separated(&ids(&object["ids"])), [end; 3].join(","));
        assert_eq!(object["finish_reason"], "length");
    }
}

#[test]
fn every_sampling_option_has_an_effect() {
    let run = |more: &[&str]| {
        let mut command = basert();
        command.arg("complete").arg(llama()).args([
            "--prompt-ids",
            "311",
            "-n",
            "30",
            "--json",
            "--ignore-eos",
        ]);
        ids(&Said::from(command.args(more).output().unwrap()).ok().json()["ids"])
    };
    let greedy = run(&["--temp", "0"]);
    for narrow in [["--top-k", "1"], ["--top-p", "0.000001"], ["--min-p", "1"]] {
        assert_eq!(run(&[&["--temp", "1", "--seed", "3"], &narrow[..]].concat()), greedy, "{narrow:?}");
    }
    let wide = ["--temp", "1", "--top-k", "0", "--top-p", "1", "--min-p", "0"];
    let sampled = run(&[&wide[..], &["--seed", "3"]].concat());
    assert_ne!(sampled, greedy);
    assert_eq!(run(&[&wide[..], &["--seed", "3"]].concat()), sampled);
    assert_ne!(run(&[&wide[..], &["--seed", "4"]].concat()), sampled);
    let first = greedy[0].to_string();
    for change in [
        ["--repetition-penalty", "3"],
        ["--presence-penalty", "20"],
        ["--frequency-penalty", "20"],
        ["--logit-bias", &format!("{first}=-inf")],
    ] {
        assert_ne!(run(&[&["--temp", "0"], &change[..]].concat()), greedy, "{change:?}");
    }
}

#[test]
fn a_fresh_seed_is_reported_so_that_the_answer_can_be_repeated() {
    let run = |more: &[&str]| {
        let mut command = basert();
        command.arg("complete").arg(llama()).args([
            "--prompt-ids",
            "311",
            "-n",
            "20",
            "--json",
            "--temp",
            "1",
        ]);
        Said::from(command.args(more).output().unwrap()).ok().json()
    };
    let (first, second) = (run(&[]), run(&[]));
    let seed = first["sampling"]["seed"].to_string();
    assert_ne!(seed, second["sampling"]["seed"].to_string());
    assert_eq!(run(&["--seed", &seed])["ids"], first["ids"]);
}

#[test]
fn options_without_effect_are_remarked_on() {
    let said = run!(
        "complete",
        llama(),
        "--prompt-ids",
        "311",
        "-n",
        "1",
        "--temp",
        "0",
        "--top-k",
        "5",
        "--seed",
        "1"
    )
    .ok();
    assert!(said.err.contains("note: ") && said.err.contains("--top-k, --seed"), "{said:?}");
}

#[test]
fn prompt_and_answer_share_the_context() {
    let ids_of = |n: usize| comma_separated(&vec![311; n]);
    let run = |n: usize, max: &str| {
        run!(
            "complete",
            llama(),
            "--prompt-ids",
            ids_of(n),
            "-c",
            "64",
            "-n",
            max,
            "--temp",
            "0",
            "--json",
            "--ignore-eos"
        )
    };
    let object = run(63, "8").ok().json();
    assert_eq!((ids(&object["ids"]).len(), &object["finish_reason"]), (1, &json!("length")));
    assert_eq!(ids(&run(40, "8").ok().json()["ids"]).len(), 8);
    for n in [64, 65] {
        run(n, "8").fails_with(&[&format!("{n} tokens"), "context of 64", "hint: "]);
    }
    let said =
        run!("complete", llama(), "--prompt-ids", ids_of(60), "-c", "64", "-n", "9", "--ignore-eos").ok();
    assert!(
        said.err.contains("context of 64") && said.err.contains("60") && said.err.contains("4 generated"),
        "{said:?}"
    );
}

#[test]
fn kv_types_are_honoured_and_shown_as_they_were_allocated() {
    let kv = |env: &[(&str, &str)], more: &[&str]| {
        let mut command = basert();
        command.arg("complete").arg(hybrid()).args(["--prompt-ids", "311", "-n", "1", "--json"]).args(more);
        let object = Said::from(command.envs(env.iter().copied()).output().unwrap()).ok().json();
        let name = |key: &str| object["selected"][key].as_str().unwrap().to_owned();
        (name("k_type"), name("v_type"), object["selected"]["memory"]["kv"].as_u64().unwrap())
    };
    let (k, v, half) = kv(&[], &[]);
    assert_eq!((k.as_str(), v.as_str()), ("f16", "f16"));
    let (k, v, mixed) = kv(&[], &["--kv-type", "k=f32"]);
    assert_eq!((k.as_str(), v.as_str(), 2 * mixed), ("f32", "f16", 3 * half));
    // Per 32 elements: 34 bytes of q8, 18 of q4, 64 of f16.
    for (bits, k, v, bytes) in
        [("16", "f16", "f16", 128), ("8", "q8", "q8", 68), ("4", "q4", "q4", 36), ("84", "q8", "q4", 52)]
    {
        let (found_k, found_v, found) = kv(&[], &["--kv-bits", bits]);
        assert_eq!(
            (found_k.as_str(), found_v.as_str(), 128 * found),
            (k, v, bytes * half),
            "--kv-bits {bits}"
        );
        assert_eq!(kv(&[("BASERT_KV_BITS", bits)], &[]), (found_k, found_v, found), "BASERT_KV_BITS={bits}");
    }
    assert_eq!(kv(&[], &["--kv-type", "k=q8,v=q4"]), kv(&[], &["--kv-bits", "84"]));
    let environment = [("BASERT_KV_TYPE", "f32")];
    assert_eq!(kv(&environment, &[]).2, 2 * half);
    assert_eq!(kv(&environment, &["--kv-bits", "16"]).2, half, "a flag beats the environment");
    assert_eq!(kv(&[("BASERT_KV_BITS", "16")], &["--kv-type", "f32"]).2, 2 * half);
}

#[test]
#[cfg(target_os = "linux")]
fn pinned_threads_are_shown_and_more_than_there_are_cpus_are_refused() {
    let run = |more: &[&str]| {
        let mut command = basert();
        command
            .arg("complete")
            .arg(llama())
            .args(["--prompt-ids", "5,6", "-n", "2", "--temp", "0", "--json", "-v"])
            .args(more);
        Said::from(command.output().unwrap())
    };
    let pinned = run(&["--pin", "-t", "1"]).ok();
    let cpus = pinned.json()["selected"]["pinned"].as_array().unwrap().clone();
    assert!(
        cpus.len() == 1 && pinned.err.contains(&format!("1, pinned to CPU {}", cpus[0])),
        "{}",
        pinned.err
    );
    let free = run(&["-t", "1"]).ok();
    assert_eq!(free.json()["selected"]["pinned"], json!([]));
    assert_eq!(free.json()["ids"], pinned.json()["ids"]);
    run(&["--pin", "-t", "1000"]).fails_with(&["1000 threads", "leave out --pin"]);
}

#[test]
fn threads_and_context_come_from_the_flag_before_the_environment() {
    let run = |more: &[&str]| {
        let mut command = basert();
        command.arg("complete").arg(llama()).args(["--prompt-ids", "311", "-n", "1", "--json"]).args(more);
        command.envs([("BASERT_THREADS", "1"), ("BASERT_CONTEXT", "96")]);
        let object = Said::from(command.output().unwrap()).ok().json();
        (object["selected"]["threads"].as_u64(), object["selected"]["context"].as_u64())
    };
    assert_eq!(run(&[]), (Some(1), Some(96)));
    assert_eq!(run(&["-t", "2", "-c", "128"]), (Some(2), Some(128)));
    let said = Said::from(
        basert()
            .arg("complete")
            .arg(llama())
            .args(["-p", "a"])
            .env("BASERT_THREADS", "many")
            .output()
            .unwrap(),
    );
    assert_eq!(said.code, Some(2), "{said:?}");
}

#[test]
fn planned_cache_memory_is_the_geometry_that_inspect_shows() {
    let facts = run!("inspect", hybrid(), "--json").ok().json();
    let selected = &greedy(hybrid(), &[311], &["-n", "1", "-c", "256"])["selected"];
    let number = |v: &Value| v.as_u64().unwrap();
    assert_eq!(
        number(&facts["model"]["kv_cache"]["bytes_per_token_f16"]) * 256,
        number(&selected["memory"]["kv"])
    );
    assert_eq!(number(&facts["model"]["state_bytes_per_sequence"]), number(&selected["memory"]["state"]));
}

#[test]
fn verbose_shows_what_was_selected_on_standard_error_only() {
    let said =
        run!("complete", hybrid(), "--prompt-ids", "311", "-n", "2", "-v", "-t", "2", "-c", "256").ok();
    for words in [
        "model        qwen35: 2 full-attention + 6 linear",
        "isa          ",
        "threads      2",
        "weights      f32: ",
        "kv cache     K f16, V f16",
        "context      256 tokens",
        "memory       ",
        "tokens/s",
    ] {
        assert!(said.err.contains(words), "no '{words}' in {said:?}");
    }
    assert!(!said.out.contains("threads"));
}

#[test]
fn chat_renders_the_bundles_template() {
    let source = tempfile::tempdir().unwrap();
    for name in names(&fixture("llama-tiny")).iter().filter(|n| !n.starts_with("golden")) {
        fs::copy(fixture("llama-tiny").join(name), source.path().join(name)).unwrap();
    }
    let template = "{%- for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor -%}\
                    {%- if add_generation_prompt %}<answer>{% endif -%}\
                    {%- if enable_thinking is defined and not enable_thinking %}</think>{% endif %}";
    fs::write(source.path().join("chat_template.jinja"), template).unwrap();
    let model = source.path().join("chat.base");
    run!("convert", "--no-check", source.path(), "-o", &model, "--target", "q8").ok();

    let prompt_ids = |words: &[&str]| {
        let mut command = basert();
        command.arg("complete").arg(&model).args(["-n", "1", "--temp", "0", "--json"]).args(words);
        ids(&Said::from(command.output().unwrap()).ok().json()["prompt_ids"])
    };
    let raw = |text: &str| {
        let chat = prompt_ids(&["-p", text]);
        chat.strip_prefix(&[1984][..]).map_or(chat.clone(), <[u32]>::to_vec)
    };
    let cases: [(&[&str], &str); 3] = [
        (&["--chat", "-p", "Hi"], "<user>Hi</user><answer>"),
        (&["--chat", "-p", "Hi", "--system", "Be."], "<system>Be.</system><user>Hi</user><answer>"),
        (&["--chat", "-p", "Hi", "--no-think"], "<user>Hi</user><answer></think>"),
    ];
    for (words, rendered) in cases {
        assert_eq!(prompt_ids(words), raw(rendered), "{words:?}");
    }
}

#[test]
fn chat_without_a_template_is_refused_with_a_hint() {
    run!("complete", llama(), "--chat", "-p", "Hi").fails_with(&["has no chat template", "leave out --chat"]);
}

#[test]
fn prompts_that_cannot_be_run_are_refused() {
    run!("complete", llama(), "--prompt-ids", "5000").fails_with(&["5000", "2048"]);
    run!("complete", llama(), "--prompt-ids", "1", "--logit-bias", "5000=1").fails_with(&["5000", "2048"]);
    run!("complete", llama(), "--prompt-ids", "1", "--temp", "-1").fails_with(&["temperature"]);
    run!("complete", llama(), "--prompt-file", "no-such.txt").fails_with(&["no-such.txt"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("latin1.txt");
    fs::write(&file, b"caf\xe9").unwrap();
    run!("complete", llama(), "--prompt-file", &file).fails_with(&["not UTF-8", "offset 3"]);
}

#[test]
fn a_model_without_tokenizer_speaks_in_ids() {
    let source = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture("llama-tiny").join(name), source.path().join(name)).unwrap();
    }
    let model = source.path().join("ids.base");
    run!("convert", source.path(), "-o", &model).fails_with(&["tokenizer"]);
    run!("convert", source.path(), "-o", &model, "--no-tokenizer", "--target", "f32").ok();
    let object = greedy(&model, &[311], &["-n", "3"]);
    assert_eq!((ids(&object["ids"]).len(), &object["text"]), (3, &Value::Null));
    run!("complete", &model, "-p", "Hi").fails_with(&["has no tokenizer", "--prompt-ids"]);
    run!("complete", &model, "--prompt-ids", "1", "--stop", "x").fails_with(&["has no tokenizer"]);
}

/// A command in the middle of an endless answer, `bytes` of which have been read.
fn answering(bytes: usize) -> (Child, ChildStdout) {
    let mut child = basert()
        .arg("complete")
        .arg(llama())
        .args(["--prompt-ids", "311", "--ignore-eos", "-c", "100000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut vec![0; bytes]).unwrap();
    (child, out)
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let (child, out) = answering(1);
    drop(out);
    let said = Said::from(child.wait_with_output().unwrap());
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
}

#[test]
fn an_interrupt_ends_the_answer_and_keeps_what_there_is() {
    let (child, mut out) = answering(20);
    interrupt(&child);
    let mut text = Vec::new();
    out.read_to_end(&mut text).unwrap();
    let said = Said::from(child.wait_with_output().unwrap());
    assert_eq!((said.code, said.err.as_str()), (Some(130), ""));
    // The first 20 bytes may have ended inside a character.
    assert!(text.ends_with(b"\n"));
}

#[test]
fn an_interrupt_during_a_long_prompt_does_not_wait_for_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("long.txt");
    fs::write(&file, "a b ".repeat(20_000)).unwrap();
    let mut child = basert()
        .arg("complete")
        .arg(llama())
        .args(["-v", "-c", "100000", "--prompt-file"])
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The last line before the prompt is read.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().starts_with("memory")).unwrap().unwrap();
    interrupt(&child);
    lines.for_each(drop);
    let said = Said::from(child.wait_with_output().unwrap());
    // Not one token of an answer.
    assert_eq!((said.code, said.out.as_str()), (Some(130), "\n"));
}

#[test]
fn a_session_adds_to_its_text_without_reading_it_again() {
    for model in [llama(), hybrid()] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text");
        let go = |prompt: &str, session: bool| {
            let mut command = basert();
            command.arg("complete").arg(model).args([
                "--prompt-ids",
                prompt,
                "-n",
                "6",
                "--temp",
                "0",
                "--json",
            ]);
            command.args(["--ignore-eos", "-c", "200"]);
            if session {
                command.arg("--session").arg(&file);
            }
            Said::from(command.output().unwrap()).ok().json()
        };
        let first = go("1,2,3", true);
        assert_eq!(first["timings"]["kept_tokens"], 0);
        let second = go("9,10", true);
        assert_eq!(second["timings"]["kept_tokens"], 8, "all but the last token, which was not run");
        let all = second["prompt_ids"].as_array().unwrap();
        assert_eq!(all[3..9], first["ids"].as_array().unwrap()[..]);
        let all: Vec<String> = all.iter().map(|id| id.to_string()).collect();
        assert_eq!(go(&all.join(","), false)["ids"], second["ids"]);
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        let said = run!("complete", model, "--prompt-ids", "1", "-n", "1", "--session", &file);
        said.fails_with(&["it is damaged", "hint: name another file, or remove"]);
    }
}
