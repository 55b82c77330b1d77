//! The steps of the demo: what it does, which effect it waits for, and what it prints.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::wellknown::label;

use super::messages;
use super::session::{Session, Snapshot, WHERE_TO_LOOK};
use super::workload::{by_node, is_active, is_running};
use crate::connection::OrFailure;
use crate::failure::{Exit, Failure};
use crate::print::fleet::duration;
use crate::simulation::fleet_spec::{FleetSpec, REGION};
use crate::terminal::Terminal;

/// The measured times, which are printed at the end.
#[derive(Debug, Default)]
struct Results(Vec<String>);

impl Results {
    fn add(&mut self, result: String) {
        self.0.push(result);
    }
}

/// Runs all steps and deletes the demo's pods.
pub(super) async fn run_all(session: &mut Session) -> Result<(), Failure> {
    let mut results = Results::default();
    let grace = show_fleet(session).await?;
    let timeout = grace * 8 + Duration::from_secs(30);
    create_workload(session, timeout).await?;
    let killed = fail_node(session, grace, timeout, &mut results).await?;
    fail_zone(session, &killed, timeout, &mut results).await?;
    fail_all_zones(session, grace, timeout, &mut results).await?;
    recover(session, timeout, &mut results).await?;

    session.print_title("Results")?;
    let lines: String = results.0.iter().map(|result| format!("  * {result}\n")).collect();
    Terminal::stdout().print(&lines)
}

/// The failure of a step whose effect did not happen.
fn failed(what: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, what).hint(WHERE_TO_LOOK)
}

/// The simulated zones that have nodes.
fn zones(fleet: &pb::Fleet) -> impl Iterator<Item = &pb::FleetZone> {
    fleet.zones.iter().filter(|zone| zone.region == REGION && zone.nodes > 0)
}

fn workload_runs(snapshot: &Snapshot, replicas: usize) -> bool {
    snapshot.pods.iter().filter(|pod| is_running(pod)).count() == replicas
}

/// Waits for a healthy fleet and shows it; returns the grace period of a node.
async fn show_fleet(session: &mut Session) -> Result<Duration, Failure> {
    session.simulation.status().await?;
    session.simulation.revive("all").await?;
    session.print_title("The fleet")?;
    // A demo that was killed may have left pods with the same names.
    session.delete_pods().await?;
    let is_ready = |snapshot: &Snapshot| {
        zones(&snapshot.fleet).count() > 1
            && zones(&snapshot.fleet).all(|zone| zone.unhealthy == 0)
            && snapshot.pods.is_empty()
    };
    let what = "all simulated nodes are Ready, in at least two zones, and without pods of a demo";
    session.wait_until(what, Duration::from_secs(60), is_ready).await?;
    let first = session.explain(FleetSpec::name(0).as_str()).await?;
    let grace = first.silence.and_then(|silence| silence.grace);
    let grace = grace.map(|grace| duration(&grace)).unwrap_or_default();
    session.workload.toleration_seconds = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX).max(1);
    session.print(&format!(
        "the grace period of a node is {}; a controller that has just started evicts no pods for that long",
        messages::seconds(grace)
    ))?;
    let hold_is_over = |snapshot: &Snapshot| snapshot.fleet.state() == pb::FleetState::Normal;
    let timeout = grace * 4 + Duration::from_secs(30);
    let (snapshot, _) =
        session.wait_until("the eviction hold of the controller has ended", timeout, hold_is_over).await?;
    session.print_all(&messages::fleet(&snapshot.fleet))?;
    Ok(grace)
}

async fn create_workload(session: &mut Session, timeout: Duration) -> Result<(), Failure> {
    let replicas = super::REPLICAS;
    session.print_title("The workload")?;
    session.print(&format!(
        "{replicas} pods. Muster schedules pods but does not create them: the demo acts as a workload controller"
    ))?;
    session.print(&format!(
        "and creates a new pod for each evicted one. The pods tolerate an unreachable node for {} s",
        session.workload.toleration_seconds
    ))?;
    session.workload.replicas = replicas;
    let (snapshot, _) =
        session.wait_until("all pods run", timeout, |snapshot| workload_runs(snapshot, replicas)).await?;
    print_pods_by_node(session, &snapshot.pods)
}

fn print_pods_by_node(session: &Session, pods: &[Pod]) -> Result<(), Failure> {
    let nodes = by_node(pods).into_iter().map(|(node, pods)| format!("{node}: {}", pods.join(" ")));
    session.print(&format!("running pods by node: {}", nodes.collect::<Vec<_>>().join(", ")))
}

