//! `muster why`: what was decided about a node, a pod or a zone, and why, from the log of decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use muster_manifest::schema::message_to_json;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_rpc::clock::{Clock as _, SystemClock};
use muster_rpc::config::parse_duration;

use crate::connection::{ConnectionFlags, NamespaceFlags, Store};
use crate::decisions::{newest, timestamp};
use crate::failure::{Exit, Failure};
use crate::moment;
use crate::print::decisions::{Clock, history};
use crate::print::document::{Language, document};
use crate::terminal::Terminal;

/// Decisions that are shown at most.
const MOST: usize = 2000;

/// Shows what was decided about a node, a pod or a zone, and why
///
/// It says what was seen, by which rule it was judged, what was waited for, and what came of it, from the log of decisions.
/// `muster explain` says how things stand now.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// node, pod or zone, or KIND/NAME
    #[arg(value_name = "KIND")]
    kind: String,

    /// The name of the node or pod; a zone is written REGION/ZONE
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Show what was decided until then, such as 14:00, "tuesday 14:00" or "2h ago"
    #[arg(long, value_name = "TIME")]
    at: Option<String>,

    /// How long before that to begin
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
    since: Duration,

    #[command(flatten)]
    namespace: NamespaceFlags,

    /// Print the decisions as one document
    #[arg(short, long, value_enum)]
    output: Option<Language>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// What the question is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum About {
    Node(String),
    Pod(String, String),
    Zone(String),
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let namespace = connection.namespaces(&flags.namespace).of(Kind::Pod).to_string();
    let about = About::parse(&flags.kind, flags.name.as_deref(), namespace)?;
    let (now, zone) = (SystemClock::new().wall(), TimeZone::system());
    let until = match &flags.at {
        Some(at) => {
            moment::parse(at, now, &zone).map_err(|error| Failure::usage(format!("--at: {error}")))?
        }
        None => now,
    };
    let since = until.checked_sub(flags.since).unwrap_or(Timestamp::MIN);
    let store = connection.store()?;
    let range = pb::DecisionFilter {
        since: Some(timestamp(since)),
        // The moment itself included.
        until: Some(timestamp(until.checked_add(Duration::from_millis(1)).unwrap_or(until))),
        ..pb::DecisionFilter::default()
    };
    let (decisions, last_id) = about.decisions(&store, &range).await?;
    let clock = Clock { now, zone };
    if decisions.is_empty() && flags.output.is_none() {
        let (from, to) = (clock.time(since), clock.time(until));
        let failure =
            Failure::new(Exit::NotFound, format!("no decision about {about} between {from} and {to}"));
        return Err(
            failure.hint("--since asks for an earlier time; `muster explain` says how things stand now")
        );
    }
    let terminal = Terminal::stdout();
    terminal.print(&match flags.output {
        Some(language) => {
            let listed = pb::ListDecisionsResponse { decisions, last_id, next_page_token: String::new() };
            document(&message_to_json("ListDecisionsResponse", &listed), language, true)
        }
        None => history(&decisions, &about.to_string(), &clock, terminal.width),
    })
}

impl About {
    fn parse(kind: &str, name: Option<&str>, namespace: String) -> Result<About, Failure> {
        let (kind, name) = match (kind.split_once('/'), name) {
            (Some((kind, name)), None) => (kind, name),
            (None, Some(name)) => (kind, name),
            (None, None) => {
                return Err(Failure::usage(format!("the name of a {kind} is missing"))
                    .hint("give a kind and a name, such as `muster why node n7`"));
            }
            (Some(_), Some(_)) => {
                return Err(Failure::usage("give KIND NAME or KIND/NAME, not both"));
            }
        };
        match kind {
            "node" | "nodes" | "no" => Ok(About::Node(name.to_owned())),
            "pod" | "pods" | "po" => Ok(About::Pod(namespace, name.to_owned())),
            // Zones are written with their region, which may be empty.
            "zone" | "zones" if name.contains('/') => Ok(About::Zone(name.to_owned())),
            "zone" | "zones" => Ok(About::Zone(format!("/{name}"))),
            other => Err(Failure::usage(format!("{other} is not node, pod or zone"))),
        }
    }

    /// The decisions of the answer, in their order, and the newest number of the log.
    async fn decisions(
        &self,
        store: &Store,
        range: &pb::DecisionFilter,
    ) -> Result<(Vec<pb::Decision>, u64), Failure> {
        let own = match self {
            About::Node(name) => pb::DecisionFilter { node: name.clone(), ..range.clone() },
            About::Pod(namespace, name) => pb::DecisionFilter {
                subject_kind: pb::DecisionSubjectKind::Pod.into(),
                namespace: namespace.clone(),
                name: name.clone(),
                ..range.clone()
            },
            About::Zone(zone) => pb::DecisionFilter { zone: zone.clone(), ..range.clone() },
        };
        let listed = newest(store, &own, MOST).await?;
        let last_id = listed.last_id;
        let mut all: BTreeMap<u64, pb::Decision> =
            listed.decisions.into_iter().map(|decision| (decision.id, decision)).collect();
        if matches!(self, About::Zone(_)) {
            let is_pod = |decision: &pb::Decision| {
                decision.subject.as_ref().is_some_and(|it| it.kind() == pb::DecisionSubjectKind::Pod)
            };
            all.retain(|_, decision| !is_pod(decision));
        }
        let Some((first, last)) = all.values().next().zip(all.values().next_back()) else {
            return Ok((Vec::new(), last_id));
        };
        // What they follow from is about the node, its zone or the fleet, and may be earlier.
        let context = Context {
            nodes: names(&all, |decision| &decision.node),
            zones: names(&all, |decision| &decision.zone),
            since: range.since.filter(|_| !matches!(self, About::Pod(..))),
            from: first.id,
            to: last.id,
        };
        let around = context.read(store, range).await?;
        for decision in context.relevant(around, &all) {
            all.insert(decision.id, decision);
        }
        Ok((all.into_values().collect(), last_id))
    }
}

