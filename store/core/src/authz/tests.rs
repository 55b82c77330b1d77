//! Scenarios 179 to 188 and 190, on the pure function. Each denied call is checked for the rule it violates.

use muster_proto::event::{EventType, ObjectReference};
use muster_proto::meta::OwnerReference;
use muster_proto::pb;
use muster_proto::pb::volume::Source;

use super::*;

const UID: &str = "8c2fd0a5-63b8-4a1f-9d0c-2f5e7f1b0a11";
const OTHER_UID: &str = "00000000-0000-4000-8000-000000000000";

fn node_a() -> Caller {
    Caller::Node("a".into())
}

fn call<'a>(verb: Verb, kind: Kind, namespace: &'a str, name: &'a str) -> Call<'a> {
    let given = |text: &'a str| Some(text).filter(|text| !text.is_empty());
    Call { verb, kind, namespace: given(namespace), name: given(name), field_selector: None }
}

fn metadata(namespace: &str, name: &str, labels: &[(&str, &str)]) -> pb::Metadata {
    let labels = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    pb::Metadata { name: name.into(), namespace: namespace.into(), labels, ..Default::default() }
}

fn node(name: &str, labels: &[(&str, &str)], taints: &[&str]) -> Node {
    let mut node =
        Node::try_from(pb::Node { metadata: Some(metadata("", name, labels)), ..Default::default() })
            .unwrap();
    node.spec.taints = taints.iter().map(|taint| taint.parse().unwrap()).collect();
    node
}

fn pod(node_name: &str) -> Pod {
    let container = pb::Container { name: "c".into(), ..Default::default() };
    let spec = pb::PodSpec { node_name: node_name.into(), containers: vec![container], ..Default::default() };
    let metadata = Some(metadata("x", "p", &[("app", "web")]));
    Pod::try_from(pb::Pod { metadata, spec: Some(spec), status: None }).unwrap()
}

fn owner(uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: "a".into(),
        uid: uid.into(),
        controller: true,
        block_owner_deletion: false,
    }
}

fn mirror_pod() -> Pod {
    let mut pod = pod("a");
    pod.meta.annotations.insert("kubernetes.io/config.mirror".into(), "hash".into());
    pod.meta.owner_references = vec![owner(UID)];
    pod
}

/// The rule that a call violates, if any.
fn violated(caller: &Caller, call: &Call<'_>, content: &Content<'_>) -> Option<Rule> {
    match authorize(caller, call, content) {
        Ok(()) => None,
        Err(Refused::Denied(denial)) => Some(denial.rule),
        Err(Refused::MissingNode(name)) => panic!("{name} is missing"),
    }
}

fn violated_by_node(verb: Verb, old: Option<&Node>, new: &Node) -> Option<Rule> {
    let call = call(verb, Kind::Node, "", new.meta.name.as_str());
    violated(&node_a(), &call, &Content::Node { old, new: Some(new) })
}

#[test]
fn s179_a_node_accesses_only_its_own_node() {
    for (verb, name, expected) in [
        (Verb::Create, "a", None),
        (Verb::Create, "b", Some(Rule::OwnNode)),
        (Verb::Update, "a", None),
        (Verb::Update, "b", Some(Rule::OwnNode)),
        (Verb::UpdateStatus, "a", None),
        (Verb::UpdateStatus, "b", Some(Rule::OwnNode)),
    ] {
        let record = node(name, &[], &[]);
        let old = Some(&record).filter(|_| verb != Verb::Create);
        assert_eq!(violated_by_node(verb, old, &record), expected, "{verb} {name}");
    }
    // The names in the call and in the record are both checked.
    let (own, other) = (call(Verb::Update, Kind::Node, "", "a"), node("b", &[], &[]));
    let content = Content::Node { old: None, new: Some(&other) };
    assert_eq!(violated(&node_a(), &own, &content), Some(Rule::OwnNode));

    let read = |verb, name| violated(&node_a(), &call(verb, Kind::Node, "", name), &Content::None);
    assert_eq!(read(Verb::Get, "a"), None, "also before it exists");
    assert_eq!(read(Verb::Get, "b"), Some(Rule::OwnNode));
    for verb in [Verb::List, Verb::Watch] {
        let all = call(verb, Kind::Node, "", "");
        let unselected = Some(Rule::OwnSelection { field: "metadata.name" });
        assert_eq!(violated(&node_a(), &all, &Content::None), unselected);
        for (name, expected) in [("a", None), ("b", unselected.clone())] {
            let selector = FieldSelector::equal("metadata.name", name);
            let call = Call { field_selector: Some(&selector), ..all };
            assert_eq!(violated(&node_a(), &call, &Content::None), expected);
        }
    }
}

