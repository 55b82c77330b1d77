//! The word that a table shows for a value of a schema's enum.

use muster_proto::pb;

/// A value of an enum as one word, so that columns can be split at spaces.
pub(crate) trait Word {
    /// `FullDisruption` for `ZONE_STATE_FULL_DISRUPTION`; empty for a value that is not set or not known here.
    fn word(self) -> String;
}

macro_rules! words {
    ($($kind:ident),+) => {$(
        impl Word for pb::$kind {
            fn word(self) -> String {
                camel_case(self.as_str_name(), pb::$kind::Unspecified.as_str_name())
            }
        }
    )+};
}

words!(
    FleetState,
    ZoneState,
    SignOfLife,
    ExplanationAction,
    ExplanationState,
    EvictionDecision,
    DrainProgressState,
    DrainPodAction,
    DrainPodState
);

fn camel_case(name: &str, unspecified: &str) -> String {
    if name == unspecified {
        return String::new();
    }
    let prefix = unspecified.trim_end_matches("UNSPECIFIED");
    let parts = name.trim_start_matches(prefix).split('_').filter_map(|part| {
        let first = part.get(..1)?;
        Some(format!("{first}{}", part[1..].to_lowercase()))
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_enum_value_is_shown_as_one_word() {
        assert_eq!(pb::ZoneState::FullDisruption.word(), "FullDisruption");
        assert_eq!(pb::ExplanationAction::AssignCidr.word(), "AssignCidr");
        assert_eq!(pb::DrainPodState::Gone.word(), "Gone");
        assert_eq!(pb::FleetState::Unspecified.word(), "");
    }
}
