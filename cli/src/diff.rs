//! `muster diff`: what `muster apply` would change, as a unified diff.

use muster_manifest::{Manifest, schema};
use muster_store_client::{ClientError, Stored};
use similar::TextDiff;

use crate::connection::{ConnectionFlags, NamespaceFlags, Store};
use crate::failure::{Failure, Failures};
use crate::kind::for_stored;
use crate::manifest_files::read_manifests;
use crate::print::document::{Language, document};
use crate::print::{Cell, Paint};
use crate::records::{kind_and_name, not_writable};
use crate::terminal::Terminal;

/// Shows what `muster apply` would change
///
/// Compares each record with what it would be after `muster apply`, as a unified diff of YAML documents. The exit code
/// is 0 without differences and 1 with differences; an error has its usual code.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// File with manifests in YAML or JSON, or - for standard input; can be repeated
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<std::path::PathBuf>,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let manifests = read_manifests(&flags.filename, &connection.namespaces(&flags.namespace))?;
    let store = connection.store()?;
    let terminal = Terminal::stdout();
    let (mut failures, mut any) = (Failures::default(), false);
    for manifest in &manifests {
        let diff = for_stored!(manifest.kind, diff(&store, manifest), else Err(not_writable(manifest.kind)));
        if let Some(text) = failures.keep(diff.map_err(|failure| failure.about(&manifest.location)))? {
            any |= !text.is_empty();
            terminal.print(&painted(&text, terminal.paint))?;
        }
    }
    failures.finish()?;
    if any { Err(Failure::Differences) } else { Ok(()) }
}

async fn diff<R: Stored>(store: &Store, manifest: &Manifest) -> Result<String, Failure> {
    let key = manifest.key()?;
    let name = kind_and_name(R::KIND, &key);
    let text = |record: R| document(&schema::to_json(record), Language::Yaml, true);
    let (before, after) = match store.client.get::<R>(&key).await {
        Ok(current) => {
            let wanted: R = manifest.merged_into(&current)?;
            (text(current), text(wanted))
        }
        Err(ClientError::NotFound(_)) => (String::new(), text(manifest.to_record()?)),
        // `failures` would treat it as the whole command's failure in any case.
        Err(error) => return Err(store.peer.failure(error)),
    };
    Ok(unified(&before, &after, &name))
}

/// The difference of two texts; empty if there is none.
pub(crate) fn unified(before: &str, after: &str, name: &str) -> String {
    if before == after {
        return String::new();
    }
    TextDiff::from_lines(before, after)
        .unified_diff()
        .context_radius(3)
        .header(&format!("{name} (current)"), &format!("{name} (applied)"))
        .to_string()
}

fn painted(diff: &str, paint: Paint) -> String {
    let line = |line: &str| {
        let cell = Cell::new(line);
        let cell = match line.as_bytes().first() {
            Some(b'+') => cell.good(),
            Some(b'-') => cell.bad(),
            _ => cell,
        };
        format!("{}\n", cell.painted(paint))
    };
    diff.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_has_the_changed_lines_and_the_name() {
        assert_eq!(unified("a: 1\n", "a: 1\n", "node/x"), "");
        let diff = unified("a: 1\nb: 2\n", "a: 1\nb: 3\n", "node/x");
        assert_eq!(
            diff,
            "--- node/x (current)\n+++ node/x (applied)\n@@ -1,2 +1,2 @@\n a: 1\n-b: 2\n+b: 3\n"
        );
        assert!(painted(&diff, Paint::Coloured).contains("\u{1b}[32m+b: 3\u{1b}[0m\n"));
    }
}
