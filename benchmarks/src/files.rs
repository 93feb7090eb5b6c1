//! What the two run: the same geometry with random weights, as `.base` and as GGUF.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use basert_convert::{ExportOptions, Options, Silent, Synthetic, Target, export_gguf, synthesize};
use basert_format::Output;
use llama_cpp_sys_2 as llama;

/// A geometry of the catalog, or its first layers.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    pub id: &'static str,
    pub layers: Option<usize>,
}

impl Geometry {
    pub fn name(&self) -> String {
        match self.layers {
            Some(layers) => format!("{}, {layers} layers", self.id),
            None => self.id.to_owned(),
        }
    }

    fn stem(&self) -> String {
        self.layers.map_or_else(|| self.id.to_owned(), |layers| format!("{}-{layers}", self.id))
    }
}

/// Types of the peer's weights that are tried; 4.5 bits per weight each, as base-q4 in groups of 64 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerType {
    Q4_0,
    Q4K,
}

impl PeerType {
    pub const ALL: [PeerType; 2] = [PeerType::Q4_0, PeerType::Q4K];

    pub fn name(self) -> &'static str {
        match self {
            PeerType::Q4_0 => "Q4_0",
            PeerType::Q4K => "Q4_K",
        }
    }

    fn file_type(self) -> llama::llama_ftype {
        match self {
            PeerType::Q4_0 => llama::LLAMA_FTYPE_MOSTLY_Q4_0,
            PeerType::Q4K => llama::LLAMA_FTYPE_MOSTLY_Q4_K_S,
        }
    }
}

/// The files of one geometry.
pub struct Files {
    pub bundle: PathBuf,
    folder: PathBuf,
    stem: String,
}

impl Files {
    /// Makes what `folder` does not have yet: the bundle, its GGUF and the peer's types of it.
    pub fn prepare(geometry: Geometry, folder: &Path) -> Result<Files> {
        let stem = geometry.stem();
        let files = Files { bundle: folder.join(format!("{stem}.base")), folder: folder.into(), stem };
        if !files.bundle.exists() {
            eprintln!("making {}", files.bundle.display());
            let model = Synthetic::from_catalog(geometry.id, geometry.layers)?;
            let options = Options { target: Target::BASE_Q4, ..Options::default() };
            synthesize(&model, &Output::new(&files.bundle), &options, &mut Silent)?;
        }
        if PeerType::ALL.iter().any(|&kind| !files.gguf(kind).exists()) {
            files.make_peers()?;
        }
        Ok(files)
    }

    pub fn gguf(&self, kind: PeerType) -> PathBuf {
        self.folder.join(format!("{}-{}.gguf", self.stem, kind.name()))
    }

    /// The peer's own quantiser makes its files, from the bundle's values.
    fn make_peers(&self) -> Result<()> {
        let exact = self.folder.join(format!("{}-exact.gguf", self.stem));
        let options = ExportOptions { outtype: Some("f16".parse()?), ..ExportOptions::default() };
        export_gguf(&self.bundle, &Output::new(&exact), &options, &mut Silent)?;
        for kind in PeerType::ALL {
            eprintln!("making {}", self.gguf(kind).display());
            quantize(&exact, &self.gguf(kind), kind)?;
        }
        std::fs::remove_file(&exact).with_context(|| format!("removing {}", exact.display()))
    }
}

fn quantize(from: &Path, to: &Path, kind: PeerType) -> Result<()> {
    let unfinished = to.with_extension("unfinished");
    let (source, out) = (c_path(from)?, c_path(&unfinished)?);
    // SAFETY: the defaults are a plain value.
    let mut params = unsafe { llama::llama_model_quantize_default_params() };
    params.ftype = kind.file_type();
    params.allow_requantize = true;
    params.pure_ = true;
    // SAFETY: both paths are C strings that outlive the call, and so is `params`, whose pointers are all null.
    let status = unsafe { llama::llama_model_quantize(source.as_ptr(), out.as_ptr(), &params) };
    ensure!(status == 0, "llama.cpp cannot quantise {} to {}", from.display(), kind.name());
    std::fs::rename(&unfinished, to).with_context(|| format!("writing {}", to.display()))
}

pub fn c_path(path: &Path) -> Result<CString> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(CString::new(text)?)
}
