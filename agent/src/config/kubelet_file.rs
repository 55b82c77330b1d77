//! The kubelet's own configuration file (KubeletConfiguration, YAML or JSON) as settings of the agent.
//!
//! A machine that ran a kubelet has such a file. Its fields become the agent's flags; a field that the agent has no flag for
//! is refused by its name, since somebody relies on it.

use serde_json::{Map, Value};

/// How a field is written, beyond its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A text, a number, or true and false.
    Plain,
    /// A map, written as `key=value` with this sign.
    Pairs(char),
    /// `registerWithTaints`.
    Taints,
    /// `shutdownGracePeriodByPodPriority`.
    Priorities,
}

/// The fields that the agent understands, and its flags.
const FIELDS: [(&str, &str, Form); 29] = [
    ("failSwapOn", "fail-swap-on", Form::Plain),
    ("nodeStatusUpdateFrequency", "node-status-update-frequency", Form::Plain),
    ("nodeStatusReportFrequency", "node-status-report-frequency", Form::Plain),
    ("nodeLeaseDurationSeconds", "node-lease-duration-seconds", Form::Plain),
    ("nodeStatusMaxImages", "node-status-max-images", Form::Plain),
    ("maxPods", "max-pods", Form::Plain),
    ("podsPerCore", "pods-per-core", Form::Plain),
    ("podPidsLimit", "pod-max-pids", Form::Plain),
    ("systemReserved", "system-reserved", Form::Pairs('=')),
    ("kubeReserved", "kube-reserved", Form::Pairs('=')),
    ("evictionHard", "eviction-hard", Form::Pairs('<')),
    ("evictionSoft", "eviction-soft", Form::Pairs('<')),
    ("evictionSoftGracePeriod", "eviction-soft-grace-period", Form::Pairs('=')),
    ("evictionMinimumReclaim", "eviction-minimum-reclaim", Form::Pairs('=')),
    ("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", Form::Plain),
    ("evictionPressureTransitionPeriod", "eviction-pressure-transition-period", Form::Plain),
    ("shutdownGracePeriod", "shutdown-grace-period", Form::Plain),
    ("shutdownGracePeriodCriticalPods", "shutdown-grace-period-critical-pods", Form::Plain),
    ("shutdownGracePeriodByPodPriority", "shutdown-grace-period-by-pod-priority", Form::Priorities),
    ("topologyManagerPolicy", "topology-manager-policy", Form::Plain),
    ("topologyManagerScope", "topology-manager-scope", Form::Plain),
    ("registerNode", "register-node", Form::Plain),
    ("registerWithTaints", "register-with-taints", Form::Taints),
    ("providerID", "provider-id", Form::Plain),
    ("staticPodPath", "pod-manifest-path", Form::Plain),
    ("containerLogMaxSize", "container-log-max-size", Form::Plain),
    ("containerLogMaxFiles", "container-log-max-files", Form::Plain),
    ("featureGates", "feature-gates", Form::Pairs('=')),
    ("memorySwap.swapBehavior", "memory-swap-behavior", Form::Plain),
];
const GROUP: &str = "memorySwap";
const KIND: &str = "KubeletConfiguration";
const VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// The settings of a file, by the names of the agent's flags, as a TOML file has them. Names of flags are understood too.
///
/// # Errors
/// When it is no YAML, or has a field or a value that cannot be used; the text names the field.
pub fn settings(text: &str) -> Result<toml::Table, String> {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let file: Option<Value> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| error.to_string().replace('\n', " "))?;
    let fields = match file {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err("expected fields, such as failSwapOn: false".to_owned()),
    };
    let mut settings = toml::Table::new();
    for (field, value) in flattened(fields)? {
        match (field.as_str(), value.as_str()) {
            ("kind", Some(KIND)) | ("apiVersion", Some(VERSION)) => continue,
            ("kind", _) => return Err(format!("kind: expected {KIND}")),
            ("apiVersion", _) => return Err(format!("apiVersion: expected {VERSION}")),
            _ => {}
        }
        let wrong = |reason: &str| format!("field `{field}`: {reason}");
        let known = FIELDS.iter().find(|(name, _, _)| *name == field);
        let (flag, form) = match known {
            Some((_, flag, form)) => (*flag, *form),
            // A name of a flag has no capitals.
            None if !field.contains(char::is_uppercase) => (field.as_str(), Form::Plain),
            None => return Err(wrong("the agent has no such setting")),
        };
        let value = converted(form, value).map_err(wrong)?;
        if settings.insert(flag.to_owned(), value).is_some() {
            return Err(wrong("it is given twice, by the kubelet's name and by the agent's"));
        }
    }
    Ok(settings)
}

