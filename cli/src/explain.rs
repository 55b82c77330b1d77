//! `muster explain node`: why a node is as it is.

use muster_proto::pb;
use muster_proto::record::Kind;

use crate::connection::{At, ConnectionFlags};
use crate::failure::{Failure, Failures};
use crate::kind::{Target, plural};
use crate::print::document::{Language, document};
use crate::print::explain::explanation;
use crate::schema::message_to_json;
use crate::targets::strip_kind;
use crate::terminal::Terminal;

/// Says why a node is as it is, and what will happen to it and its pods when
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// node, or node/NAME
    #[arg(value_name = "KIND")]
    target: Target,

    /// Names of nodes
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Show all of it as a document instead
    #[arg(short, long, value_enum)]
    output: Option<Language>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    if flags.target.kind != Kind::Node {
        let failure = Failure::usage(format!("{} are not explained: nodes are", plural(flags.target.kind)));
        return Err(failure.hint("muster explain node NAME; it tells of the node's pods too"));
    }
    let names = strip_kind(Kind::Node, flags.target.name.as_ref(), &flags.names)?;
    if names.is_empty() {
        return Err(Failure::usage("which node?").hint("`muster get nodes` lists them"));
    }
    let controller = flags.connection.settle()?.controller()?;
    let terminal = Terminal::stdout();
    let mut failures = Failures::default();
    let mut follows = false;
    for name in names {
        let request = controller.timed(pb::ExplainNodeRequest { name });
        let answer = controller.client.clone().explain_node(request).await.at(&controller.peer);
        if let Some(answer) = failures.keep(answer)? {
            let told = answer.get_ref();
            terminal.say(&match flags.output {
                Some(language) => document(&message_to_json("ExplainNodeResponse", told), language, follows),
                None if follows => format!("\n\n{}", explanation(told, terminal.paint)),
                None => explanation(told, terminal.paint),
            })?;
            follows = true;
        }
    }
    failures.finish()
}
