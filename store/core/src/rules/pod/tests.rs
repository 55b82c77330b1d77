use muster_proto::name::Name;
use muster_proto::pod::{QosClass, RestartPolicy};
use muster_proto::priority_class::PreemptionPolicy;
use muster_proto::quantity::{Quantity, Resources};
use muster_proto::taint::{TaintEffect, Toleration, TolerationOperator};
use muster_proto::wellknown::taint;

use super::super::fixtures::*;
use super::super::{create, update, update_status};
use super::*;

fn created(wanted: Pod) -> Pod {
    stored(create(None, wanted, &at(0)))
}

fn resources(cpu: &str, memory: &str) -> Resources {
    [("cpu", cpu), ("memory", memory)]
        .into_iter()
        .filter(|(_, amount)| !amount.is_empty())
        .map(|(resource, amount)| (resource.to_owned(), amount.parse::<Quantity>().unwrap()))
        .collect()
}

fn with_resources(requests: Resources, limits: Resources) -> Pod {
    let mut pod = pod("web-0");
    pod.spec.containers[0].resources.requests = requests;
    pod.spec.containers[0].resources.limits = limits;
    pod
}

fn with_tolerations(tolerations: &[Toleration]) -> Pod {
    let mut pod = pod("web-0");
    pod.spec.tolerations = tolerations.to_vec();
    pod
}

fn five_minutes(key: &str) -> Toleration {
    Toleration::exists(key, TaintEffect::NoExecute).for_seconds(300)
}

fn wildcard() -> Toleration {
    Toleration { operator: TolerationOperator::Exists, ..Toleration::default() }
}

#[test]
fn a_new_pod_is_pending_whatever_its_status_says() {
    let mut wanted = with_resources(resources("1", ""), resources("", ""));
    wanted.status.phase = PodPhase::Running;
    wanted.status.reason = "made up".into();
    wanted.status.qos_class = Some(QosClass::Guaranteed);
    let created = created(wanted);
    let expected =
        PodStatus { phase: PodPhase::Pending, qos_class: Some(QosClass::Burstable), ..PodStatus::default() };
    assert_eq!(created.status, expected);
    assert_eq!(created.meta.generation, 1);
    assert_eq!(created.spec.termination_grace_period_seconds, Some(30));
    assert_eq!(created.spec.restart_policy, RestartPolicy::Always);
}

#[test]
fn a_pods_own_grace_period_is_kept() {
    for seconds in [0, 1, 600] {
        let mut wanted = pod("web-0");
        wanted.spec.termination_grace_period_seconds = Some(seconds);
        assert_eq!(created(wanted).spec.termination_grace_period_seconds, Some(seconds));
    }
}

#[test]
fn the_qos_class_follows_from_requests_and_limits() {
    let none = || resources("", "");
    for (requests, limits, expected) in [
        (none(), none(), QosClass::BestEffort),
        (resources("0", "0"), none(), QosClass::BestEffort),
        (resources("1", "1Gi"), resources("1000m", "1Gi"), QosClass::Guaranteed),
        // A limit without a request is stored as a request too.
        (none(), resources("1", "1Gi"), QosClass::Guaranteed),
        (none(), resources("1", ""), QosClass::Burstable),
        (resources("500m", "1Gi"), resources("1", "1Gi"), QosClass::Burstable),
        (resources("1", "1Gi"), none(), QosClass::Burstable),
    ] {
        let case = format!("{requests:?} of {limits:?}");
        let mut all = limits.clone();
        all.extend(requests.clone());
        let pod = created(with_resources(requests, limits));
        assert_eq!(pod.status.qos_class, Some(expected), "{case}");
        assert_eq!(pod.spec.containers[0].resources.requests, all, "{case}");
    }
}

#[test]
fn s107_a_pod_tolerates_an_unready_or_unreachable_node_for_five_minutes_by_default() {
    let (not_ready, unreachable) = (five_minutes(taint::NOT_READY), five_minutes(taint::UNREACHABLE));
    let own = Toleration::exists(taint::NOT_READY, TaintEffect::NoExecute).for_seconds(5);
    // Any toleration with the taint's key counts, whatever its operator and value.
    let elsewhere = Toleration { operator: TolerationOperator::Equal, value: "x".into(), ..own.clone() };
    for (given, expected) in [
        (vec![], vec![not_ready.clone(), unreachable.clone()]),
        (vec![own.clone()], vec![own.clone(), unreachable.clone()]),
        (vec![elsewhere.clone()], vec![elsewhere, unreachable.clone()]),
        (vec![wildcard()], vec![wildcard()]),
    ] {
        assert_eq!(created(with_tolerations(&given)).spec.tolerations, expected, "{given:?}");
    }
}

