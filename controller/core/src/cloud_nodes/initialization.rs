//! New nodes that wait for the cloud's description of their machine; they have the `uninitialized` taint.
//!
//! The description goes into the record in one write, which also removes the taint; the addresses follow, since they
//! are part of the status. Without an answer the taint stays, and the cloud is asked again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::name::{Name, Uid};
use muster_proto::node::{AddressType, Node, NodeAddress};
use muster_proto::time::Mono;
use muster_proto::wellknown::label;
use muster_proto::wellknown::taint::UNINITIALIZED;

use super::{NodeKey, is_uninitialized};
use crate::deadlines::Deadlines;
use crate::decision::causes;
use crate::plan::{Action, Answer, CloudMachine, CloudQuestion, ControllerName, Failure, Plan, Subject, uid};
use crate::world::World;
use muster_proto::time::Now;

/// The nodes that are not fully initialized.
#[derive(Clone, Debug)]
pub(crate) struct Initialization {
    nodes: HashMap<Uid, UninitializedNode>,
    /// Nodes with something to ask or to write. At most one question or write is in flight for all nodes together.
    due: Deadlines<NodeKey>,
}

#[derive(Clone, Debug)]
struct UninitializedNode {
    name: Name,
    stage: InitializationStage,
}

/// How far the initialization of a node has come.
#[derive(Clone, Debug)]
pub(crate) enum InitializationStage {
    /// The cloud has not described the machine; the text says why, if it was asked.
    Unknown(Option<String>),
    /// The description is to be written into the record.
    Described(Arc<CloudMachine>),
    /// The description is written, the addresses are not.
    Initialized(Arc<CloudMachine>),
}

impl Initialization {
    pub(crate) fn new(period: Duration) -> Initialization {
        Initialization { nodes: HashMap::new(), due: Deadlines::new(Backoff::new(period, period)) }
    }

    /// The node with a question or write in flight.
    pub(crate) fn in_flight(&self) -> Option<Uid> {
        self.due.in_flight().next().map(|(_, uid)| *uid)
    }

    pub(crate) fn stage(&self, uid: Uid) -> Option<&InitializationStage> {
        self.nodes.get(&uid).map(|node| &node.stage)
    }

    /// The description that is to be written into the node's record.
    pub(crate) fn machine(&self, uid: Uid) -> Option<&CloudMachine> {
        match self.stage(uid)? {
            InitializationStage::Described(machine) => Some(machine),
            InitializationStage::Unknown(_) | InitializationStage::Initialized(_) => None,
        }
    }

    /// A node that is not being deleted has changed.
    pub(crate) fn observe(&mut self, node: &Node, now: Mono) {
        let uid = uid(&node.meta);
        let is_in_flight = self.in_flight() == Some(uid);
        match (self.nodes.get_mut(&uid).map(|node| &mut node.stage), is_uninitialized(node)) {
            (None, true) => {
                let name = node.meta.name.clone();
                self.nodes.insert(uid, UninitializedNode { name, stage: InitializationStage::Unknown(None) });
                self.schedule(uid, now);
            }
            (Some(InitializationStage::Unknown(_)), false) => self.forget(uid),
            (Some(stage @ InitializationStage::Described(_)), false) => {
                if let InitializationStage::Described(machine) = stage {
                    *stage = InitializationStage::Initialized(Arc::clone(machine));
                }
                self.schedule(uid, now);
            }
            // A write that conflicted with this version is tried again at once.
            (Some(InitializationStage::Initialized(_)), false) if !is_in_flight => {
                self.schedule(uid, now);
            }
            (Some(stage @ InitializationStage::Initialized(_)), true) => {
                *stage = InitializationStage::Unknown(None);
                self.schedule(uid, now);
            }
            (None | Some(InitializationStage::Initialized(_)), false) => {}
            (Some(InitializationStage::Unknown(_) | InitializationStage::Described(_)), true) => {}
        }
    }

    pub(crate) fn forget(&mut self, uid: Uid) {
        if let Some(node) = self.nodes.remove(&uid) {
            self.due.forget(&(node.name, uid));
        }
    }

