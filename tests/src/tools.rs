//! The real tools that operators use, as `.ci/tools` installs them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the repository")
}

/// The directory that `.ci/tools` installs into.
pub fn own_tools() -> PathBuf {
    repository().join(".tools/bin")
}

/// The path of a tool: the one in `.tools`, the one of the system's packages, or else the first on the path.
///
/// # Panics
/// When the tool is not installed.
pub fn tool(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Packages before the path: a Docker engine and its client should come from the same package.
    let of_packages = ["/usr/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let folders = std::iter::once(own_tools()).chain(of_packages).chain(std::env::split_paths(&path));
    let found = folders.map(|folder| folder.join(name)).find(|candidate| candidate.is_file());
    found.unwrap_or_else(|| {
        panic!("there is no {name}: run .ci/tools first, for a benchmark .ci/tools {name}")
    })
}

/// The standard output of a command that must succeed.
///
/// # Panics
/// When it fails, with its output.
pub fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let Output { status, stdout, stderr } = &output;
    let said = String::from_utf8_lossy(stdout);
    let complaint = String::from_utf8_lossy(stderr);
    assert!(status.success(), "{} failed with {status}:\n{complaint}\n{said}", line(command));
    said.into_owned()
}

/// The command line of a command.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