#[test]
fn s180_a_node_registers_with_taints_but_changes_none() {
    let tainted = node("a", &[], &["k=v:NoSchedule", "l:NoExecute"]);
    assert_eq!(violated_by_node(Verb::Create, None, &tainted), None);
    let timed = {
        let mut timed = tainted.clone();
        timed.spec.taints[0].time_added = Some(jiff::Timestamp::UNIX_EPOCH);
        timed
    };
    for verb in [Verb::Update, Verb::UpdateStatus] {
        assert_eq!(violated_by_node(verb, Some(&tainted), &tainted), None);
        for other in [
            node("a", &[], &["k=v:NoSchedule"]),
            node("a", &[], &["k=w:NoSchedule", "l:NoExecute"]),
            node("a", &[], &["l:NoExecute", "k=v:NoSchedule"]),
            timed.clone(),
        ] {
            assert_eq!(violated_by_node(verb, Some(&tainted), &other), Some(Rule::Taints));
        }
    }
}

#[test]
fn s181_a_node_sets_unrestricted_labels_only() {
    let none = node("a", &[], &[]);
    for (key, allowed) in [
        ("foo", true),
        ("example.com/x", true),
        ("kubelet.kubernetes.io/x", true),
        ("foo.node.kubernetes.io/x", true),
        ("node.kubernetes.io/exclude-disruption", true),
        ("topology.kubernetes.io/zone", true),
        ("kubernetes.io/hostname", true),
        ("other.kubernetes.io/x", false),
        ("other.k8s.io/x", false),
        ("node-role.kubernetes.io/x", false),
        ("node-restriction.kubernetes.io/x", false),
        ("foo.node-restriction.kubernetes.io/x", false),
    ] {
        let (one, two) = (node("a", &[(key, "1")], &[]), node("a", &[(key, "2")], &[]));
        let expected = (!allowed).then(|| Rule::Label { key: key.into() });
        assert_eq!(violated_by_node(Verb::Create, None, &one), expected);
        for verb in [Verb::Update, Verb::UpdateStatus] {
            assert_eq!(violated_by_node(verb, Some(&none), &one), expected, "added");
            assert_eq!(violated_by_node(verb, Some(&one), &two), expected, "changed");
            assert_eq!(violated_by_node(verb, Some(&one), &none), expected, "removed");
            assert_eq!(violated_by_node(verb, Some(&one), &one), None, "unchanged");
        }
    }
}

#[test]
fn a_node_neither_sets_nor_changes_its_pod_cidrs() {
    let with_blocks = |blocks: &[&str]| {
        let mut node = node("a", &[], &[]);
        node.spec.pod_cidrs = blocks.iter().map(|block| block.parse().unwrap()).collect();
        node
    };
    let (none, one) = (with_blocks(&[]), with_blocks(&["10.1.0.0/24"]));
    assert_eq!(violated_by_node(Verb::Create, None, &none), None);
    assert_eq!(violated_by_node(Verb::Create, None, &one), Some(Rule::PodCidrs));
    for verb in [Verb::Update, Verb::UpdateStatus] {
        for (old, new) in [(&none, &one), (&one, &none), (&one, &with_blocks(&["10.2.0.0/24"]))] {
            assert_eq!(violated_by_node(verb, Some(old), new), Some(Rule::PodCidrs), "{verb}");
        }
        assert_eq!(violated_by_node(verb, Some(&one), &one), None, "{verb}");
    }
}

