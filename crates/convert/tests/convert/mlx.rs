//! MLX checkpoints come out exactly, or are refused with the reason.

use crate::common::{self, mlx::export};
use crate::common::{Toy, converted, decoded, options, payloads, refused, shared_fixtures};
use basert_convert::{Convention, ConvertError, Options, Report, Verdict};
use serde_json::json;

const UP: &str = "language_model.model.layers.0.mlp.up_proj";
const DOWN: &str = "language_model.model.layers.0.mlp.down_proj";
const QKV: &str = "language_model.model.layers.0.linear_attn.in_proj_qkv";

fn verdict(report: &Report, name: &str) -> Verdict {
    report.tensors.iter().find(|tensor| tensor.name == name).unwrap().verdict
}

#[test]
fn every_width_group_and_scale_type_is_kept_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            for scale in ["BF16", "F16", "F32"] {
                let mut export = export(&Toy::hybrid(6, false));
                let module = export.quantise(DOWN, bits, group, scale);
                export.declare_global(bits, group);
                let name = format!("{bits}-{group}-{scale}");
                let source = export.write(dir.path(), &name);
                let (file, report) = converted(&source, dir.path(), &name, &options("auto"));
                let tensor = file.tensor("layers.0.mlp.down_proj.weight").unwrap();
                assert_eq!(tensor.entry.dtype().name(), format!("base_q{bits}"), "{name}");
                assert_eq!(tensor.entry.group_size, Some(group as u32), "{name}");
                assert_eq!(decoded(&file, "layers.0.mlp.down_proj.weight"), module.values, "{name}");
                let expected = if scale == "F32" { Verdict::ExactRelayout } else { Verdict::ByteCopy };
                assert_eq!(verdict(&report, "layers.0.mlp.down_proj.weight"), expected);
                if scale != "F32" {
                    assert!(tensor.data == [module.codes, module.scales, module.biases].concat(), "{name}");
                    assert_eq!(tensor.entry.scale_dtype.unwrap().name(), scale.to_lowercase());
                }
                assert_eq!(report.target, "auto");
                assert!(report.tensors.iter().all(|tensor| tensor.max_error == Some(0.0)), "{name}");
            }
        }
    }
}

#[test]
fn scales_that_no_half_precision_holds_are_kept_in_float() {
    let dir = tempfile::tempdir().unwrap();
    let mut export = export(&Toy::hybrid(6, false));
    let module = export.quantise(DOWN, 4, 64, "F32");
    export.declare_global(4, 64);
    let scales = &mut export.tensors.get_mut(&format!("{DOWN}.scales")).unwrap().2;
    scales[..4].copy_from_slice(&0.1f32.to_le_bytes());
    let (file, report) = converted(&export.write(dir.path(), "src"), dir.path(), "out", &options("auto"));
    let name = "layers.0.mlp.down_proj.weight";
    assert_eq!(file.tensor(name).unwrap().entry.dtype().name(), "f32");
    assert_eq!(verdict(&report, name), Verdict::KeptInFloat);
    assert_eq!(decoded(&file, name)[64..], module.values[64..]);
}

/// Field case: overrides that a renamed prefix hides, a `false` override, and a module without scales.
#[test]
fn overrides_hold_under_any_spelling_of_the_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = None;
    for prefix in ["model.language_model.", "language_model.model.", "model."] {
        let mut export = export(&Toy::hybrid(6, false));
        let module = export.quantise(QKV, 6, 32, "BF16");
        export.quantise(UP, 4, 32, "BF16");
        export.quantise(DOWN, 8, 64, "BF16");
        let mut quantization = json!({"bits": 4, "group_size": 32, "lm_head": false});
        quantization[format!("{prefix}layers.0.linear_attn.in_proj_qkv")] =
            json!({"bits": 6, "group_size": 32});
        quantization[format!("{prefix}layers.0.mlp.down_proj")] =
            json!({"bits": 8, "group_size": 64, "mode": "affine"});
        quantization[format!("{prefix}layers.0.mlp.up_proj")] = json!(true);
        export.declare(quantization);
        let name = prefix.replace('.', "_");
        let (file, _) = converted(&export.write(dir.path(), &name), dir.path(), &name, &options("auto"));
        assert_eq!(decoded(&file, "layers.0.linear_attn.in_proj_qkv.weight"), module.values);
        let payloads = payloads(&file);
        assert_eq!(payloads["layers.0.linear_attn.in_proj_qkv.weight"].0, "base_q6");
        assert_eq!(payloads["layers.0.mlp.down_proj.weight"].0, "base_q8");
        assert_eq!(payloads["lm_head.weight"].0, "f32");
        assert_eq!(payloads["layers.0.mlp.gate_proj.weight"].0, "f32");
        assert!(*first.get_or_insert(payloads.clone()) == payloads, "{prefix} differs");
    }
}

