//! Resource requests and limits of pods, and their share of a node's resources.

use muster_proto::pod::{Pod, PodSpec, requests as pod_requests};
use muster_proto::quantity::{Quantity, Resources};

/// The resource requests of a pod.
pub(super) fn requests(pod: &Pod) -> Resources {
    pod_requests::of(&pod.spec)
}

/// The resource limits of a pod. They are added up by the same rules as requests.
pub(super) fn limits(pod: &Pod) -> Resources {
    let mut spec: PodSpec = pod.spec.clone();
    for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
        container.resources.requests.clone_from(&container.resources.limits);
    }
    pod_requests::of(&spec)
}

/// The sum of the resources.
pub(super) fn sum(amounts: impl IntoIterator<Item = Resources>) -> Resources {
    let mut total = Resources::new();
    for (name, amount) in amounts.into_iter().flatten() {
        let held = total.entry(name).or_default();
        *held = held.add(&amount).unwrap_or_else(|_| (*held).max(amount));
    }
    total
}

/// An amount and its share of the whole, such as `500m (25%)`.
pub(super) fn share(amounts: &Resources, name: &str, of: &Resources) -> String {
    let amount = amounts.get(name).copied().unwrap_or_default();
    match of.get(name).filter(|whole| !whole.is_zero()) {
        Some(whole) => format!("{amount} ({}%)", percent(amount, *whole)),
        None => format!("{amount}"),
    }
}

fn percent(part: Quantity, whole: Quantity) -> i128 {
    i128::from(part.milli()) * 100 / i128::from(whole.milli())
}

/// The names of the resources: cpu, memory and storage first, then the others.
pub(super) fn names(known: &[&Resources]) -> Vec<String> {
    const FIRST: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
    let mut names: Vec<String> = FIRST.iter().map(|name| (*name).to_owned()).collect();
    let others: std::collections::BTreeSet<&String> =
        known.iter().flat_map(|amounts| amounts.keys()).collect();
    names.extend(others.into_iter().filter(|name| !FIRST.contains(&name.as_str())).cloned());
    names
}
