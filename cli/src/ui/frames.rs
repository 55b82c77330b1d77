//! The frames of the page's feed, as server-sent events. Pure.
//!
//! A page first gets `start` with the number of nodes, `nodes` with all of them in pieces, and `complete`; from then on
//! `change`. Between them come `fleet`, what the controller says, and `sources`, which of the two servers are heard.

use std::sync::Arc;
use std::time::Duration;

use muster_manifest::schema::message_to_json;
use muster_proto::pb;
use serde::Serialize;
use serde_json::{Value, json};

use super::model::{Changes, DrawnNode};

/// A frame, encoded once for all pages.
pub(super) type Frame = Arc<str>;

/// Nodes in one frame, so that a page can draw the first ones while it reads on.
const NODES_PER_FRAME: usize = 4096;
/// The names of a zone's queue that the page shows.
const QUEUE_SHOWN: usize = 3;
/// Renewals that a frame names; the page shows them as signs of life, which are not to be counted.
const RENEWALS_SHOWN: usize = 256;

fn frame(event: &str, data: &impl Serialize) -> Frame {
    let data = serde_json::to_string(data).expect("text and numbers are valid JSON");
    // JSON without line breaks of its own: a line break would end the data.
    format!("event: {event}\ndata: {data}\n\n").into()
}

/// Nodes of one zone: a list for each of their properties, which is shorter than one object each.
#[derive(Debug, Default, Serialize)]
struct Nodes<'a> {
    zone: &'a str,
    ids: Vec<u32>,
    names: Vec<&'a str>,
    states: Vec<u8>,
    /// Whole seconds; -1 if the node never renewed.
    silent: Vec<i64>,
}

/// The frames from which a page can draw all nodes.
pub(super) fn snapshot(nodes: &[DrawnNode]) -> Vec<Frame> {
    let mut frames = vec![frame("start", &json!({ "nodes": nodes.len() }))];
    for zone in nodes.chunk_by(|a, b| a.zone == b.zone) {
        frames.extend(zone.chunks(NODES_PER_FRAME).map(|piece| frame("nodes", &of_one_zone(piece))));
    }
    frames.push(frame("complete", &json!({})));
    frames
}

fn of_one_zone(nodes: &[DrawnNode]) -> Nodes<'_> {
    let mut piece = Nodes { zone: nodes.first().map_or("", |node| &node.zone), ..Nodes::default() };
    for node in nodes {
        piece.ids.push(node.id);
        piece.names.push(&node.name);
        piece.states.push(node.state.code());
        piece.silent.push(node.silence.map_or(-1, seconds));
    }
    piece
}

/// The frame of what has changed.
pub(super) fn changes(changes: &Changes) -> Frame {
    let added: Vec<_> = changes.added.chunk_by(|a, b| a.zone == b.zone).map(of_one_zone).collect();
    let states: Vec<u32> = changes.states.iter().flat_map(|(id, state)| [*id, state.code().into()]).collect();
    let silent: Vec<i64> =
        changes.silent.iter().flat_map(|(id, silence)| [i64::from(*id), seconds(*silence)]).collect();
    let renewed = &changes.renewed[..changes.renewed.len().min(RENEWALS_SHOWN)];
    frame(
        "change",
        &json!({
            "added": added,
            "states": states,
            "removed": changes.removed,
            "renewed": renewed,
            "silent": silent,
        }),
    )
}

/// What the controller says of the fleet, and how long ago it said so.
pub(super) fn fleet(fleet: &Value, age: Duration) -> Frame {
    frame(
        "fleet",
        &json!({ "fleet": fleet, "ageMillis": u64::try_from(age.as_millis()).unwrap_or(u64::MAX) }),
    )
}

/// The controller's answer without the lists that the page does not show.
pub(super) fn fleet_json(mut fleet: pb::Fleet) -> Value {
    for zone in &mut fleet.zones {
        zone.queue.truncate(QUEUE_SHOWN);
        zone.excluded_nodes.clear();
    }
    message_to_json("Fleet", &fleet)
}

/// Which servers are heard, with the reason if one is not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Sources {
    pub(super) store: Source,
    pub(super) controller: Source,
}

