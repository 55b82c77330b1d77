//! The agent of a pod: pod, then node, then the address that the node's status says.

use std::error::Error;

use muster_grpc::agent_service_client::AgentServiceClient;
use muster_proto::identity::ServerRole;
use muster_proto::key::Key;
use muster_proto::node::{AddressType, Node};
use muster_proto::pod::{Container, Pod};
use muster_rpc::tls::ClientTls;
use muster_store_client::ClientError;
use tonic::transport::Channel;

use super::{Connection, OrFailure, Peer, target};
use crate::failure::{Exit, Failure};

/// Chosen where a pod has several containers and none is named.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// A pod, and the agent that runs it.
#[derive(Clone, Debug)]
pub(crate) struct PodAgent {
    pub(crate) client: AgentServiceClient<Channel>,
    pub(crate) peer: Peer,
    pub(crate) pod: Pod,
    pub(crate) node: String,
}

impl Connection {
    /// Finds the agent of a pod and connects to it.
    pub(crate) async fn agent_of(&self, pod: &Key) -> Result<PodAgent, Failure> {
        let store = self.store()?;
        let pod: Pod = store.client.get(pod).await.or_failure(&store.peer)?;
        let Some(name) = pod.spec.node_name.clone() else {
            let failure = Failure::new(Exit::Refused, format!("pod {} has no node yet", pod.meta.name));
            return Err(failure.hint(format!("`muster explain pod {}` says why", pod.meta.name)));
        };
        let node: Node = store.client.get(&Key::node(name)).await.or_failure(&store.peer)?;
        let address = address(&node)?;
        let tls = if self.store_uses_tls { self.tls.read()? } else { None };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{address}");
        let settings = "the status of its node (muster-agent --listen and --node-ip)";
        let peer = Peer::agent(url.clone(), settings, self.timeout);
        let channel = self.connect(&url, &node, tls.as_ref(), &peer).await?;
        Ok(PodAgent { client: AgentServiceClient::new(channel), peer, pod, node: node.meta.name.to_string() })
    }

    /// Connects to the agent at that address. Its certificate must name the node: an address alone may have passed to another
    /// machine. That of `muster up` names the address.
    async fn connect(
        &self,
        url: &str,
        node: &Node,
        tls: Option<&ClientTls>,
        peer: &Peer,
    ) -> Result<Channel, Failure> {
        let by_node = tls.map(|tls| tls.clone().server_name(node.meta.name.as_str()));
        let connect = async |tls: Option<&ClientTls>| {
            let target = target(url, tls, ServerRole::Agent, self.timeout)
                .map_err(|reason| Failure::usage(format!("{url}: {reason}")))?;
            Ok::<_, Failure>(target.connect().await)
        };
        let mut connected = connect(by_node.as_ref()).await?;
        if let Err(error) = &connected
            && tls.is_some()
            && reason(error).contains("not valid for name")
            && let Ok(channel) = connect(tls).await?
        {
            connected = Ok(channel);
        }
        connected.map_err(|error| peer.failure(ClientError::Unavailable(reason(&error))))
    }
}

/// The innermost cause.
fn reason(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), reason)
}

/// Host and port of a node's agent.
fn address(node: &Node) -> Result<String, Failure> {
    let (name, status) = (&node.meta.name, &node.status);
    if status.agent_port == 0 {
        let failure =
            Failure::new(Exit::Refused, format!("the status of node {name} names no port of an agent"));
        return Err(failure.hint("simulated nodes have no agent, and their pods no processes"));
    }
    let by_kind = |kind| status.addresses.iter().find(move |address| address.kind == kind);
    let known =
        [AddressType::InternalIp, AddressType::ExternalIp, AddressType::InternalDns, AddressType::Hostname];
    let host = match status.agent_address.as_str() {
        "" => known.into_iter().find_map(by_kind).map(|address| address.address.as_str()),
        only => Some(only),
    };
    let host = host.ok_or_else(|| {
        let failure = Failure::new(Exit::Refused, format!("the status of node {name} names no address"));
        failure.hint("muster-agent --node-ip sets it")
    })?;
    Ok(if host.contains(':') {
        format!("[{host}]:{}", status.agent_port)
    } else {
        format!("{host}:{}", status.agent_port)
    })
}

