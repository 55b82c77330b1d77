//! What the methods of a schema do, by their names: verb, kind, and whether they write. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use muster_proto::record::Kind;
use prost::Message;
use prost_types::FileDescriptorSet;

/// The effect of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    /// Renews leases. Every agent does it every few seconds, so it is not logged.
    Renewal,
    Write,
}

/// A method of the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    /// Such as `muster.v1.NodeService`.
    pub(crate) service: String,
    /// Such as `UpdateNodeStatus`.
    pub(crate) name: String,
    /// Such as `update_status`.
    pub(crate) verb: String,
    /// The kind of its records; `None` for a method that is not about records.
    pub(crate) kind: Option<Kind>,
    pub(crate) effect: Effect,
}

impl Method {
    fn new(service: &str, name: &str) -> Method {
        let word = name.char_indices().skip(1).find(|(_, letter)| letter.is_ascii_uppercase());
        let (verb, object) = word.map_or((name, ""), |(end, _)| name.split_at(end));
        let effect = match verb {
            "Get" | "List" | "Watch" | "Explain" => Effect::Read,
            "Renew" | "Heartbeat" => Effect::Renewal,
            _ => Effect::Write,
        };
        let kind = Kind::ALL.into_iter().find(|kind| object.starts_with(&kind.to_string()));
        let mut verb = verb.to_ascii_lowercase();
        if object.ends_with("Status") {
            verb.push_str("_status");
        }
        Method { service: service.to_owned(), name: name.to_owned(), verb, kind, effect }
    }
}

/// The methods of a schema by path, such as `/muster.v1.NodeService/GetNode`.
#[derive(Debug, Default)]
pub(crate) struct Methods(HashMap<String, Arc<Method>>);

impl Methods {
    /// `descriptors` is an encoded `FileDescriptorSet`.
    pub(crate) fn of(descriptors: &[u8]) -> Result<Methods, prost::DecodeError> {
        let schema = FileDescriptorSet::decode(descriptors)?;
        let mut methods = HashMap::new();
        for file in &schema.file {
            for service in &file.service {
                let full = format!("{}.{}", file.package(), service.name());
                for method in &service.method {
                    let path = format!("/{full}/{}", method.name());
                    methods.insert(path, Arc::new(Method::new(&full, method.name())));
                }
            }
        }
        Ok(Methods(methods))
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Arc<Method>> {
        self.0.get(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_described_by_its_name() {
        for (name, verb, kind, effect) in [
            ("GetNode", "get", Some(Kind::Node), Effect::Read),
            ("ListDisruptionBudgets", "list", Some(Kind::DisruptionBudget), Effect::Read),
            ("WatchLeases", "watch", Some(Kind::Lease), Effect::Read),
            ("ExplainPod", "explain", Some(Kind::Pod), Effect::Read),
            ("GetFleet", "get", None, Effect::Read),
            ("RenewLease", "renew", Some(Kind::Lease), Effect::Renewal),
            ("Heartbeat", "heartbeat", None, Effect::Renewal),
            ("CreatePod", "create", Some(Kind::Pod), Effect::Write),
            ("UpdatePodStatus", "update_status", Some(Kind::Pod), Effect::Write),
            ("EvictPod", "evict", Some(Kind::Pod), Effect::Write),
            ("RecordEvent", "record", Some(Kind::Event), Effect::Write),
            ("DrainNode", "drain", Some(Kind::Node), Effect::Write),
            ("CreateJoinToken", "create", Some(Kind::JoinToken), Effect::Write),
            ("ListPriorityClasses", "list", Some(Kind::PriorityClass), Effect::Read),
            ("ApproveCertificateRequest", "approve", Some(Kind::CertificateRequest), Effect::Write),
            ("Join", "join", None, Effect::Write),
        ] {
            let method = Method::new("muster.v1.S", name);
            assert_eq!((method.verb.as_str(), method.kind, method.effect), (verb, kind, effect), "{name}");
        }
    }

    /// A new method that is taken for a read by its name would not be logged.
    #[test]
    fn these_methods_of_the_store_and_the_controller_are_not_logged() {
        let methods = Methods::of(muster_proto::DESCRIPTORS).unwrap();
        let mut unlogged: Vec<&str> = methods
            .0
            .values()
            .filter(|method| method.effect != Effect::Write)
            .filter(|method| !method.service.contains("Agent") && !method.service.contains("Cloud"))
            .map(|method| method.name.as_str())
            .collect();
        unlogged.sort_unstable();
        assert_eq!(
            unlogged,
            [
                "ExplainNode",
                "ExplainPod",
                "GetAuthorities",
                "GetCertificateRequest",
                "GetDisruptionBudget",
                "GetFleet",
                "GetJoinToken",
                "GetLease",
                "GetNode",
                "GetPod",
                "GetPriorityClass",
                "GetRevocation",
                "GetStoreStatus",
                "Heartbeat",
                "ListCertificateRequests",
                "ListDecisions",
                "ListDisruptionBudgets",
                "ListEvents",
                "ListJoinTokens",
                "ListLeases",
                "ListNodes",
                "ListPods",
                "ListPriorityClasses",
                "ListRevocations",
                "RenewLease",
                "WatchCertificateRequests",
                "WatchDecisions",
                "WatchDisruptionBudgets",
                "WatchEvents",
                "WatchFleet",
                "WatchJoinTokens",
                "WatchLeases",
                "WatchNodes",
                "WatchPods",
                "WatchPriorityClasses",
                "WatchRevocations",
            ]
        );
    }
}
