//! The tensors of a source, found by normalised name, each to be used or accounted for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{Data, SourceTensor};
use crate::ConvertError;

/// All tensors of a source.
pub(crate) struct Inventory<'a> {
    /// The checkpoint, for errors about tensors that are in no file.
    path: PathBuf,
    tensors: Vec<SourceTensor<'a>>,
    names: HashMap<String, usize>,
    used: Vec<bool>,
}

impl<'a> Inventory<'a> {
    /// Indexes `tensors` under `normalise(name)`.
    ///
    /// # Errors
    /// Two tensors with one normalised name.
    pub fn new(
        path: &Path,
        tensors: Vec<SourceTensor<'a>>,
        normalise: impl Fn(&str) -> String,
    ) -> Result<Inventory<'a>, ConvertError> {
        let mut names = HashMap::with_capacity(tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            if let Some(first) = names.insert(normalise(tensor.name), index) {
                let name = |index: usize| tensors.get(index).map_or_else(String::new, |t| t.name.to_owned());
                return Err(ConvertError::Ambiguous {
                    path: path.to_owned(),
                    first: name(first),
                    second: name(index),
                });
            }
        }
        let used = vec![false; tensors.len()];
        Ok(Inventory { path: path.to_owned(), tensors, names, used })
    }

    /// The checkpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensor with index `index`, as handed out by [`Inventory::take`].
    pub fn tensor(&self, index: usize) -> &SourceTensor<'a> {
        &self.tensors[index]
    }

    /// All tensors, in no particular order.
    pub fn tensors(&self) -> &[SourceTensor<'a>] {
        &self.tensors
    }

    /// Whether any tensor is quantised.
    pub fn is_quantised(&self) -> bool {
        self.tensors.iter().any(SourceTensor::is_quantised)
    }

    /// Whether a tensor has this normalised name.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Normalised names, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// The tensor named `name` without using it.
    pub fn find(&self, name: &str) -> Option<&SourceTensor<'a>> {
        self.names.get(name).map(|&index| &self.tensors[index])
    }

    /// The shape of the tensor named `name`: of a module, as its declaration implies.
    ///
    /// # Errors
    /// A module that is not declared, or contradicts its declaration.
    pub fn shape(&mut self, name: &str) -> Result<Vec<usize>, ConvertError> {
        let Some(&index) = self.names.get(name) else { return Ok(Vec::new()) };
        self.settle(index, None)?;
        Ok(self.tensors[index].shape.clone())
    }

    /// Settles how a module stores rows of `width` elements; does nothing for other tensors.
    fn settle(&mut self, index: usize, width: Option<usize>) -> Result<(), ConvertError> {
        let tensor = &mut self.tensors[index];
        let Data::Module(module) = &mut tensor.data else { return Ok(()) };
        let width = module.settle(width).map_err(|why| ConvertError::Module {
            path: tensor.file.to_owned(),
            tensor: tensor.name.to_owned(),
            why,
        })?;
        if let Some(last) = tensor.shape.last_mut() {
            *last = width;
        }
        Ok(())
    }

    /// Uses the tensor named `name` for `canonical`; it must have `shape` and a readable type.
    ///
    /// # Errors
    /// If it is missing or different.
    pub fn take(&mut self, name: &str, shape: &[usize], canonical: &str) -> Result<usize, ConvertError> {
        let Some(&index) = self.names.get(name) else {
            return Err(ConvertError::MissingTensor {
                path: self.path.clone(),
                tensor: name.to_owned(),
                canonical: canonical.to_owned(),
            });
        };
        self.settle(index, shape.last().copied())?;
        let tensor = &self.tensors[index];
        if tensor.shape != shape {
            return Err(ConvertError::Shape {
                path: tensor.file.to_owned(),
                tensor: tensor.name.to_owned(),
                found: tensor.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        if let Some(found) = tensor.unreadable() {
            return Err(ConvertError::ElementType {
                path: tensor.file.to_owned(),
                tensor: tensor.name.to_owned(),
                found: found.to_owned(),
            });
        }
        self.used[index] = true;
        Ok(index)
    }

    /// Marks the tensor named `name` as accounted for without using it.
    pub fn ignore(&mut self, name: &str) {
        if let Some(&index) = self.names.get(name) {
            self.used[index] = true;
        }
    }

    /// Names, normalised and as in the file, of tensors that nothing used yet, sorted by the former.
    pub fn unused(&self) -> Vec<(String, String)> {
        let mut unused: Vec<(String, String)> = self
            .names
            .iter()
            .filter(|&(_, &index)| !self.used[index])
            .map(|(name, &index)| (name.clone(), self.tensors[index].name.to_owned()))
            .collect();
        unused.sort();
        unused
    }
}
