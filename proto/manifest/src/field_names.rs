//! Converts the field names of manifests to the JSON names of the schema.
//!
//! The JSON of the schema has `podCidr` and `hostIp`, Kubernetes has `podCIDR` and `hostIP`. Both are accepted, and so
//! are the protobuf names (`pod_cidr`) and the fields that have another name or shape in Kubernetes (`names`). Any other
//! field is an error that names its path, because silently dropping a field would hide a mistake.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use super::error::{Problem, UnknownField};
use super::names::{self, Shape};

/// String fields that a manifest may write as a number: quantities, and counts that may also be percentages.
const NUMBERS_AS_TEXT: [(&str, &str); 8] = [
    ("muster.v1.NodeStatus", "capacity"),
    ("muster.v1.NodeStatus", "allocatable"),
    ("muster.v1.PodSpec", "overhead"),
    ("muster.v1.ResourceRequirements", "requests"),
    ("muster.v1.ResourceRequirements", "limits"),
    ("muster.v1.EmptyDirVolume", "sizeLimit"),
    ("muster.v1.DisruptionBudgetSpec", "minAvailable"),
    ("muster.v1.DisruptionBudgetSpec", "maxUnavailable"),
];

/// The fields under their JSON names in the schema.
pub(crate) fn to_schema_names(
    message: &MessageDescriptor,
    fields: Map<String, Value>,
) -> Result<Map<String, Value>, Problem> {
    let mut unknown = Vec::new();
    let converted = convert_fields(message, None, fields, "", &mut unknown)?;
    if unknown.is_empty() { Ok(converted) } else { Err(Problem::UnknownFields(unknown)) }
}

/// `name_is`: what Kubernetes calls the message's field `name`, if not that.
fn convert_fields(
    message: &MessageDescriptor,
    name_is: Option<&'static str>,
    fields: Map<String, Value>,
    path: &str,
    unknown: &mut Vec<UnknownField>,
) -> Result<Map<String, Value>, Problem> {
    let mut converted = Map::new();
    let mut written_as = std::collections::BTreeMap::new();
    for (key, value) in fields {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let found = fields_of(message, if name_is == Some(&key) { "name" } else { &key });
        for (field, value) in split(message, &found, value, &path, unknown) {
            let name = field.json_name().to_owned();
            if let Some(first) = written_as.insert(name.clone(), key.clone()) {
                return Err(Problem::Twice { path, first, second: key });
            }
            converted.insert(name, convert_value(field, value, &path, unknown)?);
        }
    }
    Ok(converted)
}

/// The fields under one of their names. Several may be parts of one object in Kubernetes.
fn fields_of(message: &MessageDescriptor, key: &str) -> Vec<FieldDescriptor> {
    match message.get_field_by_json_name(key).or_else(|| message.get_field_by_name(key)) {
        Some(own) => vec![own],
        None => {
            let named = names::fields_named(message, key);
            if named.is_empty() { names::field_once_named(message, key).into_iter().collect() } else { named }
        }
    }
}

/// The values of these fields in the value of the one that they are in a manifest.
fn split<'a>(
    message: &MessageDescriptor,
    found: &'a [FieldDescriptor],
    value: Value,
    path: &str,
    unknown: &mut Vec<UnknownField>,
) -> Vec<(&'a FieldDescriptor, Value)> {
    let Some(first) = found.first() else {
        let known = message.fields().map(|field| field.json_name().to_owned()).collect();
        unknown.push(UnknownField { path: path.to_owned(), known });
        return Vec::new();
    };
    let inner_name = |field: &FieldDescriptor| match names::shape(field) {
        Shape::In(inner) => Some(inner),
        _ => None,
    };
    let is_inside = |value: &Map<String, Value>| {
        found.iter().filter_map(inner_name).any(|inner| value.contains_key(inner))
    };
    match value {
        Value::Object(mut value) if is_inside(&value) => {
            let inner = |field: &'a FieldDescriptor| Some((field, value.remove(inner_name(field)?)?));
            let values: Vec<_> = found.iter().filter_map(inner).collect();
            let known: Vec<String> = found.iter().filter_map(inner_name).map(str::to_owned).collect();
            unknown.extend(value.keys().map(|key| {
                let path = format!("{path}.{key}");
                UnknownField { path, known: known.clone() }
            }));
            values
        }
        value => vec![(first, value)],
    }
}

