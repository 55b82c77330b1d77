//! QoS classes, computed from requests and limits.
//!
//! Only CPU and memory count, of containers and init containers alike. An amount of zero counts as absent, and a limit
//! without a request is also the request.

use std::fmt;
use std::str::FromStr;

use super::{Container, PodSpec};
use crate::quantity::{Quantity, QuantityError};

/// The QoS class. Under resource pressure BestEffort pods are evicted first, then Burstable, then Guaranteed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

/// The text is not a class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be Guaranteed, Burstable or BestEffort")]
pub struct QosClassError;

const COUNTED: [&str; 2] = ["cpu", "memory"];

pub(super) fn of(spec: &PodSpec) -> QosClass {
    if COUNTED.iter().all(|resource| spec.all_containers().all(|container| asks_nothing(container, resource)))
    {
        QosClass::BestEffort
    } else if COUNTED.iter().all(|resource| is_guaranteed(spec, resource)) {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

fn limit(container: &Container, resource: &str) -> Option<Quantity> {
    container.resources.limits.get(resource).copied().filter(|amount| !amount.is_zero())
}

fn request(container: &Container, resource: &str) -> Option<Quantity> {
    match container.resources.requests.get(resource) {
        Some(amount) if !amount.is_zero() => Some(*amount),
        // The request is present, though zero: the limit does not replace it.
        Some(_) => None,
        None => limit(container, resource),
    }
}

fn asks_nothing(container: &Container, resource: &str) -> bool {
    limit(container, resource).is_none() && request(container, resource).is_none()
}

/// Whether every container has a limit and the sum of requests equals the sum of limits.
fn is_guaranteed(spec: &PodSpec, resource: &str) -> bool {
    let limits: Option<Vec<Quantity>> = spec.all_containers().map(|each| limit(each, resource)).collect();
    let requests = spec.all_containers().filter_map(|each| request(each, resource));
    let Some(limits) = limits else {
        return false;
    };
    match (sum(limits), sum(requests)) {
        (Ok(limits), Ok(requests)) => limits == requests,
        // The sum overflows. No machine has that much, so it cannot be guaranteed.
        _ => false,
    }
}

fn sum(amounts: impl IntoIterator<Item = Quantity>) -> Result<Quantity, QuantityError> {
    amounts.into_iter().try_fold(Quantity::ZERO, |total, amount| total.add(&amount))
}

impl FromStr for QosClass {
    type Err = QosClassError;

    fn from_str(text: &str) -> Result<Self, QosClassError> {
        match text {
            "Guaranteed" => Ok(Self::Guaranteed),
            "Burstable" => Ok(Self::Burstable),
            "BestEffort" => Ok(Self::BestEffort),
            _ => Err(QosClassError),
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Resources;

    /// A container out of `requests | limits`, each such as `cpu=1 memory=1Gi`.
    fn container(text: &str) -> Container {
        let amounts = |text: &str| -> Resources {
            let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
            pairs.map(|(name, amount)| (name.to_owned(), amount.parse().unwrap())).collect()
        };
        let (requests, limits) = text.split_once('|').unwrap();
        let mut container = Container::default();
        container.resources.requests = amounts(requests);
        container.resources.limits = amounts(limits);
        container
    }

    #[test]
    fn the_class_is_computed_from_requests_and_limits_of_cpu_and_memory() {
        use QosClass::{BestEffort, Burstable, Guaranteed};
        let full = "cpu=1 memory=1Gi | cpu=1 memory=1Gi";
        for (containers, expected) in [
            (&["|"][..], BestEffort),
            (&["cpu=0 | memory=0"], BestEffort),
            (&["example.com/gpu=1 | example.com/gpu=1"], BestEffort),
            (&[full], Guaranteed),
            (&["| cpu=1 memory=1Gi"], Guaranteed),
            (&["cpu=1000m memory=1024Mi | cpu=1 memory=1Gi"], Guaranteed),
            (&[full, full], Guaranteed),
            (&[full, "|"], Burstable),
            (&["| cpu=1"], Burstable),
            (&["cpu=1 |"], Burstable),
            (&["cpu=500m | cpu=1 memory=1Gi"], Burstable),
            (&["cpu=0 | cpu=1 memory=1Gi"], Burstable),
            (&["cpu=1 memory=1Gi | cpu=1 memory=0"], Burstable),
        ] {
            let all: Vec<Container> = containers.iter().map(|text| container(text)).collect();
            let spec = PodSpec { containers: all.clone(), ..PodSpec::default() };
            assert_eq!(of(&spec), expected, "{containers:?}");
            // Init containers count like the others.
            let (init_containers, containers) = (all[1..].to_vec(), all[..1].to_vec());
            let spec = PodSpec { containers, init_containers, ..PodSpec::default() };
            assert_eq!(of(&spec), expected);
        }
    }
}
