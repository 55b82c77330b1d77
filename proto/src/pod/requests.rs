//! Resource requests of a whole pod.
//!
//! Ordinary init containers run one after the other and before the rest, so only the largest of them counts. A sidecar
//! keeps running once it is started, so it counts together with every container that starts after it.

use std::borrow::Cow;

use super::{Container, Pod, PodSpec};
use crate::quantity::{Quantity, Resources};

/// The most that the pod needs of each resource at any one time, with its overhead.
pub fn of(spec: &PodSpec) -> Resources {
    of_or(spec, &Resources::new())
}

/// As [`of`], where a container that does not name one of the resources in `missing` counts with the amount there.
pub fn of_or(spec: &PodSpec, missing: &Resources) -> Resources {
    let asked = |container| asked(container, missing);
    let mut sidecars = Resources::new();
    let mut neediest_start = Resources::new();
    for init in &spec.init_containers {
        if init.sidecar {
            add(&mut sidecars, &asked(init));
        } else {
            let mut moment = sidecars.clone();
            add(&mut moment, &asked(init));
            raise(&mut neediest_start, &moment);
        }
    }
    let mut total = sidecars;
    for container in &spec.containers {
        add(&mut total, &asked(container));
    }
    raise(&mut total, &neediest_start);
    add(&mut total, &spec.overhead);
    total
}

/// The sum of the pods' requests.
pub fn sum<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Resources {
    let mut total = Resources::new();
    for pod in pods {
        add(&mut total, &of(&pod.spec));
    }
    total
}

/// The amount of one resource; zero if it is absent.
pub fn amount(resources: &Resources, name: &str) -> Quantity {
    resources.get(name).copied().unwrap_or_default()
}

// The store has added a request for each limit without one, when the pod was created.
fn asked<'a>(container: &'a Container, missing: &Resources) -> Cow<'a, Resources> {
    let requests = &container.resources.requests;
    if missing.keys().all(|name| requests.contains_key(name)) {
        return Cow::Borrowed(requests);
    }
    let mut filled = missing.clone();
    filled.extend(requests.iter().map(|(name, amount)| (name.clone(), *amount)));
    Cow::Owned(filled)
}

fn add(total: &mut Resources, more: &Resources) {
    for (name, quantity) in more {
        let held = total.entry(name.clone()).or_default();
        // The sum overflows: the larger part alone already fits no machine.
        *held = held.add(quantity).unwrap_or_else(|_| (*held).max(*quantity));
    }
}

fn raise(total: &mut Resources, floor: &Resources) {
    for (name, quantity) in floor {
        let held = total.entry(name.clone()).or_default();
        if *quantity > *held {
            *held = *quantity;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Amounts out of `cpu=1 memory=1Gi`.
    fn amounts(text: &str) -> Resources {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(name, amount)| (name.to_owned(), amount.parse().unwrap())).collect()
    }

    fn container(requests: &str) -> Container {
        let mut container = Container::default();
        container.resources.requests = amounts(requests);
        container
    }

    #[test]
    fn a_pod_needs_the_most_that_it_needs_at_any_one_time() {
        let (main, init) = (container, container);
        let sidecar = |text: &str| Container { sidecar: true, ..container(text) };
        for (inits, mains, overhead, expected) in [
            (vec![], vec![main("cpu=1"), main("cpu=500m memory=1Gi")], "", "cpu=1500m memory=1Gi"),
            (
                vec![init("cpu=2 memory=1G"), init("cpu=2 memory=3G")],
                vec![main("cpu=2 memory=1G"), main("cpu=1 memory=1G")],
                "",
                "cpu=3 memory=3G",
            ),
            (vec![sidecar("cpu=1"), init("cpu=4")], vec![main("cpu=2")], "", "cpu=5"),
            (vec![init("cpu=4"), sidecar("cpu=1")], vec![main("cpu=2")], "", "cpu=4"),
            (vec![sidecar("cpu=1"), sidecar("cpu=1")], vec![main("cpu=2")], "", "cpu=4"),
            (vec![init("cpu=4")], vec![main("cpu=2")], "cpu=250m memory=1Mi", "cpu=4250m memory=1Mi"),
            (vec![], vec![main("")], "", ""),
        ] {
            let overhead = amounts(overhead);
            let spec = PodSpec { init_containers: inits, containers: mains, overhead, ..PodSpec::default() };
            assert_eq!(of(&spec), amounts(expected), "{expected}");
        }
    }

    #[test]
    fn missing_requests_can_be_filled_in() {
        let missing = amounts("cpu=100m memory=200Mi");
        for (containers, expected) in [
            (&[""][..], "cpu=100m memory=200Mi"),
            (&["", ""], "cpu=200m memory=400Mi"),
            (&["cpu=1", "memory=1Gi"], "cpu=1100m memory=1224Mi"),
            (&["cpu=0 memory=0"], "cpu=0 memory=0"),
            (&["example.com/gpu=1"], "cpu=100m memory=200Mi example.com/gpu=1"),
        ] {
            let containers = containers.iter().map(|text| container(text)).collect();
            let spec = PodSpec { containers, ..PodSpec::default() };
            assert_eq!(of_or(&spec, &missing), amounts(expected), "{expected}");
        }
    }

    #[test]
    fn amounts_that_overflow_fit_no_machine() {
        let huge = "memory=99999999999E";
        let spec = PodSpec { containers: vec![container(huge); 4], ..PodSpec::default() };
        assert!(amount(&of(&spec), "memory") >= amount(&amounts(huge), "memory"));
    }
}
