use proptest::prelude::*;

use super::*;
use crate::convert::testing::{any_metadata, any_resources, any_time, at, complaints, map, named, stored};
use crate::pb::container_state::State;
use crate::pb::volume::Source;
use crate::pod::{PodPhase, QosClass, RestartPolicy};

fn container(name: &str) -> pb::Container {
    pb::Container { name: name.into(), image: "i".into(), ..Default::default() }
}

fn with_spec(spec: pb::PodSpec) -> pb::Pod {
    let containers = if spec.containers.is_empty() { vec![container("c")] } else { spec.containers.clone() };
    pb::Pod { metadata: named("x", "p"), spec: Some(pb::PodSpec { containers, ..spec }), status: None }
}

fn with_status(status: pb::PodStatus) -> pb::Pod {
    pb::Pod { status: Some(status), ..with_spec(pb::PodSpec::default()) }
}

fn fields(pod: pb::Pod) -> Vec<String> {
    let violations = Pod::try_from(pod).unwrap_err().violations;
    violations.into_iter().map(|violation| violation.field).collect()
}

#[test]
fn s028_tolerations_say_what_they_can_mean() {
    let toleration =
        |key: &str, operator: &str, value: &str, effect: &str, toleration_seconds| pb::Toleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: effect.into(),
            toleration_seconds,
        };
    for (given, expected) in [
        (toleration("", "Equal", "", "", None), "operator: must be Exists when key is empty"),
        (toleration("", "", "", "", None), "operator: must be Exists when key is empty"),
        (toleration("a", "Exists", "x", "", None), "value: must be empty when operator is Exists"),
        (
            toleration("a", "Exists", "", "NoSchedule", Some(5)),
            "effect: must be NoExecute when tolerationSeconds is set",
        ),
        (toleration("a", "Gt", "5", "", None), "operator: must be Equal or Exists"),
        (toleration("a", "Lt", "5", "", None), "operator: must be Equal or Exists"),
        (toleration("a", "", "", "Never", None), "effect: must be NoSchedule, PreferNoSchedule or NoExecute"),
        (toleration("", "Exists", "", "", None), ""),
        (toleration("a", "", "x", "NoExecute", Some(-5)), ""),
    ] {
        // An invalid element before this one must not change the index that is reported.
        let wrong = toleration("a", "x", "", "", None);
        let pod = with_spec(pb::PodSpec { tolerations: vec![wrong, given], ..Default::default() });
        let found = complaints::<Pod>(pod);
        let found = found.strip_prefix("spec.tolerations[0].operator: must be Equal or Exists").unwrap();
        let expected =
            if expected.is_empty() { String::new() } else { format!("; spec.tolerations[1].{expected}") };
        assert_eq!(found, expected);
    }
}

#[test]
fn a_pod_has_containers_and_their_names_are_unique() {
    let pod = pb::Pod { metadata: named("x", "p"), ..Default::default() };
    assert_eq!(complaints::<Pod>(pod), "spec.containers: must hold at least one container");
    let spec = pb::PodSpec {
        containers: vec![container("a"), container("a"), container(""), container("A.b")],
        init_containers: vec![container("a"), container("b")],
        ..Default::default()
    };
    assert_eq!(
        fields(with_spec(spec)),
        [
            "spec.containers[1].name",
            "spec.containers[2].name",
            "spec.containers[3].name",
            "spec.initContainers[0].name"
        ]
    );
}

#[test]
fn a_restart_policy_of_a_container_makes_a_sidecar_or_is_wrong() {
    for (policy, is_init, expected) in [
        ("", false, Ok(false)),
        ("", true, Ok(false)),
        ("Always", true, Ok(true)),
        (
            "Always",
            false,
            Err("spec.containers[0].restartPolicy: must be empty: only an init container has one"),
        ),
        ("Never", true, Err("spec.initContainers[0].restartPolicy: must be Always or empty")),
    ] {
        let given = vec![pb::Container { restart_policy: policy.into(), ..container("given") }];
        let spec = match is_init {
            true => pb::PodSpec { init_containers: given, ..Default::default() },
            false => pb::PodSpec { containers: given, ..Default::default() },
        };
        let found =
            Pod::try_from(with_spec(spec)).map(|pod| pod.spec.all_containers().any(|each| each.sidecar));
        assert_eq!(found.map_err(|invalid| invalid.to_string()), expected.map_err(str::to_owned));
    }
}

