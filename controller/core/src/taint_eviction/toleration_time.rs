//! How long a pod tolerates the NoExecute taints of its node.

use std::time::Duration;

use muster_proto::taint::{Taint, Toleration};

/// How long a pod tolerates a set of taints.
#[derive(Clone, Debug, PartialEq)]
pub enum TolerationTime<'a> {
    /// There is no taint, or the pod tolerates all of them without a limit.
    Unlimited,
    /// It tolerates all of them, this one for the shortest time.
    Limited(Duration, &'a Taint, &'a Toleration),
    /// It does not tolerate this one.
    NotTolerated(&'a Taint),
}

impl TolerationTime<'_> {
    /// From when the taints are seen; `None` without a limit.
    pub fn limit(&self) -> Option<Duration> {
        match self {
            TolerationTime::Unlimited => None,
            TolerationTime::Limited(time, ..) => Some(*time),
            TolerationTime::NotTolerated(_) => Some(Duration::ZERO),
        }
    }
}

/// The shortest toleration time over all taints. For each taint the first toleration in the list that tolerates it
/// counts, even if a later one is longer.
pub fn toleration_time<'a>(taints: &[&'a Taint], tolerations: &'a [Toleration]) -> TolerationTime<'a> {
    let mut shortest = TolerationTime::Unlimited;
    for &taint in taints {
        let Some(toleration) = tolerations.iter().find(|toleration| toleration.tolerates(taint)) else {
            return TolerationTime::NotTolerated(taint);
        };
        let Some(seconds) = toleration.toleration_seconds else { continue };
        let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        if shortest.limit().is_none_or(|held| time < held) {
            shortest = TolerationTime::Limited(time, taint, toleration);
        }
    }
    shortest
}

#[cfg(test)]
mod tests {
    use muster_proto::taint::TaintEffect::NoExecute;

    use super::*;

    fn tolerate(key: &str, seconds: Option<i64>) -> Toleration {
        let toleration = Toleration::exists(key, NoExecute);
        seconds.map_or(toleration.clone(), |seconds| toleration.for_seconds(seconds))
    }

    #[test]
    fn s110_the_shortest_of_the_first_matching_tolerations_counts() {
        let (a, b) = (Taint::new("a", "", NoExecute), Taint::new("b", "", NoExecute));
        for (taints, tolerations, expected) in [
            (vec![], vec![], None),
            (vec![&a], vec![], Some(0)),
            (vec![&a], vec![tolerate("a", None)], None),
            (vec![&a], vec![tolerate("a", Some(200))], Some(200)),
            (vec![&a], vec![tolerate("a", Some(0))], Some(0)),
            (vec![&a], vec![tolerate("a", Some(-7))], Some(0)),
            (vec![&a], vec![tolerate("a", Some(5)), tolerate("a", None)], Some(5)),
            (vec![&a, &b], vec![tolerate("a", Some(1)), tolerate("b", Some(100))], Some(1)),
            (vec![&a, &b], vec![tolerate("a", None), tolerate("b", Some(60))], Some(60)),
            (vec![&a, &b], vec![tolerate("a", Some(100))], Some(0)),
            (vec![&a, &b], vec![tolerate("a", None), tolerate("b", None)], None),
        ] {
            let found = toleration_time(&taints, &tolerations).limit();
            assert_eq!(found, expected.map(Duration::from_secs), "{taints:?} {tolerations:?}");
        }
    }
}
