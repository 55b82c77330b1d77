//! `muster describe`: all there is to say about a node or a pod.

use muster_proto::event::Event;
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::record::{Kind, Record};
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::clock::{Clock, SystemClock};
use muster_store_client::{ClientError, ListOptions};

use crate::connection::{At, ConnectionFlags, NamespaceFlags, Store};
use crate::failure::{Failure, Failures};
use crate::kind::{Target, plural, singular};
use crate::print::Paint;
use crate::print::describe::node::NodePage;
use crate::print::describe::pod::PodPage;
use crate::records::key;
use crate::targets::strip_kind;
use crate::terminal::Terminal;

/// Shows a node or pod with everything that belongs to it
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// node or pod, or KIND/NAME
    #[arg(value_name = "KIND")]
    target: Target,

    /// Names of records
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let Target { kind, name } = &flags.target;
    if !matches!(kind, Kind::Node | Kind::Pod) {
        let failure = Failure::usage(format!(
            "{} have no page of their own: there is one for nodes and pods",
            plural(*kind)
        ));
        return Err(failure.hint(format!("`muster get {} NAME -o yaml` shows all of it", singular(*kind))));
    }
    let names = strip_kind(*kind, name.as_ref(), &flags.names)?;
    if names.is_empty() {
        let failure = Failure::usage(format!("which {}?", singular(*kind)));
        return Err(failure.hint(format!("`muster get {}` lists them", plural(*kind))));
    }
    let connection = flags.connection.settle()?;
    let (store, namespaces) = (connection.store()?, connection.namespaces(&flags.namespace));
    let terminal = Terminal::stdout();
    let mut failures = Failures::default();
    let mut follows = false;
    for name in names {
        let key = key(*kind, &name, &namespaces)?;
        let page = match kind {
            Kind::Pod => pod(&store, &key, terminal.paint).await,
            _ => node(&store, &key, terminal.paint).await,
        };
        if let Some(page) = failures.keep(page)? {
            terminal.say(&format!("{}{page}", if follows { "\n\n" } else { "" }))?;
            follows = true;
        }
    }
    failures.finish()
}

async fn node(store: &Store, key: &Key, paint: Paint) -> Result<String, Failure> {
    let lease = NODE_LEASE_NAMESPACE.parse().expect("a valid name");
    let lease = Key::namespaced(lease, key.name.clone());
    let pods =
        ListOptions { field_selector: format!("spec.nodeName={}", key.name), ..ListOptions::default() };
    // All at once: the page shows one moment, as nearly as it can.
    let asked = tokio::join!(
        store.client.get::<Node>(key),
        store.client.get::<Lease>(&lease),
        store.client.list::<Pod>(pods),
        store.client.list::<Event>(about(Kind::Node, key)),
    );
    let node = asked.0.at(&store.peer)?;
    let lease = match asked.1 {
        Ok(lease) => Some(lease),
        Err(ClientError::NotFound(_)) => None,
        Err(error) => return Err(store.peer.failure(error)),
    };
    let pods = asked.2.at(&store.peer)?.records;
    let events = of_this_very(&node, asked.3.at(&store.peer)?.records);
    let page = NodePage { node: &node, lease: lease.as_ref(), pods: &pods, events: &events };
    Ok(page.text(SystemClock::new().wall(), paint))
}

async fn pod(store: &Store, key: &Key, paint: Paint) -> Result<String, Failure> {
    let asked = tokio::join!(store.client.get::<Pod>(key), store.client.list::<Event>(about(Kind::Pod, key)));
    let pod = asked.0.at(&store.peer)?;
    let events = of_this_very(&pod, asked.1.at(&store.peer)?.records);
    Ok(PodPage { pod: &pod, events: &events }.text(SystemClock::new().wall(), paint))
}

/// Events about a record, whichever bearer of its name.
fn about(kind: Kind, key: &Key) -> ListOptions {
    let mut selector = format!("involvedObject.kind={kind},involvedObject.name={}", key.name);
    if let Some(namespace) = &key.namespace {
        selector.push_str(&format!(",involvedObject.namespace={namespace}"));
    }
    ListOptions { field_selector: selector, ..ListOptions::default() }
}

/// Without what happened to an earlier record of the same name.
fn of_this_very<R: Record>(record: &R, events: Vec<Event>) -> Vec<Event> {
    let own = |event: &Event| event.involved.uid.is_none() || event.involved.uid == record.meta().uid;
    events.into_iter().filter(own).collect()
}