#[test]
fn a_module_that_no_declaration_describes_follows_from_its_arrays() {
    let dir = tempfile::tempdir().unwrap();
    let mut export = export(&Toy::hybrid(6, false));
    let module = export.quantise(DOWN, 5, 32, "F16");
    let (file, _) = converted(&export.write(dir.path(), "src"), dir.path(), "out", &options("auto"));
    assert_eq!(decoded(&file, "layers.0.mlp.down_proj.weight"), module.values);
}

#[test]
fn small_float_modes_are_exact_where_the_container_has_them() {
    let cases = [
        ("mxfp4", 4, 32, [0x7f, 0x81], "mxfp4", Verdict::ByteCopy),
        ("nvfp4", 4, 16, [0x38, 0x7e], "nvfp4", Verdict::ByteCopy),
        // A zero and a subnormal scale, which the container would read as other numbers.
        ("nvfp4", 4, 16, [0x00, 0x03], "bf16", Verdict::KeptInFloat),
        ("mxfp8", 8, 32, [0x7f, 0x80], "bf16", Verdict::KeptInFloat),
    ];
    for (i, (mode, bits, group, scales, dtype, expected)) in cases.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let mut export = export(&Toy::hybrid(6, false));
        let module = export.quantise(UP, bits, 32, "BF16");
        export.tensors.remove(&format!("{UP}.biases"));
        let bytes: Vec<u8> = scales.into_iter().cycle().take(128 * 64 / group).collect();
        export.tensors.insert(format!("{UP}.scales"), ("U8", vec![128, 64 / group], bytes.clone()));
        if mode == "mxfp8" {
            // 0x7f and 0xff are no numbers.
            let codes = &mut export.tensors.get_mut(&format!("{UP}.weight")).unwrap().2;
            codes.iter_mut().for_each(|code| *code &= 0xf7);
        }
        // An override without a mode is affine, whatever the global one is.
        let other = export.quantise(QKV, 8, 64, "BF16");
        let mut quantization = json!({"bits": bits, "group_size": group, "mode": mode});
        quantization[QKV] = json!({"bits": 8, "group_size": 64});
        export.declare(quantization);
        let source = export.write(dir.path(), "src");
        let (file, report) = converted(&source, dir.path(), "out", &options("auto"));
        let name = "layers.0.mlp.up_proj.weight";
        assert_eq!(file.tensor(name).unwrap().entry.dtype().name(), dtype, "case {i}");
        assert_eq!(verdict(&report, name), expected, "case {i}");
        if expected == Verdict::ByteCopy {
            assert!(file.tensor(name).unwrap().data == [module.codes, bytes].concat(), "case {i}");
        }
        let (exact, _) = converted(&source, dir.path(), "f32", &options("f32"));
        assert_eq!(decoded(&file, name), decoded(&exact, name), "case {i}");
        assert_eq!(decoded(&file, "layers.0.linear_attn.in_proj_qkv.weight"), other.values);
    }
}

/// Field case: four spellings of the same experts, one of them MLX's, whose norms have their 1 already.
#[test]
fn an_unquantised_export_equals_its_hugging_face_source() {
    let dir = tempfile::tempdir().unwrap();
    for moe in [false, true] {
        let toy = Toy::hybrid(6, moe);
        let name = |kind: &str| format!("{kind}-{moe}");
        let hf = toy.write(dir.path(), &name("hf"));
        let mlx = export(&toy).write(dir.path(), &name("mlx"));
        for target in ["auto", "f32"] {
            let (hf, hf_report) = converted(&hf, dir.path(), &name("a"), &options(target));
            let (mlx, report) = converted(&mlx, dir.path(), &name("b"), &options(target));
            assert!(payloads(&hf) == payloads(&mlx), "moe {moe} at {target}");
            assert_eq!((hf_report.convention, report.convention), (Some("hf"), Some("mlx")));
            assert_eq!(hf_report.target, if target == "auto" { "base-q4" } else { "f32" });
            assert_eq!(report.source, "mlx_safetensors");
        }
    }
}

