//! The values of canonical tensors as the source has them: decoded, in canonical order, adjusted.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use basert_model::ModelSpec;
use basert_quant::QuantError;
use serde_json::value::RawValue;

use crate::encode::spans;
use crate::recipe::{Inventory, Op, Part, Recipe, SourceTensor};
use crate::source::{Plan, Source};
use crate::trail::Trail;
use crate::{ConvertError, Options};

/// Every canonical tensor of a checkpoint, made from the source on demand: the values that a conversion encodes.
pub struct SourceValues<'a> {
    inventory: &'a Inventory<'a>,
    recipes: HashMap<&'a str, &'a Recipe>,
    /// Through which used pages leave the process's memory.
    trail: &'a Trail<'a>,
}

impl<'a> SourceValues<'a> {
    pub(crate) fn new(
        inventory: &'a Inventory<'a>,
        recipes: &'a [Recipe],
        trail: &'a Trail<'a>,
    ) -> SourceValues<'a> {
        let by_name = recipes.iter().map(|recipe| (recipe.name.as_str(), recipe));
        SourceValues { inventory, recipes: by_name.collect(), trail }
    }

    /// The checkpoint.
    pub fn path(&self) -> &Path {
        self.inventory.path()
    }

    /// Shape of the canonical tensor `name`, innermost dimension last, if there is one.
    pub fn shape(&self, name: &str) -> Option<&'a [usize]> {
        self.recipes.get(name).map(|recipe| &recipe.shape[..])
    }

    /// Writes elements `first..first + out.len()` of the tensor `name`; both are whole rows.
    ///
    /// # Errors
    /// A tensor that does not exist, and values that cannot be decoded.
    pub fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), ConvertError> {
        let Some(&recipe) = self.recipes.get(name) else {
            return Err(ConvertError::Option(format!("the checkpoint makes no tensor '{name}'")));
        };
        let width = recipe.width.max(1);
        let (row, rows) = (first / width, out.len() / width);
        let result = RowReader::new(self.inventory, recipe).read(row, out);
        self.trail.release(&spans(recipe, row, rows), width);
        result
    }
}

/// A checkpoint as a model that can be run before it is converted.
pub struct SourceModel<'a> {
    /// The tensors.
    pub values: SourceValues<'a>,
    /// The layers they belong to.
    pub spec: ModelSpec,
    /// The tokenizer block that the bundle will have.
    pub tokenizer: &'a BTreeMap<String, Box<RawValue>>,
}

/// Opens the checkpoint at `source` as [`convert`](crate::convert) does, and hands it to `act`.
///
/// # Errors
/// Everything that [`plan`](crate::plan) refuses but losses.
pub fn with_source<T>(
    source: &Path,
    options: &Options,
    act: impl FnOnce(&SourceModel<'_>) -> T,
) -> Result<T, ConvertError> {
    let source = Source::open(source)?;
    let plan = source.plan(options)?;
    let trail = Trail::of(&source, &plan);
    let values = SourceValues::new(&plan.inventory, &plan.recipes, &trail);
    let spec = model_spec(&plan)?;
    Ok(act(&SourceModel { values, spec, tokenizer: &plan.tokenizer }))
}

/// The layers of the planned model; its head is tied if there is none.
pub(crate) fn model_spec(plan: &Plan<'_>) -> Result<ModelSpec, ConvertError> {
    let path = || plan.inventory.path().to_owned();
    let spec = ModelSpec::new(plan.arch, &plan.config);
    let mut spec = spec.map_err(|cause| ConvertError::Model { path: path(), cause })?;
    spec.tied_head = !plan.recipes.iter().any(|recipe| recipe.name == "lm_head.weight");
    Ok(spec)
}

/// Reads rows of one tensor.
pub(crate) struct RowReader<'a> {
    inventory: &'a Inventory<'a>,
    recipe: &'a Recipe,
    row: Vec<f32>,
}

