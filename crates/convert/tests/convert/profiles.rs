//! Profiles: what they decide, what they must cover, and that built-in ones cover every model.

use std::path::Path;

use crate::common::{self, Toy, converted, decoded, fixture, options, refused, shared_fixtures};
use basert_convert::{ConvertError, Options, Profile, Verdict, plan};
use basert_format::{BaseFile, QuantScheme};
use basert_quant::ScaleDtype;
use serde_json::{Value, json};

fn profile(rules: Value) -> Options {
    let text = json!({"name": "mine", "arch": "any", "rules": rules}).to_string();
    Options { profile: Some(Profile::parse(&text, "test").unwrap()), ..options("auto") }
}

fn built_in(name: &str) -> Options {
    Options { profile: Some(Profile::load(Path::new(name)).unwrap()), ..options("auto") }
}

fn stored(file: &BaseFile, name: &str) -> (String, Option<u64>, Option<ScaleDtype>) {
    let entry = file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}")).entry;
    let group = entry.group_size.map(u64::from);
    (entry.dtype().name().to_owned(), group, entry.scale_dtype)
}

#[test]
fn the_first_rule_that_matches_decides_and_defaults_are_the_originals() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::hybrid(6, true).write(dir.path(), "src");
    let options = profile(json!([
        {"pattern": "lm_head.weight", "dtype": "bf16", "_comment": "first"},
        {"pattern": "{lm_head,embed_tokens}.weight", "dtype": "base_q8", "group_size": 32, "scale_dtype": "f16"},
        {"pattern": "layers.*.ffn_{gate,up}_exps.weight", "dtype": "base_q3"},
        {"pattern": "**.ffn_down_exps.*", "dtype": "mxfp4"},
        {"pattern": "**.q_proj.weight", "dtype": "base_q5", "symmetric": true, "group_size": 32},
        {"pattern": "**", "dtype": "base_q4"},
    ]));
    let (file, report) = converted(&source, dir.path(), "out", &options);
    let bf16 = Some(ScaleDtype::Bf16);
    let cases = [
        ("lm_head.weight", ("bf16", None, None)),
        ("embed_tokens.weight", ("base_q8", Some(32), Some(ScaleDtype::F16))),
        ("layers.0.ffn_up_exps.weight", ("base_q3", Some(32), bf16)),
        ("layers.0.ffn_down_exps.weight", ("mxfp4", Some(32), Some(ScaleDtype::E8m0))),
        ("layers.3.self_attn.q_proj.weight", ("base_q5", Some(32), bf16)),
        ("layers.3.self_attn.k_proj.weight", ("base_q4", Some(64), bf16)),
        // Rules do not reach what steers the model.
        ("layers.0.linear_attn.conv1d.weight", ("f32", None, None)),
        ("layers.0.linear_attn.in_proj_a.weight", ("f32", None, None)),
        ("layers.0.mlp.gate.weight", ("f32", None, None)),
    ];
    for (name, (dtype, group, scale)) in cases {
        assert_eq!(stored(&file, name), (dtype.to_owned(), group, scale), "{name}");
    }
    let q = file.tensor("layers.3.self_attn.q_proj.weight").unwrap();
    assert!(q.entry.symmetric && decoded(&file, &q.entry.name).len() == 256 * 64);
    assert_eq!(file.header().quant_profile, "mine");
    assert_eq!(file.header().quant_scheme, QuantScheme::BaseQ4);
    assert!(!file.header().metadata.contains_key("basert.target"));
    assert_eq!(report.target, "mine");
    assert!(report.notes.iter().any(|note| note.contains("mlp.gate.weight")), "{:?}", report.notes);
}