#[test]
fn a_node_records_events_about_itself_and_its_pods_only_and_as_its_agent() {
    let reference = |kind, name: &str, uid: &str| ObjectReference {
        kind,
        namespace: (kind != Kind::Node).then(|| "x".parse().unwrap()),
        name: name.parse().unwrap(),
        uid: uid.parse().ok(),
    };
    let with_uid = |mut pod: Pod| {
        pod.meta.uid = UID.parse().ok();
        pod
    };
    let (mine, theirs, free) = (with_uid(pod("a")), with_uid(pod("b")), with_uid(pod("")));
    let record = call(Verb::Record, Kind::Event, "", "");
    let (subject, source) = (Some(Rule::EventSubject), Some(Rule::EventSource));
    for (component, involved, stored, expected) in [
        ("agent", reference(Kind::Node, "a", ""), None, None),
        ("agent", reference(Kind::Node, "a", UID), None, None),
        ("agent", reference(Kind::Node, "b", ""), None, subject.clone()),
        ("agent", reference(Kind::Pod, "p", ""), Some(&mine), None),
        ("agent", reference(Kind::Pod, "p", UID), Some(&mine), None),
        ("agent", reference(Kind::Pod, "p", OTHER_UID), Some(&mine), subject.clone()),
        ("agent", reference(Kind::Pod, "p", UID), Some(&theirs), subject.clone()),
        ("agent", reference(Kind::Pod, "p", UID), Some(&free), subject.clone()),
        ("agent", reference(Kind::Pod, "p", ""), None, subject.clone()),
        ("agent", reference(Kind::Lease, "a", ""), None, subject.clone()),
        ("agent", reference(Kind::DisruptionBudget, "a", ""), None, subject),
        ("controller", reference(Kind::Node, "a", ""), None, source.clone()),
        ("controller", reference(Kind::Pod, "p", UID), Some(&mine), source.clone()),
        ("", reference(Kind::Node, "a", ""), None, source),
    ] {
        let event = Event::about(involved, EventType::Normal, "Test", "", component);
        let found = violated(&node_a(), &record, &Content::Event { event: &event, pod: stored });
        assert_eq!(found, expected, "{component} about {:?}", event.involved);
        let content = Content::Event { event: &event, pod: stored };
        assert_eq!(violated(&Caller::Controller, &record, &content), None, "others are not restricted");
    }
}

#[test]
fn s182_a_node_neither_changes_its_owners_nor_deletes_its_node() {
    let own = node("a", &[], &[]);
    let mut owned = own.clone();
    owned.meta.owner_references = vec![owner(UID)];
    for verb in [Verb::Update, Verb::UpdateStatus] {
        assert_eq!(violated_by_node(verb, Some(&own), &owned), Some(Rule::Owners));
        assert_eq!(violated_by_node(verb, Some(&owned), &own), Some(Rule::Owners));
        assert_eq!(violated_by_node(verb, Some(&owned), &owned), None);
    }
    let content = Content::Node { old: Some(&own), new: None };
    let delete = call(Verb::Delete, Kind::Node, "", "a");
    assert_eq!(violated(&node_a(), &delete, &content), Some(Rule::NotAllowed));
    let mut cordoned = own.clone();
    cordoned.spec.unschedulable = true;
    assert_eq!(violated_by_node(Verb::Update, Some(&own), &cordoned), None, "it may cordon itself");
}

#[test]
fn s183_a_node_accesses_only_its_own_lease() {
    for verb in [Verb::Get, Verb::Create, Verb::Update, Verb::Renew, Verb::Delete] {
        for (namespace, name, expected) in [
            ("kube-node-lease", "a", None),
            ("kube-node-lease", "b", Some(Rule::OwnLease)),
            ("default", "a", Some(Rule::OwnLease)),
            ("", "a", Some(Rule::OwnLease)),
        ] {
            let call = call(verb, Kind::Lease, namespace, name);
            assert_eq!(violated(&node_a(), &call, &Content::None), expected, "{call}");
        }
    }
    for verb in [Verb::List, Verb::Watch] {
        let selector = FieldSelector::equal("metadata.name", "a");
        let all = call(verb, Kind::Lease, "kube-node-lease", "");
        let own = Call { field_selector: Some(&selector), ..all };
        assert_eq!(violated(&node_a(), &all, &Content::None), Some(Rule::NotAllowed));
        assert_eq!(violated(&node_a(), &own, &Content::None), Some(Rule::NotAllowed));
    }
}

fn violated_by_pod(verb: Verb, old: Option<&Pod>, new: Option<&Pod>) -> Option<Rule> {
    violated(&node_a(), &call(verb, Kind::Pod, "x", "p"), &Content::Pod { old, new, node_uid: None })
}

