//! The story: what is done, what must follow, and what is said of it.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::wellknown::label;

use super::messages;
use super::session::{Scene, Sight, WHERE_TO_LOOK};
use super::workload::{by_node, counts, is_running};
use crate::connection::At;
use crate::failure::{Exit, Failure};
use crate::print::fleet::duration;
use crate::simulation::fleet_spec::{Blueprint, REGION};
use crate::terminal::Terminal;

/// What was measured, for the end.
#[derive(Debug, Default)]
struct Findings(Vec<String>);

impl Findings {
    fn note(&mut self, finding: String) {
        self.0.push(finding);
    }
}

/// Plays all acts, and cleans up.
pub(super) async fn play(scene: &mut Scene) -> Result<(), Failure> {
    let mut findings = Findings::default();
    let grace = the_fleet(scene).await?;
    let patience = grace * 8 + Duration::from_secs(30);
    the_work(scene, patience).await?;
    let dead = a_node_dies(scene, grace, patience, &mut findings).await?;
    a_zone_dies(scene, &dead, patience, &mut findings).await?;
    all_zones_die(scene, grace, patience, &mut findings).await?;
    all_come_back(scene, patience, &mut findings).await?;

    scene.title("What was seen")?;
    let lines: String = findings.0.iter().map(|finding| format!("  * {finding}\n")).collect();
    Terminal::stdout().say(&lines)
}

/// What was told did not come true.
fn failed(what: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, what).hint(WHERE_TO_LOOK)
}

/// The simulated zones.
fn zones(fleet: &pb::Fleet) -> impl Iterator<Item = &pb::FleetZone> {
    fleet.zones.iter().filter(|zone| zone.region == REGION && zone.nodes > 0)
}

fn work_runs(sight: &Sight, replicas: usize) -> bool {
    sight.pods.iter().filter(|pod| is_running(pod)).count() == replicas
}

/// Introduces the fleet; says how long a node may be silent.
async fn the_fleet(scene: &mut Scene) -> Result<Duration, Failure> {
    scene.switch.look().await?;
    scene.switch.revive("all").await?;
    scene.title("The fleet")?;
    // A demonstration that was killed may have left its pods, under the names of ours.
    scene.clear().await?;
    let is_there = |sight: &Sight| {
        zones(&sight.fleet).count() > 1
            && zones(&sight.fleet).all(|zone| zone.unhealthy == 0)
            && sight.pods.is_empty()
    };
    let what = "all simulated nodes are Ready, in at least two zones, and without pods of a demonstration";
    scene.until(what, Duration::from_secs(60), is_there).await?;
    let first = scene.explain(Blueprint::name(0).as_str()).await?;
    let grace = first.silence.and_then(|silence| silence.grace);
    let grace = grace.map(|grace| duration(&grace)).unwrap_or_default();
    scene.workload.toleration_seconds = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX).max(1);
    scene.say(&format!(
        "a node may be silent for {}; a controller that has just begun waits that long before it evicts anybody",
        messages::seconds(grace)
    ))?;
    let judges = |sight: &Sight| sight.fleet.state == "Judging";
    let patience = grace * 4 + Duration::from_secs(30);
    let (sight, _) =
        scene.until("the controller has heard the fleet for long enough", patience, judges).await?;
    scene.say_all(&messages::fleet(&sight.fleet))?;
    Ok(grace)
}

async fn the_work(scene: &mut Scene, patience: Duration) -> Result<(), Failure> {
    let replicas = super::REPLICAS;
    scene.title("The work")?;
    scene.say(&format!(
        "{replicas} pods. Muster places pods but does not make them: this demonstration stands in for a workload"
    ))?;
    scene.say(&format!(
        "controller and makes a new pod for each that is evicted. They tolerate a lost node for {} s",
        scene.workload.toleration_seconds
    ))?;
    scene.workload.replicas = replicas;
    let (sight, _) = scene.until("all pods run", patience, |sight| work_runs(sight, replicas)).await?;
    say_places(scene, &sight.pods)
}