#[test]
fn stacked_experts_are_quantised_as_one_module() {
    let dir = tempfile::tempdir().unwrap();
    let mut export = export(&Toy::hybrid(6, true));
    let stack = "language_model.model.layers.1.mlp.switch_mlp.gate_proj";
    let gate = export.quantise(stack, 4, 32, "BF16");
    let router = export.quantise("language_model.model.layers.1.mlp.gate", 8, 64, "BF16");
    let mut quantization = json!({"bits": 4, "group_size": 32});
    quantization["model.layers.1.mlp.gate"] = json!({"bits": 8, "group_size": 64});
    export.declare(quantization);
    let (file, report) = converted(&export.write(dir.path(), "src"), dir.path(), "out", &options("auto"));
    assert_eq!(file.tensor("layers.1.ffn_gate_exps.weight").unwrap().shape, [4, 32, 64]);
    assert_eq!(decoded(&file, "layers.1.ffn_gate_exps.weight"), gate.values);
    // Routing stays in float whatever the source.
    assert_eq!(verdict(&report, "layers.1.mlp.gate.weight"), Verdict::KeptInFloat);
    assert_eq!(decoded(&file, "layers.1.mlp.gate.weight"), router.values);
}

#[test]
fn arrays_of_a_module_may_lie_in_different_shards() {
    let dir = tempfile::tempdir().unwrap();
    let mut export = export(&Toy::hybrid(6, true));
    export.quantise(QKV, 3, 64, "BF16");
    export.quantise("language_model.model.layers.2.mlp.switch_mlp.up_proj", 5, 32, "F16");
    let source = export.write(dir.path(), "src");
    let (whole, _) = converted(&source, dir.path(), "whole", &options("auto"));
    std::fs::remove_file(source.join("model.safetensors")).unwrap();
    common::safetensors::write_raw_sharded(&source, &export.tensors, 3, "mlx");
    let (sharded, _) = converted(&source, dir.path(), "sharded", &options("auto"));
    assert!(payloads(&whole) == payloads(&sharded));

    let shard = source.join("model-00002-of-00003.safetensors");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    let error = refused(&source, &options("auto")).to_string();
    assert!(error.contains("model-00002-of-00003.safetensors"), "{error}");
}

/// Types say that bf16 holds every mxfp8 number; the smallest it does not. The comparison of both sides finds it.
#[test]
fn a_value_that_did_not_survive_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut export = export(&Toy::hybrid(6, false));
    export.quantise(UP, 8, 32, "BF16");
    export.tensors.remove(&format!("{UP}.biases"));
    export.tensors.insert(format!("{UP}.scales"), ("U8", vec![128, 2], vec![0; 256]));
    let mut codes = vec![0u8; 128 * 64];
    codes[100] = 1;
    export.tensors.get_mut(&format!("{UP}.weight")).unwrap().2 = codes;
    export.declare(json!({"bits": 8, "group_size": 32, "mode": "mxfp8"}));
    let source = export.write(dir.path(), "src");
    let error = refused(&source, &options("auto"));
    assert!(error.to_string().contains("`layers.0.mlp.up_proj.weight`: element 100 is 0e0"), "{error}");
    assert!(error.hint().unwrap().contains("--target f32"));
    let (file, _) = converted(&source, dir.path(), "f32", &options("f32"));
    assert_eq!(decoded(&file, "layers.0.mlp.up_proj.weight")[100], f32::from_bits(1 << 13));
}

#[test]
fn arrays_that_contradict_each_other_or_the_configuration_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut count = 0;
    let mut refuse = |change: &dyn Fn(&mut common::mlx::Export)| {
        let mut export = export(&Toy::hybrid(6, false));
        export.quantise(DOWN, 6, 64, "BF16");
        export.declare_global(6, 64);
        change(&mut export);
        count += 1;
        let error = refused(&export.write(dir.path(), &count.to_string()), &options("auto")).to_string();
        assert!(error.contains(DOWN), "{error}");
        error
    };
    let error = refuse(&|export| export.declare_global(4, 64));
    assert!(error.contains("24 words a row do not hold 128 features in 4 bits, group 64"), "{error}");
    assert!(error.contains("give 6 bits a feature"), "{error}");
    let error = refuse(&|export| export.declare_global(6, 32));
    assert!(error.contains("2 scales a row do not cover 128 features in groups of 32 (6 bits, 24 words)"));
    let error = refuse(&|export| {
        export.tensors.get_mut(&format!("{DOWN}.weight")).unwrap().1 = vec![24, 64];
    });
    assert!(error.contains("the rows differ"), "{error}");
    let error = refuse(&|export| {
        export.tensors.remove(&format!("{DOWN}.biases"));
    });
    assert!(error.contains(&format!("`{DOWN}.biases` is missing")), "{error}");
    let error = refuse(&|export| {
        export.tensors.remove(&format!("{DOWN}.scales"));
    });
    assert!(error.contains(&format!("`{DOWN}.scales` is missing")), "{error}");
    let error = refuse(&|export| {
        export.tensors.remove(&format!("{DOWN}.weight"));
    });
    assert!(error.contains(&format!("`{DOWN}.weight` is missing")), "{error}");
    let error = refuse(&|export| {
        let mut quantization = json!({"bits": 6, "group_size": 64});
        quantization["layers.0.mlp.down_proj"] = json!(false);
        export.declare(quantization);
    });
    assert!(error.contains("config.json says it is not quantised"), "{error}");
    let error = refuse(&|export| {
        export.declare(json!({"bits": 6, "group_size": 64, "mode": "mxfp4"}));
    });
    assert!(error.contains("mode mxfp4 with 6 bits, group 64 and bf16 scales does not exist"), "{error}");
    let error = refuse(&|export| {
        let global = ("F32", vec![1], 1f32.to_le_bytes().to_vec());
        export.tensors.insert(format!("{DOWN}.global_scale"), global);
    });
    assert!(error.contains("global scale are not supported"), "{error}");
}

