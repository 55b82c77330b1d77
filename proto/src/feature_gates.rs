//! Feature gates: settings of Kubernetes that switch a behaviour on or off, by its name.
//!
//! What the gates of nodes and their controller once switched on is simply there. So each may be given as true. As false, one is
//! refused, unless a part has a setting that does what it asks for. A gate that nobody knows is refused, as in Kubernetes.

use std::collections::BTreeMap;

/// The gates, each with whether it can be false, and what to do instead where it cannot.
const GATES: [(&str, bool, &str); 4] = [
    ("NodeLease", false, "nodes always renew a lease"),
    ("NodeSwap", true, ""),
    ("TaintNodesByCondition", false, "give pods tolerations for the taints of conditions"),
    ("TopologyManager", true, ""),
];

/// Reads gates as a flag has them: `NodeSwap=true`. Empty entries are skipped.
///
/// # Errors
/// When one is unknown, malformed, or cannot be false; the text names it.
pub fn read<'a>(gates: impl IntoIterator<Item = &'a str>) -> Result<BTreeMap<&'static str, bool>, String> {
    let mut read = BTreeMap::new();
    for entry in gates.into_iter().map(str::trim).filter(|entry| !entry.is_empty()) {
        let (name, value) = entry
            .split_once('=')
            .ok_or_else(|| format!("{entry:?} must be written NAME=true or NAME=false"))?;
        let Some((name, can_be_off, instead)) = GATES.iter().find(|(known, ..)| *known == name) else {
            let known: Vec<&str> = GATES.iter().map(|(name, ..)| *name).collect();
            return Err(format!("{name:?} is no gate; these are: {}", known.join(", ")));
        };
        let is_on = match value.to_ascii_lowercase().as_str() {
            "true" | "t" | "1" => true,
            "false" | "f" | "0" if *can_be_off => false,
            "false" | "f" | "0" => return Err(format!("{name} cannot be switched off: {instead}")),
            _ => return Err(format!("{entry:?} must be written {name}=true or {name}=false")),
        };
        read.insert(*name, is_on);
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_gates_may_be_true_and_unknown_ones_are_refused() {
        let known = read(["NodeLease=true", "TopologyManager=False", "", "NodeSwap=1"]).unwrap();
        assert_eq!(known, [("NodeLease", true), ("NodeSwap", true), ("TopologyManager", false)].into());
        for (gate, expected) in [
            (
                "TaintNodesByCondition=false",
                "TaintNodesByCondition cannot be switched off: give pods tolerations",
            ),
            (
                "NodeLeases=true",
                "\"NodeLeases\" is no gate; these are: NodeLease, NodeSwap, TaintNodesByCondition,",
            ),
            ("NodeLease", "\"NodeLease\" must be written NAME=true"),
            ("NodeLease=maybe", "must be written NodeLease=true or NodeLease=false"),
        ] {
            let refused = read([gate]).unwrap_err();
            assert!(refused.starts_with(expected) || refused.contains(expected), "{refused}");
        }
    }
}