fn say_places(scene: &Scene, pods: &[Pod]) -> Result<(), Failure> {
    let places = by_node(pods).into_iter().map(|(node, pods)| format!("{node}: {}", pods.join(" ")));
    scene.say(&format!("pods run on {}", places.collect::<Vec<_>>().join(", ")))
}

/// Returns the node that died.
async fn a_node_dies(
    scene: &mut Scene,
    grace: Duration,
    patience: Duration,
    findings: &mut Findings,
) -> Result<String, Failure> {
    scene.title("A node dies")?;
    let sight = scene.look().await?;
    let busiest = by_node(&sight.pods).into_iter().max_by_key(|(_, pods)| pods.len());
    let Some((victim, pods)) = busiest else {
        return Err(failed("no pod of the demonstration runs any more"));
    };
    let killed_at = scene.now();
    scene.switch.kill(&format!("node={victim}")).await?;
    scene.say(&format!("killed {victim}, which runs {}", pods.join(" and ")))?;
    scene.subject = Some(victim.clone());
    scene.say_all(&messages::explanation(&scene.explain(&victim).await?))?;

    let is_unknown = |sight: &Sight| sight.node.as_ref().is_some_and(|node| node.ready == "Unknown");
    let (sight, _) = scene.until("the dead node's Ready becomes Unknown", patience, is_unknown).await?;
    let detected = scene.now() - killed_at;
    scene.say_all(&sight.node.iter().flat_map(messages::explanation).collect::<Vec<_>>())?;

    let replicas = scene.workload.replicas;
    let on_victim = |pod: &Pod| counts(pod) && pod.is_on(&victim);
    let moved = |sight: &Sight| work_runs(sight, replicas) && !sight.pods.iter().any(on_victim);
    let (sight, _) =
        scene.until("the dead node's pods are evicted and run elsewhere", patience, moved).await?;
    let moved = scene.now() - killed_at;
    say_places(scene, &sight.pods)?;
    scene.say(&format!(
        "what was evicted stays on {victim} as Terminating: nobody can say that a machine nobody hears has stopped it"
    ))?;
    findings.note(format!(
        "{victim} was Unknown {} after it died (it may be silent for {}), and its work ran elsewhere after {}",
        messages::seconds(detected),
        messages::seconds(grace),
        messages::seconds(moved)
    ));
    Ok(victim)
}

async fn a_zone_dies(
    scene: &mut Scene,
    dead: &str,
    patience: Duration,
    findings: &mut Findings,
) -> Result<(), Failure> {
    scene.title("A zone dies")?;
    let sight = scene.look().await?;
    let spared = zone_of(scene, dead).await?;
    let mut busiest: Option<(String, String, usize)> = None;
    for (node, pods) in by_node(&sight.pods) {
        let zone = zone_of(scene, &node).await?;
        if zone != spared && busiest.as_ref().is_none_or(|(_, _, most)| pods.len() > *most) {
            busiest = Some((zone, node, pods.len()));
        }
    }
    let Some((zone, node, _)) = busiest else {
        return Err(failed(format!("no pod of the demonstration runs outside of {spared}")));
    };
    let killed_at = scene.now();
    let killed = scene.switch.kill(&format!("zone={zone}")).await?;
    scene.say(&format!("killed {zone}: {}", killed.join(" ")))?;
    scene.subject = Some(node);
    let is_lost = |sight: &Sight| {
        zones(&sight.fleet).any(|found| found.zone == zone && found.state == "FullDisruption")
    };
    let (sight, _) = scene.until("the zone counts as lost", patience, is_lost).await?;
    let detected = scene.now() - killed_at;
    scene.say_all(&messages::fleet(&sight.fleet))?;

    let replicas = scene.workload.replicas;
    let in_zone = |pod: &Pod| counts(pod) && killed.iter().any(|node| pod.is_on(node));
    let moved = |sight: &Sight| work_runs(sight, replicas) && !sight.pods.iter().any(in_zone);
    let (sight, _) = scene.until("the zone's pods are evicted and run elsewhere", patience, moved).await?;
    let moved = scene.now() - killed_at;
    scene.say_all(&sight.node.iter().flat_map(messages::explanation).collect::<Vec<_>>())?;
    say_places(scene, &sight.pods)?;
    findings.note(format!(
        "{zone} counted as lost after {}; other zones lived, so its pods were evicted and its work ran elsewhere after {}",
        messages::seconds(detected),
        messages::seconds(moved)
    ));
    Ok(())
}