/// The fields, with those of the one group of them under their full names.
fn flattened(fields: Map<String, Value>) -> Result<Vec<(String, Value)>, String> {
    let mut flat = Vec::new();
    for (field, value) in fields {
        match value {
            Value::Object(inner) if field == GROUP => {
                flat.extend(inner.into_iter().map(|(inner, value)| (format!("{field}.{inner}"), value)));
            }
            _ if field == GROUP => return Err(format!("field `{field}`: expected fields")),
            value => flat.push((field, value)),
        }
    }
    Ok(flat)
}

fn converted(form: Form, value: Value) -> Result<toml::Value, &'static str> {
    let list = |texts: Vec<String>| toml::Value::Array(texts.into_iter().map(toml::Value::String).collect());
    match (form, value) {
        (Form::Plain, Value::Array(items)) => {
            let texts: Option<Vec<String>> = items.iter().map(scalar).collect();
            texts.map(list).ok_or("expected a list of texts")
        }
        (Form::Plain, Value::Bool(value)) => Ok(toml::Value::Boolean(value)),
        (Form::Plain, value) => scalar(&value).map(toml::Value::String).ok_or("expected a text or a number"),
        (Form::Pairs(sign), Value::Object(pairs)) => {
            let pairs = pairs.iter().map(|(key, value)| Some(format!("{key}{sign}{}", scalar(value)?)));
            pairs.collect::<Option<Vec<_>>>().map(list).ok_or("expected texts or numbers by name")
        }
        (Form::Pairs(_), _) => Err("expected texts or numbers by name"),
        (Form::Taints, Value::Array(taints)) => taints
            .iter()
            .map(taint)
            .collect::<Option<Vec<_>>>()
            .map(list)
            .ok_or("expected taints: key, value, effect"),
        (Form::Taints, _) => Err("expected a list of taints"),
        (Form::Priorities, Value::Array(groups)) => {
            let expected = "expected groups of priority and shutdownGracePeriodSeconds";
            groups.iter().map(priority_group).collect::<Option<Vec<_>>>().map(list).ok_or(expected)
        }
        (Form::Priorities, _) => Err("expected a list of groups"),
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

fn taint(taint: &Value) -> Option<String> {
    let part = |name: &str| taint.get(name).and_then(Value::as_str);
    let value = part("value").filter(|value| !value.is_empty());
    let value = value.map(|value| format!("={value}")).unwrap_or_default();
    Some(format!("{}{value}:{}", part("key")?, part("effect")?))
}

fn priority_group(group: &Value) -> Option<String> {
    let (priority, seconds) =
        (group.get("priority")?.as_i64()?, group.get("shutdownGracePeriodSeconds")?.as_u64()?);
    Some(format!("{priority}={seconds}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::CommandFactory;
    use muster_agent_core::resources::swap::SwapBehavior;

    use super::super::{Config, Flags};
    use super::*;

    fn config(file: &str, flags: &[&str]) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.yaml");
        fs::write(&path, file).unwrap();
        let path = format!("--config={}", path.display());
        let args = ["muster-agent", "--store=http://a:1", &path].into_iter().chain(flags.iter().copied());
        let flags: Flags =
            muster_rpc::config::parse_with_files(args, settings).map_err(|error| error.to_string())?;
        Config::try_from(&flags).map_err(|error| error.to_string())
    }

    #[test]
    fn s207_a_kubelets_file_is_understood() {
        let found = config(
            "apiVersion: kubelet.config.k8s.io/v1beta1\n\
             kind: KubeletConfiguration\n\
             failSwapOn: false\n\
             memorySwap:\n  swapBehavior: LimitedSwap\n\
             maxPods: 30\n\
             evictionHard: {memory.available: 200Mi, nodefs.available: 5%}\n\
             systemReserved: {cpu: 500m, memory: 1Gi}\n\
             registerWithTaints:\n- {key: dedicated, value: gpu, effect: NoSchedule}\n- {key: new, effect: NoExecute}\n\
             shutdownGracePeriodByPodPriority:\n\
             - {priority: 100000, shutdownGracePeriodSeconds: 10}\n\
             - {priority: 0, shutdownGracePeriodSeconds: 60}\n\
             nodeStatusUpdateFrequency: 7s\n\
             staticPodPath: /etc/manifests\n\
             featureGates: {NodeSwap: true}\n\
             node-name: own-name\n",
            &["--max-pods=40"],
        )
        .unwrap();
        assert!(!found.swap.fail_on);
        assert_eq!(found.swap.behavior, SwapBehavior::LimitedSwap);
        assert_eq!(found.capacity.max_pods, 40, "a flag wins");
        assert_eq!(found.eviction.hard, ["memory.available<200Mi", "nodefs.available<5%"]);
        assert_eq!(found.capacity.system_reserved.len(), 2);
        let taints: Vec<String> = found.node.taints.iter().map(ToString::to_string).collect();
        assert_eq!(taints, ["dedicated=gpu:NoSchedule", "new:NoExecute"]);
        let seconds: Vec<(i32, u64)> = found
            .shutdown
            .by_pod_priority
            .iter()
            .map(|(priority, time)| (*priority, time.as_secs()))
            .collect();
        assert_eq!(seconds, [(0, 60), (100_000, 10)]);
        assert_eq!(found.status.update_frequency.as_secs(), 7);
        assert_eq!(found.pod_manifest_path.unwrap().to_str(), Some("/etc/manifests"));
        assert_eq!(found.node.name.unwrap(), "own-name");
        assert!(config("", &[]).is_ok(), "an empty file sets nothing");
    }

    #[test]
    fn what_the_agent_has_no_setting_for_is_refused_by_its_name() {
        for (file, expected) in [
            ("clusterDNS: [10.0.0.10]", "field `clusterDNS`: the agent has no such setting"),
            ("kind: Node", "kind: expected KubeletConfiguration"),
            ("apiVersion: v1", "apiVersion: expected kubelet.config.k8s.io/v1beta1"),
            ("evictionHard: 5", "field `evictionHard`: expected texts or numbers by name"),
            ("memorySwap: {swapBehaviour: x}", "field `memorySwap.swapBehaviour`"),
            ("shutdownGracePeriodByPodPriority: [{priority: 1}]", "shutdownGracePeriodSeconds"),
            ("maxPods: 1\nmax-pods: 2", "given twice"),
            ("maxPods: many", "key `max-pods`"),
            ("nonsense: 1", "unknown key `nonsense`"),
            ("[1, 2]", "expected fields"),
        ] {
            let refused = config(file, &[]).unwrap_err();
            assert!(refused.contains(expected), "{file}: {refused}");
        }
    }

    #[test]
    fn every_field_is_a_setting_of_the_agent() {
        let command = Flags::command();
        for (field, flag, _) in FIELDS {
            assert!(command.get_arguments().any(|arg| arg.get_long() == Some(flag)), "{field}: --{flag}");
        }
    }
}
