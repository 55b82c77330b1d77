//! What is served: groups, resources, their verbs and subresources. Discovery, paths and OpenAPI are made of this.

use muster_proto::record::Kind;

/// A kind of object under one group and version. The version is always `v1`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// Empty for the first group, whose paths begin with `/api`.
    pub(crate) group: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    pub(crate) namespaced: bool,
    pub(crate) verbs: &'static [&'static str],
    pub(crate) subresources: &'static [Subresource],
    pub(crate) source: Source,
}

/// Where the objects come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Record(Kind),
    /// The namespaces that records are in.
    Namespaces,
    /// There are none: clients ask for them all the same.
    Nothing,
    /// A question about the caller, which is answered and not kept.
    Review(Review),
}

/// What a review asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    Access,
    Rules,
    Caller,
}

/// A part or an action of an object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Subresource {
    pub(crate) name: &'static str,
    /// Group and kind of what is sent and answered; `None` for those of the resource.
    pub(crate) other: Option<(&'static str, &'static str)>,
    pub(crate) verbs: &'static [&'static str],
}

const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
// The store names and counts events itself, and removes them when they are old.
const EVENT_VERBS: &[&str] = &["create", "get", "list", "patch", "watch"];

const STATUS: Subresource = Subresource { name: "status", other: None, verbs: &["get", "patch", "update"] };

/// Everything that is served.
pub(crate) const RESOURCES: &[Resource] = &[
    Resource {
        group: "",
        plural: "events",
        singular: "event",
        kind: "Event",
        short_names: &["ev"],
        categories: &[],
        namespaced: true,
        verbs: EVENT_VERBS,
        subresources: &[],
        source: Source::Record(Kind::Event),
    },
    Resource {
        group: "",
        plural: "namespaces",
        singular: "namespace",
        kind: "Namespace",
        short_names: &["ns"],
        categories: &[],
        namespaced: false,
        verbs: &["get", "list"],
        subresources: &[],
        source: Source::Namespaces,
    },
    Resource {
        group: "",
        plural: "nodes",
        singular: "node",
        kind: "Node",
        short_names: &["no"],
        categories: &[],
        namespaced: false,
        verbs: ALL,
        subresources: &[STATUS],
        source: Source::Record(Kind::Node),
    },
    Resource {
        group: "",
        plural: "pods",
        singular: "pod",
        kind: "Pod",
        short_names: &["po"],
        categories: &["all"],
        namespaced: true,
        verbs: ALL,
        subresources: &[
            STATUS,
            Subresource { name: "binding", other: Some(("", "Binding")), verbs: &["create"] },
            Subresource { name: "eviction", other: Some(("policy", "Eviction")), verbs: &["create"] },
        ],
        source: Source::Record(Kind::Pod),
    },
    Resource {
        group: "",
        plural: "services",
        singular: "service",
        kind: "Service",
        short_names: &["svc"],
        categories: &[],
        namespaced: true,
        verbs: &["list"],
        subresources: &[],
        source: Source::Nothing,
    },
    Resource {
        group: "authentication.k8s.io",
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        kind: "SelfSubjectReview",
        short_names: &[],
        categories: &[],
        namespaced: false,
        verbs: &["create"],
        subresources: &[],
        source: Source::Review(Review::Caller),
    },
    Resource {
        group: "authorization.k8s.io",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        kind: "SelfSubjectAccessReview",
        short_names: &[],
        categories: &[],
        namespaced: false,
        verbs: &["create"],
        subresources: &[],
        source: Source::Review(Review::Access),
    },
    Resource {
        group: "authorization.k8s.io",
        plural: "selfsubjectrulesreviews",
        singular: "selfsubjectrulesreview",
        kind: "SelfSubjectRulesReview",
        short_names: &[],
        categories: &[],
        namespaced: false,
        verbs: &["create"],
        subresources: &[],
        source: Source::Review(Review::Rules),
    },
    Resource {
        group: "coordination.k8s.io",
        plural: "leases",
        singular: "lease",
        kind: "Lease",
        short_names: &[],
        categories: &[],
        namespaced: true,
        verbs: ALL,
        subresources: &[],
        source: Source::Record(Kind::Lease),
    },
    Resource {
        group: "events.k8s.io",
        plural: "events",
        singular: "event",
        kind: "Event",
        short_names: &["ev"],
        categories: &[],
        namespaced: true,
        verbs: EVENT_VERBS,
        subresources: &[],
        source: Source::Record(Kind::Event),
    },
    Resource {
        group: "policy",
        plural: "poddisruptionbudgets",
        singular: "poddisruptionbudget",
        kind: "PodDisruptionBudget",
        short_names: &["pdb"],
        categories: &[],
        namespaced: true,
        verbs: ALL,
        subresources: &[Subresource { name: "status", other: None, verbs: &["get"] }],
        source: Source::Record(Kind::DisruptionBudget),
    },
];

impl Resource {
    /// Such as `v1` or `policy/v1`.
    pub(crate) fn group_version(&self) -> String {
        group_version(self.group)
    }

    /// The name of the resource in messages, such as `leases.coordination.k8s.io`.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    pub(crate) fn allows(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    pub(crate) fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|sub| sub.name == name)
    }
}

/// Such as `v1` or `policy/v1`.
pub(crate) fn group_version(group: &str) -> String {
    if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") }
}

/// The named groups, in order.
pub(crate) fn groups() -> Vec<&'static str> {
    let mut groups: Vec<_> =
        RESOURCES.iter().map(|resource| resource.group).filter(|group| !group.is_empty()).collect();
    groups.dedup();
    groups
}

/// The resources of a group, in order.
pub(crate) fn of_group(group: &str) -> impl Iterator<Item = &'static Resource> {
    RESOURCES.iter().filter(move |resource| resource.group == group)
}

/// The resource of this group and plural name.
pub(crate) fn find(group: &str, plural: &str) -> Option<&'static Resource> {
    of_group(group).find(|resource| resource.plural == plural)
}
