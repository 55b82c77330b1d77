//! The directories of this user's files, by the XDG Base Directory specification.

use std::ffi::OsString;
use std::path::PathBuf;

/// Muster's directory for settings; `None` if neither XDG_CONFIG_HOME nor HOME is set.
pub(crate) fn config_dir() -> Option<PathBuf> {
    muster_dir(std::env::var_os("XDG_CONFIG_HOME"), std::env::var_os("HOME"), ".config")
}

/// Muster's directory for state; `None` if neither XDG_STATE_HOME nor HOME is set.
pub(crate) fn state_dir() -> Option<PathBuf> {
    muster_dir(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"), ".local/state")
}

fn muster_dir(xdg_dir: Option<OsString>, home: Option<OsString>, below_home: &str) -> Option<PathBuf> {
    // The specification requires that relative paths are ignored.
    let absolute = |path: &PathBuf| path.is_absolute();
    let xdg_dir = xdg_dir.map(PathBuf::from).filter(absolute);
    let found = xdg_dir.or_else(|| Some(PathBuf::from(home?).join(below_home)).filter(absolute));
    found.map(|found| found.join("muster"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_xdg_variable_comes_before_home() {
        for (xdg_dir, home, expected) in [
            (Some("/s"), Some("/home/a"), Some("/s/muster")),
            (None, Some("/home/a"), Some("/home/a/.local/state/muster")),
            (Some(""), Some("/home/a"), Some("/home/a/.local/state/muster")),
            (Some("s"), Some("/home/a"), Some("/home/a/.local/state/muster")),
            (Some("/s"), None, Some("/s/muster")),
            (None, Some(""), None),
            (None, None, None),
        ] {
            let found = muster_dir(xdg_dir.map(OsString::from), home.map(OsString::from), ".local/state");
            assert_eq!(found.as_deref(), expected.map(Path::new), "{xdg_dir:?} {home:?}");
        }
    }
}
