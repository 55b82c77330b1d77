//! Static pods: the pods that a directory of manifests on the node asks for, without the store.
//!
//! [`StaticPods`] folds in what was read and yields the pods, ready to run. A file that cannot be used costs no other
//! file, and what it held before stays: half a file, as an editor leaves it for a moment, must not stop a pod.

use std::collections::BTreeMap;

use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::taint::{TaintEffect, Toleration};
use muster_proto::wellknown::annotation;
use prost::Message;
use uuid::Uuid;

#[cfg(test)]
mod tests;

/// The namespace of static pods that name none.
pub const DEFAULT_NAMESPACE: &str = "default";
/// What the names of static pods are hashed under, so that their uids are no other uids.
const UID_NAMESPACE: Uuid = Uuid::from_u128(0x6d75_7374_6572_5374_8174_6963_506f_6473);

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenFile {
    pub file: String,
    pub reason: String,
    /// Whether the pods that the file held before keep running.
    pub keeps_pods: bool,
}

/// One file: its pods, and what is wrong with it now.
#[derive(Clone, Debug, Default)]
struct File {
    pods: Vec<Pod>,
    problem: Option<String>,
}

/// The static pods of a node, by file.
#[derive(Clone, Debug)]
pub struct StaticPods {
    node: Name,
    files: BTreeMap<String, File>,
}

impl StaticPods {
    pub fn new(node: Name) -> Self {
        Self { node, files: BTreeMap::new() }
    }

    /// Observes all files that there are: the pods of each, or why it cannot be read. Returns the files that are broken
    /// in a way that they were not broken before.
    pub fn observe(&mut self, found: BTreeMap<String, Result<Vec<Pod>, String>>) -> Vec<BrokenFile> {
        self.files.retain(|name, _| found.contains_key(name));
        let mut news = Vec::new();
        let mut keys: BTreeMap<Key, String> = BTreeMap::new();
        for (name, content) in found {
            let prepared = content.and_then(|pods| {
                let pods = pods.into_iter().map(|pod| prepare(pod, &self.node, &name));
                pods.collect::<Result<Vec<Pod>, String>>().and_then(|pods| without_namesakes(pods, &keys))
            });
            let file = self.files.entry(name.clone()).or_default();
            let problem = prepared.map(|pods| file.pods = pods).err();
            if let Some(reason) = problem.clone().filter(|_| problem != file.problem) {
                news.push(BrokenFile { file: name.clone(), reason, keeps_pods: !file.pods.is_empty() });
            }
            file.problem = problem;
            keys.extend(file.pods.iter().map(|pod| (Key::of(pod), name.clone())));
        }
        news
    }

    /// The pods to run.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.files.values().flat_map(|file| &file.pods)
    }

    /// How many files cannot be used.
    pub fn broken(&self) -> usize {
        self.files.values().filter(|file| file.problem.is_some()).count()
    }
}

/// Refuses pods whose name another file has, or another document of the same file.
fn without_namesakes(pods: Vec<Pod>, keys: &BTreeMap<Key, String>) -> Result<Vec<Pod>, String> {
    for (i, pod) in pods.iter().enumerate() {
        let key = Key::of(pod);
        if let Some(other) = keys.get(&key) {
            return Err(format!("the pod {key} is in {other} already"));
        }
        if pods[..i].iter().any(|earlier| Key::of(earlier) == key) {
            return Err(format!("the pod {key} is in it twice"));
        }
    }
    Ok(pods)
}

/// The pod as the node runs it: bound to it, named after it, and staying whatever taints the node gets.
fn prepare(mut pod: Pod, node: &Name, file: &str) -> Result<Pod, String> {
    let references = pod.references();
    for (what, is_unused) in [
        ("a secret", references.secrets.is_empty()),
        ("a config map", references.config_maps.is_empty()),
        ("a service account", references.service_account.is_none()),
        ("a persistent volume claim", references.claims.is_empty()),
    ] {
        if !is_unused {
            return Err(format!("the pod {} refers to {what}, which a static pod cannot", pod.meta.name));
        }
    }
    if let Some(other) = pod.spec.node_name.as_ref().filter(|other| *other != node) {
        return Err(format!("the pod {} is bound to {other}, and this node is {node}", pod.meta.name));
    }
    let name = format!("{}-{node}", pod.meta.name);
    pod.meta.name = name.parse().map_err(|error| format!("the name {name} {error}"))?;
    pod.spec.node_name = Some(node.clone());
    pod.spec.tolerations.push(Toleration::exists("", TaintEffect::NoExecute));
    let uid = uid_of(&pod, file);
    pod.meta.uid = Some(uid);
    pod.meta.resource_version = 0;
    pod.meta.generation = 1;
    let annotations = &mut pod.meta.annotations;
    annotations.remove(annotation::MIRROR);
    annotations.insert(annotation::CONFIG_SOURCE.to_owned(), "file".to_owned());
    annotations.insert(annotation::CONFIG_HASH.to_owned(), uid.to_string());
    pod.status = Default::default();
    pod.status.qos_class = Some(pod.qos());
    Ok(pod)
}

/// The same for the same content of the same file on the same node, so that a restarted agent recognizes what runs; another
/// one when the content changed in any way that matters.
fn uid_of(pod: &Pod, file: &str) -> Uid {
    let mut content = file.as_bytes().to_vec();
    content.push(0);
    content.extend(pb::Pod::from(pod.clone()).encode_to_vec());
    Uid::new(Uuid::new_v5(&UID_NAMESPACE, &content))
}
