//! `muster completion`: completion for shells, which knows the names of records.
//!
//! The script of a shell calls `muster` again with the words of the command line, in the variable COMPLETE's mode. Names
//! are read from the store that the command itself would use; a store that does not answer at once completes nothing.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{Bash, Elvish, EnvCompleter, Fish, Powershell, Zsh};
use clap_complete::{CompleteEnv, Shell};
use muster_proto::event::Event;
use muster_proto::name::Namespace;
use muster_proto::record::Kind;
use muster_store_client::{ListOptions, Resource};

use crate::arguments::Arguments;
use crate::connection::{ConnectionFlags, NamespaceFlags, OrFailure};
use crate::failure::{Exit, Failure};
use crate::kind::{self, Target, for_named, plural, singular};
use crate::print::rows::Tabular;
use crate::terminal::Terminal;

/// Prints the completion script for a shell
///
/// For bash: `source <(muster completion bash)`. The script asks `muster` for commands, flags and kinds, and the store
/// for the names of nodes, pods and other records.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// The variable that makes `muster` answer a shell instead of running a command.
const VARIABLE: &str = "COMPLETE";
/// How long the store may take: nobody waits longer for a completion.
const TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn run(flags: &Flags) -> Result<(), Failure> {
    let completer: &dyn EnvCompleter = match flags.shell {
        Shell::Bash => &Bash,
        Shell::Elvish => &Elvish,
        Shell::Fish => &Fish,
        Shell::PowerShell => &Powershell,
        Shell::Zsh => &Zsh,
        other => {
            return Err(Failure::usage(format!("there is no completion for {other}")));
        }
    };
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "muster", "muster", "muster", &mut script).map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot make the script: {error}")).hint("try another shell")
    })?;
    Terminal::stdout().print(&String::from_utf8_lossy(&script))
}

/// Answers a shell that asks for completions, and ends the process; returns if no shell asks.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(Arguments::command).var(VARIABLE).bin("muster").complete();
}

/// Completes a kind, or KIND/NAME.
pub(crate) fn kinds() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let current = current.to_string_lossy().into_owned();
        if let Some((word, _)) = current.split_once('/') {
            let Ok(kind) = kind::parse(word) else { return Vec::new() };
            return candidates(names_of(kind).into_iter().map(|name| format!("{word}/{name}")), &current);
        }
        candidates(
            Kind::ALL.into_iter().flat_map(|kind| [plural(kind), singular(kind)]).map(str::to_owned),
            &current,
        )
    })
}

/// Completes a name of the kind that the command line names.
pub(crate) fn names() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let kind =
            words().iter().find_map(|word| word.to_str()?.parse::<Target>().ok()).map(|target| target.kind);
        candidates(kind.map(names_of).unwrap_or_default(), &current.to_string_lossy())
    })
}

/// Completes the name of a node.
pub(crate) fn node_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| candidates(names_of(Kind::Node), &current.to_string_lossy()))
}

/// Completes the name of a pod.
pub(crate) fn pod_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| candidates(names_of(Kind::Pod), &current.to_string_lossy()))
}

fn candidates(names: impl IntoIterator<Item = String>, current: &str) -> Vec<CompletionCandidate> {
    names.into_iter().filter(|name| name.starts_with(current)).map(CompletionCandidate::new).collect()
}

/// The words of the command line that is completed. The shell gives them after `--`.
fn words() -> Vec<OsString> {
    std::env::args_os().skip_while(|word| word != "--").skip(1).collect()
}

/// The names of all records of a kind; none if the store does not answer.
fn names_of(kind: Kind) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let names = runtime.ok().and_then(|runtime| {
        let names = async {
            let names = async { for_named!(kind, list_names(), else list_names::<Event>().await) };
            tokio::time::timeout(TIMEOUT, names).await
        };
        let names = runtime.block_on(names);
        runtime.shutdown_background();
        names.ok()?.ok()
    });
    names.unwrap_or_default()
}

async fn list_names<R: Resource + Tabular>() -> Result<Vec<String>, Failure> {
    let (connection, namespace) = connection_flags();
    let connection = connection.resolve()?;
    let namespaces = connection.namespaces(&namespace);
    let namespace: Option<Namespace> = R::KIND.is_namespaced().then(|| namespaces.of(R::KIND));
    let store = connection.store()?;
    let options = ListOptions { namespace, ..ListOptions::default() };
    let mut found = store.client.list::<R>(options).await.or_failure(&store.peer)?.records;
    R::sort(&mut found);
    Ok(found.iter().map(|record| record.meta().name.to_string()).collect())
}

/// The connection flags among the words so far. Everything else on the command line is passed over.
fn connection_flags() -> (ConnectionFlags, NamespaceFlags) {
    let command = clap::Command::new("muster").ignore_errors(true).disable_help_flag(true);
    let command = NamespaceFlags::augment_args(ConnectionFlags::augment_args(command));
    let command = command.arg(clap::Arg::new("words").num_args(0..));
    let matches = command.get_matches_from(words());
    (
        ConnectionFlags::from_arg_matches(&matches).unwrap_or_default(),
        NamespaceFlags::from_arg_matches(&matches).unwrap_or_default(),
    )
}
