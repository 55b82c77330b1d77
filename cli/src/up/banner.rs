//! The text that `muster up` prints when all components listen. Pure.

use std::fmt;
use std::net::SocketAddr;

use super::command_line::CommandLine;
use super::components::{Addresses, LocalAgent};
use super::data_dir::DataDir;
use crate::ui::PageAddress;

/// The addresses of the components, the data directory and commands to try.
pub(super) struct Banner<'a> {
    pub(super) store: Addresses,
    pub(super) kubernetes: Option<SocketAddr>,
    pub(super) controller: Addresses,
    pub(super) agent: Option<&'a LocalAgent>,
    pub(super) simulation: Option<SocketAddr>,
    pub(super) page: &'a PageAddress,
    pub(super) data_dir: &'a DataDir,
    pub(super) command_line: CommandLine<'a>,
}

impl Banner<'_> {
    /// Who may call the gRPC ports.
    fn who_may_call(&self) -> &'static str {
        let is_local = |at: Addresses| at.grpc.ip().to_canonical().is_loopback();
        if self.command_line.tls.tls_cert.is_some() {
            "The gRPC ports need a certificate, whose organisation decides what its holder may do."
        } else if is_local(self.store) && is_local(self.controller) {
            "The gRPC ports have no TLS: every user of this machine is an administrator there. --tls-cert changes that."
        } else {
            "The gRPC ports have no TLS: everybody who can reach them is an administrator. --tls-cert changes that."
        }
    }
}

impl fmt::Display for Banner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Banner { store, kubernetes, controller, agent, simulation, page, data_dir, command_line } = self;
        writeln!(f, "             gRPC              metrics and health")?;
        let mut line = |name: &str, at: &Addresses| {
            writeln!(
                f,
                "  {name:<10} {:<17} http://{}/metrics, /healthz, /readyz",
                at.grpc.to_string(),
                at.http
            )
        };
        line("store", store)?;
        line("controller", controller)?;
        if let Some(agent) = agent {
            line("agent", &agent.addresses)?;
        }
        if let Some(simulation) = simulation {
            writeln!(f, "  simulation http://{simulation}/simulation")?;
        }
        writeln!(f, "  page       {page}")?;
        if let Some(kubernetes) = kubernetes {
            // With certificates kubectl needs a file.
            let scheme = if command_line.tls.tls_cert.is_some() { "https" } else { "http" };
            let how = match scheme {
                "https" => "`muster config kubeconfig` writes a kubeconfig".to_owned(),
                _ => format!("kubectl --server=http://{kubernetes} get nodes"),
            };
            writeln!(f, "  kubernetes {:<17} {how}", format!("{scheme}://{kubernetes}"))?;
        }
        writeln!(f, "  records    {data_dir}")?;
        let sockets = data_dir.sockets();
        writeln!(f, "  sockets    {}, for you and root only", sockets.directory().display())?;
        writeln!(f)?;
        writeln!(f, "{}", self.who_may_call())?;
        writeln!(f)?;
        writeln!(f, "Commands to try in another terminal:")?;
        writeln!(f)?;
        writeln!(f, "  {}", command_line.with_connection("get nodes"))?;
        writeln!(f, "  {}", command_line.with_connection("fleet"))?;
        let demo = command_line.without_connection("demo");
        writeln!(f, "  {demo}   (starts a fleet of its own, and kills a node, a zone and all zones)")?;
        writeln!(f)?;
        writeln!(f, "Press ctrl-C to stop.")?;
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_rpc::tls::TlsFlags;

    #[test]
    fn the_banner_lists_addresses_and_commands_to_try() {
        let at =
            |grpc: &str, http: &str| Addresses { grpc: grpc.parse().unwrap(), http: http.parse().unwrap() };
        let data_dir = DataDir::Permanent("/somewhere".into());
        let tls = TlsFlags::default();
        let (store, controller) = (at("127.0.0.1:1", "127.0.0.1:2"), at("127.0.0.1:3", "127.0.0.1:4"));
        let agent = LocalAgent { addresses: at("127.0.0.1:5", "127.0.0.1:6"), node: "host".to_owned() };
        let command_line = CommandLine {
            program: "muster".to_owned(),
            store: store.grpc,
            controller: controller.grpc,
            tls: &tls,
        };
        let simulation = "127.0.0.1:7".parse().ok();
        let page = PageAddress::for_test("127.0.0.1:8".parse().unwrap());
        let kubernetes = "127.0.0.1:9".parse().ok();
        let banner = Banner {
            store,
            kubernetes,
            controller,
            agent: Some(&agent),
            simulation,
            page: &page,
            data_dir: &data_dir,
            command_line,
        };
        insta::assert_snapshot!(banner.to_string());
    }
}