#[test]
fn s184_a_node_updates_the_status_of_its_own_pods_but_not_their_labels() {
    for (bound_to, expected) in [("a", None), ("b", Some(Rule::OwnPod)), ("", Some(Rule::OwnPod))] {
        let pod = pod(bound_to);
        assert_eq!(violated_by_pod(Verb::UpdateStatus, Some(&pod), Some(&pod)), expected, "{bound_to}");
        assert_eq!(violated_by_pod(Verb::Get, Some(&pod), None), expected, "{bound_to}");
    }
    // The stored record decides which node the pod is bound to, not the request.
    assert_eq!(violated_by_pod(Verb::UpdateStatus, Some(&pod("b")), Some(&pod("a"))), Some(Rule::OwnPod));
    let mut relabelled = pod("a");
    relabelled.meta.labels.insert("app".into(), "db".into());
    let found = violated_by_pod(Verb::UpdateStatus, Some(&pod("a")), Some(&relabelled));
    assert_eq!(found, Some(Rule::PodLabels));
    assert_eq!(violated_by_pod(Verb::UpdateStatus, None, Some(&pod("a"))), None, "NOT_FOUND follows");
    assert_eq!(
        violated_by_pod(Verb::Get, None, None),
        Some(Rule::OwnPod),
        "a node must not learn which other pods exist"
    );
    for verb in [Verb::Update, Verb::Bind] {
        assert_eq!(violated_by_pod(verb, Some(&pod("a")), Some(&pod("a"))), Some(Rule::NotAllowed));
    }
}

#[test]
fn s185_a_node_deletes_and_evicts_its_own_pods() {
    for verb in [Verb::Delete, Verb::Evict] {
        assert_eq!(violated_by_pod(verb, Some(&pod("a")), None), None);
        assert_eq!(violated_by_pod(verb, Some(&pod("b")), None), Some(Rule::OwnPod));
        assert_eq!(violated_by_pod(verb, Some(&pod("")), None), Some(Rule::OwnPod));
        assert_eq!(violated_by_pod(verb, None, None), None, "unknown: NOT_FOUND follows");
    }
}

fn create_pod(change: impl FnOnce(&mut Pod)) -> Result<(), Refused> {
    let (mut pod, uid) = (mirror_pod(), UID.parse().unwrap());
    change(&mut pod);
    let content = Content::Pod { old: None, new: Some(&pod), node_uid: Some(&uid) };
    authorize(&node_a(), &call(Verb::Create, Kind::Pod, "x", "p"), &content)
}

fn rule_on_create(change: impl FnOnce(&mut Pod)) -> Option<Rule> {
    match create_pod(change) {
        Ok(()) => None,
        Err(Refused::Denied(denial)) => Some(denial.rule),
        Err(missing) => panic!("{missing}"),
    }
}

#[test]
fn s186_a_node_creates_mirror_pods_of_its_own_only() {
    assert_eq!(rule_on_create(|_| ()), None);
    assert_eq!(rule_on_create(|pod| pod.meta.annotations.clear()), Some(Rule::MirrorOnly));
    assert_eq!(rule_on_create(|pod| pod.spec.node_name = None), Some(Rule::MirrorNode));
    assert_eq!(rule_on_create(|pod| pod.spec.node_name = "b".parse().ok()), Some(Rule::MirrorNode));

    let with_owner =
        |change: fn(&mut OwnerReference)| rule_on_create(|pod| change(&mut pod.meta.owner_references[0]));
    assert_eq!(with_owner(|owner| owner.uid = UID.to_uppercase()), None, "the same uid");
    assert_eq!(with_owner(|owner| owner.uid = OTHER_UID.into()), Some(Rule::MirrorOwner));
    assert_eq!(with_owner(|owner| owner.name = "b".into()), Some(Rule::MirrorOwner));
    assert_eq!(with_owner(|owner| owner.kind = "Pod".into()), Some(Rule::MirrorOwner));
    assert_eq!(with_owner(|owner| owner.api_version = "v2".into()), Some(Rule::MirrorOwner));
    assert_eq!(with_owner(|owner| owner.controller = false), Some(Rule::MirrorOwner));
    assert_eq!(with_owner(|owner| owner.block_owner_deletion = true), Some(Rule::MirrorOwner));
    assert_eq!(rule_on_create(|pod| pod.meta.owner_references.clear()), Some(Rule::MirrorOwner));
    let second = |pod: &mut Pod| pod.meta.owner_references.push(owner(UID));
    assert_eq!(rule_on_create(second), Some(Rule::MirrorOwner));

    let object = || pb::ObjectVolume { name: "o".into() };
    for (source, what) in [
        (Source::Secret(object()), "secret"),
        (Source::ConfigMap(object()), "config map"),
        (Source::PersistentVolumeClaim(object()), "claim"),
    ] {
        let volume = pb::Volume { name: "v".into(), source: Some(source) };
        let found = rule_on_create(|pod| pod.spec.volumes.push(volume));
        assert_eq!(found, Some(Rule::MirrorReference { what }));
    }
    let found = rule_on_create(|pod| pod.spec.service_account_name = "s".into());
    assert_eq!(found, Some(Rule::MirrorReference { what: "service account" }));
    let variable = pb::EnvVar {
        name: "V".into(),
        value_from: Some(pb::EnvVarSource {
            secret_key_ref: Some(pb::KeySelector { name: "s".into(), key: "k".into() }),
            config_map_key_ref: None,
        }),
        ..Default::default()
    };
    let found = rule_on_create(|pod| pod.spec.containers[0].env.push(variable));
    assert_eq!(found, Some(Rule::MirrorReference { what: "secret" }));
}

