//! The report that started this: `--kv-bits 4|8|84` accepted without a word while K and V stay f16, in contiguous and in
//! paged caches, in serve and in bench, with no way to see it. Here is the table that would have shown it, read from the
//! allocated caches of real runs.

use std::path::Path;

use serde_json::Value;

use crate::common::{Said, basert, converted};
use crate::serve::{get, signal, start};

/// `--kv-bits`, the types of K and V, and bytes of 32 elements of both.
const WIDTHS: [(&str, &str, &str, u64); 4] =
    [("16", "f16", "f16", 128), ("8", "q8", "q8", 68), ("4", "q4", "q4", 36), ("84", "q8", "q4", 52)];

/// A hybrid, and a hybrid with experts.
const MODELS: [&str; 2] = ["qwen35-dense-tiny", "toy-moe"];

fn json(model: &Path, command: &str, args: &[&str]) -> Value {
    let said = basert().arg(command).arg(model).args(args).output().unwrap();
    Said::from(said).ok().json()
}

/// What a command says of its cache. `kv` and `pages` are its options.
fn selected(command: &str, model: &Path, ids: &str, kv: &str, paged: bool) -> Value {
    let mut args = vec!["--kv-bits", kv];
    match command {
        "complete" => args.extend(["--prompt-ids", "1,2,3", "-n", "1", "--json", "-c", "192"]),
        "eval" => args.extend(["--ids-file", ids, "--json"]),
        "bench" => args.extend(["-p", "96", "-n", "8", "-r", "1", "-w", "0", "-t", "1", "--json"]),
        _ => args.extend(["--max-context", "192", "--prefix-cache", "0"]),
    }
    match (command, paged) {
        (_, false) => {}
        ("bench", true) => args.extend(["--paged-kv", "64"]),
        (_, true) => args.push("--paged-kv"),
    }
    match command {
        "complete" | "eval" => json(model, command, &args)["selected"].take(),
        "bench" => json(model, command, &args)["settings"][0]["selected"].take(),
        _ => served(model, &args),
    }
}

/// What a server says, in three places that must agree.
pub fn served(model: &Path, args: &[&str]) -> Value {
    let (mut child, _said, address) = start(model, args);
    let [mut props, slots]: [Value; 2] =
        ["/props", "/slots"].map(|path| serde_json::from_str(&get(&address, path)).unwrap());
    let metrics = get(&address, "/metrics");
    signal(&child, "-TERM");
    assert!(child.wait().unwrap().success());
    let selected = props["engine"].take();
    for key in ["k_type", "v_type", "page_tokens", "kv_pages", "kv_bytes_per_token"] {
        assert_eq!(slots[0][key], selected[key], "{key}");
    }
    assert_eq!(slots[0]["state_bytes"], selected["state_bytes_per_sequence"]);
    assert_eq!((&props["k_type"], &props["v_type"]), (&selected["k_type"], &selected["v_type"]));
    let types = format!("k_type={},v_type={}", selected["k_type"], selected["v_type"]);
    assert!(metrics.contains(&types), "{metrics}");
    for (name, key) in [
        ("basert_kv_page_tokens", "page_tokens"),
        ("basert_kv_pages", "kv_pages"),
        ("basert_kv_bytes_per_token", "kv_bytes_per_token"),
        ("basert_state_bytes", "state_bytes_per_sequence"),
    ] {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap();
        assert!(line.ends_with(&format!(" {}", selected[key])), "{line}");
    }
    selected
}

#[test]
fn kv_bits_are_what_is_allocated_in_every_command_and_kind_of_pages() {
    println!(
        "model               command   pages       bits  K    V    page  pages  B/token    bytes  planned"
    );
    for name in MODELS {
        let (folder, model) = converted(name, "base-q4");
        let ids = folder.path().join("ids.json");
        std::fs::write(&ids, format!("[{}1]", "2, 3, ".repeat(50))).unwrap();
        let facts = run!("inspect", &model, "--json").ok().json();
        let cache = &facts["model"]["kv_cache"];
        let number = |value: &Value| value.as_u64().unwrap();
        let elements = ["attention_layers", "kv_heads", "head_dim"].map(|key| number(&cache[key]));
        let elements: u64 = elements.iter().product();
        for command in ["complete", "serve", "bench", "eval"] {
            for paged in [false, true] {
                for (bits, k, v, bytes) in WIDTHS {
                    let ids = ids.to_str().unwrap();
                    let found = selected(command, &model, ids, bits, paged);
                    let [page, pages, per_token, allocated] =
                        ["page_tokens", "kv_pages", "kv_bytes_per_token", "kv_bytes"]
                            .map(|key| number(&found[key]));
                    let planned = number(&found["memory"]["kv"]) + number(&found["memory"]["prefix_kv"]);
                    let kind = if paged { "paged" } else { "contiguous" };
                    let what = format!(
                        "{name:<19} {command:<9} {kind:<11} {bits:<5} {:<4} {:<4} {page:>4} {pages:>6} {per_token:>8} \
                         {allocated:>8} {planned:>8}",
                        found["k_type"].as_str().unwrap(),
                        found["v_type"].as_str().unwrap(),
                    );
                    println!("{what}");
                    assert_eq!((&found["k_type"], &found["v_type"]), (&k.into(), &v.into()), "{what}");
                    assert_eq!(per_token, elements / 32 * bytes, "{what}");
                    assert_eq!(allocated, planned, "{what}");
                    assert_eq!(allocated, page * pages * per_token, "{what}");
                    assert_eq!(page == 64, paged, "{what}");
                    assert_eq!(cache["bytes_per_token"][bits], per_token, "{what}");
                }
            }
        }
    }
}
