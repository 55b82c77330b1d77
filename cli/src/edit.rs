//! `muster edit`: changes a record in the user's editor.
//!
//! What the user changed is a merge patch, and the patch is applied to the record as it is by then: changes of others to
//! other fields are kept. If others changed the same field, or the store refuses the record, the editor opens again
//! with the reason in comments.

mod patch;

use std::io::Write;
use std::path::Path;
use std::process::Command;

use muster_manifest::{STORE_FIELDS, schema, to_fields};
use muster_proto::key::Key;
use muster_store_client::{ClientError, Stored};
use serde_json::{Map, Value};
use tempfile::NamedTempFile;

use self::patch::{between, overlaps};
use crate::completion;
use crate::connection::{ConnectionFlags, NamespaceFlags, OrFailure, Store};
use crate::failure::{Exit, Failure};
use crate::kind::{Target, for_stored, singular};
use crate::print::document::{Language, document};
use crate::records::{ATTEMPTS, key, kind_and_name, not_writable, version};
use crate::targets::strip_kind;
use crate::terminal::Terminal;

/// Changes a record in an editor
///
/// Opens the record as YAML in the editor of MUSTER_EDITOR, VISUAL or EDITOR, else vi. Only what you change is written:
/// changes that others make meanwhile are kept. If others change the same field, or the store refuses the record, the
/// editor opens again with the reason; leave it without a change to give up. The status cannot be edited.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Kind of the record, or KIND/NAME
    #[arg(value_name = "KIND", add = completion::kinds())]
    target: Target,

    /// Name of the record
    #[arg(value_name = "NAME", add = completion::names())]
    name: Option<String>,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let kind = flags.target.kind;
    let names: Vec<String> = flags.name.into_iter().collect();
    let names = strip_kind(kind, flags.target.name.as_ref(), &names)?;
    let [name] = names.as_slice() else {
        return Err(Failure::usage(format!("give the name of one {}", singular(kind))));
    };
    let connection = flags.connection.resolve()?;
    let key = key(kind, name, &connection.namespaces(&flags.namespace))?;
    let store = connection.store()?;
    let outcome = for_stored!(kind, edit(&store, &key), else Err(not_writable(kind)))?;
    Terminal::stdout().print(&outcome)
}

async fn edit<R: Stored>(store: &Store, key: &Key) -> Result<String, Failure> {
    let name = kind_and_name(R::KIND, key);
    let mut shown: R = store.client.get(key).await.or_failure(&store.peer)?;
    let mut text = printed(&shown);
    let mut problem = String::new();
    let file = NamedTempFile::with_suffix(".yaml").map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot create a file for the editor: {error}"))
            .hint("TMPDIR sets the directory")
    })?;
    loop {
        let before = format!("{}{text}", comments(&name, &problem));
        let after = open_editor(&file, &before)?;
        if after == before && problem.is_empty() {
            return Ok(format!("{name} unchanged: nothing was edited\n"));
        }
        if after == before {
            let kept = keep(file)?;
            return Err(Failure::new(Exit::Failed, format!("{name} was not changed: {problem}"))
                .hint(format!("your text is in {kept}")));
        }
        match write(store, key, &shown, &after).await? {
            Written::Changed => return Ok(format!("{name} edited\n")),
            Written::Same => return Ok(format!("{name} unchanged\n")),
            Written::Refused(reason) => {
                text = without_comments(&after);
                problem = reason;
            }
            // The text of the editor stays, but it is compared with the new record from now on.
            Written::Overtaken(current, reason) => {
                shown = *current;
                text = without_comments(&after);
                problem = reason;
            }
        }
    }
}

/// What became of an edited text.
enum Written<R> {
    Changed,
    Same,
    /// The text is not a valid record, or the store refused it.
    Refused(String),
    /// Others changed the same fields.
    Overtaken(Box<R>, String),
}