#[test]
fn s186_a_mirror_pod_without_its_node_is_not_found_rather_than_denied() {
    let pod = mirror_pod();
    let content = Content::Pod { old: None, new: Some(&pod), node_uid: None };
    let create = call(Verb::Create, Kind::Pod, "x", "p");
    let refused = authorize(&node_a(), &create, &content).unwrap_err();
    assert_eq!(refused, Refused::MissingNode("a".into()));
    assert_eq!(refused.to_string(), "Node a does not exist, so it cannot own a mirror pod");
}

#[test]
fn s187_a_node_lists_the_pods_bound_to_it() {
    let unselected = Some(Rule::OwnSelection { field: "spec.nodeName" });
    for verb in [Verb::List, Verb::Watch] {
        for (selector, expected) in [
            (None, unselected.clone()),
            (Some("spec.nodeName=a"), None),
            (Some("status.phase=Running,spec.nodeName=a"), None),
            (Some("spec.nodeName=b"), unselected.clone()),
            (Some("spec.nodeName!=b"), unselected.clone()),
            (Some("metadata.name=a"), unselected.clone()),
        ] {
            let fields = ["metadata.name", "spec.nodeName", "status.phase"];
            let parsed = selector.map(|text| FieldSelector::parse(text, &fields).unwrap());
            let call = Call { field_selector: parsed.as_ref(), ..call(verb, Kind::Pod, "", "") };
            assert_eq!(violated(&node_a(), &call, &Content::None), expected, "{selector:?}");
        }
    }
}

const VERBS: [Verb; 12] = [
    Verb::Get,
    Verb::List,
    Verb::Watch,
    Verb::Create,
    Verb::Update,
    Verb::UpdateStatus,
    Verb::Renew,
    Verb::Bind,
    Verb::Evict,
    Verb::Delete,
    Verb::Record,
    Verb::Approve,
];

/// The verbs that a role may use on each kind.
fn allowed(caller: &Caller) -> Vec<String> {
    let allowed = |kind: Kind| {
        let verbs = VERBS.iter().filter(|verb| {
            let namespace = if kind.is_namespaced() { "x" } else { "" };
            authorize(caller, &call(**verb, kind, namespace, "a"), &Content::None).is_ok()
        });
        verbs.map(|verb| format!("{verb:?}")).collect::<Vec<_>>().join(" ")
    };
    Kind::ALL.into_iter().map(|kind| format!("{kind}: {}", allowed(kind)).trim_end().to_owned()).collect()
}

#[test]
fn s188_a_caller_without_a_role_may_do_nothing() {
    for caller in [Caller::Unknown("CN=node:a O=".into()), Caller::Node(String::new())] {
        assert_eq!(allowed(&caller), Kind::ALL.map(|kind| format!("{kind}:")));
    }
    let refused = authorize(
        &Caller::Unknown("CN=node:a O=".into()),
        &call(Verb::Get, Kind::Node, "", "a"),
        &Content::None,
    );
    assert_eq!(
        refused.unwrap_err().to_string(),
        "unknown caller (CN=node:a O=) may not get Node a: the caller's certificate gives it no role"
    );
}

