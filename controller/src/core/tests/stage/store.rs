//! The store of the stage: what is written is checked as the store checks it, kept, and told.

use muster_proto::condition::ConditionStatus;
use muster_proto::key::Key;
use muster_proto::node::Node;
use muster_proto::pod::{Pod, PodCondition};
use muster_proto::record::Record;
use muster_proto::watch_event::WatchEvent;

use super::{Stage, applied, short};
use crate::core::News;
use crate::plan::{Action, Answer, Failure, Subject};

impl Stage {
    pub(super) fn write(&mut self, subject: &Subject, action: Action) -> Result<Answer, Failure> {
        match (action, subject) {
            (Action::UpdateNode(wanted), Subject::Node(name, _)) => {
                let held = self.nodes.get(name.as_str()).ok_or(Failure::Gone)?.clone();
                check(&held, &*wanted)?;
                self.note_taints(&held, &wanted);
                Ok(Answer::Node(Box::new(self.store_node(Node { status: held.status, ..*wanted }))))
            }
            (Action::UpdateNodeStatus(wanted), Subject::Node(name, _)) => {
                let held = self.nodes.get(name.as_str()).ok_or(Failure::Gone)?.clone();
                check(&held, &*wanted)?;
                let ready = wanted.condition("Ready").map(|ready| ready.status.to_string());
                self.note(format!("{} {name}", ready.unwrap_or_default()));
                Ok(Answer::Node(Box::new(self.store_node(Node { status: wanted.status, ..held }))))
            }
            (Action::UpdatePodStatus(wanted), Subject::Pod(key, _)) => {
                let held = self.pods.get(key).ok_or(Failure::Gone)?.clone();
                check(&held, &*wanted)?;
                self.note(format!("mark {}", key.name));
                Ok(Answer::Pod(Box::new(self.store_pod(Pod { status: wanted.status, ..held }))))
            }
            (Action::EndPod { mark, grace_period_seconds }, Subject::Pod(key, uid)) => {
                let mut held = self.pods.get(key).ok_or(Failure::Gone)?.clone();
                if held.meta.uid != Some(*uid) {
                    return Err(Failure::Gone);
                }
                if self.sure_of_itself {
                    let rooms = self.rooms();
                    assert!(!rooms.zones.is_disrupted(), "{} leaves while every zone is lost", key.name);
                    assert!(rooms.hold.until <= self.now().mono, "{} leaves during a hold", key.name);
                    assert!(self.heard, "{} leaves while the store is not heard", key.name);
                }
                if grace_period_seconds == Some(0) {
                    self.note(format!("remove {}", key.name));
                    return Ok(Answer::Pod(Box::new(self.drop_pod(key))));
                }
                self.note(format!("evict {}", key.name));
                held.meta.deletion_timestamp = Some(self.now().wall);
                held.meta.deletion_grace_period_seconds =
                    grace_period_seconds.or(held.spec.termination_grace_period_seconds);
                held.status.conditions.push(PodCondition {
                    kind: "DisruptionTarget".to_owned(),
                    status: ConditionStatus::True,
                    reason: mark.map(|mark| mark.reason).unwrap_or_default(),
                    message: String::new(),
                    last_probe_time: None,
                    last_transition_time: None,
                });
                Ok(Answer::Pod(Box::new(self.store_pod(held))))
            }
            (Action::BindPod { node }, Subject::Pod(key, _)) => {
                let mut held = self.pods.get(key).ok_or(Failure::Gone)?.clone();
                held.spec.node_name = Some(node);
                Ok(Answer::Pod(Box::new(self.store_pod(held))))
            }
            (action, subject) => panic!("nobody on this stage asks for {action:?} of {subject:?}"),
        }
    }

    pub(super) fn store_node(&mut self, mut node: Node) -> Node {
        self.version += 1;
        node.meta.resource_version = self.version;
        self.nodes.insert(node.meta.name.to_string(), node.clone());
        if self.heard {
            let now = self.now();
            self.core.observe(News::Node(applied(node.clone())), now);
        }
        node
    }

    pub(super) fn store_pod(&mut self, mut pod: Pod) -> Pod {
        self.version += 1;
        pod.meta.resource_version = self.version;
        self.pods.insert(Key::of(&pod), pod.clone());
        if self.heard {
            let now = self.now();
            self.core.observe(News::Pod(applied(pod.clone())), now);
        }
        pod
    }

    pub(super) fn drop_node(&mut self, name: &str) {
        let node = self.nodes.remove(name).unwrap();
        let gone = self.gone(node);
        if self.heard {
            self.core.observe(News::Node(gone), self.now());
        }
    }

    fn drop_pod(&mut self, key: &Key) -> Pod {
        let pod = self.pods.remove(key).unwrap();
        let gone = self.gone(pod.clone());
        if self.heard {
            self.core.observe(News::Pod(gone), self.now());
        }
        pod
    }

    fn gone<R: Record>(&mut self, record: R) -> WatchEvent<R> {
        self.version += 1;
        let (key, uid) = (Key::of(&record), record.meta().uid);
        WatchEvent::Gone { key, uid, revision: self.version, last: Some(record), traceparent: None }
    }

    fn note_taints(&mut self, before: &Node, after: &Node) {
        let taints = |node: &Node| -> Vec<String> {
            node.spec.taints.iter().map(|taint| short(&taint.to_string())).collect()
        };
        let (old, new) = (taints(before), taints(after));
        let name = before.meta.name.clone();
        for taint in new.iter().filter(|taint| !old.contains(taint)) {
            self.note(format!("+{taint} {name}"));
        }
        for taint in old.iter().filter(|taint| !new.contains(taint)) {
            self.note(format!("-{taint} {name}"));
        }
    }
}

fn check<R: Record>(held: &R, wanted: &R) -> Result<(), Failure> {
    let same = held.meta().uid == wanted.meta().uid
        && held.meta().resource_version == wanted.meta().resource_version;
    same.then_some(()).ok_or(Failure::Conflict)
}
