//! One zone: its key, its state, and the rate at which its nodes may be tainted NoExecute.

use std::fmt;

use muster_proto::label::Labels;
use muster_proto::wellknown::label;

use crate::policy::Policy;

/// A failure domain, by region and zone label. Nodes without either label share one zone too.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneKey {
    pub region: String,
    pub zone: String,
}

/// How much of a zone is unhealthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZoneState {
    /// Not assessed yet.
    #[default]
    Initial,
    Normal,
    /// Many nodes are unhealthy: it may be the network, so nodes are tainted slowly or not at all.
    PartialDisruption,
    /// All nodes are unhealthy.
    FullDisruption,
}

impl ZoneKey {
    /// The zone of a node. A beta label takes precedence if it is there at all, even empty.
    pub fn of(labels: &Labels) -> ZoneKey {
        let value = |beta: &str, stable: &str| {
            labels.get(beta).or_else(|| labels.get(stable)).cloned().unwrap_or_default()
        };
        ZoneKey {
            region: value(label::REGION_BETA, label::REGION),
            zone: value(label::ZONE_BETA, label::ZONE),
        }
    }
}

impl fmt::Display for ZoneKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.region, self.zone)
    }
}

impl fmt::Display for ZoneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ZoneState::Initial => "Initial",
            ZoneState::Normal => "Normal",
            ZoneState::PartialDisruption => "PartialDisruption",
            ZoneState::FullDisruption => "FullDisruption",
        })
    }
}

/// The state of a zone, given the number of its nodes that count and how many of those are unhealthy.
///
/// Up to two unhealthy nodes never make a zone partially disrupted: in a zone of three or four nodes two failures do
/// not point to a common cause.
pub fn assess(nodes: usize, unhealthy: usize, threshold: f32) -> ZoneState {
    if unhealthy > 0 && unhealthy == nodes {
        ZoneState::FullDisruption
    } else if unhealthy > 2 && unhealthy as f32 / nodes as f32 >= threshold {
        ZoneState::PartialDisruption
    } else {
        ZoneState::Normal
    }
}

/// Nodes that may be tainted per second, unless every zone is fully disrupted.
pub fn rate(state: ZoneState, nodes: usize, policy: &Policy) -> f64 {
    match state {
        ZoneState::Initial | ZoneState::Normal | ZoneState::FullDisruption => policy.eviction_rate,
        ZoneState::PartialDisruption if nodes > policy.large_zone_size => policy.secondary_eviction_rate,
        ZoneState::PartialDisruption => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::ZoneState::*;
    use super::*;

    #[test]
    fn s129_the_state_of_a_zone_follows_from_its_share_of_unhealthy_nodes() {
        for (unhealthy, nodes, expected) in [
            (0, 0, Normal),
            (0, 3, Normal),
            (1, 1, FullDisruption),
            (2, 3, Normal),
            (2, 2, FullDisruption),
            (3, 5, PartialDisruption),
            (3, 6, Normal),
            (6, 11, Normal),
            (11, 20, PartialDisruption),
            (10, 20, Normal),
            (5, 9, PartialDisruption),
            (3, 3, FullDisruption),
            (3, 4, PartialDisruption),
        ] {
            assert_eq!(assess(nodes, unhealthy, 0.55), expected, "{unhealthy} of {nodes}");
        }
    }

    #[test]
    fn s128_a_partially_disrupted_zone_is_tainted_slowly_if_large_and_else_not_at_all() {
        let policy = Policy::default();
        for (state, nodes, expected) in [
            (Initial, 3, 0.1),
            (Normal, 3, 0.1),
            (FullDisruption, 3, 0.1),
            (FullDisruption, 300, 0.1),
            (PartialDisruption, 51, 0.01),
            (PartialDisruption, 50, 0.0),
        ] {
            assert_eq!(rate(state, nodes, &policy), expected, "{state} of {nodes}");
        }
    }

    #[test]
    fn s136_a_zone_is_identified_by_region_and_zone_and_beta_labels_take_precedence() {
        let zone = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
            ZoneKey::of(&labels).to_string()
        };
        assert_eq!(zone(&[]), "/");
        assert_eq!(zone(&[(label::REGION, "r")]), "r/");
        assert_eq!(zone(&[(label::ZONE, "z")]), "/z");
        assert_eq!(zone(&[(label::REGION, "r"), (label::ZONE, "z")]), "r/z");
        assert_eq!(zone(&[(label::ZONE_BETA, ""), (label::ZONE, "z")]), "/");
        assert_eq!(zone(&[(label::ZONE_BETA, "old"), (label::ZONE, "z")]), "/old");
        assert_eq!(zone(&[(label::REGION_BETA, ""), (label::REGION, "r"), (label::ZONE, "z")]), "/z");
    }
}
