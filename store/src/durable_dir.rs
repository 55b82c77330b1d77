//! Creates private directories that survive a power loss.
//!
//! A new directory is durable when the directory that holds its name is synced. For a path of several new directories
//! those are the parents of all of them, up to the first one that existed before.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use muster_rpc::private_dir;

/// Creates a directory and its missing ancestors, which only their owner may access; durable when it returns.
pub fn create_dir_all_durable(path: &Path) -> io::Result<()> {
    let parents = parents_of_missing(path);
    private_dir::create_dir_all(path)?;
    parents.iter().try_for_each(|parent| File::open(parent)?.sync_all())
}

/// The parents of the directories that do not exist yet, innermost first.
fn parents_of_missing(path: &Path) -> Vec<PathBuf> {
    let missing =
        path.ancestors().take_while(|ancestor| !ancestor.as_os_str().is_empty() && !ancestor.exists());
    missing.filter_map(Path::parent).map(or_current_directory).collect()
}

/// The parent of a relative path with one component is empty text.
fn or_current_directory(parent: &Path) -> PathBuf {
    if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_every_new_directory_is_synced() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let below_root =
            |path: &str| root.components().chain(Path::new(path).components()).collect::<PathBuf>();
        for (path, synced) in [
            ("", vec![]),
            ("a", vec![""]),
            ("b/c/d", vec!["b/c", "b", ""]),
            ("b/c/d", vec![]),
            ("b/c/e", vec!["b/c"]),
        ] {
            let new = below_root(path);
            let expected: Vec<_> = synced.into_iter().map(below_root).collect();
            assert_eq!(parents_of_missing(&new), expected, "{path}");
            create_dir_all_durable(&new).unwrap();
            assert!(new.is_dir());
        }
    }

    #[test]
    fn the_parent_of_a_new_relative_directory_is_the_current_one() {
        let expected = ["no-such-directory", "."].map(PathBuf::from);
        assert_eq!(parents_of_missing(Path::new("no-such-directory/data")), expected);
    }
}
