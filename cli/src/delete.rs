//! `muster delete`: records away, pods with the time they need.

use std::path::PathBuf;

use muster_proto::key::Key;
use muster_proto::record::Kind;
use muster_store_client::{ClientError, DeleteOptions, Preconditions, Stored};

use crate::connection::{ConnectionFlags, NamespaceFlags, Namespaces, Store};
use crate::failure::{Exit, Failure, Failures};
use crate::kind::{Target, for_stored, plural};
use crate::manifest_files::manifests;
use crate::records::{events_are_recorded, spoken};
use crate::targets::{SelectionFlags, keys, strip_kind};
use crate::terminal::Terminal;

/// Deletes records by name, by labels, or as manifests name them
///
/// A pod is asked to end within its grace and stays until its agent has confirmed that; everything else goes
/// at once, or when its last finalizer is gone.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Kind of the records, or KIND/NAME
    #[arg(value_name = "KIND", required_unless_present = "filename", conflicts_with = "filename")]
    target: Option<Target>,

    /// Names of records
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// File of manifests in YAML or JSON, - for standard input; may be given again
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["selector", "all"])]
    filename: Vec<PathBuf>,

    #[command(flatten)]
    selection: SelectionFlags,

    /// Seconds that pods are given to end; -1 means their own
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = -1,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..)
    )]
    grace_period: i64,

    /// Remove pods at once, without waiting for anybody to confirm that they have ended; like --grace-period
    /// 0
    #[arg(long)]
    force: bool,

    /// Do not mind records that do not exist
    #[arg(long)]
    ignore_not_found: bool,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.settle()?;
    let namespaces = connection.namespaces(&flags.namespace);
    let store = connection.store()?;
    let doomed = match &flags.target {
        Some(target) => named(&store, &flags, target, &namespaces).await?,
        None => {
            let manifests = manifests(&flags.filename, &namespaces)?;
            let keys = manifests.iter().map(|manifest| Ok((manifest.kind, manifest.key()?)));
            keys.collect::<Result<Vec<_>, Failure>>()?
        }
    };
    if let Some((kind, _)) = doomed.iter().find(|(kind, _)| *kind != Kind::Pod)
        && (flags.force || flags.grace_period >= 0)
    {
        let failure = Failure::usage(format!("{} are not given time to end: only pods are", plural(*kind)));
        return Err(failure.hint("leave --force and --grace-period out"));
    }
    if flags.force && flags.grace_period > 0 {
        return Err(
            Failure::usage("--force leaves no time to end in, --grace-period does").hint("leave one out")
        );
    }
    let mut failures = Failures::default();
    for (kind, key) in &doomed {
        let deleted = for_stored!(*kind, delete(&store, key, &flags), else Err(events_are_recorded()));
        if let Some(line) = failures.keep(deleted)? {
            Terminal::stdout().say(&line)?;
        }
    }
    failures.finish()
}

async fn named(
    store: &Store,
    flags: &Flags,
    target: &Target,
    namespaces: &Namespaces,
) -> Result<Vec<(Kind, Key)>, Failure> {
    let names = strip_kind(target.kind, target.name.as_ref(), &flags.names)?;
    let keys = for_stored!(
        target.kind,
        keys(store, &names, &flags.selection, namespaces),
        else Err(events_are_recorded())
    );
    Ok(keys?.into_iter().map(|key| (target.kind, key)).collect())
}

async fn delete<R: Stored>(store: &Store, key: &Key, flags: &Flags) -> Result<String, Failure> {
    let grace_period_seconds = match (flags.force, flags.grace_period) {
        (true, _) => Some(0),
        (false, -1) => None,
        (false, seconds) => Some(seconds),
    };
    let options = DeleteOptions { preconditions: Preconditions::default(), grace_period_seconds };
    let what = spoken(R::KIND, key);
    match store.client.delete::<R>(key, options).await {
        Ok(left) => Ok(format!("{what} {}\n", outcome(&left, grace_period_seconds))),
        Err(ClientError::NotFound(_)) if flags.ignore_not_found => Ok(String::new()),
        Err(ClientError::NotFound(message)) => {
            Err(Failure::new(Exit::NotFound, message).hint("--ignore-not-found takes that for done"))
        }
        Err(error) => Err(store.peer.failure(error)),
    }
}

/// What became of the record: the answer to a deletion is its last content, or the record on its way.
fn outcome<R: Stored>(left: &R, asked: Option<i64>) -> String {
    let meta = left.meta();
    match meta.deletion_grace_period_seconds {
        _ if meta.is_deleting() && !meta.finalizers.is_empty() => {
            format!("goes when {} let it", meta.finalizers.join(", "))
        }
        Some(grace) if meta.is_deleting() && grace > 0 && asked != Some(0) => format!("ends within {grace}s"),
        _ => "deleted".to_owned(),
    }
}