/// What else to read for an answer.
struct Context {
    nodes: BTreeSet<String>,
    zones: BTreeSet<String>,
    since: Option<prost_types::Timestamp>,
    /// The first and the last decision of the answer itself.
    from: u64,
    to: u64,
}

impl Context {
    async fn read(
        &self,
        store: &Store,
        range: &pb::DecisionFilter,
    ) -> Result<BTreeMap<u64, pb::Decision>, Failure> {
        let of = |kind: pb::DecisionSubjectKind, name: &str| pb::DecisionFilter {
            subject_kind: kind.into(),
            name: name.to_owned(),
            since: self.since,
            ..range.clone()
        };
        let mut filters = vec![of(pb::DecisionSubjectKind::Fleet, "")];
        filters.extend(self.zones.iter().map(|zone| of(pb::DecisionSubjectKind::Zone, zone)));
        filters.extend(self.nodes.iter().map(|node| of(pb::DecisionSubjectKind::Node, node)));
        let mut around = BTreeMap::new();
        for filter in filters {
            let listed = newest(store, &filter, MOST).await?;
            around.extend(listed.decisions.into_iter().map(|decision| (decision.id, decision)));
        }
        Ok(around)
    }

    /// What the decisions follow from, and how the zone and the fleet changed meanwhile.
    fn relevant(
        &self,
        around: BTreeMap<u64, pb::Decision>,
        own: &BTreeMap<u64, pb::Decision>,
    ) -> Vec<pb::Decision> {
        let mut wanted: BTreeSet<u64> = BTreeSet::new();
        for decision in own.values() {
            let mut next = decision.follows;
            while let Some(cause) = around.get(&next)
                && wanted.insert(next)
            {
                next = cause.follows;
            }
        }
        let is_wide = |decision: &pb::Decision| {
            let kind = decision.subject.as_ref().map(pb::DecisionSubject::kind);
            matches!(kind, Some(pb::DecisionSubjectKind::Zone | pb::DecisionSubjectKind::Fleet))
        };
        let from = wanted.first().copied().unwrap_or(self.from).min(self.from);
        let is_meanwhile =
            |decision: &pb::Decision| (from..=self.to).contains(&decision.id) && is_wide(decision);
        around.into_values().filter(|it| wanted.contains(&it.id) || is_meanwhile(it)).collect()
    }
}

/// The different values of a field that is not empty.
fn names(all: &BTreeMap<u64, pb::Decision>, field: impl Fn(&pb::Decision) -> &String) -> BTreeSet<String> {
    all.values().map(field).filter(|text| !text.is_empty()).cloned().collect()
}

impl std::fmt::Display for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            About::Node(name) => write!(f, "node {name}"),
            About::Pod(namespace, name) => write!(f, "pod {namespace}/{name}"),
            About::Zone(zone) => write!(f, "zone {zone}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_a_node_a_pod_or_a_zone() {
        let parse = |kind: &str, name: Option<&str>| {
            About::parse(kind, name, "default".to_owned())
                .map(|about| about.to_string())
                .map_err(|it| it.report("why"))
        };
        for (kind, name, expected) in [
            ("node", Some("n7"), Ok("node n7")),
            ("node/n7", None, Ok("node n7")),
            ("pod", Some("p"), Ok("pod default/p")),
            ("zone", Some("r/z"), Ok("zone r/z")),
            ("zone", Some("z"), Ok("zone /z")),
            ("zone/r/z", None, Ok("zone r/z")),
            ("node", None, Err("the name of a node is missing")),
            ("node/a", Some("b"), Err("not both")),
            ("lease", Some("x"), Err("lease is not node, pod or zone")),
        ] {
            match (parse(kind, name), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
                (found, _) => panic!("{kind} {name:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn an_answer_has_what_it_follows_from_and_what_its_zone_did_meanwhile() {
        let decision = |id: u64, kind: pb::DecisionSubjectKind, follows: u64| {
            let subject = pb::DecisionSubject { kind: kind.into(), ..Default::default() };
            (id, pb::Decision { id, subject: Some(subject), follows, ..Default::default() })
        };
        use pb::DecisionSubjectKind::{Fleet, Node, Pod, Zone};
        let own: BTreeMap<u64, pb::Decision> = [decision(20, Pod, 12), decision(30, Pod, 20)].into();
        let around = [
            decision(5, Zone, 0),
            decision(10, Node, 0),
            decision(11, Zone, 10),
            decision(12, Node, 10),
            decision(13, Node, 12),
            decision(25, Fleet, 0),
            decision(31, Zone, 0),
        ];
        let context =
            Context { nodes: BTreeSet::new(), zones: BTreeSet::new(), since: None, from: 20, to: 30 };
        let found: Vec<u64> = context.relevant(around.into(), &own).iter().map(|it| it.id).collect();
        assert_eq!(found, [10, 11, 12, 25]);
    }
}
