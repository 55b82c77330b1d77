//! What of a pod has no effect here: what is refused at creation, and what is kept with a warning.
//!
//! A manifest from Kubernetes may ask for what Muster does not have. What the program would miss is refused. What a manifest
//! usually carries along, and what nobody misses, is kept.

use super::{Pod, PodSpec};
use crate::invalid::{Check, Path};
use crate::pb;
use crate::pb::volume::Source;

/// Reports what the pod's program would miss.
pub fn check(check: &mut Check, spec: &PodSpec) {
    let root = Path::ROOT;
    let spec_path = root.key("spec");
    for (i, volume) in spec.volumes.iter().enumerate() {
        let path = spec_path.key("volumes");
        let path = path.index(i);
        let (kind, what) = match volume.source {
            Some(Source::Secret(_)) => ("secret", "secrets"),
            Some(Source::ConfigMap(_)) => ("configMap", "config maps"),
            Some(Source::PersistentVolumeClaim(_)) => ("persistentVolumeClaim", "persistent volumes"),
            Some(Source::EmptyDir(_) | Source::HostPath(_)) | None => continue,
        };
        let reason =
            format!("is not supported: there are no {what} here; emptyDir and hostPath volumes work");
        check.fail(&path.key(kind), reason);
    }
    for (list, containers) in [("containers", &spec.containers), ("initContainers", &spec.init_containers)] {
        for (i, container) in containers.iter().enumerate() {
            let path = spec_path.key(list);
            let path = path.index(i);
            for (i, variable) in container.env.iter().enumerate() {
                if variable.value_from.is_some() {
                    let path = path.key("env");
                    let path = path.index(i);
                    let reason =
                        "is not supported: there are neither secrets nor config maps here; give a value";
                    check.fail(&path.key("valueFrom"), reason);
                }
            }
        }
    }
}

/// What is kept without effect, as sentences that name the field.
pub fn warnings(pod: &Pod) -> Vec<String> {
    let mut found = Vec::new();
    if !pod.spec.service_account_name.is_empty() {
        found.push("spec.serviceAccountName has no effect: pods have no accounts here".to_owned());
    }
    for volume in &pod.spec.volumes {
        if let Some(Source::EmptyDir(pb::EmptyDirVolume { size_limit, medium })) = &volume.source
            && !size_limit.is_empty()
            && medium.is_empty()
        {
            found.push(format!(
                "the sizeLimit of the emptyDir {} has no effect: it is enforced for medium Memory only",
                volume.name
            ));
        }
    }
    for container in pod.spec.all_containers() {
        let is_pulled = !container.command.is_empty() && container.image.contains(['/', ':', '@']);
        if is_pulled {
            found.push(format!(
                "the image {} of container {} is not pulled: its command runs from the node's own files",
                container.image, container.name
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: pb::PodSpec) -> Pod {
        let metadata =
            Some(pb::Metadata { name: "a".into(), namespace: "default".into(), ..Default::default() });
        pb::Pod { metadata, spec: Some(spec), status: None }.try_into().unwrap()
    }

    fn refused(spec: pb::PodSpec) -> Vec<String> {
        let mut found = Check::new();
        check(&mut found, &pod(spec).spec);
        found.finish(()).map_or_else(
            |invalid| invalid.violations.into_iter().map(|violation| violation.field).collect(),
            |()| Vec::new(),
        )
    }

    fn container(name: &str) -> pb::Container {
        pb::Container { name: name.into(), ..Default::default() }
    }

    #[test]
    fn what_a_program_would_miss_is_refused_by_name() {
        let object = || pb::ObjectVolume { name: "o".into() };
        let volume = |name: &str, source| pb::Volume { name: name.into(), source: Some(source) };
        let variable =
            |name: &str, value_from| pb::EnvVar { name: name.into(), value_from, ..Default::default() };
        let host = pb::HostPathVolume { path: "/x".into(), ..Default::default() };
        let spec = pb::PodSpec {
            volumes: vec![
                volume("a", Source::EmptyDir(Default::default())),
                volume("b", Source::Secret(object())),
                volume("c", Source::HostPath(host)),
                volume("d", Source::ConfigMap(object())),
                volume("e", Source::PersistentVolumeClaim(object())),
            ],
            containers: vec![pb::Container {
                env: vec![variable("A", None), variable("B", Some(Default::default()))],
                ..container("main")
            }],
            init_containers: vec![pb::Container {
                env: vec![variable("C", Some(Default::default()))],
                ..container("init")
            }],
            ..Default::default()
        };
        assert_eq!(
            refused(spec),
            [
                "spec.volumes[1].secret",
                "spec.volumes[3].configMap",
                "spec.volumes[4].persistentVolumeClaim",
                "spec.containers[0].env[1].valueFrom",
                "spec.initContainers[0].env[0].valueFrom",
            ]
        );
        assert!(
            refused(pb::PodSpec { containers: vec![container("main")], ..Default::default() }).is_empty()
        );
    }

    #[test]
    fn what_is_kept_without_effect_is_named_in_a_warning() {
        let dir = |name: &str, medium: &str, size: &str| pb::Volume {
            name: name.into(),
            source: Some(Source::EmptyDir(pb::EmptyDirVolume {
                size_limit: size.into(),
                medium: medium.into(),
            })),
        };
        let image = |name: &str, image: &str, command: &[&str]| pb::Container {
            image: image.into(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            ..container(name)
        };
        let found = warnings(&pod(pb::PodSpec {
            service_account_name: "me".into(),
            volumes: vec![dir("disk", "", "1Gi"), dir("any", "", ""), dir("ram", "Memory", "1Gi")],
            containers: vec![image("web", "registry.example/web:1", &["serve"]), image("x", "none", &["x"])],
            init_containers: vec![image("pause", "registry.example/pause:3", &[])],
            ..Default::default()
        }));
        assert_eq!(found.len(), 3, "{found:?}");
        for (warning, expected) in
            found.iter().zip(["serviceAccountName", "emptyDir disk", "web:1 of container web"])
        {
            assert!(warning.contains(expected), "{warning}");
        }
    }
}
