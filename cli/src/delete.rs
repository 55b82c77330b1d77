//! `muster delete`: deletes records; pods get a grace period to terminate.

use std::path::PathBuf;
use std::time::Duration;

use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::record::Kind;
use muster_rpc::config::parse_duration;
use muster_store_client::{ClientError, DeleteOptions, Named, Preconditions};

use crate::completion;
use crate::connection::{ConnectionFlags, NamespaceFlags, Namespaces, Store};
use crate::dry_run::DryRunFlags;
use crate::failure::{Exit, Failure, Failures};
use crate::kind::{Target, for_named, plural};
use crate::manifest_files::read_manifests;
use crate::records::{Readable, kind_and_name, not_writable};
use crate::targets::{SelectionFlags, strip_kind, target_keys};
use crate::terminal::Terminal;
use crate::wait::{Condition, Deadline, wait_for};

/// Deletes records given by name, by labels or by manifests
///
/// A pod gets its grace period to terminate, and its record stays until its agent has confirmed that it terminated.
/// Other records are deleted at once, or when their last finalizer is removed.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Kind of the records, or KIND/NAME
    #[arg(
        value_name = "KIND",
        required_unless_present = "filename",
        conflicts_with = "filename",
        add = completion::kinds()
    )]
    target: Option<Target>,

    /// Names of the records
    #[arg(value_name = "NAME", add = completion::names())]
    names: Vec<String>,

    /// File with manifests in YAML or JSON, or - for standard input; can be repeated
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["selector", "all"])]
    filename: Vec<PathBuf>,

    #[command(flatten)]
    selection: SelectionFlags,

    #[command(flatten)]
    grace_period: GracePeriodFlags,

    /// Delete the records of pods at once, without waiting for the agent to confirm that they terminated; the same as
    /// --grace-period 0
    #[arg(long)]
    force: bool,

    /// Ignore records that do not exist
    #[arg(long)]
    ignore_not_found: bool,

    /// Wait until the records are gone. Unlike kubectl, this is not the default: a pod on a node that does not answer
    /// goes only when the node returns or is deleted
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
        action = clap::ArgAction::Set)]
    wait: bool,

    /// With --wait, how long to wait; 0 means no limit
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration, requires = "wait")]
    timeout: Duration,

    #[command(flatten)]
    dry_run: DryRunFlags,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// How long pods may take to terminate.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GracePeriodFlags {
    /// Seconds that pods get to terminate; -1 means each pod's own grace period
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = -1,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..)
    )]
    grace_period: i64,
}

impl GracePeriodFlags {
    /// `None` means each pod's own grace period.
    pub(crate) fn seconds(&self) -> Option<i64> {
        (self.grace_period >= 0).then_some(self.grace_period)
    }
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let namespaces = connection.namespaces(&flags.namespace);
    let store = connection.store()?;
    let targets = match &flags.target {
        Some(target) => keys(&store, &flags, target, &namespaces).await?,
        None => {
            let manifests = read_manifests(&flags.filename, &namespaces)?;
            let keys = manifests.iter().map(|manifest| Ok((manifest.kind, manifest.key()?)));
            keys.collect::<Result<Vec<_>, Failure>>()?
        }
    };
    if let Some((kind, _)) = targets.iter().find(|(kind, _)| *kind != Kind::Pod)
        && (flags.force || flags.grace_period.seconds().is_some())
    {
        let failure = Failure::usage(format!("only pods have a grace period, not {}", plural(*kind)));
        return Err(failure.hint("remove --force and --grace-period"));
    }
    if flags.force && flags.grace_period.seconds().is_some_and(|seconds| seconds > 0) {
        let failure = Failure::usage("--force means a grace period of 0, which contradicts --grace-period");
        return Err(failure.hint("use only one of them"));
    }
    let mut failures = Failures::default();
    let mut going = Vec::new();
    for (kind, key) in &targets {
        let deleted = for_named!(*kind, delete(&store, key, &flags), else Err(not_writable(*kind)));
        match failures.keep(deleted)? {
            Some(Deleted::Going { uid, line }) => {
                Terminal::stdout().print(&line)?;
                going.push((*kind, key, uid));
            }
            Some(Deleted::Gone(line)) => Terminal::stdout().print(&line)?,
            None => {}
        }
    }
    if flags.wait && !flags.dry_run.is_dry() {
        let deadline = Deadline::after(flags.timeout);
        for (kind, key, uid) in going {
            let gone = for_named!(kind, wait_until_gone(&store, key, uid, &deadline), else Ok(()));
            failures.keep(gone)?;
        }
    }
    failures.finish()
}

