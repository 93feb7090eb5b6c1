//! Models by name: `demo` instead of the path of a file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Where models are looked for beside the current directory and its `models`.
const VARIABLE: &str = "BASERT_MODELS";

/// The file that a MODEL argument means: itself, unless it is a bare name that is no file.
///
/// A bare name is looked for as `NAME.base` in the current directory, and as `NAME.base` and `NAME/NAME.base` in
/// `models` and in `$BASERT_MODELS`.
///
/// # Errors
/// A bare name that is nowhere; the message lists the places.
pub fn locate(model: &Path) -> Result<PathBuf, Failure> {
    let folder = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    if !is_bare_name(model) || model.is_file() {
        return Ok(model.to_owned());
    }
    let places = places(model, folder.as_deref());
    if let Some(found) = places.iter().find(|place| place.is_file()) {
        return Ok(found.clone());
    }
    // What is there and is no file is for the opener to explain.
    if model.exists() { Ok(model.to_owned()) } else { Err(nowhere(model, &places, folder.is_some())) }
}

fn is_bare_name(model: &Path) -> bool {
    let text = model.to_string_lossy();
    !text.is_empty() && !text.contains(std::path::is_separator) && text != "." && text != ".."
}

fn places(name: &Path, folder: Option<&Path>) -> Vec<PathBuf> {
    let has_extension = name.extension().is_some_and(|e| e == "base");
    let stem = if has_extension { name.with_extension("") } else { name.to_owned() };
    let mut file = OsString::from(&stem);
    file.push(".base");
    let mut places: Vec<PathBuf> = if has_extension { Vec::new() } else { vec![PathBuf::from(&file)] };
    for folder in [Some(Path::new("models")), folder].into_iter().flatten() {
        places.push(folder.join(&file));
        places.push(folder.join(&stem).join(&file));
    }
    places
}

fn nowhere(model: &Path, places: &[PathBuf], has_variable: bool) -> Failure {
    let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    let failure =
        Failure::new(format!("{} does not exist, nor does any of {}", model.display(), places.join(", ")));
    let variable = if has_variable {
        ""
    } else {
        "; models elsewhere are found by name when BASERT_MODELS names their folder"
    };
    failure.hint(format!("a model file is made by: basert convert SOURCE -o MODEL.base{variable}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_names_are_looked_up() {
        for (model, bare) in [
            ("demo", true),
            ("demo.base", true),
            ("./demo", false),
            ("a/demo", false),
            ("demo/", false),
            ("..", false),
            ("", false),
        ] {
            assert_eq!(is_bare_name(Path::new(model)), bare, "{model}");
        }
    }

    #[test]
    fn places_are_tried_from_near_to_far() {
        let show = |name: &str, folder: Option<&str>| {
            let places = places(Path::new(name), folder.map(Path::new));
            places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(show("demo", None), "demo.base models/demo.base models/demo/demo.base");
        assert_eq!(
            show("qwen3.5", Some("/m")),
            "qwen3.5.base models/qwen3.5.base models/qwen3.5/qwen3.5.base /m/qwen3.5.base /m/qwen3.5/qwen3.5.base"
        );
        assert_eq!(show("demo.base", None), "models/demo.base models/demo/demo.base");
    }
}