#[test]
fn s107_operators_can_set_the_default_toleration_times() {
    let mut cx = at(0);
    cx.defaults.not_ready_toleration_seconds = 7;
    cx.defaults.unreachable_toleration_seconds = 8;
    let seconds: Vec<_> = create(None, pod("web-0"), &cx)
        .unwrap()
        .spec
        .tolerations
        .into_iter()
        .map(|toleration| (toleration.key, toleration.toleration_seconds))
        .collect();
    let expected = [(taint::NOT_READY.into(), Some(7)), (taint::UNREACHABLE.into(), Some(8))];
    assert_eq!(seconds, expected);
}

#[test]
fn s108_only_a_noexecute_toleration_replaces_the_default() {
    let any_effect =
        Toleration { effect: None, ..Toleration::exists(taint::NOT_READY, TaintEffect::NoExecute) };
    let no_schedule = Toleration::exists(taint::NOT_READY, TaintEffect::NoSchedule);
    let unreachable = five_minutes(taint::UNREACHABLE);
    for (given, expected) in [
        (any_effect.clone(), vec![any_effect, unreachable.clone()]),
        (no_schedule.clone(), vec![no_schedule, five_minutes(taint::NOT_READY), unreachable]),
    ] {
        assert_eq!(
            created(with_tolerations(std::slice::from_ref(&given))).spec.tolerations,
            expected,
            "{given:?}"
        );
    }
}

#[test]
fn a_pod_with_requests_tolerates_memory_pressure() {
    let mut wanted = with_resources(resources("1", ""), resources("", ""));
    let pressure = Toleration::exists(taint::MEMORY_PRESSURE, TaintEffect::NoSchedule);
    let expected = [five_minutes(taint::NOT_READY), five_minutes(taint::UNREACHABLE), pressure.clone()];
    assert_eq!(created(wanted.clone()).spec.tolerations, expected);
    wanted.spec.tolerations = vec![wildcard()];
    assert_eq!(created(wanted).spec.tolerations, [wildcard()]);
    assert!(!created(pod("web-0")).spec.tolerations.contains(&pressure));
}

#[test]
fn s120_a_daemon_pod_tolerates_node_problems_without_a_time_limit() {
    use TaintEffect::{NoExecute, NoSchedule};
    let all = [
        (taint::NOT_READY, NoExecute),
        (taint::UNREACHABLE, NoExecute),
        (taint::DISK_PRESSURE, NoSchedule),
        (taint::MEMORY_PRESSURE, NoSchedule),
        (taint::PID_PRESSURE, NoSchedule),
        (taint::UNSCHEDULABLE, NoSchedule),
        (taint::NETWORK_UNAVAILABLE, NoSchedule),
    ]
    .map(|(key, effect)| Toleration::exists(key, effect));
    for (host_network, expected) in [(true, &all[..]), (false, &all[..6])] {
        // With requests, memory pressure is still tolerated only once.
        for requests in [resources("1", ""), resources("", "")] {
            let mut wanted = with_resources(requests, resources("", ""));
            wanted.spec.host_network = host_network;
            wanted.meta.owner_references = vec![owned_by("DaemonSet")];
            assert_eq!(created(wanted).spec.tolerations, expected, "host network {host_network}");
        }
    }
    // An owner that is not the controller, or not a DaemonSet, adds no tolerations.
    for (kind, controller) in [("DaemonSet", false), ("ReplicaSet", true)] {
        let mut wanted = pod("web-0");
        wanted.meta.owner_references = vec![owned_by(kind)];
        wanted.meta.owner_references[0].controller = controller;
        let tolerations = created(wanted).spec.tolerations;
        assert_eq!(tolerations, [five_minutes(taint::NOT_READY), five_minutes(taint::UNREACHABLE)]);
    }
}

#[test]
fn s027_tolerations_can_only_be_added_or_get_another_time() {
    let first = Toleration::exists("first", TaintEffect::NoExecute).for_seconds(10);
    let second = Toleration::exists("second", TaintEffect::NoSchedule);
    let current = created(with_tolerations(std::slice::from_ref(&first)));
    let with = |tolerations: &[Toleration]| {
        let mut wanted = current.clone();
        wanted.spec.tolerations = tolerations.to_vec();
        update(Some(&current), wanted, &at(1))
    };

    let Ok(Outcome::Store(next)) = with(&[first.clone(), second.clone()]) else { panic!() };
    let defaults = [five_minutes(taint::NOT_READY), five_minutes(taint::UNREACHABLE)];
    let mut expected = vec![first.clone(), second.clone()];
    expected.extend(defaults.clone());
    assert_eq!(next.spec.tolerations, expected, "the defaults are added again");
    assert_eq!(next.meta.generation, 2);

    let longer = first.clone().for_seconds(99);
    assert!(matches!(with(std::slice::from_ref(&longer)), Ok(Outcome::Store(_))));
    assert!(matches!(
        with(&[Toleration { toleration_seconds: None, ..first.clone() }]),
        Ok(Outcome::Store(_))
    ));

    assert_eq!(invalid_fields(with(std::slice::from_ref(&second))), ["spec.tolerations"]);
    assert_eq!(invalid_fields(with(&[])), ["spec.tolerations"]);
    let changed = Toleration { effect: None, toleration_seconds: None, ..first };
    assert_eq!(invalid_fields(with(&[changed])), ["spec.tolerations"]);
}

