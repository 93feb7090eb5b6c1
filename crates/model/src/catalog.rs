//! Geometries of published models, by id.
//!
//! `data/geometry.json` holds them with the sources of every entry and how well it is verified; fields that are absent
//! or null were not verified, and are never taken for zero. Nothing here guesses one: a geometry that lacks what
//! a [`Config`] needs is refused with the field's name. Four facts that do not change a single size are filled in and
//! said so, see [`Geometry::config`].

use serde_json::{Map, Value};

use crate::config::{HybridConfig, LayerType, MoeConfig};
use crate::{Arch, Config, ModelError, RopeScaling};

const DATA: &str = include_str!("../data/geometry.json");

/// All geometries.
#[derive(Clone, Debug)]
pub struct Catalog {
    models: Vec<Map<String, Value>>,
}

/// One model of the catalog.
#[derive(Clone, Copy, Debug)]
pub struct Geometry<'a> {
    catalog: &'a Catalog,
    facts: &'a Map<String, Value>,
}

/// A configuration made of a geometry, and what was filled in for it.
#[derive(Clone, Debug)]
pub struct Settled {
    /// Family.
    pub arch: Arch,
    /// Hyperparameters; without token ids and draft layers.
    pub config: Config,
    /// One sentence for every fact that the catalog does not verify and the configuration needs.
    pub assumptions: Vec<String>,
}

/// How far a geometry can be trusted, by what it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// A copy of the published configuration, or the vendor's source.
    A,
    /// The configuration retyped, a dump of a GGUF file, or two independent accounts that agree.
    B,
    /// One account: a catalog, a retyped one, a model card, documentation.
    C,
    /// A report of a problem.
    D,
}

impl Grade {
    fn of(verification: &str) -> Grade {
        match verification {
            "config.json copy" | "config.json page" | "vendor source" => Grade::A,
            "config.json transcription"
            | "two independent secondary sources"
            | "catalog record + fixtures" => Grade::B,
            text if text.starts_with("GGUF metadata dump") => Grade::B,
            text if text.starts_with("issue report") => Grade::D,
            _ => Grade::C,
        }
    }

    /// The letter.
    pub fn letter(self) -> &'static str {
        match self {
            Grade::A => "A",
            Grade::B => "B",
            Grade::C => "C",
            Grade::D => "D",
        }
    }
}

impl Settled {
    /// Keeps the first `layers` layers.
    ///
    /// # Errors
    /// [`ModelError::Inconsistent`] unless there are that many and at least one.
    pub fn cut(&mut self, layers: usize) -> Result<(), ModelError> {
        let config = &mut self.config;
        if layers == 0 || layers > config.num_hidden_layers {
            return Err(ModelError::Inconsistent(format!(
                "{layers} layers asked for, expected 1 to {}",
                config.num_hidden_layers
            )));
        }
        config.num_hidden_layers = layers;
        if let Some(hybrid) = &mut config.hybrid {
            hybrid.layer_types.truncate(layers);
        }
        if let Some(moe) = &mut config.moe {
            moe.mlp_only_layers.retain(|&layer| layer < layers);
        }
        config.validate(self.arch)
    }
}

impl Catalog {
    /// Reads the catalog.
    ///
    /// # Errors
    /// [`ModelError::Inconsistent`] if the data is not what this module expects.
    pub fn load() -> Result<Catalog, ModelError> {
        let broken =
            |what: String| ModelError::Inconsistent(format!("the geometry catalog is damaged: {what}"));
        let data: Value = serde_json::from_str(DATA).map_err(|cause| broken(cause.to_string()))?;
        let models = data.get("models").and_then(Value::as_array);
        let models = models.ok_or_else(|| broken("it has no `models`".to_owned()))?;
        let entry = |model: &Value| {
            let named = model.get("id").is_some_and(Value::is_string);
            model
                .as_object()
                .filter(|_| named)
                .cloned()
                .ok_or_else(|| broken("an entry has no id".to_owned()))
        };
        Ok(Catalog { models: models.iter().map(entry).collect::<Result<_, _>>()? })
    }

    /// Every geometry, in the order of the data.
    pub fn iter(&self) -> impl Iterator<Item = Geometry<'_>> {
        self.models.iter().map(|facts| Geometry { catalog: self, facts })
    }

    /// Ids of the geometries that have a [`Config`].
    pub fn usable(&self) -> Vec<&str> {
        self.iter().filter(|geometry| geometry.config().is_ok()).map(|geometry| geometry.id()).collect()
    }

    /// The geometry called `id`.
    ///
    /// # Errors
    /// [`ModelError::Inconsistent`] with the ids that are usable.
    pub fn get(&self, id: &str) -> Result<Geometry<'_>, ModelError> {
        self.iter().find(|geometry| geometry.id() == id).ok_or_else(|| {
            ModelError::Inconsistent(format!(
                "geometry `{id}` is not in the catalog; usable are {}",
                self.usable().join(", ")
            ))
        })
    }
}