/// Whether a server is heard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "lowercase")]
pub(super) enum Source {
    #[default]
    Connecting,
    Heard,
    Lost(String),
}

/// The frame of the sources.
pub(super) fn sources(sources: &Sources) -> Frame {
    frame("sources", sources)
}

/// The frame that says that this process is alive, and for how long a lease is valid.
pub(super) fn alive(lease: Duration) -> Frame {
    frame("alive", &json!({ "leaseSeconds": lease.as_secs() }))
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::tile::TileState;
    use super::*;

    fn node(id: u32, zone: &str, name: &str, state: TileState) -> DrawnNode {
        let silence = Some(Duration::from_millis(2_600));
        DrawnNode { id, zone: zone.into(), name: name.into(), state, silence }
    }

    #[test]
    fn a_snapshot_has_a_frame_per_zone_and_piece() {
        let nodes = [
            node(4, "r/a", "n-1", TileState::Ready),
            node(2, "r/a", "n-2", TileState::Evicting),
            DrawnNode { silence: None, ..node(3, "r/b", "n-3", TileState::Late) },
        ];
        let frames = snapshot(&nodes);
        let expected = [
            "event: start\ndata: {\"nodes\":3}\n\n",
            "event: nodes\ndata: {\"zone\":\"r/a\",\"ids\":[4,2],\"names\":[\"n-1\",\"n-2\"],\"states\":[0,7],\
             \"silent\":[2,2]}\n\n",
            "event: nodes\ndata: {\"zone\":\"r/b\",\"ids\":[3],\"names\":[\"n-3\"],\"states\":[4],\"silent\":[-1]}\n\n",
            "event: complete\ndata: {}\n\n",
        ];
        assert_eq!(frames.iter().map(|frame| &**frame).collect::<Vec<_>>(), expected);

        let many: Vec<DrawnNode> =
            (0..10_000).map(|id| node(id, "r/a", &format!("n-{id}"), TileState::Ready)).collect();
        assert_eq!(snapshot(&many).len(), 2 + 3, "pieces of 4,096");
        assert_eq!(snapshot(&[]).len(), 2, "a fleet without nodes is complete too");
    }

    #[test]
    fn a_frame_of_changes_is_short_and_of_one_line() {
        let change = Changes {
            added: vec![node(1, "r/a", "n\n1", TileState::New)],
            states: vec![(7, TileState::Unknown), (8, TileState::Ready)],
            removed: vec![9],
            renewed: (0..300).collect(),
            silent: vec![(5, Duration::from_secs(20))],
        };
        let text = changes(&change);
        let data = text.strip_prefix("event: change\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
        assert!(!data.contains('\n'), "{data}");
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["states"], json!([7, 6, 8, 0]));
        assert_eq!(data["removed"], json!([9]));
        assert_eq!(data["silent"], json!([5, 20]));
        assert_eq!(data["added"][0]["names"], json!(["n\n1"]));
        assert_eq!(data["renewed"].as_array().unwrap().len(), RENEWALS_SHOWN);
    }

    #[test]
    fn the_fleet_is_sent_without_its_long_lists() {
        let zone = pb::FleetZone {
            name: "r/a".to_owned(),
            queue: (0..100).map(|id| format!("n-{id}")).collect(),
            queue_length: 100,
            excluded_nodes: vec!["x".to_owned()],
            ..Default::default()
        };
        let json = fleet_json(pb::Fleet { zones: vec![zone], nodes: 5, ..Default::default() });
        assert_eq!(json["zones"][0]["queue"], json!(["n-0", "n-1", "n-2"]));
        assert_eq!(json["zones"][0]["queueLength"], json!(100));
        assert_eq!(json["zones"][0].get("excludedNodes"), None);
        assert_eq!(json["nodes"], json!(5));
    }

    #[test]
    fn a_lost_source_says_why() {
        let text =
            sources(&Sources { store: Source::Heard, controller: Source::Lost("no route".to_owned()) });
        assert!(text.contains(r#""store":{"state":"heard"}"#), "{text}");
        assert!(text.contains(r#""controller":{"state":"lost","reason":"no route"}"#), "{text}");
    }
}
