//! Disruption budgets.

use std::collections::BTreeMap;

use super::meta::meta_in;
use super::selector::selector_in;
use super::{time_in, time_out};
use crate::budget::{DisruptionBudget, DisruptionBudgetSpec, DisruptionBudgetStatus, DisruptionLimit};
use crate::invalid::{Check, Invalid, Path};
use crate::name::Name;
use crate::pb;
use crate::record::Kind;

#[cfg(test)]
mod tests;

impl TryFrom<pb::DisruptionBudget> for DisruptionBudget {
    type Error = Invalid;

    fn try_from(budget: pb::DisruptionBudget) -> Result<Self, Invalid> {
        let pb::DisruptionBudget { metadata, spec, status } = budget;
        let mut check = Check::new();
        let meta = meta_in(&mut check, &Path::ROOT.key("metadata"), Kind::DisruptionBudget, metadata);
        let spec = spec_in(&mut check, &Path::ROOT.key("spec"), spec.unwrap_or_default());
        let status = status_in(&mut check, &Path::ROOT.key("status"), status.unwrap_or_default());
        let budget = meta.zip(spec).map(|(meta, spec)| DisruptionBudget { meta, spec, status });
        check.finish_some(budget)
    }
}

fn spec_in(
    check: &mut Check,
    path: &Path<'_>,
    spec: pb::DisruptionBudgetSpec,
) -> Option<DisruptionBudgetSpec> {
    let pb::DisruptionBudgetSpec { selector, min_available, max_unavailable, unhealthy_pod_eviction_policy } =
        spec;
    let selector = selector_in(check, &path.key("selector"), selector.unwrap_or_default());
    let limit = limit_in(check, path, &min_available, &max_unavailable);
    let policy = check.field(&path.key("unhealthyPodEvictionPolicy"), unhealthy_pod_eviction_policy.parse());
    Some(DisruptionBudgetSpec { selector: selector?, limit: limit?, unhealthy_pod_eviction_policy: policy? })
}

fn limit_in(check: &mut Check, path: &Path<'_>, min: &str, max: &str) -> Option<DisruptionLimit> {
    let (min_path, max_path) = (path.key("minAvailable"), path.key("maxUnavailable"));
    match (min, max) {
        ("", "") => {
            check.fail(&min_path, "is required, unless maxUnavailable is given");
            None
        }
        (min, "") => check.field(&min_path, min.parse()).map(DisruptionLimit::MinAvailable),
        ("", max) => check.field(&max_path, max.parse()).map(DisruptionLimit::MaxUnavailable),
        _ => {
            check.fail(&max_path, "must not be given together with minAvailable");
            None
        }
    }
}

fn status_in(
    check: &mut Check,
    path: &Path<'_>,
    status: pb::DisruptionBudgetStatus,
) -> DisruptionBudgetStatus {
    let pb::DisruptionBudgetStatus {
        disruptions_allowed,
        current_healthy,
        desired_healthy,
        expected_pods,
        disrupted_pods,
        observed_generation,
    } = status;
    let path = path.key("disruptedPods");
    let mut disrupted = BTreeMap::new();
    for (name, time) in disrupted_pods {
        let path = path.entry(&name);
        let pod: Option<Name> = check.field(&path, name.parse().map_err(|error| format!("the key {error}")));
        let time = time_in(check, &path, Some(time));
        disrupted.extend(pod.zip(time));
    }
    DisruptionBudgetStatus {
        disruptions_allowed,
        current_healthy,
        desired_healthy,
        expected_pods,
        disrupted_pods: disrupted,
        observed_generation,
    }
}

impl From<DisruptionBudget> for pb::DisruptionBudget {
    fn from(budget: DisruptionBudget) -> Self {
        let DisruptionBudget { meta, spec, status } = budget;
        Self { metadata: Some(meta.into()), spec: Some(spec.into()), status: Some(status.into()) }
    }
}

impl From<DisruptionBudgetSpec> for pb::DisruptionBudgetSpec {
    fn from(spec: DisruptionBudgetSpec) -> Self {
        let DisruptionBudgetSpec { selector, limit, unhealthy_pod_eviction_policy } = spec;
        let (min_available, max_unavailable) = match limit {
            DisruptionLimit::MinAvailable(min) => (min.to_string(), String::new()),
            DisruptionLimit::MaxUnavailable(max) => (String::new(), max.to_string()),
        };
        Self {
            selector: Some(selector.into()),
            min_available,
            max_unavailable,
            unhealthy_pod_eviction_policy: unhealthy_pod_eviction_policy.to_string(),
        }
    }
}

impl From<DisruptionBudgetStatus> for pb::DisruptionBudgetStatus {
    fn from(status: DisruptionBudgetStatus) -> Self {
        let DisruptionBudgetStatus {
            disruptions_allowed,
            current_healthy,
            desired_healthy,
            expected_pods,
            disrupted_pods,
            observed_generation,
        } = status;
        let disrupted_pods = disrupted_pods.into_iter();
        Self {
            disruptions_allowed,
            current_healthy,
            desired_healthy,
            expected_pods,
            disrupted_pods: disrupted_pods
                .filter_map(|(name, time)| Some((name.into(), time_out(Some(time))?)))
                .collect(),
            observed_generation,
        }
    }
}
