//! What makes a checkpoint MLX's: `quantization` in `config.json`, and modules of several arrays.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use basert_quant::MlxArrays;
use serde_json::{Map, Value};

use crate::ConvertError;
use crate::recipe::{Data, Declared, Mode, Module, SourceTensor, hf};
use crate::safetensors::{Dtype, TensorView};

/// The quantisation that `config.json` declares, by module path without the wrapper's prefix.
#[derive(Default)]
pub(super) struct Quantization {
    global: Option<Declared>,
    /// `None`: not quantised.
    overrides: BTreeMap<String, Option<Declared>>,
}

impl Quantization {
    /// Reads `quantization`, or its copy `quantization_config`, at any level of nesting.
    ///
    /// # Errors
    /// Settings that are no quantisation of MLX, or two for one module.
    pub fn read(config: &Value, path: &Path) -> Result<Quantization, ConvertError> {
        let mut level = Some(config);
        while let Some(config) = level {
            let settings =
                ["quantization", "quantization_config"].into_iter().find_map(|key| config.get(key));
            if let Some(Value::Object(settings)) = settings {
                return Quantization::from_settings(settings, path);
            }
            level = config.get("text_config");
        }
        Ok(Quantization::default())
    }

    fn from_settings(settings: &Map<String, Value>, path: &Path) -> Result<Quantization, ConvertError> {
        let refuse = |what: String| ConvertError::Quantization { path: path.to_owned(), what };
        let global = declared(settings, None).map_err(|what| refuse(format!("`quantization`: {what}")))?;
        let mut overrides = BTreeMap::new();
        for (key, value) in settings {
            let module = match value {
                Value::Object(own) => {
                    Some(declared(own, Some(global)).map_err(|what| refuse(format!("`{key}`: {what}")))?)
                }
                Value::Bool(true) => Some(global),
                Value::Bool(false) => None,
                _ => continue,
            };
            let place = hf::normalise(key);
            if overrides.insert(place.clone(), module).is_some_and(|other| other != module) {
                return Err(refuse(format!("`{place}` is declared twice, in different ways")));
            }
        }
        Ok(Quantization { global: Some(global), overrides })
    }

    /// What is declared for the module `path`; `Err` if it is declared as not quantised.
    fn of(&self, path: &str) -> Result<Option<Declared>, ()> {
        match self.overrides.get(&hf::normalise(path)) {
            Some(Some(declared)) => Ok(Some(*declared)),
            Some(None) => Err(()),
            None => Ok(self.global),
        }
    }
}

/// Reads `bits`, `group_size` and `mode`. An override without a mode is affine, whatever the global one is.
fn declared(settings: &Map<String, Value>, global: Option<Declared>) -> Result<Declared, String> {
    let mode = match settings.get("mode") {
        None => Mode::Affine,
        Some(mode) => Mode::ALL
            .into_iter()
            .find(|known| mode.as_str() == Some(known.name()))
            .ok_or_else(|| format!("mode {mode} is not known (affine, mxfp4, nvfp4, mxfp8 are)"))?,
    };
    let number = |key: &str, inherited: Option<usize>| match settings.get(key) {
        Some(value) => value
            .as_u64()
            .and_then(|value| usize::try_from(value).ok())
            .filter(|&value| value > 0)
            .ok_or_else(|| format!("{key} is {value}, not a positive number")),
        None => inherited.ok_or_else(|| format!("{key} is missing")),
    };
    Ok(Declared {
        bits: number("bits", global.map(|global| global.bits))?,
        group: number("group_size", global.map(|global| global.group))?,
        mode,
    })
}

/// Joins the arrays of every quantised module into one tensor under the name of its codes.
///
/// # Errors
/// Arrays that are missing, or do not belong together.
pub(super) fn join<'a>(
    tensors: &[(&'a Path, TensorView<'a>)],
    quantization: &Quantization,
    element: impl Fn(&TensorView<'a>) -> Data<'a>,
) -> Result<Vec<SourceTensor<'a>>, ConvertError> {
    let by_name: HashMap<&str, &TensorView<'a>> = tensors.iter().map(|(_, view)| (view.name, view)).collect();
    let mut joined = Vec::with_capacity(tensors.len());
    for (file, view) in tensors {
        let refuse = |why: String| ConvertError::Module {
            path: (*file).to_owned(),
            tensor: view.name.to_owned(),
            why,
        };
        let (path, leaf) = view.name.rsplit_once('.').unwrap_or(("", view.name));
        let sibling = |leaf: &str| by_name.get(format!("{path}.{leaf}").as_str()).copied();
        let data = match leaf {
            "scales" | "biases" | "global_scale" => {
                let partner = if leaf == "scales" { "weight" } else { "scales" };
                if sibling(partner).is_none() {
                    return Err(refuse(format!("`{path}.{partner}` is missing")));
                }
                if leaf == "global_scale" {
                    return Err(refuse("NVFP4 modules with a global scale are not supported".to_owned()));
                }
                continue;
            }
            "weight" => match sibling("scales") {
                Some(scales) => {
                    let declared = quantization.of(path).map_err(|()| {
                        refuse(format!("`{path}.scales` exists, but config.json says it is not quantised"))
                    })?;
                    Data::Module(module(view, scales, sibling("biases"), declared).map_err(refuse)?)
                }
                None => element(view),
            },
            _ => element(view),
        };
        joined.push(SourceTensor { name: view.name, file, shape: view.shape.to_vec(), data });
    }
    Ok(joined)
}

/// The module of three arrays, whose leading dimensions must be the same.
fn module<'a>(
    weight: &TensorView<'a>,
    scales: &TensorView<'a>,
    biases: Option<&TensorView<'a>>,
    declared: Option<Declared>,
) -> Result<Module<'a>, String> {
    if weight.dtype != Dtype::U32 {
        return Err(format!("its codes have type {}, expected U32", weight.dtype));
    }
    let scale = match (scales.dtype, scales.dtype.float()) {
        (Dtype::U8, _) => None,
        (_, Some(float)) => Some(float),
        (other, None) => return Err(format!("its scales have type {other}")),
    };
    let (Some((&words, rows)), Some((&per_row, scale_rows))) =
        (weight.shape.split_last(), scales.shape.split_last())
    else {
        return Err("its codes or scales are a single number".to_owned());
    };
    if rows != scale_rows {
        let (codes, scales) = (weight.shape, scales.shape);
        return Err(format!("its codes have shape {codes:?}, its scales {scales:?}: the rows differ"));
    }
    if let Some(biases) = biases
        && (biases.shape, biases.dtype) != (scales.shape, scales.dtype)
    {
        return Err(format!(
            "its biases are {} {:?}, its scales {} {:?}; they must be alike",
            biases.dtype, biases.shape, scales.dtype, scales.shape
        ));
    }
    if scale.is_some() && biases.is_none() {
        let stem = weight.name.strip_suffix(".weight").unwrap_or(weight.name);
        return Err(format!("`{stem}.biases` is missing"));
    }
    let biases = biases.map_or(&[][..], |biases| biases.data);
    let arrays = MlxArrays { codes: weight.data, scales: scales.data, biases };
    Ok(Module { arrays, scale, words, scales: per_row, declared, layout: None })
}