#[test]
fn rows_that_a_rules_group_does_not_divide_fall_back_and_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::hybrid(6, false).write(dir.path(), "src");
    for (dtype, used, plain) in [("base_q4", ("base_q4", Some(32)), 0), ("nvfp4", ("nvfp4", Some(16)), 0)] {
        let (file, report) =
            converted(&source, dir.path(), dtype, &profile(json!([{"pattern": "**", "dtype": dtype}])));
        // 96 elements per row.
        let (found, group, _) = stored(&file, "layers.0.linear_attn.out_proj.weight");
        assert_eq!((found.as_str(), group), used);
        assert_eq!(report.unquantised().tensors, plain);
    }
    let mut toy = Toy::hybrid(6, false);
    toy.config["intermediate_size"] = json!(48);
    for layer in 0..4 {
        for (name, shape) in [("gate", [48, 64]), ("up", [48, 64]), ("down", [64, 48])] {
            let name = format!("model.layers.{layer}.mlp.{name}_proj.weight");
            toy.tensors.insert(name.clone(), common::noise(&name, &shape));
        }
    }
    let source = toy.write(dir.path(), "narrow");
    let (file, report) =
        converted(&source, dir.path(), "fp4", &profile(json!([{"pattern": "**", "dtype": "mxfp4"}])));
    assert_eq!(stored(&file, "layers.0.mlp.down_proj.weight").0, "bf16");
    let text = report.to_string();
    assert!(text.contains("rows of 48 do not divide into mxfp4"), "{text}");
}

#[test]
fn tensors_without_a_rule_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::hybrid(6, true).write(dir.path(), "src");
    let rules = json!([{"pattern": "**.{self_attn,linear_attn}.**", "dtype": "base_q4"},
                       {"pattern": "**.{mlp.shared_expert.*,ffn_*_exps}.weight", "dtype": "base_q4"},
                       {"pattern": "{embed_tokens,lm_head}.weight", "dtype": "base_q4"}]);
    let error = refused(&source, &profile(rules.clone()));
    let ConvertError::NotCovered { names, .. } = &error else { panic!("{error}") };
    let expected: Vec<String> = (0..4)
        .flat_map(|layer| ["gate", "shared_expert_gate"].map(|m| format!("layers.{layer}.mlp.{m}.weight")))
        .collect();
    assert_eq!(*names, expected);
    assert!(error.to_string().contains("`layers.0.mlp.gate.weight`"), "{error}");
    assert!(error.hint().unwrap().contains("**"));
    // A plan refuses the same.
    assert!(matches!(plan(&source, &profile(rules)), Err(ConvertError::NotCovered { .. })));
}

#[test]
fn profiles_that_contradict_themselves_are_refused_with_the_rule() {
    let rule =
        |rule: Value| json!({"name": "n", "arch": "a", "rules": [{"pattern": "**", "dtype": "f16"}, rule]});
    let cases = [
        (json!({"arch": "a", "rules": []}), "name"),
        (json!({"name": "", "arch": "a", "rules": []}), "`name` is empty"),
        (json!({"name": "n", "arch": "", "rules": []}), "`arch` is empty"),
        (json!({"name": "n", "arch": "a"}), "rules"),
        (rule(json!({"pattern": "", "dtype": "f16"})), "rule 2 (``): the pattern is empty"),
        (rule(json!({"pattern": "a.{b", "dtype": "f16"})), "rule 2 (`a.{b`): its braces"),
        (rule(json!({"pattern": "a", "dtype": "q4"})), "`q4`"),
        (rule(json!({"pattern": "a", "dtype": "base_q4", "group_size": 48})), "48"),
        (rule(json!({"pattern": "a", "dtype": "base_q4", "scale_dtype": "f64"})), "f64"),
        (rule(json!({"pattern": "a", "dtype": "base_q4", "scale_dtype": "e4m3"})), "base_q8 only"),
        (rule(json!({"pattern": "a", "dtype": "nvfp4", "scale_dtype": "e4m3"})), "base_q8 only"),
        (rule(json!({"pattern": "a", "dtype": "base_q4", "scale_dtype": "e8m0"})), "symmetric"),
        (rule(json!({"pattern": "a", "dtype": "f16", "group_size": 64})), "no groups"),
        (rule(json!({"pattern": "a", "dtype": "bf16", "symmetric": true})), "symmetric"),
        (rule(json!({"pattern": "a", "dtype": "mxfp4", "group_size": 16})), "groups of 32 only"),
        (rule(json!({"pattern": "a", "dtype": "base_q4", "symmetric": 1})), "boolean"),
        (rule(json!({"pattern": "a", "dtype": "base_q4", "group": 32})), "rule 2 (`a`): key `group`"),
        (rule(json!({"pattern": "a.?", "dtype": "base_q4"})), "`?` is no wildcard"),
        (json!({"name": "a/b", "arch": "a", "rules": []}), "name `a/b`"),
        (json!({"name": ".hidden", "arch": "a", "rules": []}), "name `.hidden`"),
        (json!({"name": "a b", "arch": "a", "rules": []}), "name `a b`"),
    ];
    for (text, expected) in cases {
        let error = Profile::parse(&text.to_string(), "p.json").unwrap_err().to_string();
        assert!(error.contains("p.json") && error.contains(expected), "{text}: {error}");
    }
    for accepted in [
        json!({"pattern": "a", "dtype": "base_q8", "scale_dtype": "e4m3", "_unknown": 1}),
        json!({"pattern": "a", "dtype": "mxfp4", "group_size": 32, "scale_dtype": "e8m0"}),
        json!({"pattern": "a", "dtype": "base4", "scale_dtype": "e8m0", "symmetric": true}),
    ] {
        Profile::parse(&rule(accepted).to_string(), "p.json").unwrap();
    }
}

