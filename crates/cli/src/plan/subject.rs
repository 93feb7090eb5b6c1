//! The model that is planned for: its sizes, wherever they come from.

use std::path::Path;

use basert_convert::{Target, stored_tensors};
use basert_engine::{Options, WeightBytes, model_spec};
use basert_model::catalog::{Catalog, Geometry};
use basert_model::footprint::Footprint;
use basert_model::record::Subject;
use basert_model::{Config, ModelSpec};
use serde_json::Value;

use crate::failure::{Failure, Outcome};
use crate::locate::locate;
use crate::{bundle, schedule};

/// Why a published model's own head is not in its plan.
const HEADLESS: &str = "geometries are planned without a prediction head (mtp): next tokens are guessed from earlier text; the head is \
                        in the plan of a converted model, or of a checkpoint's folder";

/// What is known of a model.
pub struct Model {
    pub subject: Subject,
    pub footprint: Footprint,
    /// The layers, and the bytes of the weights, if it can be run here.
    pub runnable: Option<Runnable>,
    pub max_context: Option<u64>,
    /// What its mixers are, in words.
    pub kind: String,
    /// What was assumed, and what is not computed.
    pub notes: Vec<String>,
}

/// A model that can be run here.
pub struct Runnable {
    pub spec: ModelSpec,
    pub weights: WeightBytes,
    /// What the weights are, in words.
    pub stored: String,
}

impl Model {
    /// The model that `name` means: a file, a folder, a bundle's name or a geometry's id, in this order.
    pub fn find(name: &Path, target: Option<Target>, options: &Options) -> Outcome<Model> {
        if name.is_dir() {
            return Model::of_config(name, &name.join("config.json"), target, options);
        }
        if name.is_file() && name.extension().is_some_and(|e| e == "json") {
            let folder = name.parent().filter(|folder| !folder.as_os_str().is_empty());
            return Model::of_config(folder.unwrap_or(Path::new(".")), name, target, options);
        }
        match locate(name) {
            Ok(path) if path.exists() => Model::of_bundle(&path, target, options),
            _ => Model::of_geometry(name, target, options),
        }
    }

    fn of_bundle(path: &Path, target: Option<Target>, options: &Options) -> Outcome<Model> {
        if target.is_some() {
            let hint = "leave out --target, or plan for the checkpoint it was made of";
            return Err(Failure::new(format!("{} has its weights already", path.display())).hint(hint));
        }
        let file = bundle::open(path)?;
        let spec = model_spec(&file).map_err(|e| Failure::from_error(&e))?;
        let weights = WeightBytes::of(&file, options);
        let source = format!("header of {}", path.display());
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let notes = options.speculation.without_head(&spec, file.tensor_index("mtp.fc.weight").is_some());
        let runnable = Runnable { spec, weights, stored: "as in the file".to_owned() };
        Ok(Model::of_runnable(subject(&name, source), runnable, notes.into_iter().collect()))
    }

    fn of_config(folder: &Path, config: &Path, target: Option<Target>, options: &Options) -> Outcome<Model> {
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let resolved = folder.canonicalize().ok().and_then(|folder| name(&folder));
        let text = std::fs::read(config).map_err(|e| {
            let failure = Failure::new(format!("cannot read {}: {e}", config.display()));
            failure.hint(
                "a checkpoint's folder has a config.json; a GGUF file is planned for once it is converted",
            )
        })?;
        let in_file = |e: &dyn std::error::Error| Failure::new(format!("{}: {e}", config.display()));
        let value: Value = serde_json::from_slice(&text).map_err(|e| in_file(&e))?;
        let (arch, settings) = Config::from_hf(&value, None).map_err(|e| in_file(&e))?;
        let spec = ModelSpec::new(arch, &settings).map_err(|e| in_file(&e))?;
        let drafts = settings.mtp_num_hidden_layers;
        let mut subject = subject(&resolved.unwrap_or_default(), format!("{}", config.display()));
        subject.draft_layers = Some(drafts as u64);
        let notes = options.speculation.without_head(&spec, drafts > 0);
        let runnable = estimated(spec, drafts, target, options)?;
        Ok(Model::of_runnable(subject, runnable, notes.into_iter().collect()))
    }

