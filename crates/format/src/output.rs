//! The file that a writer fills, from its first byte to its name.
//!
//! A file appears under its name whole or not at all, whatever ends the program. On Linux it has no name while it is
//! written (`O_TMPFILE`) and gets one by a link, so that not even SIGKILL or a power cut leaves anything. Where the
//! file system cannot do that, it has a hidden name beside the output. Work that is to be resumed has a visible
//! one, `OUTPUT.partial`, and stays.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tempfile::TempPath;

/// Where a finished file goes, and what may happen to its place. Clones are handles to one output.
#[derive(Debug, Clone)]
pub struct Output {
    path: PathBuf,
    replace: bool,
    keep: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The hidden name, where the file system made one necessary.
    hidden: Option<PathBuf>,
    abandoned: bool,
}

impl Output {
    /// The file `path`; replaces an older one, and leaves nothing if it is not finished.
    pub fn new(path: impl Into<PathBuf>) -> Output {
        Output { path: path.into(), replace: true, keep: false, state: Arc::default() }
    }

    /// Whether a file that exists is replaced, atomically, or refused.
    pub fn replace(self, replace: bool) -> Output {
        Output { replace, ..self }
    }

    /// Whether unfinished work is kept under [`Output::partial`], to be resumed.
    pub fn keep(self, keep: bool) -> Output {
        Output { keep, ..self }
    }

    /// The name that the file gets.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of unfinished work, `OUTPUT.partial`, if it is kept.
    pub fn partial(&self) -> Option<PathBuf> {
        self.keep.then(|| beside(&self.path, ".partial"))
    }

    /// Removes what has a hidden name and keeps anything from appearing from now on; for a signal handler's thread
    /// that is about to end the process. A finished file, and work that is kept, stays.
    pub fn abandon(&self) {
        let mut state = self.state();
        state.abandoned = true;
        if let Some(hidden) = state.hidden.take() {
            // The process ends next; there is no one left to tell.
            let _ = std::fs::remove_file(hidden);
        }
    }

    /// Opens the unfinished file: a new one, or what was kept.
    ///
    /// # Errors
    /// From the system, or if the output was abandoned.
    pub fn create(&self) -> io::Result<Unfinished> {
        let mut state = self.state();
        refuse_abandoned(&state)?;
        let (file, name) = match self.partial() {
            Some(partial) => (open_partial(&partial)?, Name::Partial(partial)),
            None => match unnamed::create(directory(&self.path))? {
                Some(file) => (file, Name::None),
                None => {
                    let (file, hidden) = hidden(&self.path)?;
                    state.hidden = Some(hidden.to_path_buf());
                    (file, Name::Hidden(hidden))
                }
            },
        };
        Ok(Unfinished { output: self.clone(), file, name })
    }

    /// A panic elsewhere does not make the state wrong.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open file on its way to its name. Dropped, it is gone unless it is kept.
#[derive(Debug)]
pub struct Unfinished {
    output: Output,
    /// What is written.
    pub file: File,
    name: Name,
}

impl Write for Unfinished {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[derive(Debug)]
enum Name {
    None,
    /// Removed when it is dropped.
    Hidden(TempPath),
    Partial(PathBuf),
}

impl Unfinished {
    /// A path by which this process can open the file.
    pub fn path(&self) -> PathBuf {
        match &self.name {
            Name::None => unnamed::path(&self.file),
            Name::Hidden(path) => path.to_path_buf(),
            Name::Partial(path) => path.clone(),
        }
    }

    /// Sets aside disk space for `length` bytes, so that a full disk is noticed before the work and not after it.
    /// File systems that cannot promise space are taken as they are.
    pub fn reserve(&self, length: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{FallocateFlags, fallocate};
            use rustix::io::Errno;
            if length > 0
                && let Err(error) = fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, length)
                && !matches!(error, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR)
            {
                return Err(error.into());
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = length;
        Ok(())
    }

    /// Removes the file, even if such work is kept.
    ///
    /// # Errors
    /// From the system.
    pub fn discard(self) -> io::Result<()> {
        match self.name {
            Name::Partial(path) => std::fs::remove_file(path),
            Name::Hidden(path) => path.close(),
            Name::None => Ok(()),
        }
    }