async fn write<R: Stored>(store: &Store, key: &Key, shown: &R, text: &str) -> Result<Written<R>, Failure> {
    let refused = |reason: &dyn std::fmt::Display| Ok(Written::Refused(reason.to_string()));
    let edited = match muster_manifest::read("the edited text", text).as_deref() {
        Ok([manifest]) => manifest.clone(),
        Ok(_) => return refused(&"the text must have one record"),
        Err(error) => return refused(error),
    };
    if edited.kind != R::KIND {
        return refused(&format_args!("the kind cannot be edited: this is a {}", R::KIND));
    }
    // As a record and back, so that both sides write numbers, times and quantities in the same way.
    let wanted: R = match edited.to_stored_record() {
        Ok(wanted) => wanted,
        Err(error) => return refused(&error),
    };
    let before = to_fields(shown);
    let patch = between(&before, &to_fields(&wanted));
    if patch.is_empty() {
        return Ok(Written::Same);
    }
    if let Some(field) = fixed_field(&patch) {
        return refused(&format_args!("{field} cannot be edited"));
    }
    for _ in 0..ATTEMPTS {
        let current: R = store.client.get(key).await.or_failure(&store.peer)?;
        let by_others = between(&before, &to_fields(&current));
        if let Some(field) = overlaps(&patch, &by_others) {
            let reason = format!("{field} was changed by others meanwhile: save again to replace it");
            return Ok(Written::Overtaken(Box::new(current), reason));
        }
        let merged: R = match edited.patched(&current, patch.clone()) {
            Ok(merged) => merged,
            Err(error) => return refused(&error),
        };
        match store.client.update(merged).await {
            Ok(stored) if version(&stored) == version(&current) => return Ok(Written::Same),
            Ok(_) => return Ok(Written::Changed),
            Err(ClientError::Conflict(_)) => {}
            Err(error @ ClientError::Invalid(_)) => return refused(&error),
            Err(error) => return Err(store.peer.failure(error)),
        }
    }
    refused(&"others change the record all the time: save again to try again")
}

/// A field of the patch that no client may change.
fn fixed_field(patch: &Map<String, Value>) -> Option<String> {
    if patch.contains_key("status") {
        return Some("the status, which agents and controllers write,".to_owned());
    }
    let metadata = patch.get("metadata")?.as_object()?;
    let fixed = ["name", "namespace"].into_iter().chain(STORE_FIELDS);
    fixed.into_iter().find(|field| metadata.contains_key(*field)).map(|field| format!("metadata.{field}"))
}

fn printed<R: Stored>(record: &R) -> String {
    document(&schema::to_json(record.clone()), Language::Yaml, true)
}

/// The comments above the text: how to use it, and what was wrong with it.
fn comments(name: &str, problem: &str) -> String {
    let mut text = format!(
        "# {name}: save and leave the editor to write your changes, leave without a change to give up.\n"
    );
    for line in problem.lines() {
        text.push_str(&format!("# {line}\n"));
    }
    text
}

/// The text without the comments above it.
fn without_comments(text: &str) -> String {
    text.lines().skip_while(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

fn keep(file: NamedTempFile) -> Result<String, Failure> {
    let kept = file.keep().map(|(_, path)| path.display().to_string());
    kept.map_err(|error| Failure::new(Exit::Failed, format!("cannot keep your text: {error}")))
}

/// Opens the editor with a text; returns the text that it saved.
fn open_editor(file: &NamedTempFile, text: &str) -> Result<String, Failure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(Exit::Failed, format!("cannot {what}: {error}"))
            .hint("MUSTER_EDITOR, VISUAL or EDITOR sets the editor")
    };
    let path = file.path();
    std::fs::File::create(path)
        .and_then(|mut opened| opened.write_all(text.as_bytes()))
        .map_err(|error| failed("write the text for the editor", &error))?;
    let editor =
        ["MUSTER_EDITOR", "VISUAL", "EDITOR"].into_iter().filter_map(|name| std::env::var(name).ok());
    let editor =
        editor.into_iter().find(|command| !command.trim().is_empty()).unwrap_or_else(|| "vi".to_owned());
    let status = editor_command(&editor, path).status();
    let status = status.map_err(|error| failed(&format!("start the editor `{editor}`"), &error))?;
    if !status.success() {
        return Err(failed("use the edited text", &format!("the editor `{editor}` ended with {status}")));
    }
    std::fs::read_to_string(path).map_err(|error| failed("read the edited text", &error))
}

/// The editor through a shell, because the setting may have arguments: `code --wait`.
fn editor_command(editor: &str, path: &Path) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(path);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_above_the_text_are_not_part_of_it() {
        let text = "kind: Node\n# a comment inside\n";
        let shown = format!("{}{text}", comments("node/a", "spec.x: is wrong\nand more"));
        assert!(shown.starts_with("# node/a: save and leave"), "{shown}");
        assert!(shown.contains("\n# spec.x: is wrong\n# and more\n"), "{shown}");
        assert_eq!(without_comments(&shown), text);
    }
}
