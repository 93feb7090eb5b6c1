//! Where weights are while a model runs.

use basert_format::BaseFile;

use crate::EngineError;

/// Where the weights are while a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Residence {
    /// In the file's memory map: read when they are first used, and given up by the system where memory is short.
    #[default]
    Mapped,
    /// The same, and all are read before the first token.
    Prefaulted,
    /// The same, and the system keeps them in memory (`mlock`).
    Locked,
    /// In a copy, in huge pages where the system has them.
    Copied,
}

impl Residence {
    /// All of them.
    pub const ALL: [Residence; 4] =
        [Residence::Mapped, Residence::Prefaulted, Residence::Locked, Residence::Copied];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Residence::Mapped => "map",
            Residence::Prefaulted => "prefault",
            Residence::Locked => "lock",
            Residence::Copied => "copy",
        }
    }

    /// Whether the system cannot take back the weights' memory.
    pub fn holds(self) -> bool {
        matches!(self, Residence::Locked | Residence::Copied)
    }

    /// Brings the bytes of `file` there.
    ///
    /// # Errors
    /// What the system does not allow or has no memory for.
    pub(crate) fn settle(self, file: &mut BaseFile) -> Result<(), EngineError> {
        let (done, what) = match self {
            Residence::Mapped => return Ok(()),
            Residence::Prefaulted => {
                file.map().prefault();
                return Ok(());
            }
            Residence::Locked => (file.map().lock(), "locked in memory"),
            Residence::Copied => (file.copy_to_memory(), "copied to memory"),
        };
        done.map_err(|cause| {
            let (size, path) = (file.map().len() >> 20, file.path().display());
            let reason = format!("the {size} MiB of {path} cannot be {what}: {cause}");
            EngineError::Option { option: "weights", reason }
        })
    }
}
