//! `muster explain`: the controller's explanation of the state of a node or a pod.

use muster_proto::key::Key;
use muster_proto::name::Namespace;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;
use muster_rpc::clock::{Clock, SystemClock};
use prost::Message;

use crate::connection::{Connection, ConnectionFlags, NamespaceFlags, OrFailure};
use crate::failure::{Failure, Failures};
use crate::print::containers::failing;
use crate::print::document::{Language, document};
use crate::print::explain::{explanation, pod_explanation};
use crate::targets::ShownFlags;
use crate::terminal::Terminal;
use muster_manifest::schema::message_to_json;

/// Explains why a node or a pod is in its state, what the controller will do next, and when
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    targets: ShownFlags,

    #[command(flatten)]
    namespace: NamespaceFlags,

    /// Print the whole answer as a document
    #[arg(short, long, value_enum)]
    output: Option<Language>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let (kind, names) = (flags.targets.kind(), flags.targets.names(&[Kind::Node, Kind::Pod])?);
    let connection = flags.connection.resolve()?;
    let namespace = connection.namespaces(&flags.namespace).of(Kind::Pod);
    let controller = connection.controller().await?;
    let mut service = controller.client.clone();
    let terminal = Terminal::stdout();
    let mut failures = Failures::default();
    let mut pages = Pages { language: flags.output, is_first: true };
    for name in names {
        let page = if kind == Kind::Node {
            let request = controller.with_timeout(pb::ExplainNodeRequest { name });
            let answer = service.explain_node(request).await.or_failure(&controller.peer);
            let answer = failures.keep(answer)?;
            answer.map(|answer| {
                pages.next("ExplainNodeResponse", answer.get_ref(), |it| {
                    explanation(it, terminal.paint, terminal.width)
                })
            })
        } else {
            let failing = failing_containers(&connection, &namespace, &name, terminal).await;
            let request = pb::ExplainPodRequest { namespace: namespace.to_string(), name };
            let answer =
                service.explain_pod(controller.with_timeout(request)).await.or_failure(&controller.peer);
            let answer = failures.keep(answer)?;
            answer.map(|answer| {
                pages.next("ExplainPodResponse", answer.get_ref(), |it| {
                    pod_explanation(it, terminal.paint, terminal.width) + &failing
                })
            })
        };
        if let Some(page) = page {
            terminal.print(&page)?;
        }
    }
    failures.finish()
}

/// What the pod's record says about containers that fail. The controller's explanation is shown without it if the store
/// cannot be read.
async fn failing_containers(
    connection: &Connection,
    namespace: &Namespace,
    name: &str,
    terminal: Terminal,
) -> String {
    let pod = async {
        let key = Key::namespaced(namespace.clone(), name.parse().ok()?);
        connection.store().ok()?.client.get::<Pod>(&key).await.ok()
    };
    let now = SystemClock::new().wall();
    pod.await.map(|pod| failing(&pod, now, terminal.paint, terminal.width)).unwrap_or_default()
}

/// Formats the answers, with a separator between two of them.
struct Pages {
    language: Option<Language>,
    is_first: bool,
}

impl Pages {
    /// The text of the next answer.
    fn next<M: Message>(&mut self, message: &str, answer: &M, page: impl Fn(&M) -> String) -> String {
        let is_first = std::mem::replace(&mut self.is_first, false);
        match self.language {
            Some(language) => document(&message_to_json(message, answer), language, is_first),
            None if is_first => page(answer),
            None => format!("\n\n{}", page(answer)),
        }
    }
}
