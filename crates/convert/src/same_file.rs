//! Whether two paths lead to one file.

use std::path::Path;

/// Whether both paths lead to the same existing file, through symbolic links, and on Unix through hard links too.
pub fn same_file(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let id = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
        if let (Some(a), Some(b)) = (id(a), id(b))
            && a == b
        {
            return true;
        }
    }
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn links_of_both_kinds_are_seen_through() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), "same").unwrap();
        std::fs::write(path("b"), "same").unwrap();
        std::fs::hard_link(path("a"), path("hard")).unwrap();
        std::os::unix::fs::symlink("a", path("soft")).unwrap();
        let cases =
            [("a", true), ("hard", true), ("soft", true), ("../a", false), ("b", false), ("c", false)];
        for (name, expected) in cases {
            assert_eq!(same_file(&path("a"), &path(name)), expected, "{name}");
        }
        assert!(same_file(&path("a"), &path(".").join("a")));
        assert!(!same_file(&path("c"), &path("c")));
    }
}