/// Kills the node with the most pods; returns its name.
async fn fail_node(
    session: &mut Session,
    grace: Duration,
    timeout: Duration,
    results: &mut Results,
) -> Result<String, Failure> {
    session.print_title("A node fails")?;
    let snapshot = session.observe().await?;
    let busiest = by_node(&snapshot.pods).into_iter().max_by_key(|(_, pods)| pods.len());
    let Some((victim, pods)) = busiest else {
        return Err(failed("no pod of the demo runs any more"));
    };
    let killed_at = session.now();
    session.simulation.kill(&format!("node={victim}")).await?;
    session.print(&format!("killed {victim}, which runs {}", pods.join(" and ")))?;
    session.explained_node = Some(victim.clone());
    session.print_all(&messages::explanation(&session.explain(&victim).await?))?;

    let is_unknown = |snapshot: &Snapshot| snapshot.node.as_ref().is_some_and(|node| node.ready == "Unknown");
    let (snapshot, _) = session.wait_until("the killed node becomes Unknown", timeout, is_unknown).await?;
    let detected = session.now() - killed_at;
    session.print_all(&snapshot.node.iter().flat_map(messages::explanation).collect::<Vec<_>>())?;

    let replicas = session.workload.replicas;
    let on_victim = |pod: &Pod| is_active(pod) && pod.is_on(&victim);
    let moved =
        |snapshot: &Snapshot| workload_runs(snapshot, replicas) && !snapshot.pods.iter().any(on_victim);
    let (snapshot, _) = session
        .wait_until("the pods of the killed node are evicted and run elsewhere", timeout, moved)
        .await?;
    let moved = session.now() - killed_at;
    print_pods_by_node(session, &snapshot.pods)?;
    session.print(&format!(
        "the evicted pods stay Terminating on {victim}: the agent of an unreachable node cannot confirm that they stopped"
    ))?;
    results.add(format!(
        "{victim} was Unknown {} after it was killed (the grace period is {}); its pods ran elsewhere after {}",
        messages::seconds(detected),
        messages::seconds(grace),
        messages::seconds(moved)
    ));
    Ok(victim)
}

/// Kills the zone with the busiest node, but not the zone of the node that is off already.
async fn fail_zone(
    session: &mut Session,
    killed_node: &str,
    timeout: Duration,
    results: &mut Results,
) -> Result<(), Failure> {
    session.print_title("A zone fails")?;
    let snapshot = session.observe().await?;
    let excluded = zone_of(session, killed_node).await?;
    let mut busiest: Option<(String, String, usize)> = None;
    for (node, pods) in by_node(&snapshot.pods) {
        let zone = zone_of(session, &node).await?;
        if zone != excluded && busiest.as_ref().is_none_or(|(_, _, most)| pods.len() > *most) {
            busiest = Some((zone, node, pods.len()));
        }
    }
    let Some((zone, node, _)) = busiest else {
        return Err(failed(format!("no pod of the demo runs outside of {excluded}")));
    };
    let killed_at = session.now();
    let killed = session.simulation.kill(&format!("zone={zone}")).await?;
    session.print(&format!("killed {zone}: {}", killed.join(" ")))?;
    session.explained_node = Some(node);
    let is_lost = |snapshot: &Snapshot| {
        zones(&snapshot.fleet)
            .any(|found| found.zone == zone && found.state() == pb::ZoneState::FullDisruption)
    };
    let (snapshot, _) = session.wait_until("the zone is in FullDisruption", timeout, is_lost).await?;
    let detected = session.now() - killed_at;
    session.print_all(&messages::fleet(&snapshot.fleet))?;

    let replicas = session.workload.replicas;
    let in_zone = |pod: &Pod| is_active(pod) && killed.iter().any(|node| pod.is_on(node));
    let moved = |snapshot: &Snapshot| workload_runs(snapshot, replicas) && !snapshot.pods.iter().any(in_zone);
    let (snapshot, _) =
        session.wait_until("the zone's pods are evicted and run elsewhere", timeout, moved).await?;
    let moved = session.now() - killed_at;
    session.print_all(&snapshot.node.iter().flat_map(messages::explanation).collect::<Vec<_>>())?;
    print_pods_by_node(session, &snapshot.pods)?;
    results.add(format!(
        "{zone} was in FullDisruption after {}; other zones were healthy, so its pods were evicted and ran elsewhere after {}",
        messages::seconds(detected),
        messages::seconds(moved)
    ));
    Ok(())
}