#[test]
fn scales_that_are_no_numbers_are_refused_with_the_tensor() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bad, target) in [("nan", 0x7fc0u16, "auto"), ("inf", 0x7f80, "auto"), ("nan32", 0x7fc0, "f32")]
    {
        let mut export = export(&Toy::hybrid(6, false));
        export.quantise(DOWN, 4, 64, "BF16");
        export.declare_global(4, 64);
        let scales = &mut export.tensors.get_mut(&format!("{DOWN}.scales")).unwrap().2;
        scales[6..8].copy_from_slice(&bad.to_le_bytes());
        let error = refused(&export.write(dir.path(), name), &options(target)).to_string();
        assert!(error.contains("`layers.0.mlp.down_proj.weight`: element 19"), "{error}");
    }
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        (json!({"bits": 4}), "group_size is missing"),
        (json!({"bits": 0, "group_size": 64}), "bits is 0, not a positive number"),
        (json!({"bits": 4, "group_size": 64, "mode": "hqq"}), "mode \"hqq\" is not known"),
        (
            json!({"bits": 4, "group_size": 64, "lm_head": {"bits": 6}, "language_model.lm_head": {"bits": 8}}),
            "`lm_head` is declared twice",
        ),
    ];
    for (i, (quantization, expected)) in cases.into_iter().enumerate() {
        let mut export = export(&Toy::hybrid(6, false));
        export.declare(quantization);
        let error = refused(&export.write(dir.path(), &i.to_string()), &options("auto")).to_string();
        assert!(error.contains("config.json") && error.contains(expected), "{error}");
    }
}

/// Field case: 1 added to norms that have it, and every other mixture of the two conventions.
#[test]
fn mixed_conventions_are_refused_with_both_facts() {
    let dir = tempfile::tempdir().unwrap();
    let toy = Toy::hybrid(6, true);
    let mut count = 0;
    let mut refuse = |export: &common::mlx::Export, facts: [&str; 2]| {
        count += 1;
        let error = refused(&export.write(dir.path(), &count.to_string()), &options("auto"));
        assert!(matches!(error, ConvertError::Convention { .. }), "{error}");
        assert!(error.hint().unwrap().contains("--source-convention"));
        let error = error.to_string();
        assert!(facts.iter().all(|fact| error.contains(fact)), "{error}");
    };
    let mut mixed = export(&toy);
    mixed.format = "pt";
    refuse(&mixed, ["shape [160, 4, 1] (MLX)", "model.safetensors has format `pt` (Hugging Face)"]);

    let mut mixed = export(&toy);
    for (name, (_, shape, _)) in &mut mixed.tensors {
        if name.ends_with("layers.0.linear_attn.conv1d.weight") {
            shape.swap(1, 2);
        }
    }
    refuse(&mixed, ["shape [160, 1, 4] (Hugging Face)", "shape [160, 4, 1] (MLX)"]);

    let mixed = export(&toy).renamed("language_model.model.", "model.language_model.");
    refuse(&mixed, ["(MLX)", "a tensor is called `model.language_model."]);

    let mut twice = toy.clone();
    for (name, tensor) in &mut twice.tensors {
        if name.ends_with("norm.weight") && !name.contains("linear_attn") {
            tensor.values.iter_mut().for_each(|value| *value += 1.0);
        }
    }
    refuse(&export(&twice), ["those of MLX", "as gains to which 1 was added twice do"]);
    let plain = common::mlx::Export {
        config: twice.config.clone(),
        tensors: common::safetensors::raw(&twice.tensors),
        format: "pt",
    };
    refuse(&plain, ["those of Hugging Face", "as whole gains (MLX) do"]);
}

