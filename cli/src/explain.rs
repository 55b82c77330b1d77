//! `muster explain`: the controller's explanation of the state of a node or a pod.

use muster_proto::pb;
use muster_proto::record::Kind;
use prost::Message;

use crate::connection::{ConnectionFlags, NamespaceFlags, OrFailure};
use crate::failure::{Failure, Failures};
use crate::print::document::{Language, document};
use crate::print::explain::{explanation, pod_explanation};
use crate::schema::message_to_json;
use crate::targets::NodeOrPodFlags;
use crate::terminal::Terminal;

/// Explains why a node or a pod is in its state, what the controller will do next, and when
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    targets: NodeOrPodFlags,

    #[command(flatten)]
    namespace: NamespaceFlags,

    /// Print the whole answer as a document
    #[arg(short, long, value_enum)]
    output: Option<Language>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let (kind, names) = (flags.targets.kind(), flags.targets.names()?);
    let connection = flags.connection.resolve()?;
    let namespace = connection.namespaces(&flags.namespace).of(Kind::Pod).to_string();
    let controller = connection.controller()?;
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
                pages.next("ExplainNodeResponse", answer.get_ref(), |it| explanation(it, terminal.paint))
            })
        } else {
            let request = pb::ExplainPodRequest { namespace: namespace.clone(), name };
            let answer =
                service.explain_pod(controller.with_timeout(request)).await.or_failure(&controller.peer);
            let answer = failures.keep(answer)?;
            answer.map(|answer| {
                pages.next("ExplainPodResponse", answer.get_ref(), |it| pod_explanation(it, terminal.paint))
            })
        };
        if let Some(page) = page {
            terminal.print(&page)?;
        }
    }
    failures.finish()
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