    /// As [`Unfinished::discard`], but keeps a file with anything in it.
    ///
    /// # Errors
    /// From the system.
    pub fn discard_if_empty(self) -> io::Result<()> {
        if self.file.metadata()?.len() > 0 { Ok(()) } else { self.discard() }
    }

    /// Gives the file, which is complete and synced, its name; lasting through a power cut.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if there is such a file and it must not be replaced; any other from the system.
    pub fn publish(self) -> io::Result<()> {
        let Unfinished { output, file, name } = self;
        let mut state = output.state();
        refuse_abandoned(&state)?;
        match name {
            Name::None => unnamed::link(&file, &output.path, output.replace)?,
            Name::Hidden(path) => rename(path, &output)?,
            Name::Partial(path) => {
                let mut path = TempPath::try_from_path(path)?;
                path.disable_cleanup(true);
                rename(path, &output)?;
            }
        }
        state.hidden = None;
        sync_directory(&output.path)
    }
}

fn refuse_abandoned(state: &State) -> io::Result<()> {
    if state.abandoned { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
}

fn rename(from: TempPath, output: &Output) -> io::Result<()> {
    let renamed =
        if output.replace { from.persist(&output.path) } else { from.persist_noclobber(&output.path) };
    renamed.map_err(|error| error.error)
}

/// `path` with `suffix` appended to its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Only a regular file is written over: a link could lead anywhere.
fn open_partial(path: &Path) -> io::Result<File> {
    match path.symlink_metadata() {
        Ok(meta) if !meta.is_file() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is not a regular file"));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// A file with a hidden name beside `path`.
fn hidden(path: &Path) -> io::Result<(File, TempPath)> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".basert-").suffix(".tmp");
    #[cfg(unix)]
    {
        // Temporary files are private by default, but this one becomes the output: leave it to the umask.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    // The library's message has the hidden name, which means nothing to the user.
    let file = builder.tempfile_in(directory(path)).map_err(|error| io::Error::from(error.kind()))?;
    Ok(file.into_parts())
}

/// Makes the new name last through a power cut. Only Unix can (and must) sync a directory.
fn sync_directory(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory(path))?.sync_all() } else { Ok(()) }
}

/// Files without a name.
#[cfg(target_os = "linux")]
mod unnamed {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::path::{Path, PathBuf};

    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
    use rustix::io::Errno;

    /// A new file in `directory`; `None` if the file system or the kernel cannot, or `/proc`, through which it would
    /// get its name, is not there.
    pub fn create(directory: &Path) -> io::Result<Option<File>> {
        if !Path::new("/proc/self/fd").is_dir() {
            return Ok(None);
        }
        match open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o666)) {
            Ok(file) => Ok(Some(file.into())),
            // What a kernel or file system without the flag says; a folder that is not there is reported by the
            // attempt with a name.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn path(file: &File) -> PathBuf {
        format!("/proc/self/fd/{}", file.as_raw_fd()).into()
    }

    /// Names the file `out`. A link never replaces anything, so an older file is replaced in a second step by rename.
    pub fn link(file: &File, out: &Path, replace: bool) -> io::Result<()> {
        let from = path(file);
        let link = |to: &Path| linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from);
        match link(out) {
            Err(error) if replace && error.kind() == io::ErrorKind::AlreadyExists => {
                let mut builder = tempfile::Builder::new();
                builder.prefix(".basert-").suffix(".tmp");
                let linked = builder.make_in(super::directory(out), link)?;
                linked.into_temp_path().persist(out).map_err(|error| error.error)
            }
            result => result,
        }
    }
}

/// Files without a name exist on Linux only.
#[cfg(not(target_os = "linux"))]
mod unnamed {
    use std::fs::File;
    use std::io;
    use std::path::{Path, PathBuf};

    pub fn create(_directory: &Path) -> io::Result<Option<File>> {
        Ok(None)
    }

    pub fn path(_file: &File) -> PathBuf {
        PathBuf::new()
    }

    pub fn link(_file: &File, _out: &Path, _replace: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