#[test]
fn the_convention_can_be_given() {
    let dir = tempfile::tempdir().unwrap();
    let toy = Toy::hybrid(6, false);
    let mut mixed = export(&toy);
    mixed.format = "pt";
    let source = mixed.write(dir.path(), "src");
    let given = Options { convention: Some("mlx".parse().unwrap()), ..options("f32") };
    let (file, report) = converted(&source, dir.path(), "out", &given);
    let norm = "layers.0.input_norm.weight";
    let plus_one: Vec<f32> =
        toy.values("model.layers.0.input_layernorm.weight").iter().map(|w| w + 1.0).collect();
    assert_eq!(decoded(&file, norm), plus_one);
    assert_eq!(report.convention, Some("mlx"));
    assert!("gguf".parse::<Convention>().is_err());

    // Where both store the same values, nothing needs to agree.
    let mut llama = export(&Toy::llama());
    llama.format = "mlx";
    let (_, report) = converted(&llama.write(dir.path(), "llama"), dir.path(), "llama", &options("f32"));
    assert_eq!(report.convention, None);
}

#[test]
fn quantising_what_is_quantised_needs_permission_unless_it_is_exact() {
    let dir = tempfile::tempdir().unwrap();
    let mut export = export(&Toy::hybrid(6, false));
    let module = export.quantise(DOWN, 4, 32, "BF16");
    export.declare_global(4, 32);
    let source = export.write(dir.path(), "src");
    for target in ["base-q4", "base-q2", "bf16"] {
        let error = refused(&source, &options(target));
        assert!(matches!(error, ConvertError::WouldLose { .. }), "{error}");
        assert!(error.hint().unwrap().contains("--target auto"));
        let error = error.to_string();
        assert!(error.contains(&format!("target {target} would lose precision")), "{error}");
    }
    let allowed = |target| Options { allow_quant_from_quant: true, ..options(target) };
    // The module is what the target asks for already.
    let (file, report) = converted(&source, dir.path(), "q4", &allowed("base-q4"));
    let name = "layers.0.mlp.down_proj.weight";
    assert_eq!(verdict(&report, name), Verdict::ByteCopy);
    assert_eq!(decoded(&file, name), module.values);
    // To fewer bits it is quantised from the exact values.
    let (_, report) = converted(&source, dir.path(), "q2", &allowed("base-q2"));
    let line = report.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    assert_eq!(line.verdict, Verdict::Requantized);
    assert!(line.max_error.unwrap() > 0.0 && line.rms_error.unwrap() < f64::from(line.max_error.unwrap()));
    assert!(report.to_string().contains("re-quantized"), "{report}");
    let (file, report) = converted(&source, dir.path(), "bf16", &allowed("bf16"));
    assert_eq!(file.tensor(name).unwrap().entry.dtype().name(), "bf16");
    assert_eq!(verdict(&report, name), Verdict::Requantized);

    let grouped = Options { group: Some(64), ..options("auto") };
    let error = refused(&source, &grouped).to_string();
    assert!(error.contains("target auto takes its groups from the source"), "{error}");
}

#[test]
fn every_published_width_of_the_golden_models_is_exact() {
    let Some(shared) = shared_fixtures() else { return };
    let dir = tempfile::tempdir().unwrap();
    let names = ["dense-2l-3bit", "dense-2l-5bit", "dense-2l-6bit", "dense-2l-8bit", "dense-2l-mixed"];
    for name in names.into_iter().chain(["dense-2l-bf16", "dense-tiny-4bit", "moe-2l-4bit"]) {
        let source = shared.join(format!("mlx/qwen35-{name}"));
        let (exact, _) = converted(&source, dir.path(), &format!("{name}-f32"), &options("f32"));
        let (file, report) = converted(&source, dir.path(), name, &options("auto"));
        assert_eq!(report.convention, Some("mlx"), "{name}");
        if name.ends_with("bf16") {
            continue;
        }
        for tensor in exact.tensors() {
            let tensor = &tensor.entry.name;
            assert!(decoded(&exact, tensor) == decoded(&file, tensor), "{tensor} of {name}");
        }
        assert!(report.tensors.iter().all(|tensor| tensor.verdict.is_exact()), "{name}");
        let copied = report.with(Verdict::ByteCopy).tensors;
        assert!(copied >= 13, "{copied} of {name}");
    }
}