#[test]
fn everything_wrong_with_a_container_is_reported_at_once() {
    let port = |name: &str, container_port, host_port, host_ip: &str, protocol: &str| pb::ContainerPort {
        name: name.into(),
        container_port,
        host_port,
        host_ip: host_ip.into(),
        protocol: protocol.into(),
    };
    let wrong = pb::Container {
        env: vec![pb::EnvVar::default()],
        ports: vec![
            port("", 80, 0, "", ""),
            port("", 65535, 65535, "fd00::1", "SCTP"),
            port("web", 0, -1, "x", "tcp"),
            port("web", 65536, 65536, "", "UDP"),
        ],
        resources: Some(pb::ResourceRequirements {
            requests: map(&[("cpu", "2"), ("memory", "1Gi"), ("x", "-1")]),
            limits: map(&[("cpu", "1500m"), ("memory", "1024Mi")]),
        }),
        volume_mounts: vec![pb::VolumeMount { name: "v".into(), ..Default::default() }],
        ..container("c")
    };
    assert_eq!(
        fields(with_spec(pb::PodSpec { containers: vec![wrong], ..Default::default() })),
        [
            "spec.containers[0].env[0].name",
            "spec.containers[0].ports[2].containerPort",
            "spec.containers[0].ports[2].hostPort",
            "spec.containers[0].ports[2].hostIp",
            "spec.containers[0].ports[2].protocol",
            "spec.containers[0].ports[3].name",
            "spec.containers[0].ports[3].containerPort",
            "spec.containers[0].ports[3].hostPort",
            "spec.containers[0].volumeMounts[0].name",
            "spec.containers[0].volumeMounts[0].mountPath",
            "spec.containers[0].resources.requests[\"x\"]",
            "spec.containers[0].resources.requests[\"cpu\"]",
        ]
    );
}

#[test]
fn everything_wrong_with_a_spec_is_reported_at_once() {
    let volume = |name: &str, source| pb::Volume { name: name.into(), source };
    let object = pb::ObjectVolume::default();
    let empty_dir = |size: &str| {
        Some(Source::EmptyDir(pb::EmptyDirVolume { size_limit: size.into(), ..Default::default() }))
    };
    let gate = |name: &str| pb::PodSchedulingGate { name: name.into() };
    let spec = pb::PodSpec {
        node_name: "A".into(),
        node_selector: map(&[("a b", "c")]),
        overhead: map(&[("cpu", "-1")]),
        termination_grace_period_seconds: Some(-1),
        restart_policy: "Sometimes".into(),
        scheduling_gates: vec![gate("g"), gate("g"), gate("")],
        volumes: vec![
            volume("a", empty_dir("1Gi")),
            volume("a", empty_dir("")),
            volume("b", empty_dir("-1")),
            volume("c", Some(Source::HostPath(pb::HostPathVolume::default()))),
            volume("d", Some(Source::Secret(object.clone()))),
            volume("e", Some(Source::ConfigMap(object.clone()))),
            volume("f", Some(Source::PersistentVolumeClaim(object))),
            volume("g", None),
        ],
        ..Default::default()
    };
    assert_eq!(
        fields(with_spec(spec)),
        [
            "spec.nodeName",
            "spec.nodeSelector[\"a b\"]",
            "spec.volumes[1].name",
            "spec.volumes[2].emptyDir.sizeLimit",
            "spec.volumes[3].hostPath.path",
            "spec.volumes[4].secret.name",
            "spec.volumes[5].configMap.name",
            "spec.volumes[6].persistentVolumeClaim.name",
            "spec.volumes[7]",
            "spec.terminationGracePeriodSeconds",
            "spec.restartPolicy",
            "spec.overhead[\"cpu\"]",
            "spec.schedulingGates[1].name",
            "spec.schedulingGates[2].name",
        ]
    );
}

