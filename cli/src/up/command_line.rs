//! Command lines that call this `muster up`, ready to paste into a shell. Pure, except that it looks for the program in
//! the directories of PATH.

use std::net::SocketAddr;
use std::path::Path;

use muster_rpc::tls::TlsFlags;

// The default addresses, which a command line does not need to name.
use crate::connection::{CONTROLLER, STORE};

/// Builds `muster` command lines for this store and this controller.
pub(super) struct CommandLine<'a> {
    /// The program, as the user types it in a shell.
    pub(super) program: String,
    pub(super) store: SocketAddr,
    pub(super) controller: SocketAddr,
    pub(super) tls: &'a TlsFlags,
}

impl CommandLine<'_> {
    /// The line for a command that does not connect to this Muster.
    pub(super) fn without_connection(&self, command: &str) -> String {
        format!("{} {command}", quoted(&self.program))
    }

    /// The line for a command that connects to this Muster; addresses and certificates are added where needed.
    pub(super) fn with_connection(&self, command: &str) -> String {
        let CommandLine { store, controller, tls, .. } = self;
        let scheme = if tls.tls_cert.is_some() { "https" } else { "http" };
        let mut line = self.without_connection(command);
        if store.to_string() != STORE {
            line.push_str(&format!(" --store {scheme}://{store}"));
        }
        if controller.to_string() != CONTROLLER {
            line.push_str(&format!(" --controller {scheme}://{controller}"));
        }
        if let Some((ca, cert, key)) = files(tls) {
            line.push_str(&format!(" --tls-ca {ca} --tls-cert {cert} --tls-key {key}"));
        }
        line
    }
}

fn files(tls: &TlsFlags) -> Option<(String, String, String)> {
    let path =
        |file: &Option<std::path::PathBuf>| file.as_ref().map(|path| quoted(&path.display().to_string()));
    Some((path(&tls.tls_client_ca)?, path(&tls.tls_cert)?, path(&tls.tls_key)?))
}

/// How a shell in this directory calls a program: by its name if PATH finds it, by its relative path if it is below
/// the directory, else by its full path.
pub(super) fn invocation(
    program: &Path,
    directory: Option<&Path>,
    path: impl Iterator<Item = std::path::PathBuf>,
) -> String {
    let name = program.file_name().unwrap_or_default();
    let mut found = path.map(|folder| folder.join(name)).filter(|candidate| candidate.is_file());
    if found.next().is_some_and(|found| found == program) {
        return name.to_string_lossy().into_owned();
    }
    let below = directory.and_then(|directory| program.strip_prefix(directory).ok());
    let relative = below.map(|below| Path::new(".").join(below));
    relative.as_deref().unwrap_or(program).display().to_string()
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_line_has_only_the_flags_that_differ_from_the_defaults() {
        let plain = TlsFlags::default();
        let file = |name: &str| Some(PathBuf::from(name));
        let mutual = TlsFlags {
            tls_cert: file("c.pem"),
            tls_key: file("my key.pem"),
            tls_client_ca: file("ca.pem"),
            insecure: false,
        };
        for (store, controller, tls, expected) in [
            (STORE, CONTROLLER, &plain, "muster get nodes"),
            (
                "127.0.0.1:1",
                "127.0.0.1:2",
                &plain,
                "muster get nodes --store http://127.0.0.1:1 --controller http://127.0.0.1:2",
            ),
            (
                STORE,
                "127.0.0.1:2",
                &mutual,
                "muster get nodes --controller https://127.0.0.1:2 --tls-ca ca.pem --tls-cert c.pem --tls-key 'my key.pem'",
            ),
        ] {
            let program = "muster".to_owned();
            let line = CommandLine { program, store: address(store), controller: address(controller), tls };
            assert_eq!(line.with_connection("get nodes"), expected);
        }
    }

    #[test]
    fn a_program_is_called_by_the_shortest_path_that_works() {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join("target/release/muster");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        std::fs::write(&program, "").unwrap();
        let no_path = std::iter::empty;
        let on_path = || std::iter::once(program.parent().unwrap().to_owned());
        assert_eq!(invocation(&program, Some(home.path()), on_path()), "muster");
        assert_eq!(invocation(&program, Some(home.path()), no_path()), "./target/release/muster");
        assert_eq!(
            invocation(&program, Some(Path::new("/elsewhere")), no_path()),
            program.display().to_string()
        );
    }
}