    pub(crate) fn decide(&mut self, other_in_flight: Option<Uid>, world: &World, now: Now, plan: &mut Plan) {
        while self.in_flight().is_none() {
            let due = self.due.iter().find(|(_, (_, uid))| Some(*uid) != other_in_flight);
            let Some((at, key)) = due.map(|(at, key)| (at, key.clone())) else { return };
            if at > now.mono {
                return plan.wake_by(at);
            }
            self.due.cancel(&key);
            let (name, uid) = &key;
            let uid = *uid;
            let node = world.node(name.as_str()).filter(|node| node.meta.uid == Some(uid));
            let (Some(node), Some(stage)) = (node, self.stage(uid)) else { continue };
            let (action, why) = match stage {
                InitializationStage::Described(_) => continue,
                InitializationStage::Unknown(_) => {
                    let (question, provider_id) = (CloudQuestion::Metadata, node.spec.provider_id.clone());
                    (Action::AskCloud { question, provider_id }, "no cloud has described the node yet")
                }
                InitializationStage::Initialized(machine) => {
                    let addresses = addresses(node, machine);
                    if addresses == node.status.addresses {
                        self.forget(uid);
                        continue;
                    }
                    let mut node = Node::clone(node);
                    node.status.addresses = addresses;
                    (Action::UpdateNodeStatus(Box::new(node)), "the cloud knows the node's addresses")
                }
            };
            let cause = matches!(action, Action::UpdateNodeStatus(_)).then(causes::cloud_addresses);
            plan.act(ControllerName::CloudNodes, Subject::of_node(node), action, why, cause);
            self.due.begin(key);
        }
    }

    /// The outcome of a question or write. Returns whether the node's record should change.
    pub(crate) fn settle(&mut self, uid: Uid, result: &Result<Answer, Failure>, now: Mono) -> bool {
        let Some(key) = self.due.in_flight().find(|(_, in_flight)| *in_flight == uid).cloned() else {
            return false;
        };
        let Some(node) = self.nodes.get_mut(&uid) else {
            self.due.succeed(&key);
            return false;
        };
        match (&node.stage, result) {
            (InitializationStage::Unknown(_), Ok(Answer::Machine(machine))) => {
                node.stage = InitializationStage::Described(Arc::new((**machine).clone()));
                self.due.succeed(&key);
                return true;
            }
            (InitializationStage::Initialized(_), Ok(_)) => {
                self.due.succeed(&key);
                self.forget(uid);
            }
            (InitializationStage::Unknown(_), failure) => {
                node.stage = InitializationStage::Unknown(Some(reason(failure)));
                self.due.fail(&key, now);
            }
            (InitializationStage::Initialized(_), Err(_)) => drop(self.due.fail(&key, now)),
            (InitializationStage::Described(_), _) => self.due.succeed(&key),
        }
        false
    }

    fn schedule(&mut self, uid: Uid, at: Mono) {
        if let Some(node) = self.nodes.get(&uid) {
            self.due.schedule((node.name.clone(), uid), at);
        }
    }
}

/// Writes the cloud's description into the record and removes the `uninitialized` taint.
pub(crate) fn initialize(node: &mut Node, machine: &CloudMachine) {
    let CloudMachine { provider_id, instance_type, zone, region, addresses: _ } = machine;
    if node.spec.provider_id.is_empty() {
        node.spec.provider_id.clone_from(provider_id);
    }
    for (value, keys) in [
        (instance_type, [label::INSTANCE_TYPE, label::INSTANCE_TYPE_BETA]),
        (zone, [label::ZONE, label::ZONE_BETA]),
        (region, [label::REGION, label::REGION_BETA]),
    ] {
        for key in keys.into_iter().filter(|_| !value.is_empty()) {
            node.meta.labels.insert(key.to_owned(), value.clone());
        }
    }
    node.spec.taints.retain(|taint| taint.key != UNINITIALIZED);
}

/// The cloud's addresses. Without any the node keeps its own; it keeps its hostname unless the cloud has one.
fn addresses(node: &Node, machine: &CloudMachine) -> Vec<NodeAddress> {
    if machine.addresses.is_empty() {
        return node.status.addresses.clone();
    }
    let is_hostname = |address: &&NodeAddress| address.kind == AddressType::Hostname;
    let own = node.status.addresses.iter().filter(is_hostname);
    let kept = own.filter(|_| !machine.addresses.iter().any(|address| is_hostname(&address)));
    machine.addresses.iter().chain(kept).cloned().collect()
}

fn reason(result: &Result<Answer, Failure>) -> String {
    match result {
        Ok(_) => "it answered something else".to_owned(),
        Err(Failure::Gone) => "it knows no such machine".to_owned(),
        Err(failure) => super::machine_checks::text(failure),
    }
}