#[test]
fn a_nodes_call_without_its_record_is_denied() {
    assert_eq!(
        allowed(&node_a()),
        [
            "Node: Get",
            "Lease:",
            "Pod:",
            "DisruptionBudget:",
            "Event:",
            "JoinToken:",
            "CertificateRequest:",
            "Revocation: List Watch",
            "PriorityClass:",
        ],
        "with no content given"
    );
    let update = call(Verb::Update, Kind::Node, "", "a");
    let own = node("a", &[], &[]);
    for content in [Content::None, Content::Node { old: Some(&own), new: None }] {
        assert_eq!(violated(&node_a(), &update, &content), Some(Rule::MissingContent));
    }
    assert_eq!(violated_by_pod(Verb::Create, None, None), Some(Rule::MissingContent));
}

#[test]
fn s190_each_role_has_its_verbs_only() {
    let everything = "Get List Watch Create Update UpdateStatus Renew Bind Evict Delete Record Approve";
    let all = Kind::ALL.map(|kind| format!("{kind}: {everything}"));
    assert_eq!(allowed(&Caller::Admin), all);
    let reads = Kind::ALL.map(|kind| format!("{kind}: Get List Watch"));
    assert_eq!(allowed(&Caller::Viewer), reads);
    assert_eq!(
        allowed(&Caller::Controller),
        [
            "Node: Get List Watch Update UpdateStatus Delete",
            "Lease: Get List Watch",
            "Pod: Get List Watch UpdateStatus Bind Evict Delete",
            "DisruptionBudget: Get List Watch",
            "Event: Record",
            "JoinToken:",
            "CertificateRequest: Get List Watch UpdateStatus",
            "Revocation: Get List Watch",
            "PriorityClass: Get List Watch",
        ]
    );
    assert_eq!(
        allowed(&Caller::Scheduler),
        [
            "Node: Get List Watch",
            "Lease:",
            "Pod: Get List Watch UpdateStatus Bind",
            "DisruptionBudget:",
            "Event: Record",
            "JoinToken:",
            "CertificateRequest:",
            "Revocation:",
            "PriorityClass:",
        ]
    );
}

#[test]
fn the_controller_writes_its_leader_lease_and_its_cloud_brake_lease() {
    for (namespace, name, expected) in [
        (SYSTEM_NAMESPACE, CONTROLLER_LEASE, None),
        (SYSTEM_NAMESPACE, CLOUD_BRAKE_LEASE, None),
        (SYSTEM_NAMESPACE, "another", Some(Rule::NotAllowed)),
        ("kube-node-lease", CONTROLLER_LEASE, Some(Rule::NotAllowed)),
    ] {
        for verb in [Verb::Create, Verb::Update, Verb::Renew] {
            let call = call(verb, Kind::Lease, namespace, name);
            assert_eq!(violated(&Caller::Controller, &call, &Content::None), expected, "{call}");
        }
    }
}

#[test]
fn a_denial_names_the_caller_the_record_and_the_rule() {
    let selector = FieldSelector::equal("spec.nodeName", "b");
    for (call, expected) in [
        (
            call(Verb::Delete, Kind::Node, "", "a"),
            "node:a may not delete Node a: no rule allows this for the caller's role",
        ),
        (
            call(Verb::Renew, Kind::Lease, "default", "a"),
            "node:a may not renew Lease default/a: a node may access only the Lease with its own name \
             in kube-node-lease",
        ),
        (
            call(Verb::List, Kind::Node, "", ""),
            "node:a may not list Node records: a node must use the field selector \
             metadata.name=<its own name>",
        ),
        (
            Call { field_selector: Some(&selector), ..call(Verb::Watch, Kind::Pod, "x", "") },
            "node:a may not watch Pod records of x with spec.nodeName=b: a node must use the field \
             selector spec.nodeName=<its own name>",
        ),
    ] {
        assert_eq!(authorize(&node_a(), &call, &Content::None).unwrap_err().to_string(), expected);
    }
}

#[test]
fn s259_only_controllers_record_decisions_and_nodes_do_not_read_them() {
    use DecisionVerb::{List, Record, Watch};
    for (caller, record, read) in [
        (Caller::Admin, true, true),
        (Caller::Controller, true, true),
        (Caller::Viewer, false, true),
        (Caller::Scheduler, false, false),
        (node_a(), false, false),
        (Caller::Unknown("x".into()), false, false),
    ] {
        for (verb, expected) in [(Record, record), (List, read), (Watch, read)] {
            assert_eq!(authorize_decisions(&caller, verb).is_ok(), expected, "{caller} {verb:?}");
        }
    }
}
