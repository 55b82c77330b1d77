//! `muster api-resources`: the kinds of records.

use muster_manifest::schema::API_VERSION;
use muster_proto::record::Kind;

use crate::failure::Failure;
use crate::kind::{plural, short_names};
use crate::print::Table;
use crate::terminal::Terminal;

/// Lists the kinds of records, with their short names and what can be done with them
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Print the table without headers
    #[arg(long)]
    no_headers: bool,
}

pub(crate) fn run(flags: &Flags) -> Result<(), Failure> {
    let headers = ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND", "VERBS"];
    let mut table = if flags.no_headers { Table::without_headers() } else { Table::new(headers) };
    for kind in Kind::ALL {
        let verbs = match kind {
            Kind::Event => "list,watch",
            Kind::JoinToken | Kind::Revocation => "create,delete,get,list,watch",
            Kind::CertificateRequest => "delete,get,list,watch",
            Kind::Node | Kind::Lease | Kind::Pod | Kind::DisruptionBudget | Kind::PriorityClass => {
                "create,delete,get,list,update,watch"
            }
        };
        let (name, kind_name) = (plural(kind).to_owned(), kind.to_string());
        let namespaced = kind.is_namespaced().to_string();
        table.push([
            name,
            short_names(kind).join(","),
            API_VERSION.to_owned(),
            namespaced,
            kind_name,
            verbs.to_owned(),
        ]);
    }
    let terminal = Terminal::stdout();
    terminal.print(&table.take(terminal.paint))
}