async fn zone_of(scene: &Scene, node: &str) -> Result<String, Failure> {
    let name = node.parse().map_err(|error| failed(format!("{node}: {error}")))?;
    let node: Node = scene.store.client.get(&Key::node(name)).await.at(&scene.store.peer)?;
    Ok(node.meta.labels.get(label::ZONE).cloned().unwrap_or_default())
}

async fn all_zones_die(
    scene: &mut Scene,
    grace: Duration,
    patience: Duration,
    findings: &mut Findings,
) -> Result<(), Failure> {
    scene.title("All zones die")?;
    let killed_at = scene.now();
    let killed = scene.switch.kill("all").await?;
    scene.say(&format!("killed all that were left: {}", killed.join(" ")))?;
    scene.subject = killed.first().cloned();
    let all_lost = |sight: &Sight| sight.fleet.state == "FullDisruption";
    let (sight, _) = scene.until("all zones count as lost", patience, all_lost).await?;
    let detected = scene.now() - killed_at;
    scene.say_all(&messages::fleet(&sight.fleet))?;
    // As of a second look, after the decision.
    let before = leaving(&scene.look().await?);
    let watched = grace * 3;
    scene.say(&format!("watching for {} whether anybody is evicted", messages::seconds(watched)))?;
    scene.listen(watched).await?;
    let sight = scene.look().await?;
    let evicted: Vec<Uid> = leaving(&sight).difference(&before).copied().collect();
    if !evicted.is_empty() {
        return Err(failed(format!("{} pods were evicted though all zones were lost", evicted.len())));
    }
    scene.say_all(&sight.node.iter().flat_map(messages::explanation).collect::<Vec<_>>())?;
    scene.say("nobody was")?;
    findings.note(format!(
        "all zones were lost after {}: the controller took that for its own trouble and evicted nobody in {}, three times \
         as long as pods here tolerate a lost node",
        messages::seconds(detected),
        messages::seconds(watched)
    ));
    Ok(())
}

fn leaving(sight: &Sight) -> BTreeSet<Uid> {
    sight.pods.iter().filter(|pod| pod.meta.is_deleting()).filter_map(|pod| pod.meta.uid).collect()
}

async fn all_come_back(
    scene: &mut Scene,
    patience: Duration,
    findings: &mut Findings,
) -> Result<(), Failure> {
    scene.title("They come back")?;
    let revived_at = scene.now();
    let revived = scene.switch.revive("all").await?;
    scene.say(&format!("revived {}", revived.join(" ")))?;
    // The zones are judged anew at the next assessment, a moment after their nodes.
    let is_well =
        |sight: &Sight| sight.fleet.state == "Judging" && zones(&sight.fleet).all(|zone| zone.unhealthy == 0);
    let (sight, _) =
        scene.until("all simulated nodes are Ready again, and judged so", patience, is_well).await?;
    let ready = scene.now() - revived_at;
    scene.say_all(&messages::fleet(&sight.fleet))?;
    let replicas = scene.workload.replicas;
    let settled = |sight: &Sight| work_runs(sight, replicas) && sight.pods.len() == replicas;
    let what = "all pods run, and those that were evicted from the dead are gone";
    let (sight, _) = scene.until(what, patience, settled).await?;
    let settled = scene.now() - revived_at;
    say_places(scene, &sight.pods)?;
    scene.say("the evicted pods are gone: their machines are back and have said that they are stopped")?;
    findings.note(format!(
        "all nodes were Ready {} after they came back, and what was left of the evicted pods was gone after {}",
        messages::seconds(ready),
        messages::seconds(settled)
    ));
    scene.clear().await?;
    scene.until("the demonstration's pods are gone", patience, |sight| sight.pods.is_empty()).await?;
    Ok(())
}