async fn zone_of(session: &Session, node: &str) -> Result<String, Failure> {
    let name = node.parse().map_err(|error| failed(format!("{node}: {error}")))?;
    let node: Node = session.store.client.get(&Key::node(name)).await.or_failure(&session.store.peer)?;
    Ok(node.meta.labels.get(label::ZONE).cloned().unwrap_or_default())
}

/// Kills all nodes and checks that no pod is evicted.
async fn fail_all_zones(
    session: &mut Session,
    grace: Duration,
    timeout: Duration,
    results: &mut Results,
) -> Result<(), Failure> {
    session.print_title("All zones fail")?;
    let killed_at = session.now();
    let killed = session.simulation.kill("all").await?;
    session.print(&format!("killed all remaining nodes: {}", killed.join(" ")))?;
    session.explained_node = killed.first().cloned();
    let all_lost = |snapshot: &Snapshot| snapshot.fleet.state() == pb::FleetState::FullDisruption;
    let (snapshot, _) = session.wait_until("the fleet is in FullDisruption", timeout, all_lost).await?;
    let detected = session.now() - killed_at;
    session.print_all(&messages::fleet(&snapshot.fleet))?;
    // Observed again, because evictions that were decided before FullDisruption may have followed the first snapshot.
    let before = deleted_pods(&session.observe().await?);
    let watched = grace * 3;
    session.print(&format!("checking for {} that no pods are evicted", messages::seconds(watched)))?;
    session.print_events_for(watched).await?;
    let snapshot = session.observe().await?;
    let evicted: Vec<Uid> = deleted_pods(&snapshot).difference(&before).copied().collect();
    if !evicted.is_empty() {
        return Err(failed(format!(
            "{} pods were evicted although all zones were in FullDisruption",
            evicted.len()
        )));
    }
    session.print_all(&snapshot.node.iter().flat_map(messages::explanation).collect::<Vec<_>>())?;
    session.print("no pods were evicted")?;
    results.add(format!(
        "all zones were in FullDisruption after {}: the controller assumed that its own connection was broken and \
         evicted no pods in {}, three times as long as the pods tolerate an unreachable node",
        messages::seconds(detected),
        messages::seconds(watched)
    ));
    Ok(())
}

fn deleted_pods(snapshot: &Snapshot) -> BTreeSet<Uid> {
    snapshot.pods.iter().filter(|pod| pod.meta.is_deleting()).filter_map(|pod| pod.meta.uid).collect()
}

/// Revives all nodes and waits until the evicted pods are gone.
async fn recover(session: &mut Session, timeout: Duration, results: &mut Results) -> Result<(), Failure> {
    session.print_title("All nodes recover")?;
    let revived_at = session.now();
    let revived = session.simulation.revive("all").await?;
    session.print(&format!("revived {}", revived.join(" ")))?;
    // The zone states follow a moment later than the nodes, at the controller's next pass.
    let is_well = |snapshot: &Snapshot| {
        snapshot.fleet.state() == pb::FleetState::Normal
            && zones(&snapshot.fleet).all(|zone| zone.unhealthy == 0)
    };
    let (snapshot, _) = session
        .wait_until("all simulated nodes are Ready and all zones are healthy", timeout, is_well)
        .await?;
    let ready = session.now() - revived_at;
    session.print_all(&messages::fleet(&snapshot.fleet))?;
    let replicas = session.workload.replicas;
    let settled = |snapshot: &Snapshot| workload_runs(snapshot, replicas) && snapshot.pods.len() == replicas;
    let what = "all pods run and the evicted pods are gone";
    let (snapshot, _) = session.wait_until(what, timeout, settled).await?;
    let settled = session.now() - revived_at;
    print_pods_by_node(session, &snapshot.pods)?;
    session.print("the evicted pods are gone: the agents of their nodes have confirmed that they stopped")?;
    results.add(format!(
        "all nodes were Ready {} after they were revived, and the last evicted pods were gone after {}",
        messages::seconds(ready),
        messages::seconds(settled)
    ));
    session.delete_pods().await?;
    session.wait_until("the demo's pods are gone", timeout, |snapshot| snapshot.pods.is_empty()).await?;
    Ok(())
}
