//! What `muster up` says once everything listens.

use std::fmt;
use std::net::SocketAddr;

use super::command_line::Muster;
use super::components::{Addresses, OwnAgent};
use super::data_dir::Place;

/// What runs, where, and what to try.
pub(super) struct Greeting<'a> {
    pub(super) store: Addresses,
    pub(super) controller: Addresses,
    pub(super) agent: Option<&'a OwnAgent>,
    pub(super) simulation: Option<SocketAddr>,
    pub(super) place: &'a Place,
    pub(super) muster: Muster<'a>,
}

impl fmt::Display for Greeting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Greeting { store, controller, agent, simulation, place, muster } = self;
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
        writeln!(f, "  records    {place}")?;
        writeln!(f)?;
        writeln!(f, "Try in another terminal:")?;
        writeln!(f)?;
        writeln!(f, "  {}", muster.line("get nodes"))?;
        writeln!(f, "  {}", muster.line("fleet"))?;
        writeln!(f, "  {}   (a fleet of its own loses a node, a zone, all zones)", muster.alone("demo"))?;
        writeln!(f)?;
        writeln!(f, "ctrl-C stops it.")?;
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_rpc::tls::TlsFlags;

    #[test]
    fn it_says_what_listens_where_and_what_to_try() {
        let at =
            |grpc: &str, http: &str| Addresses { grpc: grpc.parse().unwrap(), http: http.parse().unwrap() };
        let place = Place::Kept("/somewhere".into());
        let tls = TlsFlags::default();
        let (store, controller) = (at("127.0.0.1:1", "127.0.0.1:2"), at("127.0.0.1:3", "127.0.0.1:4"));
        let agent = OwnAgent { addresses: at("127.0.0.1:5", "127.0.0.1:6"), node: "host".to_owned() };
        let muster = Muster {
            program: "muster".to_owned(),
            store: store.grpc,
            controller: controller.grpc,
            tls: &tls,
        };
        let simulation = "127.0.0.1:7".parse().ok();
        let greeting = Greeting { store, controller, agent: Some(&agent), simulation, place: &place, muster };
        insta::assert_snapshot!(greeting.to_string());
    }
}