#[test]
fn sending_the_original_manifest_again_changes_nothing() {
    for owner in ["DaemonSet", "ReplicaSet"] {
        let mut manifest = with_resources(resources("", ""), resources("1", "1Gi"));
        manifest.meta.owner_references = vec![owned_by(owner)];
        let current = created(manifest.clone());
        assert_eq!(update(Some(&current), manifest, &at(1)), Ok(Outcome::Unchanged(current)), "{owner}");
    }
}

#[test]
fn no_other_field_of_a_spec_can_change() {
    let mut current = created(pod("web-0"));
    current.spec.scheduling_gates = vec!["a".into(), "b".into()];
    type Change = fn(&mut PodSpec);
    let changes: [(&str, Change); 16] = [
        ("spec.nodeName", |spec| spec.node_name = Some("n1".parse().unwrap())),
        ("spec.nodeSelector", |spec| drop(spec.node_selector.insert("a".into(), "b".into()))),
        ("spec.affinity", |spec| spec.affinity = Some(Default::default())),
        ("spec.containers", |spec| spec.containers[0].image = "web:2".into()),
        ("spec.initContainers", |spec| spec.init_containers = spec.containers.clone()),
        ("spec.overhead", |spec| spec.overhead = resources("1", "")),
        ("spec.priority", |spec| spec.priority = Some(1)),
        ("spec.priorityClassName", |spec| spec.priority_class_name = "high".into()),
        ("spec.preemptionPolicy", |spec| spec.preemption_policy = Some(PreemptionPolicy::Never)),
        ("spec.terminationGracePeriodSeconds", |spec| spec.termination_grace_period_seconds = Some(1)),
        ("spec.hostNetwork", |spec| spec.host_network = true),
        ("spec.restartPolicy", |spec| spec.restart_policy = RestartPolicy::Never),
        ("spec.volumes", |spec| spec.volumes = vec![Default::default()]),
        ("spec.serviceAccountName", |spec| spec.service_account_name = "me".into()),
        ("spec.securityContext", |spec| spec.security_context = Some(Default::default())),
        ("spec.schedulingGates[2]", |spec| spec.scheduling_gates.push("c".into())),
    ];
    let mut all = current.clone();
    for (field, change) in changes {
        let mut wanted = current.clone();
        change(&mut wanted.spec);
        change(&mut all.spec);
        assert_eq!(invalid_fields(update(Some(&current), wanted, &at(1))), [field]);
    }
    let mut found = invalid_fields(update(Some(&current), all, &at(1)));
    let mut expected = changes.map(|(field, _)| field);
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "all at once");
}

#[test]
fn a_bound_pod_keeps_its_node() {
    let current = ready_pod("web-0");
    for node in [None, Some("n2".parse::<Name>().unwrap())] {
        let mut wanted = current.clone();
        wanted.spec.node_name = node;
        assert_eq!(invalid_fields(update(Some(&current), wanted, &at(1))), ["spec.nodeName"]);
    }
}

#[test]
fn scheduling_gates_can_be_removed() {
    let mut wanted = pod("web-0");
    wanted.spec.scheduling_gates = vec!["a".into(), "b".into()];
    let current = created(wanted);
    let mut wanted = current.clone();
    wanted.spec.scheduling_gates = vec!["b".into()];
    let next = update(Some(&current), wanted, &at(1)).unwrap().into_record();
    assert_eq!(next.spec.scheduling_gates, ["b"]);
    assert_eq!(next.meta.generation, 2);
}

#[test]
fn metadata_can_change_without_a_new_generation() {
    let current = ready_pod("web-0");
    let mut wanted = current.clone();
    wanted.meta.labels.insert("tier".into(), "front".into());
    wanted.status = PodStatus::default();
    let next = update(Some(&current), wanted, &at(1)).unwrap().into_record();
    assert_eq!(next.meta.generation, 1);
    assert_eq!(next.meta.labels["tier"], "front");
    assert_eq!(next.status, current.status, "a main update keeps the status");
}

