//! The secrets, config maps and other objects that a pod refers to. A node must not read them for a pod of its own.

use super::PodSpec;
use crate::pb::volume::Source;

/// The names of the objects that a pod refers to, in the pod's order; a name may occur more than once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References<'a> {
    pub secrets: Vec<&'a str>,
    pub config_maps: Vec<&'a str>,
    pub claims: Vec<&'a str>,
    pub service_account: Option<&'a str>,
}

impl<'a> References<'a> {
    pub(super) fn of(spec: &'a PodSpec) -> Self {
        let mut found = Self::default();
        for variable in spec.all_containers().flat_map(|container| &container.env) {
            let from = variable.value_from.as_ref();
            found.secrets.extend(from.and_then(|from| from.secret_key_ref.as_ref()).map(|key| &*key.name));
            let config_map = from.and_then(|from| from.config_map_key_ref.as_ref());
            found.config_maps.extend(config_map.map(|key| &*key.name));
        }
        for volume in &spec.volumes {
            match &volume.source {
                Some(Source::Secret(object)) => found.secrets.push(&object.name),
                Some(Source::ConfigMap(object)) => found.config_maps.push(&object.name),
                Some(Source::PersistentVolumeClaim(object)) => found.claims.push(&object.name),
                Some(Source::EmptyDir(_) | Source::HostPath(_)) | None => {}
            }
        }
        found.service_account = Some(&*spec.service_account_name).filter(|name| !name.is_empty());
        found
    }

    /// Whether the pod refers to no object.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb;
    use crate::pod::Container;

    #[test]
    fn environments_and_volumes_are_searched_in_every_container() {
        let key = |name: &str| Some(pb::KeySelector { name: name.into(), key: "k".into() });
        let variable = |secret_key_ref, config_map_key_ref| pb::EnvVar {
            name: "V".into(),
            value_from: Some(pb::EnvVarSource { secret_key_ref, config_map_key_ref }),
            ..Default::default()
        };
        let object = |name: &str| pb::ObjectVolume { name: name.into() };
        let volume = |source| pb::Volume { name: "v".into(), source: Some(source) };
        let spec = PodSpec {
            containers: vec![Container { env: vec![variable(key("s1"), None)], ..Default::default() }],
            init_containers: vec![Container { env: vec![variable(None, key("c1"))], ..Default::default() }],
            volumes: vec![
                volume(Source::EmptyDir(pb::EmptyDirVolume::default())),
                volume(Source::Secret(object("s2"))),
                volume(Source::ConfigMap(object("c2"))),
                volume(Source::PersistentVolumeClaim(object("p"))),
            ],
            service_account_name: "a".into(),
            ..Default::default()
        };
        let expected = References {
            secrets: vec!["s1", "s2"],
            config_maps: vec!["c1", "c2"],
            claims: vec!["p"],
            service_account: Some("a"),
        };
        assert_eq!(References::of(&spec), expected);
        assert!(!expected.is_empty());
        assert!(References::of(&PodSpec::default()).is_empty());
    }
}
