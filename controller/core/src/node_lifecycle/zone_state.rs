//! One zone: its name, its state, and how fast its nodes may be given up.

use std::fmt;

use muster_proto::label::Labels;
use muster_proto::wellknown::label;

use crate::policy::Policy;

/// Nodes that are likely to fail together. Nodes without either label are in one zone too.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneKey {
    pub region: String,
    pub zone: String,
}

/// How a zone is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZoneState {
    /// Not assessed yet.
    #[default]
    Initial,
    Normal,
    /// Much of it is lost: perhaps it is the network, so nodes are given up slowly or not at all.
    PartialDisruption,
    /// All of it is lost.
    FullDisruption,
}

impl ZoneKey {
    /// The zone of a node. An older label counts if it is there at all, even empty.
    pub fn of(labels: &Labels) -> ZoneKey {
        let value =
            |old: &str, new: &str| labels.get(old).or_else(|| labels.get(new)).cloned().unwrap_or_default();
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

/// The state of a zone with so many nodes that count, of which so many are not Ready.
///
/// Up to two nodes may always be lost: in a zone of three or four that says nothing about the zone.
pub fn assess(nodes: usize, unhealthy: usize, threshold: f32) -> ZoneState {
    if unhealthy > 0 && unhealthy == nodes {
        ZoneState::FullDisruption
    } else if unhealthy > 2 && unhealthy as f32 / nodes as f32 >= threshold {
        ZoneState::PartialDisruption
    } else {
        ZoneState::Normal
    }
}

/// Nodes that may be given up per second, unless every zone is lost.
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
    fn s129_a_zone_is_as_its_share_of_lost_nodes() {
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
    fn s128_a_disrupted_zone_goes_slowly_if_it_is_large_and_else_stops() {
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
    fn s136_a_zone_is_told_by_region_and_zone_and_the_older_labels_win() {
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