impl<'a> RowReader<'a> {
    pub fn new(inventory: &'a Inventory<'a>, recipe: &'a Recipe) -> RowReader<'a> {
        RowReader { inventory, recipe, row: Vec::new() }
    }

    /// Turns to another tensor.
    pub fn turn_to(&mut self, recipe: &'a Recipe) {
        self.recipe = recipe;
    }

    /// Fills `out` with output rows from `row` on.
    pub fn read(&mut self, row: usize, out: &mut [f32]) -> Result<(), ConvertError> {
        self.decode(row, out)?;
        let width = self.recipe.width;
        if let Some(columns) = self.recipe.columns {
            for row in out.chunks_exact_mut(width) {
                self.row.clear();
                self.row.extend_from_slice(row);
                for (index, value) in row.iter_mut().enumerate() {
                    *value = self.row[columns.source(index)];
                }
            }
        }
        self.adjust(row * width, out)
    }

    /// Fills `out` before any column order or element-wise operation.
    fn decode(&self, row: usize, out: &mut [f32]) -> Result<(), ConvertError> {
        let (recipe, inventory) = (self.recipe, self.inventory);
        let width = recipe.width;
        let rows = out.len() / width.max(1);
        let mut rest = out;
        each_run(recipe, row, rows, |part, source_row, count| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(count * width);
            rest = tail;
            inventory.tensor(part.tensor).decode_rows(part.first_row + source_row, width, head)
        })
        .map_err(|cause| encode_error(inventory, recipe, cause))
    }

    /// Applies the element-wise operation; `first` is the flat index of the first value.
    fn adjust(&self, first: usize, values: &mut [f32]) -> Result<(), ConvertError> {
        match self.recipe.op {
            Op::Keep => {}
            Op::AddOne => values.iter_mut().for_each(|value| *value += 1.0),
            Op::LogOfNegative => {
                for (index, value) in values.iter_mut().enumerate() {
                    if !(*value < 0.0 && value.is_finite()) {
                        let tensor = first_tensor(self.inventory, self.recipe);
                        return Err(ConvertError::Decay {
                            path: tensor.map_or_else(|| self.inventory.path(), |t| t.file).to_owned(),
                            tensor: tensor.map_or_else(String::new, |t| t.name.to_owned()),
                            index: first + index,
                            value: *value,
                        });
                    }
                    // In f64 and rounded once, so that -exp(A_log) gives the source's value to the last bits.
                    *value = (-f64::from(*value)).ln() as f32;
                }
            }
        }
        Ok(())
    }
}

/// Calls `act` with part, source row in its range and number of rows, for `rows` output rows from `row` on in runs of
/// consecutive source rows.
pub(crate) fn each_run<E>(
    recipe: &Recipe,
    row: usize,
    rows: usize,
    mut act: impl FnMut(&Part, usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let (mut skip, mut left) = (row, rows);
    for part in &recipe.parts {
        if skip >= part.rows {
            skip -= part.rows;
            continue;
        }
        while skip < part.rows && left > 0 {
            let run = part.order.run(skip, (part.rows - skip).min(left));
            act(part, part.order.source(skip), run)?;
            skip += run;
            left -= run;
        }
        skip = 0;
        if left == 0 {
            break;
        }
    }
    Ok(())
}

/// Names the file and the tensor.
pub(crate) fn encode_error(inventory: &Inventory<'_>, recipe: &Recipe, cause: QuantError) -> ConvertError {
    let path = first_tensor(inventory, recipe).map_or_else(|| inventory.path(), |tensor| tensor.file);
    ConvertError::Encode { path: path.to_owned(), tensor: recipe.name.clone(), cause }
}

fn first_tensor<'i, 'a>(inventory: &'i Inventory<'a>, recipe: &Recipe) -> Option<&'i SourceTensor<'a>> {
    recipe.parts.first().map(|part| inventory.tensor(part.tensor))
}
