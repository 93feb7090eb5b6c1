//! Importance: how large the activations are that meet each column of a weight.
//!
//! Collected once, saved, and used by [`Method::Mse`](crate::Method) and [`Method::Awq`](crate::Method). The file is
//! safetensors: for each weight, under its canonical name, f32 `[cols]` or, for a stack of experts, `[experts · cols]`, the
//! mean of the squared activations. `__metadata__` says `format` `basert-importance`, `version` `1`, the number of `tokens`
//! and the `fingerprint` of the model: SHA-256 over the architecture and name and shape of every tensor its forward
//! pass needs, each on a line.

use std::collections::BTreeMap;
use std::path::Path;

use basert_model::{ModelSpec, TensorSpec};
use basert_quant::{FloatDtype, float};
use serde_json::{Map, json};
use sha2::{Digest, Sha256};

use crate::ConvertError;
use crate::digest::hex;
use crate::safetensors::{Dtype, SafetensorsFile};

const FORMAT: &str = "basert-importance";
const VERSION: &str = "1";

/// Mean squared activations by weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    /// Where it comes from, for errors.
    origin: String,
    fingerprint: String,
    /// Tokens it was collected from.
    tokens: usize,
    /// `[cols]`, or `[experts, cols]` flattened, by canonical name.
    squares: BTreeMap<String, Vec<f32>>,
}

impl Importance {
    /// Importance for the model `spec`: by canonical name of a weight, the mean squared activation of each column over
    /// `tokens` tokens; of a stack of experts, for each expert.
    ///
    /// # Errors
    /// [`ConvertError::Importance`] for weights that the model does not have, or of other sizes.
    pub fn new(
        spec: &ModelSpec,
        tokens: usize,
        squares: BTreeMap<String, Vec<f32>>,
    ) -> Result<Importance, ConvertError> {
        let (origin, fingerprint) = ("calibration".to_owned(), fingerprint(spec));
        let importance = Importance { origin, fingerprint, tokens, squares };
        importance.check(spec)?;
        Ok(importance)
    }

    /// SHA-256 of what [`Importance::to_bytes`] makes, in hex.
    pub(crate) fn digest(&self) -> String {
        hex(&Sha256::digest(self.to_bytes()))
    }

    /// Reads a file that [`Importance::to_bytes`] made.
    ///
    /// # Errors
    /// A file that is no such file, of another version, without tensors, or with values that are no mean squares.
    pub fn load(path: &Path) -> Result<Importance, ConvertError> {
        let origin = path.display().to_string();
        let refuse = |why: String| ConvertError::Importance { origin: path.display().to_string(), why };
        let file = SafetensorsFile::open(path)?;
        let get = |key: &str| file.metadata().get(key).map_or("", String::as_str);
        if get("format") != FORMAT {
            return Err(refuse("this is not an importance file".to_owned()));
        }
        if get("version") != VERSION {
            let version = crate::error::shown(get("version"));
            return Err(refuse(format!("its version is {version}, this program reads {VERSION}")));
        }
        let tokens = get("tokens").parse().map_err(|_| refuse("it does not say its `tokens`".to_owned()))?;
        let mut squares = BTreeMap::new();
        for tensor in file.tensors() {
            let name = crate::error::shown(tensor.name);
            if tensor.dtype != Dtype::F32 {
                return Err(refuse(format!("tensor {name} is not F32")));
            }
            let mut values = vec![0.0; tensor.data.len() / 4];
            float::decode(FloatDtype::F32, tensor.data, &mut values).map_err(|e| refuse(e.to_string()))?;
            if let Some(value) = values.iter().find(|value| !(value.is_finite() && **value >= 0.0)) {
                return Err(refuse(format!("tensor {name} has {value}, which is no mean square")));
            }
            squares.insert(tensor.name.to_owned(), values);
        }
        if squares.is_empty() {
            return Err(refuse("it has no tensors".to_owned()));
        }
        Ok(Importance { origin, fingerprint: get("fingerprint").to_owned(), tokens, squares })
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let metadata = json!({
            "format": FORMAT, "version": VERSION, "tokens": self.tokens.to_string(), "fingerprint": self.fingerprint
        });
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), metadata);
        let mut data = Vec::new();
        for (name, values) in &self.squares {
            let start = data.len();
            float::encode(FloatDtype::F32, values, &mut data);
            let entry = json!({"dtype": "F32", "shape": [values.len()], "data_offsets": [start, data.len()]});
            header.insert(name.clone(), entry);
        }
        let mut header = serde_json::Value::Object(header).to_string().into_bytes();
        // The format asks for data on a multiple of 8.
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.append(&mut header);
        bytes.append(&mut data);
        bytes
    }

    /// Tokens it was collected from.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Refuses a model that this is not of.
    pub(crate) fn check(&self, spec: &ModelSpec) -> Result<(), ConvertError> {
        let refuse = |why: String| Err(ConvertError::Importance { origin: self.origin.clone(), why });
        if self.fingerprint != fingerprint(spec) {
            return refuse("it was collected from a model with other tensors than the source".to_owned());
        }
        let tensors = spec.tensors();
        for (name, values) in &self.squares {
            let shown = crate::error::shown(name);
            let Some(tensor) = tensors.iter().find(|tensor| tensor.name == *name) else {
                return refuse(format!("the model has no tensor {shown}"));
            };
            if columns(tensor) != Some(values.len()) {
                return refuse(format!(
                    "tensor {shown} has {} values, which is not its columns",
                    values.len()
                ));
            }
        }
        Ok(())
    }

    /// Mean squared activations of the weight's columns: one for each column, or for each expert and column.
    pub(crate) fn of(&self, name: &str) -> Option<&[f32]> {
        self.squares.get(name).map(Vec::as_slice)
    }
}

/// Columns of a weight, of all experts together.
fn columns(tensor: &TensorSpec) -> Option<usize> {
    match tensor.shape[..] {
        [_, cols] => Some(cols),
        [experts, _, cols] => experts.checked_mul(cols),
        _ => None,
    }
}

fn fingerprint(spec: &ModelSpec) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{}\n", spec.arch));
    for TensorSpec { name, shape, optional, .. } in spec.tensors() {
        if !optional {
            hash.update(format!("{name} {shape:?}\n"));
        }
    }
    hex(&hash.finalize())
}
