//! `muster describe`: a node or a pod with the records that belong to it, or a priority class.

use muster_proto::event::Event;
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::priority_class::PriorityClass;
use muster_proto::record::{Kind, Record};
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::clock::{Clock, SystemClock};
use muster_store_client::{ClientError, ListOptions};

use crate::connection::{ConnectionFlags, NamespaceFlags, OrFailure, Store};
use crate::failure::{Failure, Failures};
use crate::print::describe::node::NodePage;
use crate::print::describe::pod::PodPage;
use crate::print::describe::priority_class;
use crate::records::key;
use crate::targets::ShownFlags;
use crate::terminal::Terminal;

/// Shows the details of a node or a pod: its record, its events, and a node's lease and pods; or a priority class
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    targets: ShownFlags,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The kinds that have a page.
const SHOWN: [Kind; 3] = [Kind::Node, Kind::Pod, Kind::PriorityClass];

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let (kind, names) = (flags.targets.kind(), flags.targets.names(&SHOWN)?);
    let connection = flags.connection.resolve()?;
    let (store, namespaces) = (connection.store()?, connection.namespaces(&flags.namespace));
    let terminal = Terminal::stdout();
    let mut failures = Failures::default();
    let mut is_first = true;
    for name in names {
        let key = key(kind, &name, &namespaces)?;
        let page = match kind {
            Kind::Pod => pod(&store, &key, terminal).await,
            Kind::PriorityClass => priority_class(&store, &key).await,
            _ => node(&store, &key, terminal).await,
        };
        if let Some(page) = failures.keep(page)? {
            terminal.print(&format!("{}{page}", if is_first { "" } else { "\n\n" }))?;
            is_first = false;
        }
    }
    failures.finish()
}

async fn node(store: &Store, key: &Key, terminal: Terminal) -> Result<String, Failure> {
    let namespace = NODE_LEASE_NAMESPACE.parse().expect("a valid name");
    let lease = Key::namespaced(namespace, key.name.clone());
    let pods =
        ListOptions { field_selector: format!("spec.nodeName={}", key.name), ..ListOptions::default() };
    // All calls at once, so that the page shows the state of nearly one moment.
    let answers = tokio::join!(
        store.client.get::<Node>(key),
        store.client.get::<Lease>(&lease),
        store.client.list::<Pod>(pods),
        store.client.list::<Event>(events_of(Kind::Node, key)),
    );
    let node = answers.0.or_failure(&store.peer)?;
    let lease = match answers.1 {
        Ok(lease) => Some(lease),
        Err(ClientError::NotFound(_)) => None,
        Err(error) => return Err(store.peer.failure(error)),
    };
    let pods = answers.2.or_failure(&store.peer)?.records;
    let events = with_uid_of(&node, answers.3.or_failure(&store.peer)?.records);
    let page = NodePage { node: &node, lease: lease.as_ref(), pods: &pods, events: &events };
    Ok(page.text(SystemClock::new().wall(), terminal.paint, terminal.width))
}

async fn pod(store: &Store, key: &Key, terminal: Terminal) -> Result<String, Failure> {
    let answers =
        tokio::join!(store.client.get::<Pod>(key), store.client.list::<Event>(events_of(Kind::Pod, key)));
    let pod = answers.0.or_failure(&store.peer)?;
    let events = with_uid_of(&pod, answers.1.or_failure(&store.peer)?.records);
    let page = PodPage { pod: &pod, events: &events };
    Ok(page.text(SystemClock::new().wall(), terminal.paint, terminal.width))
}

async fn priority_class(store: &Store, key: &Key) -> Result<String, Failure> {
    let class = store.client.get::<PriorityClass>(key).await.or_failure(&store.peer)?;
    Ok(priority_class::page(&class))
}

/// Selects the events of a record by its name, so also those of deleted records that had the same name.
fn events_of(kind: Kind, key: &Key) -> ListOptions {
    let mut selector = format!("involvedObject.kind={kind},involvedObject.name={}", key.name);
    if let Some(namespace) = &key.namespace {
        selector.push_str(&format!(",involvedObject.namespace={namespace}"));
    }
    ListOptions { field_selector: selector, ..ListOptions::default() }
}

/// Drops the events of deleted records that had the same name.
fn with_uid_of<R: Record>(record: &R, events: Vec<Event>) -> Vec<Event> {
    let own = |event: &Event| event.involved.uid.is_none() || event.involved.uid == record.meta().uid;
    events.into_iter().filter(own).collect()
}
