//! A store and one agent, whose node is `n1`.

use std::path::PathBuf;
use std::time::Duration;

use muster_proto::pb;
use tempfile::TempDir;
use tonic::Code;

use crate::agent_process::{AgentHost, AgentLaunch, AgentProcess, is_ready, node_where, pod_where};
use crate::api::Api;
use crate::store_process::{StoreLaunch, StoreProcess};
use crate::{Resource, eventually};

/// A store and the host of one agent. When it is dropped, all processes on that host are killed.
#[derive(Debug)]
pub struct SingleNodeCluster {
    pub store: StoreProcess,
    pub host: AgentHost,
    pub api: Api,
    _directory: TempDir,
}

impl SingleNodeCluster {
    /// Starts store and agent; returns when the node is ready.
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

    /// Waits until a condition holds for a pod; returns the pod.
    pub async fn pod_where(&self, name: &str, what: &str, holds: impl Fn(&pb::Pod) -> bool) -> pb::Pod {
        pod_where(&self.api, &format!("default/{name}"), what, holds).await
    }

    /// Waits until a pod's record is removed.
    pub async fn gone(&self, name: &str, within: Duration) {
        let path = format!("default/{name}");
        eventually(within, &format!("pod {name} is gone"), || async {
            matches!(self.api.get::<pb::Pod>(&path).await, Err(status) if status.code() == Code::NotFound)
                .then_some(())
        })
        .await;
    }

    /// The directory of a pod's container `main`.
    pub fn folder(&self, pod: &pb::Pod) -> PathBuf {
        self.host.file("state").join("runtime/pods").join(pod.uid()).join("main")
    }
}
