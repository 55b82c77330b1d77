//! `muster delete`: deletes records; pods get a grace period to terminate.

use std::path::PathBuf;

use muster_proto::key::Key;
use muster_proto::record::Kind;
use muster_store_client::{ClientError, DeleteOptions, Preconditions, Stored};

use crate::connection::{ConnectionFlags, NamespaceFlags, Namespaces, Store};
use crate::failure::{Exit, Failure, Failures};
use crate::kind::{Target, for_stored, plural};
use crate::manifest_files::read_manifests;
use crate::records::{events_are_read_only, kind_and_name};
use crate::targets::{SelectionFlags, strip_kind, target_keys};
use crate::terminal::Terminal;

/// Deletes records given by name, by labels or by manifests
///
/// A pod gets its grace period to terminate, and its record stays until its agent has confirmed that it terminated.
/// Other records are deleted at once, or when their last finalizer is removed.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Kind of the records, or KIND/NAME
    #[arg(value_name = "KIND", required_unless_present = "filename", conflicts_with = "filename")]
    target: Option<Target>,

    /// Names of the records
    #[arg(value_name = "NAME")]
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
    for (kind, key) in &targets {
        let deleted = for_stored!(*kind, delete(&store, key, &flags), else Err(events_are_read_only()));
        if let Some(line) = failures.keep(deleted)? {
            Terminal::stdout().print(&line)?;
        }
    }
    failures.finish()
}

/// The keys of the records given by name or by labels.
async fn keys(
    store: &Store,
    flags: &Flags,
    target: &Target,
    namespaces: &Namespaces,
) -> Result<Vec<(Kind, Key)>, Failure> {
    let names = strip_kind(target.kind, target.name.as_ref(), &flags.names)?;
    let keys = for_stored!(
        target.kind,
        target_keys(store, &names, &flags.selection, namespaces),
        else Err(events_are_read_only())
    );
    Ok(keys?.into_iter().map(|key| (target.kind, key)).collect())
}

async fn delete<R: Stored>(store: &Store, key: &Key, flags: &Flags) -> Result<String, Failure> {
    let grace_period_seconds = if flags.force { Some(0) } else { flags.grace_period.seconds() };
    let options = DeleteOptions { preconditions: Preconditions::default(), grace_period_seconds };
    let name = kind_and_name(R::KIND, key);
    match store.client.delete::<R>(key, options).await {
        Ok(left) => Ok(format!("{name} {}\n", outcome(&left, grace_period_seconds))),
        Err(ClientError::NotFound(_)) if flags.ignore_not_found => Ok(String::new()),
        Err(ClientError::NotFound(message)) => Err(Failure::new(Exit::NotFound, message)
            .hint("--ignore-not-found ignores records that do not exist")),
        Err(error) => Err(store.peer.failure(error)),
    }
}

/// What happened to the record. The answer to a deletion is the deleted record, or the record that is still being
/// deleted.
fn outcome<R: Stored>(left: &R, requested: Option<i64>) -> String {
    let meta = left.meta();
    match meta.deletion_grace_period_seconds {
        _ if meta.is_deleting() && !meta.finalizers.is_empty() => {
            format!("will be deleted when its finalizers are removed: {}", meta.finalizers.join(", "))
        }
        Some(grace) if meta.is_deleting() && grace > 0 && requested != Some(0) => {
            format!("terminates within {grace}s")
        }
        _ => "deleted".to_owned(),
    }
}
