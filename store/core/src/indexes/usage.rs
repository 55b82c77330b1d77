//! How much is kept of each kind in each namespace, and of mirror pods by node.

use std::collections::HashMap;

use bytes::Bytes;
use muster_proto::record::Kind;

use crate::limits::{self, Amount, LimitExceeded, MIRROR_PODS_OF_NODE, Scope};
use crate::partial_decode;

/// What is kept.
#[derive(Debug, Default)]
pub struct Usage {
    namespaces: HashMap<Kind, HashMap<String, Amount>>,
    mirror_pods: HashMap<String, Amount>,
}

impl Usage {
    /// Refuses a record that would exceed a limit.
    pub fn check(
        &self,
        kind: Kind,
        namespace: &str,
        was: Option<&Bytes>,
        is: &Bytes,
    ) -> Result<(), LimitExceeded> {
        let exceeded = |scope, limit| LimitExceeded { kind, scope, limit };
        if let Some(limit) = limits::namespace_limit(kind) {
            let used = self.namespaces.get(&kind).and_then(|of_kind| of_kind.get(namespace));
            let used = used.copied().unwrap_or_default();
            limits::check(used, limit, was.map(|was| size(kind, was)), size(kind, is))
                .map_err(|limit| exceeded(Scope::Namespace(namespace.to_owned()), limit))?;
        }
        if kind == Kind::Pod
            && let Some(node) = partial_decode::mirror_node(is)
        {
            let used = self.mirror_pods.get(&node).copied().unwrap_or_default();
            limits::check(used, MIRROR_PODS_OF_NODE, was.map(Bytes::len), is.len())
                .map_err(|limit| exceeded(Scope::Node(node), limit))?;
        }
        Ok(())
    }

    /// Counts a change: `was` is the record before it, `is` the one after it.
    pub fn replace(&mut self, kind: Kind, namespace: &str, was: Option<&Bytes>, is: Option<&Bytes>) {
        if limits::namespace_limit(kind).is_some() {
            let of_kind = self.namespaces.entry(kind).or_default();
            let (was, is) = (was.map(|was| size(kind, was)), is.map(|is| size(kind, is)));
            replace(of_kind, namespace, was, is);
        }
        if kind == Kind::Pod {
            for (record, is_new) in [(was, false), (is, true)] {
                let mirror =
                    record.and_then(|record| Some((partial_decode::mirror_node(record)?, record.len())));
                if let Some((node, bytes)) = mirror {
                    let (was, is) = if is_new { (None, Some(bytes)) } else { (Some(bytes), None) };
                    replace(&mut self.mirror_pods, &node, was, is);
                }
            }
        }
    }
}

/// The size that counts. Renewals change a lease's size without a change of the lease, so leases count in number only.
fn size(kind: Kind, record: &Bytes) -> usize {
    if kind == Kind::Lease { 0 } else { record.len() }
}

fn replace(amounts: &mut HashMap<String, Amount>, key: &str, was: Option<usize>, is: Option<usize>) {
    if !amounts.contains_key(key) {
        amounts.insert(key.to_owned(), Amount::default());
    }
    if let Some(amount) = amounts.get_mut(key) {
        amount.replace(was, is);
        if amount.records == 0 {
            amounts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::pb;
    use muster_proto::wellknown::annotation;
    use prost::Message;

    use super::*;
    use crate::limits::Limit;

    fn pod(name: &str, mirror_of: Option<&str>) -> Bytes {
        let annotations = mirror_of.map(|_| (annotation::MIRROR.to_owned(), "hash".to_owned()));
        let metadata = pb::Metadata {
            name: name.to_owned(),
            annotations: annotations.into_iter().collect(),
            ..Default::default()
        };
        let spec = pb::PodSpec { node_name: mirror_of.unwrap_or("n1").to_owned(), ..Default::default() };
        pb::Pod { metadata: Some(metadata), spec: Some(spec), ..Default::default() }.encode_to_vec().into()
    }

    #[test]
    fn the_mirror_pods_of_a_node_are_limited() {
        let mut usage = Usage::default();
        for i in 0..MIRROR_PODS_OF_NODE.records {
            let mirror = pod(&i.to_string(), Some("n1"));
            assert_eq!(usage.check(Kind::Pod, "default", None, &mirror), Ok(()), "{i}");
            usage.replace(Kind::Pod, "default", None, Some(&mirror));
        }
        let more = pod("more", Some("n1"));
        let refused = usage.check(Kind::Pod, "default", None, &more).unwrap_err();
        assert_eq!((refused.scope, refused.limit), (Scope::Node("n1".into()), Limit::Records(1_000)));
        assert_eq!(usage.check(Kind::Pod, "default", None, &pod("other", Some("n2"))), Ok(()));
        assert_eq!(usage.check(Kind::Pod, "default", None, &pod("plain", None)), Ok(()), "not a mirror pod");
        let first = pod("0", Some("n1"));
        assert_eq!(usage.check(Kind::Pod, "default", Some(&first), &first), Ok(()), "an update");
        usage.replace(Kind::Pod, "default", Some(&first), None);
        assert_eq!(usage.check(Kind::Pod, "default", None, &more), Ok(()));
    }

    #[test]
    fn nothing_is_left_of_a_namespace_without_records() {
        let mut usage = Usage::default();
        let mirror = pod("a", Some("n1"));
        usage.replace(Kind::Pod, "default", None, Some(&mirror));
        usage.replace(Kind::Pod, "default", Some(&mirror), None);
        assert!(usage.namespaces[&Kind::Pod].is_empty() && usage.mirror_pods.is_empty());
    }
}
