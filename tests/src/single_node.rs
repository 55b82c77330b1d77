//! A store, and one machine with an agent: the node `n1`.

use std::path::PathBuf;
use std::time::Duration;

use muster_proto::pb;
use tempfile::TempDir;
use tonic::Code;

use crate::agent_process::{AgentHost, AgentLaunch, AgentProcess, is_ready, node_where, pod_where};
use crate::api::Api;
use crate::store_process::{StoreLaunch, StoreProcess};
use crate::{Resource, eventually};

/// The store and where the agent lives; what runs there ends with it.
#[derive(Debug)]
pub struct SingleNodeCluster {
    pub store: StoreProcess,
    pub host: AgentHost,
    pub api: Api,
    _directory: TempDir,
}

impl SingleNodeCluster {
    /// With an agent whose node is ready.
    pub async fn new() -> (SingleNodeCluster, AgentProcess) {
        let directory = tempfile::tempdir().expect("a directory for a store");
        let store = StoreLaunch::on(directory.path()).start();
        let (api, host) = (store.api(), AgentHost::new());
        let cluster = SingleNodeCluster { store, host, api, _directory: directory };
        let agent = cluster.agent().await;
        (cluster, agent)
    }

    /// How to start the agent.
    pub fn launch(&self) -> AgentLaunch {
        self.host.agent("n1", &self.store.url())
    }

    /// Starts the agent and waits until its node is ready.
    pub async fn agent(&self) -> AgentProcess {
        let agent = self.launch().start();
        node_where(&self.api, "n1", "it is ready", is_ready).await;
        agent
    }

    /// The pod once something holds of it.
    pub async fn pod_where(&self, name: &str, what: &str, holds: impl Fn(&pb::Pod) -> bool) -> pb::Pod {
        pod_where(&self.api, &format!("default/{name}"), what, holds).await
    }

    /// Returns once a pod's record is gone.
    pub async fn gone(&self, name: &str, within: Duration) {
        let path = format!("default/{name}");
        eventually(within, &format!("pod {name} is gone"), || async {
            matches!(self.api.get::<pb::Pod>(&path).await, Err(status) if status.code() == Code::NotFound)
                .then_some(())
        })
        .await;
    }

    /// Where the files of a pod's container `main` are.
    pub fn folder(&self, pod: &pb::Pod) -> PathBuf {
        self.host.file("state").join("runtime/pods").join(pod.uid()).join("main")
    }
}