impl<'a> Geometry<'a> {
    /// Its name in the catalog, e.g. `qwen3.5-2b`.
    pub fn id(&self) -> &'a str {
        self.text("id").unwrap_or_default()
    }

    /// How well the entry is verified, e.g. `config.json copy`.
    pub fn verification(&self) -> &'a str {
        self.text("verification").unwrap_or_default()
    }

    /// The checkpoint's published name, e.g. `Qwen/Qwen3.5-2B`.
    pub fn published_name(&self) -> &'a str {
        self.text("hf_id").unwrap_or_default()
    }

    /// Family as the checkpoint spells it.
    pub fn family(&self) -> &'a str {
        self.text("arch").unwrap_or_default()
    }

    /// Where the facts come from, in words.
    pub fn sources(&self) -> Vec<&'a str> {
        let sources = self.find("source").and_then(Value::as_array);
        sources.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Kinds of layers as the entry calls them, with their numbers.
    pub fn kinds(&self) -> Vec<(String, u64)> {
        let kinds = self.find("layers.kinds").and_then(Value::as_object);
        let kinds = kinds.into_iter().flatten();
        kinds.filter_map(|(kind, layers)| Some((kind.clone(), layers.as_u64()?))).collect()
    }

    /// How far the entry can be trusted.
    pub fn grade(&self) -> Grade {
        Grade::of(self.verification())
    }

    /// Longest context that the model declares, in tokens, if that is verified.
    pub fn max_context(&self) -> Option<u64> {
        self.find("max_position_embeddings").and_then(Value::as_u64)
    }

    /// Draft layers that are published with the model, each with a cache of its own when it drafts.
    pub fn draft_layers(&self) -> Option<u64> {
        self.find("mtp_layers").and_then(Value::as_u64)
    }

    /// Hyperparameters of a model of this geometry.
    ///
    /// What the catalog does not hold and no size depends on is filled in: the norms' epsilon and, for Qwen3-MoE, the
    /// renormalisation of expert weights, as every published model of the family has them; the frequency
    /// parameters of llama3 scaling; and whether the head is tied, from the verified relative of nearest width.
    ///
    /// # Errors
    /// A family that is not computed here, or a field that is not verified.
    pub fn config(&self) -> Result<Settled, ModelError> {
        let family = self.text("arch").unwrap_or_default();
        let arch = Arch::from_model_type(family).or_else(|cause| family.parse().map_err(|_| cause));
        let arch = arch.map_err(|cause| {
            let what = match cause {
                ModelError::Unsupported(what) => what,
                _ => format!("architecture `{family}`"),
            };
            ModelError::Unsupported(format!("{}: {what}", self.place()))
        })?;
        let mut assumptions = Vec::new();
        let layers = self.count("num_layers")?;
        let head_dim = self.count("attention.k_head_dim")?;
        if self.count("attention.v_head_dim")? != head_dim {
            return Err(ModelError::Unsupported(format!("{}: K and V heads that differ", self.place())));
        }
        if self.find("sliding").is_some() {
            return Err(ModelError::Unsupported(format!("{}: sliding-window attention", self.place())));
        }
        let epsilon = if arch == Arch::Llama { 1e-5 } else { 1e-6 };
        assumptions.push(format!("rms_norm_eps is taken as {epsilon:e}, the family's"));
        let moe = if arch.is_moe() { Some(self.moe(arch, &mut assumptions)?) } else { None };
        let shared = moe.as_ref().and_then(|moe| moe.shared_expert_intermediate_size);
        let config = Config {
            hidden_size: self.count("hidden_size")?,
            num_hidden_layers: layers,
            num_attention_heads: self.count("attention.heads")?,
            num_key_value_heads: self.count("attention.kv_heads")?,
            head_dim,
            intermediate_size: match moe {
                Some(_) => shared.unwrap_or(0),
                None => self.count("intermediate_size")?,
            },
            vocab_size: self.count("vocab_size")?,
            rope_theta: self.number("rope.rope_theta")?,
            rope_scaling: self.rope_scaling(&mut assumptions)?,
            partial_rotary_factor: match arch.is_hybrid() {
                true => Some(self.number("rope.partial_rotary_factor")?),
                false => self.find("rope.partial_rotary_factor").and_then(Value::as_f64),
            },
            mrope_section: self.sections(),
            mrope_interleaved: !self.sections().is_empty(),
            rms_norm_eps: epsilon,
            tie_word_embeddings: self.tied(&mut assumptions)?,
            max_position_embeddings: self.find("max_position_embeddings").and_then(as_count),
            bos_token_id: None,
            eos_token_ids: Vec::new(),
            moe,
            hybrid: if arch.is_hybrid() { Some(self.hybrid(layers)?) } else { None },
            mtp_num_hidden_layers: 0,
        };
        config.validate(arch)?;
        Ok(Settled { arch, config, assumptions })
    }

    fn moe(&self, arch: Arch, assumptions: &mut Vec<String>) -> Result<MoeConfig, ModelError> {
        let shared = match arch.is_hybrid() {
            true => Some(self.count("moe.shared_intermediate_size")?),
            false => None,
        };
        if !arch.is_hybrid() {
            assumptions.push("norm_topk_prob is taken as true, the family's".to_owned());
        }
        Ok(MoeConfig {
            num_experts: self.count("moe.experts")?,
            num_experts_per_tok: self.count("moe.active")?,
            moe_intermediate_size: self.count("moe.moe_intermediate_size")?,
            norm_topk_prob: true,
            shared_expert_intermediate_size: shared,
            mlp_only_layers: Vec::new(),
        })
    }

    fn hybrid(&self, layers: usize) -> Result<HybridConfig, ModelError> {
        let indices = self.find("layers.full_attention_indices").and_then(Value::as_array);
        let indices = indices.ok_or_else(|| self.unverified("layers.full_attention_indices"))?;
        let full: Vec<usize> = indices.iter().filter_map(as_count).collect();
        let kind = |layer| if full.contains(&layer) { LayerType::Full } else { LayerType::Linear };
        Ok(HybridConfig {
            layer_types: (0..layers).map(kind).collect(),
            full_attention_interval: None,
            linear_num_key_heads: self.count("linear.key_heads")?,
            linear_num_value_heads: self.count("linear.value_heads")?,
            linear_key_head_dim: self.count("linear.key_dim")?,
            linear_value_head_dim: self.count("linear.value_dim")?,
            linear_conv_kernel_dim: self.count("linear.conv_kernel")?,
        })
    }

    fn sections(&self) -> Vec<u32> {
        let sections = self.find("rope.mrope_section").and_then(Value::as_array);
        sections.into_iter().flatten().filter_map(|s| u32::try_from(s.as_u64()?).ok()).collect()
    }

    fn rope_scaling(&self, assumptions: &mut Vec<String>) -> Result<RopeScaling, ModelError> {
        match self.text("rope.scaling.rope_type") {
            None if self.find("rope.scaling").is_none() => Ok(RopeScaling::None),
            None => Err(self.unverified("rope.scaling.rope_type")),
            Some("llama3") => {
                let mut or = |field: &str, usual: f64| {
                    let value = self.find(&format!("rope.scaling.{field}")).and_then(Value::as_f64);
                    value.unwrap_or_else(|| {
                        assumptions.push(format!("{field} of the llama3 rope scaling is taken as {usual}"));
                        usual
                    })
                };
                Ok(RopeScaling::Llama3 {
                    factor: self.number("rope.scaling.factor")?,
                    low_freq_factor: or("low_freq_factor", 1.0),
                    high_freq_factor: or("high_freq_factor", 4.0),
                    original_context: or("original_max_position_embeddings", 8192.0),
                })
            }
            Some(other) => Err(ModelError::Unsupported(format!("{}: rope scaling `{other}`", self.place()))),
        }
    }

    /// Whether the head is the embedding table: as verified, else as in the relative of nearest width.
    fn tied(&self, assumptions: &mut Vec<String>) -> Result<bool, ModelError> {
        const FIELD: &str = "tie_word_embeddings";
        if let Some(tied) = self.find(FIELD).and_then(Value::as_bool) {
            return Ok(tied);
        }
        let width = self.count("hidden_size")?;
        let relatives = self.catalog.iter().filter(|other| other.text("arch") == self.text("arch"));
        let known = relatives.filter_map(|other| {
            let tied = other.find(FIELD)?.as_bool()?;
            Some((other.find("hidden_size").and_then(as_count)?.abs_diff(width), other.id(), tied))
        });
        let (_, nearest, tied) = known.min().ok_or_else(|| self.unverified(FIELD))?;
        assumptions.push(format!("{FIELD} is taken as {tied}, that of {nearest}"));
        Ok(tied)
    }

    /// The value at a dotted path; null counts as absent.
    pub(crate) fn find(&self, path: &str) -> Option<&'a Value> {
        let mut parts = path.split('.');
        let first = self.facts.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part)).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, path: &str) -> Option<&'a str> {
        self.find(path).and_then(Value::as_str)
    }

    pub(crate) fn count(&self, path: &str) -> Result<usize, ModelError> {
        self.find(path).and_then(as_count).ok_or_else(|| self.unverified(path))
    }

    fn number(&self, path: &str) -> Result<f64, ModelError> {
        self.find(path).and_then(Value::as_f64).ok_or_else(|| self.unverified(path))
    }

    fn unverified(&self, path: &str) -> ModelError {
        ModelError::Inconsistent(format!(
            "{}: `{path}` is not verified ({})",
            self.place(),
            self.verification()
        ))
    }

    fn place(&self) -> String {
        format!("geometry {}", self.id())
    }
}

fn as_count(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok())
}