fn convert_value(
    field: &FieldDescriptor,
    value: Value,
    path: &str,
    unknown: &mut Vec<UnknownField>,
) -> Result<Value, Problem> {
    if is_number_as_text(field) {
        return Ok(match value {
            Value::Object(amounts) => {
                amounts.into_iter().map(|(name, amount)| (name, text(amount))).collect()
            }
            value => text(value),
        });
    }
    if let (Shape::EachIn(inner), Value::Array(items)) = (names::shape(field), &value) {
        let unwrapped = items.iter().map(|item| item.get(inner).unwrap_or(item).clone());
        return Ok(unwrapped.collect());
    }
    let Kind::Message(message) = field.kind() else { return Ok(value) };
    // Maps have only strings and times as values, and well-known types have no fields to rename.
    if field.is_map() || message.full_name().starts_with("google.protobuf.") {
        return Ok(value);
    }
    let name_is = match names::shape(field) {
        Shape::NameIs(name) => Some(name),
        _ => None,
    };
    Ok(match value {
        Value::Array(items) if field.is_list() => {
            let items = items.into_iter().enumerate().map(|(i, item)| match item {
                Value::Object(fields) => {
                    convert_fields(&message, None, fields, &format!("{path}[{i}]"), unknown)
                        .map(Value::Object)
                }
                other => Ok(other),
            });
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        Value::Object(fields) if !field.is_list() => {
            Value::Object(convert_fields(&message, name_is, fields, path, unknown)?)
        }
        // A value of the wrong type; the conversion to a message reports it.
        other => other,
    })
}

pub(crate) fn is_number_as_text(field: &FieldDescriptor) -> bool {
    let of = field.parent_message();
    NUMBERS_AS_TEXT.iter().any(|(message, name)| *message == of.full_name() && *name == field.json_name())
}

fn text(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::String(number.to_string()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::descriptor;
    use muster_proto::record::Kind;
    use serde_json::json;

    fn converted(kind: Kind, fields: Value) -> Result<Value, String> {
        let Value::Object(fields) = fields else { unreachable!() };
        to_schema_names(&descriptor(kind), fields).map(Value::Object).map_err(|problem| problem.to_string())
    }

    #[test]
    fn kubernetes_names_and_protobuf_names_are_accepted() {
        let json_names = json!({
            "spec": {"podCidr": "10.0.0.0/24", "podCidrs": ["10.0.0.0/24"], "providerId": "x://1"},
            "status": {"nodeInfo": {"machineId": "a", "systemUuid": "b", "bootId": "c", "osImage": "d"}},
        });
        let kubernetes_names = json!({
            "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": "x://1"},
            "status": {"nodeInfo": {"machineID": "a", "systemUUID": "b", "bootID": "c", "osImage": "d"}},
        });
        let protobuf_names = json!({
            "spec": {"pod_cidr": "10.0.0.0/24", "pod_cidrs": ["10.0.0.0/24"], "provider_id": "x://1"},
            "status": {"node_info": {"machine_id": "a", "system_uuid": "b", "boot_id": "c", "os_image": "d"}},
        });
        for written in [json_names.clone(), kubernetes_names, protobuf_names] {
            assert_eq!(converted(Kind::Node, written), Ok(json_names.clone()));
        }
        let pod = json!({"status": {"podIP": "1.2.3.4", "podIPs": ["1.2.3.4"], "hostIP": "1.2.3.5",
            "containerStatuses": [{"containerID": "x"}]},
            "spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}});
        let expected = json!({"status": {"podIp": "1.2.3.4", "podIps": ["1.2.3.4"], "hostIp": "1.2.3.5",
            "containerStatuses": [{"containerId": "x"}]},
            "spec": {"volumes": [{"name": "v", "secret": {"name": "s"}}]}});
        assert_eq!(converted(Kind::Pod, pod), Ok(expected));
    }

    #[test]
    fn a_condition_may_have_a_kind_as_in_the_oldest_manifests() {
        let node = json!({"status": {"conditions": [{"kind": "Ready", "status": "True"}]}});
        let expected = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        assert_eq!(converted(Kind::Node, node), Ok(expected.clone()));
        let pod = json!({"status": {"conditions": [{"kind": "Ready", "status": "True"}]}});
        assert_eq!(converted(Kind::Pod, pod), Ok(expected));
        let twice = json!({"status": {"conditions": [{"kind": "Ready", "type": "Ready", "status": "True"}]}});
        assert!(converted(Kind::Node, twice).unwrap_err().contains("is given twice"));
    }

    #[test]
    fn the_shapes_of_kubernetes_are_accepted_beside_our_own() {
        let pod = json!({"status": {"podIPs": [{"ip": "1.2.3.4"}]}, "spec": {"containers": [
            {"name": "c", "lifecycle": {"preStop": {"exec": {"command": ["a"]}}}}]}});
        let ours = json!({"status": {"podIps": ["1.2.3.4"]}, "spec": {"containers": [
            {"name": "c", "lifecycle": {"preStop": {"command": ["a"]}}}]}});
        assert_eq!(converted(Kind::Pod, pod), Ok(ours.clone()));
        assert_eq!(converted(Kind::Pod, ours.clone()), Ok(ours));
        let node = json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 7600}}}});
        let ours = json!({"status": {"daemonEndpoints": {"agentPort": 7600}}});
        assert_eq!(converted(Kind::Node, node), Ok(ours.clone()));
        assert_eq!(converted(Kind::Node, ours.clone()), Ok(ours));
        let event = json!({"source": {"component": "c", "host": "h", "port": 1}});
        let refused = converted(Kind::Event, event).unwrap_err();
        assert_eq!(refused, "unknown field source.port (known fields: component, host)");
    }

    #[test]
    fn no_two_fields_of_a_message_share_a_name() {
        for kind in Kind::ALL {
            let pool = descriptor(kind).parent_pool().clone();
            for message in pool.all_messages() {
                let mut names = std::collections::BTreeSet::new();
                for field in message.fields() {
                    let own: std::collections::BTreeSet<String> = [
                        field.name().to_owned(),
                        field.json_name().to_owned(),
                        names::with_capitals(field.json_name()).into_owned(),
                    ]
                    .into();
                    for name in own {
                        let of = message.full_name();
                        assert!(names.insert(name.clone()), "{of} has {name} twice");
                    }
                }
            }
        }
    }

    #[test]
    fn only_quantities_and_counts_may_be_written_as_numbers() {
        let pod = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": 2, "memory": "1Gi"}}}]}});
        let expected =
            json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]}});
        assert_eq!(converted(Kind::Pod, pod), Ok(expected));
        let budget = json!({"spec": {"minAvailable": 1, "maxUnavailable": "50%"}});
        let expected = json!({"spec": {"minAvailable": "1", "maxUnavailable": "50%"}});
        assert_eq!(converted(Kind::DisruptionBudget, budget), Ok(expected));
        let labels = json!({"metadata": {"labels": {"a": 1}}});
        assert_eq!(
            converted(Kind::Node, labels.clone()),
            Ok(labels),
            "unchanged, so that it is refused later"
        );
    }

    #[test]
    fn every_unknown_field_is_named_by_its_path() {
        let node =
            json!({"metadata": {"nme": "a"}, "spec": {"taints": [{"key": "a"}, {"valeu": "b"}]}, "stat": {}});
        let refused = converted(Kind::Node, node).unwrap_err();
        assert_eq!(
            refused,
            "unknown field metadata.nme (known fields: name, namespace, uid, resourceVersion, generation, \
             creationTimestamp, deletionTimestamp, deletionGracePeriodSeconds, labels, annotations, finalizers, \
             ownerReferences, traceparent); unknown field spec.taints[1].valeu (known fields: key, value, effect, timeAdded); \
             unknown field stat (known fields: metadata, spec, status)"
        );
    }

    #[test]
    fn a_field_given_under_two_names_is_refused() {
        let node = json!({"spec": {"podCIDR": "10.0.0.0/24", "podCidr": "10.1.0.0/24"}});
        let refused = converted(Kind::Node, node).unwrap_err();
        assert!(refused.starts_with("spec.podCidr is given twice"), "{refused}");
    }
}
