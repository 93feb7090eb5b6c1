//! A checkpoint directory: one `model.safetensors`, or shards under an index.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::parse::{MAX_HEADER, Object};
use super::{SafetensorsError, SafetensorsFault, SafetensorsFile};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The files of a checkpoint directory; no tensor is in two of them.
#[derive(Debug)]
pub struct Checkpoint {
    /// The single file, or all shards in the order of their names.
    pub shards: Vec<SafetensorsFile>,
    /// The index, if there is one.
    pub index: Option<PathBuf>,
}

impl Checkpoint {
    /// Opens the single file or every shard in `dir`.
    ///
    /// An index and its shards must agree exactly: each listed tensor is in the shard it is listed in, and shards
    /// hold no other tensors. Anything else means files of different checkpoints, or an incomplete download.
    ///
    /// # Errors
    /// If a file is missing or not valid, or index and shards disagree; the error names the file and the tensor.
    pub fn open(dir: &Path) -> Result<Checkpoint, SafetensorsError> {
        let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
        match (single.exists(), index.exists()) {
            (true, false) => Ok(Checkpoint { shards: vec![SafetensorsFile::open(&single)?], index: None }),
            (has_single, true) => open_shards(dir, &index, has_single),
            (false, false) => Err(fault(dir, SafetensorsFault::NoCheckpoint)),
        }
    }
}

/// The part of an index that matters here.
#[derive(Deserialize)]
struct Index {
    weight_map: Object<String>,
}

fn open_shards(dir: &Path, index: &Path, has_single: bool) -> Result<Checkpoint, SafetensorsError> {
    let shard_of = read_index(index).map_err(|cause| fault(index, cause))?;
    // By shard, one of its tensors: enough to say why the shard is needed.
    let mut shards: BTreeMap<&str, &str> = BTreeMap::new();
    for (tensor, shard) in &shard_of {
        let example = shards.entry(shard).or_insert(tensor);
        *example = (*example).min(tensor);
    }
    if has_single && !shards.contains_key(SINGLE) {
        return Err(fault(dir, SafetensorsFault::TwoCheckpoints));
    }
    let mut files = Vec::with_capacity(shards.len());
    for (shard, tensor) in shards {
        let path = dir.join(shard);
        let file = SafetensorsFile::open(&path).map_err(|error| match error.fault {
            SafetensorsFault::Io(cause) if cause.kind() == io::ErrorKind::NotFound => {
                fault(&path, SafetensorsFault::MissingShard { tensor: tensor.to_owned() })
            }
            _ => error,
        })?;
        check_shard(&file, shard, &shard_of).map_err(|cause| fault(&path, cause))?;
        files.push(file);
    }
    Ok(Checkpoint { shards: files, index: Some(index.to_owned()) })
}

/// The shard of each tensor; shard names are plain file names.
fn read_index(path: &Path) -> Result<HashMap<String, String>, SafetensorsFault> {
    let length = std::fs::metadata(path).map_err(SafetensorsFault::Io)?.len();
    if length > MAX_HEADER {
        return Err(SafetensorsFault::HeaderTooLong(length));
    }
    let text = std::fs::read(path).map_err(SafetensorsFault::Io)?;
    let Index { weight_map: Object(entries) } =
        serde_json::from_slice(&text).map_err(SafetensorsFault::Index)?;
    if entries.is_empty() {
        return Err(SafetensorsFault::EmptyIndex);
    }
    let mut shard_of = HashMap::with_capacity(entries.len());
    for (tensor, shard) in entries {
        if !is_shard_name(&shard) {
            return Err(SafetensorsFault::ShardName { tensor, shard });
        }
        if shard_of.contains_key(&tensor) {
            return Err(SafetensorsFault::DuplicateName(tensor));
        }
        shard_of.insert(tensor, shard);
    }
    Ok(shard_of)
}

/// A name that can only mean a file beside the index, on any operating system, and not the index itself.
fn is_shard_name(name: &str) -> bool {
    name.strip_suffix(".safetensors").is_some_and(|stem| !stem.is_empty())
        && !name.contains(['/', '\\', ':', '\0'])
}

fn check_shard(
    file: &SafetensorsFile,
    shard: &str,
    shard_of: &HashMap<String, String>,
) -> Result<(), SafetensorsFault> {
    for tensor in file.tensors() {
        let tensor = tensor.name.to_owned();
        match shard_of.get(&tensor) {
            Some(listed) if listed == shard => {}
            Some(listed) => return Err(SafetensorsFault::WrongShard { tensor, shard: listed.clone() }),
            None => return Err(SafetensorsFault::Unlisted { tensor }),
        }
    }
    let missing = shard_of
        .iter()
        .filter(|(tensor, listed)| *listed == shard && file.get(tensor).is_none())
        .map(|(tensor, _)| tensor)
        .min();
    match missing {
        Some(tensor) => Err(SafetensorsFault::MissingTensor { tensor: tensor.clone() }),
        None => Ok(()),
    }
}

fn fault(path: &Path, fault: SafetensorsFault) -> SafetensorsError {
    SafetensorsError { path: PathBuf::from(path), fault }
}