    fn of_geometry(id: &Path, target: Option<Target>, options: &Options) -> Outcome<Model> {
        let catalog = Catalog::load().map_err(|e| Failure::from_error(&e))?;
        let id = id.to_string_lossy();
        let Some(geometry) = catalog.iter().find(|geometry| geometry.id() == id) else {
            let failure =
                Failure::new(format!("'{id}' is no file, no folder, no bundle's name and no geometry"));
            return Err(failure.hint("basert plan --catalog lists the geometries"));
        };
        let settled = match geometry.config() {
            Ok(settled) => settled,
            Err(why) => return Model::of_footprint(geometry, target, &why.to_string()),
        };
        let spec = ModelSpec::new(settled.arch, &settled.config).map_err(|e| Failure::from_error(&e))?;
        let headless = options.speculation.without_head(&spec, false).map(|_| HEADLESS.to_owned());
        let runnable = estimated(spec, 0, target, options)?;
        let notes = settled.assumptions.into_iter().chain(headless).collect();
        Ok(Model::of_runnable(of_geometry(geometry), runnable, notes))
    }

    /// A geometry that cannot be run here.
    fn of_footprint(geometry: Geometry<'_>, target: Option<Target>, why: &str) -> Outcome<Model> {
        if target.is_some() {
            return Err(
                Failure::new(format!("the weights cannot be planned: {why}")).hint("leave out --target")
            );
        }
        Ok(Model {
            footprint: geometry.footprint().map_err(|e| Failure::from_error(&e))?,
            subject: of_geometry(geometry),
            runnable: None,
            max_context: geometry.max_context(),
            kind: kind(geometry),
            notes: vec![format!("weights, workspace, kept prefixes and guesses are not computed: {why}")],
        })
    }

    fn of_runnable(subject: Subject, runnable: Runnable, notes: Vec<String>) -> Model {
        let spec = &runnable.spec;
        Model {
            subject,
            footprint: Footprint::of(spec),
            max_context: spec.max_context.map(|n| n as u64),
            kind: schedule::mixers(&spec.layers),
            runnable: Some(runnable),
            notes,
        }
    }
}

fn estimated(spec: ModelSpec, drafts: usize, target: Option<Target>, options: &Options) -> Outcome<Runnable> {
    let target = target.unwrap_or(Target::BASE_Q4);
    let conversion = basert_convert::Options { target, ..Default::default() };
    let tensors = stored_tensors(&spec, drafts, &conversion).map_err(|e| Failure::from_error(&e))?;
    let stored = format!("estimated for {target}");
    let mut weights = WeightBytes::default();
    for tensor in tensors {
        *(if options.weights.holds() { &mut weights.held } else { &mut weights.mapped }) += tensor.bytes;
        weights.needs.add(tensor.encoding, tensor.cols);
    }
    Ok(Runnable { spec, weights, stored })
}

fn subject(id: &str, source: String) -> Subject {
    Subject {
        id: id.to_owned(),
        name: id.to_owned(),
        sources: vec![source],
        verification: "A: the configuration itself".to_owned(),
        draft_layers: None,
    }
}

fn of_geometry(geometry: Geometry<'_>) -> Subject {
    Subject {
        id: geometry.id().to_owned(),
        name: geometry.published_name().to_owned(),
        sources: geometry.sources().into_iter().map(str::to_owned).collect(),
        verification: format!("{}: {}", geometry.grade().letter(), geometry.verification()),
        draft_layers: geometry.draft_layers(),
    }
}

/// What the mixers of a geometry are, in words.
pub fn kind(geometry: Geometry<'_>) -> String {
    let mut kinds: Vec<(String, u64)> = geometry.kinds();
    kinds.sort_by_key(|(kind, _)| kind.clone());
    let words: Vec<String> =
        kinds.iter().map(|(kind, n)| format!("{n} {}", kind.replace('_', "-"))).collect();
    words.join(" + ")
}