/// What the store did with a deletion.
enum Deleted {
    /// The record is still there, with this uid.
    Going {
        uid: Option<Uid>,
        line: String,
    },
    Gone(String),
}

async fn wait_until_gone<R: Readable>(
    store: &Store,
    key: &Key,
    uid: Option<Uid>,
    deadline: &Deadline,
) -> Result<(), Failure> {
    wait_for::<R>(store, key, &Condition::Gone { uid }, deadline).await?;
    Terminal::stdout().print(&format!("{} deleted\n", kind_and_name(R::KIND, key)))
}

/// The keys of the records given by name or by labels.
async fn keys(
    store: &Store,
    flags: &Flags,
    target: &Target,
    namespaces: &Namespaces,
) -> Result<Vec<(Kind, Key)>, Failure> {
    let names = strip_kind(target.kind, target.name.as_ref(), &flags.names)?;
    let keys = for_named!(
        target.kind,
        target_keys(store, &names, &flags.selection, namespaces),
        else Err(not_writable(target.kind))
    );
    Ok(keys?.into_iter().map(|key| (target.kind, key)).collect())
}

async fn delete<R: Named>(store: &Store, key: &Key, flags: &Flags) -> Result<Deleted, Failure> {
    let grace_period_seconds = if flags.force { Some(0) } else { flags.grace_period.seconds() };
    let options = DeleteOptions { preconditions: Preconditions::default(), grace_period_seconds };
    let name = kind_and_name(R::KIND, key);
    let deleted = if flags.dry_run.is_dry() {
        store.client.get::<R>(key).await
    } else {
        store.client.delete::<R>(key, options).await
    };
    match deleted {
        Ok(_) if flags.dry_run.is_dry() => {
            Ok(Deleted::Gone(format!("{name} deleted{}\n", flags.dry_run.suffix())))
        }
        Ok(left) => {
            let outcome = outcome(&left, grace_period_seconds);
            let line = format!("{name} {outcome}\n");
            Ok(if outcome == GONE {
                Deleted::Gone(line)
            } else {
                Deleted::Going { uid: left.meta().uid, line }
            })
        }
        Err(ClientError::NotFound(_)) if flags.ignore_not_found => Ok(Deleted::Gone(String::new())),
        Err(ClientError::NotFound(message)) => Err(Failure::new(Exit::NotFound, message)
            .hint("--ignore-not-found ignores records that do not exist")),
        Err(error) => Err(store.peer.failure(error)),
    }
}

/// What happened to the record. The answer to a deletion is the deleted record, or the record that is still being
/// deleted.
fn outcome<R: Named>(left: &R, requested: Option<i64>) -> String {
    let meta = left.meta();
    match meta.deletion_grace_period_seconds {
        _ if meta.is_deleting() && !meta.finalizers.is_empty() => {
            format!("will be deleted when its finalizers are removed: {}", meta.finalizers.join(", "))
        }
        Some(grace) if meta.is_deleting() && grace > 0 && requested != Some(0) => {
            format!("terminates within {grace}s")
        }
        _ => GONE.to_owned(),
    }
}

/// The outcome of a deletion that left nothing behind.
const GONE: &str = "deleted";