impl PodAgent {
    /// The container that is meant, and what to say if it was chosen among several.
    pub(crate) fn container(&self, named: Option<&str>) -> Result<(String, Option<String>), Failure> {
        container(&self.pod, named)
    }
}

fn container(pod: &Pod, named: Option<&str>) -> Result<(String, Option<String>), Failure> {
    let names = || {
        let of = |containers: &[Container], mark: &str| -> Vec<String> {
            containers.iter().map(|container| format!("{}{mark}", container.name)).collect()
        };
        [of(&pod.spec.containers, ""), of(&pod.spec.init_containers, " (init)")].concat().join(", ")
    };
    if let Some(name) = named {
        if pod.spec.all_containers().any(|container| container.name == name) {
            return Ok((name.to_owned(), None));
        }
        let failure = Failure::new(Exit::NotFound, format!("pod {} has no container {name}", pod.meta.name));
        return Err(failure.hint(format!("it has {}", names())));
    }
    let annotated = pod.meta.annotations.get(DEFAULT_CONTAINER);
    let annotated = annotated.filter(|name| pod.spec.all_containers().any(|it| it.name == **name));
    let first = pod.spec.containers.first().map(|container| container.name.clone());
    let name = annotated.cloned().or(first).unwrap_or_default();
    let is_only = pod.spec.all_containers().count() == 1;
    let said = (!is_only && annotated.is_none())
        .then(|| format!("Defaulted container \"{name}\" out of: {}", names()));
    Ok((name, said))
}

#[cfg(test)]
mod tests {
    use muster_proto::node::NodeAddress;

    use super::*;
    use crate::samples;

    #[test]
    fn an_agent_is_called_where_its_nodes_status_says() {
        let mut node = samples::node();
        node.meta.name = "n1".parse().unwrap();
        node.status.addresses.clear();
        node.status.agent_port = 0;
        let of = |node: &Node| address(node).map_err(|failure| failure.report("logs"));
        assert!(of(&node).unwrap_err().contains("node n1 names no port"));
        node.status.agent_port = 7600;
        assert!(of(&node).unwrap_err().contains("names no address"));
        for (kind, address, expected) in [
            (AddressType::Hostname, "n1", "n1:7600"),
            (AddressType::ExternalIp, "192.0.2.1", "192.0.2.1:7600"),
            (AddressType::InternalIp, "fd00::5", "[fd00::5]:7600"),
        ] {
            node.status.addresses.push(NodeAddress { kind, address: address.to_owned() });
            assert_eq!(of(&node).unwrap(), expected);
        }
        node.status.agent_address = "127.0.0.1".to_owned();
        assert_eq!(of(&node).unwrap(), "127.0.0.1:7600", "it listens nowhere else");
    }

    #[test]
    fn a_container_is_chosen_as_kubectl_chooses() {
        let mut pod = samples::pod();
        let names: Vec<String> = pod.spec.containers.iter().map(|it| it.name.clone()).collect();
        let (name, said) = container(&pod, None).unwrap();
        assert_eq!(name, names[0]);
        assert!(said.unwrap().starts_with(&format!("Defaulted container \"{name}\" out of: {name}, ")));
        assert_eq!(container(&pod, Some(&names[1])).unwrap(), (names[1].clone(), None));
        let refused = container(&pod, Some("nix")).unwrap_err().report("logs");
        assert!(refused.contains("has no container nix\nhint: it has "), "{refused}");
        pod.meta.annotations.insert(DEFAULT_CONTAINER.to_owned(), names[1].clone());
        assert_eq!(container(&pod, None).unwrap(), (names[1].clone(), None));
        pod.meta.annotations.clear();
        pod.spec.containers.truncate(1);
        pod.spec.init_containers.clear();
        assert_eq!(container(&pod, None).unwrap(), (names[0].clone(), None));
    }
}