#[test]
fn everything_wrong_with_a_status_is_reported_at_once() {
    let ended =
        pb::ContainerStateTerminated { started_at: at(0, -1), finished_at: at(0, -1), ..Default::default() };
    let running = pb::ContainerStateRunning { started_at: at(0, -1) };
    let status = pb::PodStatus {
        phase: "Done".into(),
        conditions: vec![pb::PodCondition {
            last_probe_time: at(0, -1),
            last_transition_time: at(0, -1),
            ..Default::default()
        }],
        qos_class: "Best".into(),
        pod_ips: vec!["10.0.0.1".into(), "10.0.0.2".into()],
        start_time: at(0, -1),
        container_statuses: vec![pb::ContainerStatus {
            state: Some(pb::ContainerState { state: Some(State::Running(running)) }),
            last_state: Some(pb::ContainerState { state: Some(State::Terminated(ended)) }),
            ..Default::default()
        }],
        observed_generation: -1,
        host_ip: "here".into(),
        ..Default::default()
    };
    let found = PodStatus::try_from(status.clone()).unwrap_err();
    assert_eq!(Pod::try_from(with_status(status.clone())), Err(found));
    assert_eq!(
        fields(with_status(status)),
        [
            "status.phase",
            "status.qosClass",
            "status.hostIp",
            "status.podIps[1]",
            "status.containerStatuses[0].state.running.startedAt",
            "status.containerStatuses[0].lastState.terminated.startedAt",
            "status.containerStatuses[0].lastState.terminated.finishedAt",
            "status.observedGeneration",
            "status.conditions[0].type",
            "status.conditions[0].status",
            "status.conditions[0].lastProbeTime",
            "status.conditions[0].lastTransitionTime",
            "status.startTime",
        ]
    );
}

#[test]
fn the_single_address_mirrors_the_first_or_overrules_the_list() {
    for (pod_ip, pod_ips, expected) in [
        ("", &["10.0.0.1", "fd00::1"][..], &["10.0.0.1", "fd00::1"][..]),
        ("10.0.0.1", &[], &["10.0.0.1"]),
        ("10.0.0.1", &["10.0.0.1", "fd00::1"], &["10.0.0.1", "fd00::1"]),
        ("fd00:0::1", &["fd00::1", "10.0.0.1"], &["fd00::1", "10.0.0.1"]),
        ("10.0.0.2", &["10.0.0.1", "fd00::1"], &["10.0.0.2"]),
    ] {
        let pod_ips = pod_ips.iter().map(ToString::to_string).collect();
        let pod = stored::<Pod>(with_status(pb::PodStatus {
            pod_ip: pod_ip.into(),
            pod_ips,
            ..Default::default()
        }));
        let out = pb::PodStatus::from(pod.status);
        assert_eq!(
            (out.pod_ip.as_str(), &*out.pod_ips),
            (expected[0], &*expected.iter().map(ToString::to_string).collect::<Vec<_>>())
        );
    }
}

#[test]
fn a_security_context_must_not_contradict_itself() {
    const RANGE: &str = "must be from 0 to 2147483647";
    const NOT_ROOT: &str = "runAsUser: must not be 0 when runAsNonRoot is true";
    const ESCALATES: &str = "allowPrivilegeEscalation: must not be false when privileged is true";
    for (user, group, non_root, privileged, escalation, expected) in [
        (None, None, None, None, None, String::new()),
        (Some(0), Some(0), Some(false), Some(true), Some(true), String::new()),
        (Some(2_147_483_647), Some(2_147_483_647), Some(true), None, Some(false), String::new()),
        (Some(-1), None, None, None, None, format!("runAsUser: {RANGE}")),
        (None, Some(2_147_483_648), None, None, None, format!("runAsGroup: {RANGE}")),
        (Some(0), None, Some(true), None, None, NOT_ROOT.to_owned()),
        (None, None, None, Some(true), Some(false), ESCALATES.to_owned()),
        (None, None, None, Some(false), Some(false), String::new()),
    ] {
        let given = pb::SecurityContext {
            run_as_user: user,
            run_as_group: group,
            run_as_non_root: non_root,
            privileged,
            allow_privilege_escalation: escalation,
        };
        let containers = vec![pb::Container { security_context: Some(given), ..container("c") }];
        let found = complaints::<Pod>(with_spec(pb::PodSpec { containers, ..Default::default() }));
        assert_eq!(found.strip_prefix("spec.containers[0].securityContext.").unwrap_or(&found), expected);
    }
    let security_context =
        Some(pb::PodSecurityContext { run_as_user: Some(-1), run_as_group: Some(-1), run_as_non_root: None });
    assert_eq!(
        fields(with_spec(pb::PodSpec { security_context, ..Default::default() })),
        ["spec.securityContext.runAsUser", "spec.securityContext.runAsGroup"]
    );
}