#[test]
fn a_profile_that_does_not_exist_lists_those_that_do() {
    let error = Profile::load(Path::new("no-such-profile")).unwrap_err().to_string();
    assert!(error.contains("no-such-profile") && error.contains("moe-q4mix"), "{error}");
}

#[test]
fn a_profile_and_a_target_are_not_both_obeyed() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::llama().write(dir.path(), "src");
    let with = |target: &str, group, scale| Options {
        group,
        scale,
        ..Options { profile: built_in("dense").profile, ..options(target) }
    };
    for options in [
        with("base-q4", None, None),
        with("auto", Some(32), None),
        with("auto", None, Some(ScaleDtype::Bf16)),
    ] {
        let error = refused(&source, &options).to_string();
        assert!(error.contains("profile dense"), "{error}");
    }
}

#[test]
fn built_in_profiles_cover_every_model() {
    let mut sources: Vec<_> = [
        "llama-tiny",
        "qwen3-dense-tiny",
        "qwen3-moe-tiny",
        "qwen35-dense-tiny",
        "toy-hybrid",
        "toy-moe",
        "toy-gate",
    ]
    .map(fixture)
    .to_vec();
    sources.extend(shared_fixtures().map(|shared| shared.join("qwen35-moe-tiny")));
    let names: Vec<String> = Profile::built_in().unwrap().into_iter().map(|p| p.name).collect();
    assert_eq!(names.len(), 9);
    for name in &names {
        for source in &sources {
            let report = plan(source, &built_in(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            let ours = ["dense", "moe", "hybrid"].contains(&name.as_str());
            for tensor in &report.tensors {
                let case = format!("{name} on {}: {} is {}", source.display(), tensor.name, tensor.stored);
                let is = |part: &str| tensor.stored.contains(part);
                if tensor.name.ends_with("mlp.gate.weight")
                    || tensor.name.ends_with("shared_expert_gate.weight")
                {
                    assert!(is("16") && !is("base"), "{case}");
                }
                if ours && tensor.name.contains("_exps.") {
                    assert!(is("base_q4"), "{case}");
                }
                let mixer = ["self_attn.", "linear_attn.out"].iter().any(|part| tensor.name.contains(part));
                if ours && (mixer && tensor.name.ends_with("_proj.weight") || tensor.name == "lm_head.weight")
                {
                    assert!(is("base_q6"), "{case}");
                }
            }
        }
    }
}

/// A tensor that an encoding of the rule's dtype holds is moved, not quantised again; all others need permission.
#[test]
fn quantised_sources_stay_exact_where_a_rule_allows_it() {
    let Some(shared) = shared_fixtures() else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = shared.join("gguf/qwen3-dense-tiny-Q4_0.gguf");
    let exact = plan(&source, &options("auto")).unwrap();
    let rules = |group: Value| {
        let mut rules = vec![json!({"pattern": "**.self_attn.*.weight", "dtype": "base_q4"})];
        if !group.is_null() {
            rules[0]["group_size"] = group;
        }
        // Whatever else the file holds stays as it is only as floats.
        rules.push(json!({"pattern": "**", "dtype": "f32"}));
        profile(json!(rules))
    };
    let (_, report) = converted(&source, dir.path(), "any", &rules(Value::Null));
    let mut kept = 0;
    for (tensor, auto) in report.tensors.iter().zip(&exact.tensors) {
        if tensor.name.contains("self_attn.") && tensor.name.contains("_proj") {
            assert_eq!(
                (&tensor.stored, tensor.verdict),
                (&auto.stored, Verdict::ExactRelayout),
                "{}",
                tensor.name
            );
            kept += 1;
        }
    }
    assert_eq!(kept, 8);
    converted(&source, dir.path(), "32", &rules(json!(32)));
    let error = refused(&source, &rules(json!(64)));
    assert!(matches!(&error, ConvertError::WouldLose { target, .. } if target == "mine"), "{error}");
    let allowed = Options { allow_quant_from_quant: true, ..rules(json!(64)) };
    let (_, report) = converted(&source, dir.path(), "64", &allowed);
    assert_eq!(report.with(Verdict::Requantized).tensors, 8);
}

#[test]
fn a_rule_that_decides_nothing_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let source = Toy::llama().write(dir.path(), "src");
    let options = profile(json!([
        {"pattern": "**.q_proj.weight", "dtype": "base_q8"},
        {"pattern": "**.q_porj.weight", "dtype": "base_q8"},
        {"pattern": "**", "dtype": "base_q4"},
        {"pattern": "**.k_proj.weight", "dtype": "base_q6"}
    ]));
    let notes = plan(&source, &options).unwrap().notes;
    let idle: Vec<&String> = notes.iter().filter(|note| note.contains("decided no tensor")).collect();
    assert!(idle.len() == 2 && idle[0].contains("rule 2 (`**.q_porj.weight`) of profile mine"), "{notes:?}");
    assert!(idle[1].starts_with("rule 4"), "{notes:?}");
    let notes = plan(&source, &built_in("hybrid")).unwrap().notes;
    assert!(!notes.iter().any(|note| note.contains("decided no tensor")), "{notes:?}");
}

#[test]
fn a_file_cannot_pass_other_rules_off_as_a_built_in_profile() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.json");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    let text = built_in("moe").profile.unwrap().text().to_owned();
    write(&format!("{text}\n\n"));
    assert_eq!(Profile::load(&path).unwrap().name, "moe");
    write(&text.replacen("base_q6", "base_q5", 1));
    let error = Profile::load(&path).unwrap_err().to_string();
    assert!(error.contains("p.json") && error.contains("moe is a built-in profile"), "{error}");
}

#[test]
fn an_exact_tensor_whose_scales_are_not_those_of_its_rule_is_reported() {
    let Some(shared) = shared_fixtures() else { return };
    let source = shared.join("gguf/qwen3-dense-tiny-Q4_0.gguf");
    for (rule, expected) in [
        (json!({"pattern": "**", "dtype": "base_q4", "scale_dtype": "bf16"}), "asked for: scales bf16"),
        (json!({"pattern": "**", "dtype": "base_q4", "symmetric": false}), "asked for: symmetric false"),
        (json!({"pattern": "**", "dtype": "base_q4", "scale_dtype": "f16"}), ""),
        (json!({"pattern": "**", "dtype": "base_q4"}), ""),
    ] {
        let options = Options { allow_quant_from_quant: true, ..profile(json!([rule])) };
        let notes = plan(&source, &options).unwrap().notes;
        let found = notes.iter().filter(|note| note.contains("is kept exactly, with f16 scales")).count();
        let said = notes.iter().any(|note| note.contains(expected));
        let said = said || expected.is_empty();
        assert!((found > 0) != expected.is_empty() && said, "{expected}: {notes:?}");
    }
}
