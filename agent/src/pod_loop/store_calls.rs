//! The actions that are calls of the store. They may take as long as the store does, so they run beside the loop.

use std::sync::Arc;

use muster_agent_core::pod_lifecycle::{Action, Outcome};
use muster_proto::key::Key;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_store_client::{ClientError, DeleteOptions, Preconditions, StoreClient};

/// The result of an action that ran beside the loop.
pub(super) struct CallResult {
    pub(super) action: Action,
    pub(super) outcome: Outcome,
    /// The node, if it was read: to be observed before the outcome.
    pub(super) node: Option<Box<Node>>,
}

/// Makes the call of an action. `pod` is the record that has the pod's status, if it is known; `node` is the key of this
/// node.
pub(super) async fn call(
    client: StoreClient,
    action: Action,
    pod: Option<Arc<Pod>>,
    node: Key,
) -> CallResult {
    if let Action::ReadNode { .. } = action {
        return match client.get(&node).await {
            Ok(node) => CallResult { action, outcome: Outcome::Done, node: Some(Box::new(node)) },
            Err(error) => CallResult { action, outcome: failed(&error), node: None },
        };
    }
    let outcome = match (&action, pod) {
        (Action::Report { if_version, status, .. }, Some(pod)) => {
            let mut wanted = Arc::unwrap_or_clone(pod);
            wanted.meta.resource_version = *if_version;
            wanted.status = (**status).clone();
            match client.update_status(wanted).await {
                Ok(stored) => Outcome::Stored(Box::new(stored)),
                Err(error) => refused(error),
            }
        }
        (Action::CreateMirror { mirror, .. }, _) => match client.create((**mirror).clone()).await {
            Ok(stored) => Outcome::Stored(Box::new(stored)),
            Err(error) => failed(&error),
        },
        (Action::Delete { key, uid } | Action::DeleteMirror { key, uid }, _) => {
            let preconditions = Preconditions { uid: Some(*uid), resource_version: None };
            let at_once = DeleteOptions { preconditions, grace_period_seconds: Some(0) };
            match client.delete::<Pod>(key, at_once).await {
                Ok(left) if left.meta.finalizers.is_empty() => Outcome::Gone,
                Ok(_) => Outcome::Done,
                Err(ClientError::Conflict(_)) => Outcome::Gone,
                Err(error) => refused(error),
            }
        }
        _ => Outcome::Gone,
    };
    CallResult { action, outcome, node: None }
}

fn refused(error: ClientError) -> Outcome {
    match error {
        ClientError::NotFound(_) => Outcome::Gone,
        ClientError::Conflict(_) => Outcome::Conflict,
        other => failed(&other),
    }
}

fn failed(error: &ClientError) -> Outcome {
    Outcome::Failed { message: error.to_string() }
}