#[test]
fn a_status_update_changes_only_status_and_labels() {
    let mut current = ready_pod("web-0");
    current.meta.deletion_timestamp = Some(after(30));
    current.meta.deletion_grace_period_seconds = Some(30);
    let mut wanted = current.clone();
    wanted.spec = PodSpec::default();
    wanted.meta.owner_references = vec![owned_by("ReplicaSet")];
    wanted.meta.deletion_timestamp = None;
    wanted.meta.generation = 9;
    wanted.meta.labels.insert("tier".into(), "front".into());
    wanted.status.phase = PodPhase::Failed;
    wanted.status.qos_class = None;

    let mut expected = current.clone();
    expected.meta.labels.insert("tier".into(), "front".into());
    expected.status.phase = PodPhase::Failed;
    assert_eq!(update_status(Some(&current), wanted, &at(1)), Ok(Outcome::Store(expected)));
}

#[test]
fn the_mirror_annotation_cannot_change() {
    let mut mirror = ready_pod("web-0");
    mirror.meta.annotations.insert(annotation::MIRROR.into(), "hash".into());
    let mut other = mirror.clone();
    other.meta.annotations.insert(annotation::MIRROR.into(), "other".into());
    let plain = ready_pod("web-0");
    for (current, wanted) in [(&mirror, &plain), (&plain, &mirror), (&mirror, &other)] {
        let field = r#"metadata.annotations["kubernetes.io/config.mirror"]"#;
        assert_eq!(invalid_fields(update(Some(current), wanted.clone(), &at(1))), [field]);
        assert_eq!(invalid_fields(update_status(Some(current), wanted.clone(), &at(1))), [field]);
    }
    assert!(update(Some(&mirror), mirror.clone(), &at(1)).is_ok());
}

fn bind_to(node: &str, pod: &Pod, preconditions: &Preconditions) -> Result<Outcome<Pod>, Refusal> {
    bind(&RecordId::of(pod), Some(pod), node.parse().unwrap(), preconditions, &at(5))
}

#[test]
fn s174_a_pod_can_be_bound_only_once() {
    let none = Preconditions::default();
    let mut current = created(pod("web-0"));
    current.status.conditions = vec![PodCondition {
        kind: types::POD_SCHEDULED.into(),
        status: ConditionStatus::False,
        reason: "Unschedulable".into(),
        message: "0 of 3 nodes fit".into(),
        last_probe_time: None,
        last_transition_time: Some(t0()),
    }];
    let Ok(Outcome::Store(bound)) = bind_to("n1", &current, &none) else { panic!() };
    let mut expected = current.clone();
    expected.spec.node_name = Some("n1".parse().unwrap());
    expected.status.conditions = vec![PodCondition {
        kind: types::POD_SCHEDULED.into(),
        status: ConditionStatus::True,
        reason: String::new(),
        message: String::new(),
        last_probe_time: None,
        last_transition_time: Some(after(5)),
    }];
    assert_eq!(bound, expected, "generation included: a binding does not change what the pod runs");

    let refusal = bind_to("n1", &bound, &none).unwrap_err();
    assert_eq!(refusal.to_string(), "Pod default/web-0 is already bound to node n1");
    assert!(matches!(refusal, Refusal::Conflict { .. }));
}

#[test]
fn s174_a_pod_that_is_being_deleted_or_gated_is_not_bound() {
    let none = Preconditions::default();
    let mut deleting = created(pod("web-0"));
    deleting.meta.deletion_timestamp = Some(after(1));
    let mut gated = created(pod("web-0"));
    gated.spec.scheduling_gates = ["a", "b", "c", "d", "e"].map(String::from).into();
    for (pod, text) in [
        (deleting, "Pod default/web-0 is being deleted and cannot be bound"),
        (gated, "Pod default/web-0 cannot be bound while it has scheduling gates: a, b, c and 2 more"),
    ] {
        let refusal = bind_to("n1", &pod, &none).unwrap_err();
        assert_eq!(refusal.to_string(), text);
        assert!(matches!(refusal, Refusal::Conflict { .. }));
    }
}

#[test]
fn a_binding_is_refused_unless_its_preconditions_hold() {
    let pod = created(pod("web-0"));
    let key = RecordId::of(&pod);
    let other = Preconditions { uid: Some(uid(2)), ..Preconditions::default() };
    let mismatch = Refusal::UidMismatch { key: key.clone(), expected: uid(2), found: Some(uid(1)) };
    assert_eq!(bind_to("n1", &pod, &other), Err(mismatch));
    let older = Preconditions { resource_version: Some(6), ..Preconditions::default() };
    assert_eq!(bind_to("n1", &pod, &older), Err(Refusal::Stale { key: key.clone(), expected: 6, found: 7 }));
    let exact = Preconditions { uid: Some(uid(1)), resource_version: Some(7) };
    assert!(bind_to("n1", &pod, &exact).is_ok());
    let missing = bind(&key, None, "n1".parse().unwrap(), &exact, &at(5));
    assert_eq!(missing, Err(Refusal::NotFound { key }));
}
