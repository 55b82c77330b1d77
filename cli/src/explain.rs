//! `muster explain`: why a node or a pod is as it is.

use muster_proto::pb;
use muster_proto::record::Kind;
use prost::Message;

use crate::connection::{At, ConnectionFlags, NamespaceFlags};
use crate::failure::{Failure, Failures};
use crate::kind::{Target, plural, singular};
use crate::print::document::{Language, document};
use crate::print::explain::{explanation, pod_explanation};
use crate::schema::message_to_json;
use crate::targets::strip_kind;
use crate::terminal::Terminal;

/// Says why a node or a pod is as it is, and what will happen to it when
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// node or pod, or node/NAME
    #[arg(value_name = "KIND")]
    target: Target,

    /// Names of nodes or pods
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    namespace: NamespaceFlags,

    /// Show all of it as a document instead
    #[arg(short, long, value_enum)]
    output: Option<Language>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let kind = flags.target.kind;
    if !matches!(kind, Kind::Node | Kind::Pod) {
        let failure = Failure::usage(format!("{} are not explained: nodes and pods are", plural(kind)));
        return Err(failure.hint("muster explain node NAME; it tells of the node's pods too"));
    }
    let names = strip_kind(kind, flags.target.name.as_ref(), &flags.names)?;
    if names.is_empty() {
        let failure = Failure::usage(format!("which {}?", singular(kind)));
        return Err(failure.hint(format!("`muster get {}` lists them", plural(kind))));
    }
    let connection = flags.connection.settle()?;
    let namespace = connection.namespaces(&flags.namespace).of(Kind::Pod).to_string();
    let controller = connection.controller()?;
    let mut service = controller.client.clone();
    let terminal = Terminal::stdout();
    let mut failures = Failures::default();
    let mut pages = Pages { language: flags.output, follows: false };
    for name in names {
        let page = if kind == Kind::Node {
            let request = controller.timed(pb::ExplainNodeRequest { name });
            let answer = service.explain_node(request).await.at(&controller.peer);
            let told = failures.keep(answer)?;
            told.map(|told| {
                pages.next("ExplainNodeResponse", told.get_ref(), |it| explanation(it, terminal.paint))
            })
        } else {
            let request = pb::ExplainPodRequest { namespace: namespace.clone(), name };
            let answer = service.explain_pod(controller.timed(request)).await.at(&controller.peer);
            let told = failures.keep(answer)?;
            told.map(|told| {
                pages.next("ExplainPodResponse", told.get_ref(), |it| pod_explanation(it, terminal.paint))
            })
        };
        if let Some(page) = page {
            terminal.say(&page)?;
        }
    }
    failures.finish()
}

/// Answers one below the other.
struct Pages {
    language: Option<Language>,
    /// Whether there is one above.
    follows: bool,
}

impl Pages {
    /// The text of the next answer.
    fn next<M: Message>(&mut self, message: &str, told: &M, page: impl Fn(&M) -> String) -> String {
        let follows = std::mem::replace(&mut self.follows, true);
        match self.language {
            Some(language) => document(&message_to_json(message, told), language, follows),
            None if follows => format!("\n\n{}", page(told)),
            None => page(told),
        }
    }
}
