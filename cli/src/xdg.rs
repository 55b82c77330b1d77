//! Where this user's files are, as the XDG specification has it.

use std::ffi::OsString;
use std::path::PathBuf;

/// Muster's own directory for settings; `None` where nothing says where this user's files are.
pub(crate) fn config() -> Option<PathBuf> {
    users_own(std::env::var_os("XDG_CONFIG_HOME"), std::env::var_os("HOME"), ".config")
}

/// Muster's own directory for what has to be remembered.
pub(crate) fn state() -> Option<PathBuf> {
    users_own(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"), ".local/state")
}

fn users_own(named: Option<OsString>, home: Option<OsString>, below_home: &str) -> Option<PathBuf> {
    // The specification wants relative paths ignored.
    let absolute = |path: &PathBuf| path.is_absolute();
    let named = named.map(PathBuf::from).filter(absolute);
    let found = named.or_else(|| Some(PathBuf::from(home?).join(below_home)).filter(absolute));
    found.map(|found| found.join("muster"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_users_directory_is_found_or_missed() {
        for (named, home, expected) in [
            (Some("/s"), Some("/home/a"), Some("/s/muster")),
            (None, Some("/home/a"), Some("/home/a/.local/state/muster")),
            (Some(""), Some("/home/a"), Some("/home/a/.local/state/muster")),
            (Some("s"), Some("/home/a"), Some("/home/a/.local/state/muster")),
            (Some("/s"), None, Some("/s/muster")),
            (None, Some(""), None),
            (None, None, None),
        ] {
            let found = users_own(named.map(OsString::from), home.map(OsString::from), ".local/state");
            assert_eq!(found.as_deref(), expected.map(Path::new), "{named:?} {home:?}");
        }
    }
}
