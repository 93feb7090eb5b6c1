//! A model that runs from its source, weights made block by block, is the model that runs from its file.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use crate::common::{KV_F32, assert_same_bits, converted, fixture, load, load_with, logits};
use basert_convert::{Options as ConvertOptions, SourceValues, with_source};
use basert_engine::{Options, TensorSource, stream};

struct Values<'a>(&'a SourceValues<'a>);

impl TensorSource for Values<'_> {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.shape(name).map(<[usize]>::to_vec)
    }

    fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.0.read(name, first, out)?)
    }
}

/// Token ids without a pattern.
fn ids(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| i * 2_654_435 % 500).collect()
}

#[test]
fn streaming_a_source_gives_the_bits_of_its_f32_file() {
    let ids = ids(70);
    for name in ["llama-tiny", "qwen3-dense-tiny", "qwen3-moe-tiny", "qwen35-dense-tiny", "toy-moe"] {
        let file = converted(&fixture(name), "f32");
        let expected = logits(&mut load(&file.path, KV_F32), &ids, &[70]);
        for threads in [1, 3] {
            let found = with_source(&fixture(name), &ConvertOptions::default(), |model| {
                let source = Values(&model.values);
                stream(&source, &model.spec, None, Some(threads), &[&ids], true, None).unwrap()
            });
            assert_same_bits(&found.unwrap(), &expected, name);
        }
    }
}

#[test]
fn windows_do_not_see_each_other() {
    let (long, short) = (ids(40), ids(11));
    let both = with_source(&fixture("toy-moe"), &ConvertOptions::default(), |model| {
        let source = Values(&model.values);
        let run =
            |windows: &[&[u32]]| stream(&source, &model.spec, None, Some(2), windows, true, None).unwrap();
        (run(&[&long, &short]), [run(&[&long]), run(&[&short])].concat())
    });
    let (together, alone) = both.unwrap();
    assert_same_bits(&together, &alone, "two windows");
}

/// What a calibration relies on: every linear layer is seen, with the rows that take part.
#[test]
fn a_watch_sees_the_input_of_every_linear_layer() {
    let seen = RefCell::new(BTreeMap::<String, usize>::new());
    let ids = ids(20);
    with_source(&fixture("toy-moe"), &ConvertOptions::default(), |model| {
        let source = Values(&model.values);
        let watch = |input: &basert_engine::LinearInput<'_>| {
            let tokens = input.x.len() / input.cols;
            let stacked = input.weight.contains("_exps.");
            assert!(stacked || tokens == 20, "{}: {tokens}", input.weight);
            assert!(input.rows.end <= model.values.shape(input.weight).unwrap().iter().product::<usize>());
            *seen.borrow_mut().entry(input.weight.to_owned()).or_default() += tokens;
        };
        let none = stream(&source, &model.spec, None, None, &[&ids], false, Some(&watch)).unwrap();
        assert!(none.is_empty());
        for (name, shape) in model.spec.tensors().into_iter().map(|t| (t.name, t.shape)) {
            let linear = shape.len() > 1 && !name.contains("conv1d") && !name.contains("embed_tokens");
            let is_head = name == "lm_head.weight";
            if model.values.shape(&name).is_some() && linear && !is_head {
                assert!(seen.borrow().contains_key(&name), "{name} was not seen");
            }
        }
    })
    .unwrap();
    // Two experts of every token in each of the stacks.
    let routed = seen.borrow().iter().filter(|(name, _)| name.contains("_exps.")).all(|(_, &n)| n == 40);
    assert!(routed, "{seen:?}");
}

#[test]
fn holding_little_changes_no_bit() {
    let file = converted(&fixture("qwen35-dense-tiny"), "base-q4");
    for dequantize in [false, true] {
        let run = |lean| {
            let options = Options { kv: KV_F32, dequantize, lean, ..Options::default() };
            logits(&mut load_with(&file.path, options), &ids(40), &[7])
        };
        assert_same_bits(&run(true), &run(false), "lean");
    }
}

#[test]
fn what_a_source_lacks_is_named() {
    let error = with_source(&fixture("llama-tiny"), &ConvertOptions::default(), |model| {
        let mut spec = model.spec.clone();
        spec.hidden += 1;
        stream(&Values(&model.values), &spec, None, None, &[&[1, 2]], true, None).unwrap_err().to_string()
    });
    assert!(error.unwrap().contains("layers.0.input_norm.weight"));
}
