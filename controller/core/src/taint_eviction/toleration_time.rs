//! How long a pod may stay where it is not wanted: from taints and tolerations alone.

use std::time::Duration;

use muster_proto::taint::{Taint, Toleration};

/// How long a pod may stay.
#[derive(Clone, Debug, PartialEq)]
pub enum Stay<'a> {
    /// Nothing drives it off, or it tolerates all that does.
    ForGood,
    /// It tolerates all that drives it off, this taint for the shortest time.
    For(Duration, &'a Taint, &'a Toleration),
    /// It does not tolerate this taint.
    No(&'a Taint),
}

impl Stay<'_> {
    /// From the moment the taints are seen; `None` for ever.
    pub fn time(&self) -> Option<Duration> {
        match self {
            Stay::ForGood => None,
            Stay::For(time, ..) => Some(*time),
            Stay::No(_) => Some(Duration::ZERO),
        }
    }
}

/// Of each taint, the first toleration in the list that tolerates it counts, even where a later one is longer.
pub fn judge<'a>(taints: &[&'a Taint], tolerations: &'a [Toleration]) -> Stay<'a> {
    let mut stay = Stay::ForGood;
    for &taint in taints {
        let Some(toleration) = tolerations.iter().find(|toleration| toleration.tolerates(taint)) else {
            return Stay::No(taint);
        };
        let Some(seconds) = toleration.toleration_seconds else { continue };
        let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        if stay.time().is_none_or(|held| time < held) {
            stay = Stay::For(time, taint, toleration);
        }
    }
    stay
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
            let found = judge(&taints, &tolerations).time();
            assert_eq!(found, expected.map(Duration::from_secs), "{taints:?} {tolerations:?}");
        }
    }
}
