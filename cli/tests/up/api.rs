//! Waits for the state of nodes and pods, and writes pods, through the store's API.

use std::time::Duration;

use muster_grpc::node_service_client::NodeServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use muster_proto::pb;
use tonic::Code;
use tonic::transport::Channel;

use crate::process::TIMEOUT;

/// Repeats a question until it has an answer.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let polling = async {
        loop {
            match ask().await {
                Some(answer) => return answer,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let answer = tokio::time::timeout(TIMEOUT, polling).await;
    answer.unwrap_or_else(|_| panic!("did not happen: {what}"))
}

/// The status of a node's Ready condition in the store.
pub(crate) async fn ready(nodes: &NodeServiceClient<Channel>, name: &str) -> String {
    let request = pb::GetNodeRequest { name: name.to_owned() };
    let node = nodes.clone().get_node(request).await.unwrap().into_inner().node.unwrap();
    let conditions = node.status.unwrap_or_default().conditions;
    conditions.into_iter().find(|found| found.r#type == "Ready").map(|found| found.status).unwrap_or_default()
}

pub(crate) async fn wait_for_ready(nodes: &NodeServiceClient<Channel>, name: &str, wanted: &str) {
    let has_status = || async { (ready(nodes, name).await == wanted).then_some(()) };
    eventually(&format!("the Ready condition of {name} becomes {wanted}"), has_status).await;
}

/// A pod bound to a node.
pub(crate) fn pod(name: &str, node: &str, command: &[&str]) -> pb::Pod {
    let container = pb::Container {
        name: "main".into(),
        image: "none".into(),
        command: command.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    let metadata = pb::Metadata { name: name.into(), namespace: "default".into(), ..Default::default() };
    let spec = pb::PodSpec { node_name: node.into(), containers: vec![container], ..Default::default() };
    pb::Pod { metadata: Some(metadata), spec: Some(spec), status: None }
}

pub(crate) async fn create(pods: &PodServiceClient<Channel>, pod: pb::Pod) {
    pods.clone().create_pod(pb::CreatePodRequest { pod: Some(pod) }).await.unwrap();
}

/// The pod; `None` if it does not exist.
pub(crate) async fn find(pods: &PodServiceClient<Channel>, name: &str) -> Option<pb::Pod> {
    let request = pb::GetPodRequest { namespace: "default".into(), name: name.into() };
    match pods.clone().get_pod(request).await {
        Ok(answer) => answer.into_inner().pod,
        Err(status) if status.code() == Code::NotFound => None,
        Err(status) => panic!("{status}"),
    }
}

pub(crate) async fn wait_until_running(pods: &PodServiceClient<Channel>, name: &str) {
    let is_running = || async {
        let status = find(pods, name).await?.status?;
        let is_ready =
            status.conditions.iter().any(|found| found.r#type == "Ready" && found.status == "True");
        (status.phase == "Running" && is_ready).then_some(())
    };
    eventually(&format!("{name} runs"), is_running).await;
}

pub(crate) async fn delete(pods: &PodServiceClient<Channel>, name: &str) {
    let request =
        pb::DeletePodRequest { namespace: "default".into(), name: name.into(), ..Default::default() };
    pods.clone().delete_pod(request).await.unwrap();
}

pub(crate) async fn wait_until_gone(pods: &PodServiceClient<Channel>, name: &str) {
    let is_gone = || async { find(pods, name).await.is_none().then_some(()) };
    eventually(&format!("{name} is deleted"), is_gone).await;
}