#[test]
fn absent_fields_take_their_defaults() {
    let pod = stored::<Pod>(with_spec(pb::PodSpec::default()));
    assert_eq!((pod.status.phase, pod.spec.restart_policy), (PodPhase::Pending, RestartPolicy::Always));
    assert_eq!((pod.status.qos_class, pod.qos()), (None, QosClass::BestEffort));
    assert_eq!((pod.spec.node_name.as_ref(), pod.spec.termination_grace_period_seconds), (None, None));
}

proptest! {
    #[test]
    fn a_pod_comes_back_as_it_was_stored(
        metadata in any_metadata("x"),
        node_name in "([a-z]{1,3})?",
        (requests, overhead) in (any_resources(), any_resources()),
        tolerations in prop::collection::vec(("[a-z]{1,2}", any::<bool>(), 0..4usize, any::<i64>()), 0..4),
        (priority, grace) in (any::<Option<i32>>(), proptest::option::of(0..i64::MAX)),
        (host_network, policy, phase, class) in (any::<bool>(), 0..4usize, 0..6usize, 0..4usize),
        ips in (any::<Option<[u8; 4]>>(), any::<Option<u128>>()),
        (start, probe) in (any_time(), any_time()),
        (user, privileged) in (proptest::option::of(1..=2_147_483_647i64), any::<Option<bool>>()),
    ) {
        let tolerations = tolerations.into_iter().map(|(key, exists, effect, seconds)| pb::Toleration {
            key,
            operator: if exists { "Exists".into() } else { String::new() },
            value: if exists { String::new() } else { "v".into() },
            effect: ["", "NoSchedule", "PreferNoSchedule", "NoExecute"][effect].into(),
            toleration_seconds: (effect == 3).then_some(seconds),
        });
        let resources = Some(pb::ResourceRequirements { limits: requests.clone(), requests });
        let security_context = Some(pb::SecurityContext { privileged, ..Default::default() });
        let spec = pb::PodSpec {
            node_name,
            tolerations: tolerations.collect(),
            containers: vec![pb::Container { resources, security_context, ..container("c") }],
            init_containers: vec![pb::Container { restart_policy: "Always".into(), ..container("s") }],
            overhead,
            priority,
            termination_grace_period_seconds: grace,
            host_network,
            restart_policy: ["", "Always", "OnFailure", "Never"][policy].into(),
            scheduling_gates: vec![pb::PodSchedulingGate { name: "g".into() }],
            service_account_name: "s".into(),
            security_context: Some(pb::PodSecurityContext { run_as_user: user, ..Default::default() }),
            priority_class_name: "high".into(),
            preemption_policy: if host_network { "Never".into() } else { String::new() },
            ..Default::default()
        };
        let v4 = ips.0.map(|address| std::net::Ipv4Addr::from(address).to_string());
        let v6 = ips.1.map(|address| std::net::Ipv6Addr::from(address).to_string());
        let status = pb::PodStatus {
            phase: ["", "Pending", "Running", "Succeeded", "Failed", "Unknown"][phase].into(),
            conditions: vec![pb::PodCondition {
                r#type: "Ready".into(),
                status: "True".into(),
                last_probe_time: probe,
                ..Default::default()
            }],
            qos_class: ["", "Guaranteed", "Burstable", "BestEffort"][class].into(),
            host_ip: v4.clone().unwrap_or_default(),
            pod_ips: v4.into_iter().chain(v6).collect(),
            start_time: start,
            nominated_node_name: "n".into(),
            ..Default::default()
        };
        stored::<Pod>(pb::Pod { metadata, spec: Some(spec), status: Some(status) });
    }
}
