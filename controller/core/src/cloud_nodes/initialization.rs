//! Nodes that wait to be described by the cloud, which they show by their `uninitialized` taint.
//!
//! What the cloud knows goes into the record in one write, which also takes the taint off; the addresses follow, since
//! they are part of the status. Without an answer the taint stays, and the cloud is asked again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::name::{Name, Uid};
use muster_proto::node::{AddressType, Node, NodeAddress};
use muster_proto::time::Mono;
use muster_proto::wellknown::label;
use muster_proto::wellknown::taint::UNINITIALIZED;

use super::{NodeKey, is_undescribed};
use crate::deadlines::Deadlines;
use crate::plan::{Action, Answer, CloudMachine, CloudQuestion, ControllerName, Failure, Plan, Subject, uid};
use crate::world::World;
use muster_proto::time::Now;

#[derive(Clone, Debug)]
pub(crate) struct Newcomers {
    nodes: HashMap<Uid, Newcomer>,
    /// Those for whom there is something to ask or to write. One question or write is in flight for all nodes together.
    due: Deadlines<NodeKey>,
}

#[derive(Clone, Debug)]
struct Newcomer {
    name: Name,
    stage: Stage,
}

#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// The cloud has not said anything of use; why it has not, if it was asked.
    Undescribed(Option<String>),
    /// The record is to be written.
    Described(Arc<CloudMachine>),
    /// The record is written, the addresses are not.
    Reachable(Arc<CloudMachine>),
}

impl Newcomers {
    pub(crate) fn new(period: Duration) -> Newcomers {
        Newcomers { nodes: HashMap::new(), due: Deadlines::new(Backoff::new(period, period)) }
    }

    pub(crate) fn busy_with(&self) -> Option<Uid> {
        self.due.in_flight().next().map(|(_, uid)| *uid)
    }

    pub(crate) fn stage(&self, uid: Uid) -> Option<&Stage> {
        self.nodes.get(&uid).map(|newcomer| &newcomer.stage)
    }

    /// What the record is to say of the machine.
    pub(crate) fn machine(&self, uid: Uid) -> Option<&CloudMachine> {
        match self.stage(uid)? {
            Stage::Described(machine) => Some(machine),
            Stage::Undescribed(_) | Stage::Reachable(_) => None,
        }
    }

    /// A node that is not being deleted.
    pub(crate) fn see(&mut self, node: &Node, now: Mono) {
        let uid = uid(&node.meta);
        let is_busy = self.busy_with() == Some(uid);
        match (self.nodes.get_mut(&uid).map(|newcomer| &mut newcomer.stage), is_undescribed(node)) {
            (None, true) => {
                let name = node.meta.name.clone();
                self.nodes.insert(uid, Newcomer { name, stage: Stage::Undescribed(None) });
                self.schedule(uid, now);
            }
            (Some(Stage::Undescribed(_)), false) => self.forget(uid),
            (Some(stage @ Stage::Described(_)), false) => {
                if let Stage::Described(machine) = stage {
                    *stage = Stage::Reachable(Arc::clone(machine));
                }
                self.schedule(uid, now);
            }
            // A write that met an older version may be tried again on this one.
            (Some(Stage::Reachable(_)), false) if !is_busy => {
                self.schedule(uid, now);
            }
            (Some(stage @ Stage::Reachable(_)), true) => {
                *stage = Stage::Undescribed(None);
                self.schedule(uid, now);
            }
            (None | Some(Stage::Reachable(_)), false) => {}
            (Some(Stage::Undescribed(_) | Stage::Described(_)), true) => {}
        }
    }

    pub(crate) fn forget(&mut self, uid: Uid) {
        if let Some(newcomer) = self.nodes.remove(&uid) {
            self.due.forget(&(newcomer.name, uid));
        }
    }

    pub(crate) fn decide(&mut self, busy: Option<Uid>, world: &World, now: Now, plan: &mut Plan) {
        while self.busy_with().is_none() {
            let due = self.due.iter().find(|(_, (_, uid))| Some(*uid) != busy);
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
                Stage::Described(_) => continue,
                Stage::Undescribed(_) => {
                    let (question, provider_id) = (CloudQuestion::Metadata, node.spec.provider_id.clone());
                    (Action::AskCloud { question, provider_id }, "no cloud has described the node yet")
                }
                Stage::Reachable(machine) => {
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
            plan.act(ControllerName::CloudNodes, Subject::of_node(node), action, why);
            self.due.begin(key);
        }
    }

    /// Whether the node's record should change for it.
    pub(crate) fn settle(&mut self, uid: Uid, result: &Result<Answer, Failure>, now: Mono) -> bool {
        let Some(key) = self.due.in_flight().find(|(_, busy)| *busy == uid).cloned() else { return false };
        let Some(newcomer) = self.nodes.get_mut(&uid) else {
            self.due.succeed(&key);
            return false;
        };
        match (&newcomer.stage, result) {
            (Stage::Undescribed(_), Ok(Answer::Machine(machine))) => {
                newcomer.stage = Stage::Described(Arc::new((**machine).clone()));
                self.due.succeed(&key);
                return true;
            }
            (Stage::Reachable(_), Ok(_)) => {
                self.due.succeed(&key);
                self.forget(uid);
            }
            (Stage::Undescribed(_), failure) => {
                newcomer.stage = Stage::Undescribed(Some(reason(failure)));
                self.due.fail(&key, now);
            }
            (Stage::Reachable(_), Err(_)) => drop(self.due.fail(&key, now)),
            (Stage::Described(_), _) => self.due.succeed(&key),
        }
        false
    }

    fn schedule(&mut self, uid: Uid, at: Mono) {
        if let Some(newcomer) = self.nodes.get(&uid) {
            self.due.schedule((newcomer.name.clone(), uid), at);
        }
    }
}

/// Writes all that the cloud knows into the record, and takes off the mark of those it does not know.
pub(crate) fn describe(node: &mut Node, machine: &CloudMachine) {
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

/// The cloud's addresses. Without any the node keeps its own; its name for itself it keeps unless the cloud has one.
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
