//! Why one node is as it is, and what will happen to it and its pods when.

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::time::Mono;

use super::convert::{count, duration, timestamp};
use super::fleet::{collection, full_disruption, hold_reason, words, zone, zone_reason};
use super::{EvictionDecision, Explanation, ExplanationAction, ExplanationState};
use crate::controllers::Controllers;
use crate::drain::progress::ProgressState;
use crate::node_lifecycle::liveness::Silence;
use crate::node_lifecycle::noexecute_taints::is_health_taint;
use crate::node_lifecycle::noschedule_taints::ready_taint;
use crate::node_lifecycle::zone_report::TaintStatus;
use crate::plan::uid;
use crate::policy::Policy;
use crate::reconciler::{Phase, Reconciler};
use crate::taint_eviction::toleration_time::{TolerationTime, toleration_time};
use muster_proto::time::Now;

/// The account of a node; `None` if there is none of that name.
pub fn explain(reconciler: &Reconciler, name: &Name, now: Now) -> Option<pb::ExplainNodeResponse> {
    let Some(node) = reconciler.world().node(name.as_str()) else { return missed(reconciler, name, now) };
    let ready = node.condition(types::READY).map(|ready| ready.status);
    let mut account = pb::ExplainNodeResponse {
        name: name.to_string(),
        uid: uid(&node.meta).to_string(),
        ready: ready.map(|ready| ready.to_string()).unwrap_or_default(),
        as_of: timestamp(now, now.mono),
        ..pb::ExplainNodeResponse::default()
    };
    let Some((controllers, place)) = reconciler
        .controllers()
        .filter(|_| reconciler.phase() == Phase::Active)
        .and_then(|controllers| Some((controllers, controllers.node_lifecycle.taint_status(name)?)))
    else {
        account.summary = "This controller judges nobody now; see the fleet's state for why.".to_owned();
        return Some(account);
    };
    let view = View { reconciler, controllers, node, ready, place, now };
    let silence = controllers.node_lifecycle.silence(name, reconciler.world(), reconciler.policy());
    let marking = view.marking(silence);
    let taint = view.taint();
    account.summary = view.summary(silence, &taint);
    account.silence = silence.map(|silence| heard(silence, now));
    account.zone = Some(zone(controllers, &view.place.zone, reconciler.policy(), now));
    account.excluded = !view.place.counted;
    account.queue_position = view.place.position.map_or(0, count);
    account.pods = reconciler.world().pods_on(name.as_str()).map(|pod| view.pod(pod, &taint)).collect();
    let others = view.others();
    account.explanations = [marking, taint].into_iter().chain(others).map(|told| told.into_pb(now)).collect();
    Some(account)
}

/// The account of a node that is not there, if pods name it all the same.
fn missed(reconciler: &Reconciler, name: &Name, now: Now) -> Option<pb::ExplainNodeResponse> {
    let controllers = reconciler.controllers().filter(|_| reconciler.phase() == Phase::Active)?;
    let told = collection(controllers, name, now)?;
    let pods: Vec<pb::PodExplanation> =
        reconciler.world().pods_on(name.as_str()).map(|pod| orphan(pod, &told, now)).collect();
    Some(pb::ExplainNodeResponse {
        name: name.to_string(),
        summary: format!("There is no node {name}, but {} pods name it.", pods.len()),
        explanations: vec![told.into_pb(now)],
        pods,
        as_of: timestamp(now, now.mono),
        ..pb::ExplainNodeResponse::default()
    })
}

fn orphan(pod: &Pod, told: &Explanation, now: Now) -> pb::PodExplanation {
    pb::PodExplanation {
        decision: pb::EvictionDecision::from(EvictionDecision::Evict).into(),
        reason: told.reason.clone(),
        earliest_eviction: told.earliest.and_then(|at| timestamp(now, at.max(now.mono))),
        ..named(pod)
    }
}

/// An explanation that does not say yet what becomes of the pod.
fn named(pod: &Pod) -> pb::PodExplanation {
    let key = Key::of(pod);
    pb::PodExplanation {
        namespace: key.namespace.as_ref().map(ToString::to_string).unwrap_or_default(),
        name: key.name.to_string(),
        uid: uid(&pod.meta).to_string(),
        ..pb::PodExplanation::default()
    }
}

/// When a pod has to leave its node; `None` if it has none, or that is not there.
pub(super) fn stay(
    reconciler: &Reconciler,
    controllers: &Controllers,
    pod: &Pod,
    now: Now,
) -> Option<pb::PodExplanation> {
    let name = pod.spec.node_name.as_ref()?;
    let node = reconciler.world().node(name.as_str())?;
    let ready = node.condition(types::READY).map(|ready| ready.status);
    let view = View {
        reconciler,
        controllers,
        node,
        ready,
        place: controllers.node_lifecycle.taint_status(name)?,
        now,
    };
    Some(view.pod(pod, &view.taint()))
}

/// What an account of one node is made from.
struct View<'a> {
    reconciler: &'a Reconciler,
    controllers: &'a Controllers,
    node: &'a Node,
    ready: Option<ConditionStatus>,
    place: TaintStatus,
    now: Now,
}

impl View<'_> {
    fn policy(&self) -> &Policy {
        self.reconciler.policy()
    }

    /// Why the node is or is not Unknown, and when it will be.
    fn marking(&self, silence: Option<Silence>) -> Explanation {
        let Some(silence) = silence else {
            return Explanation::new(
                ExplanationAction::MarkUnknown,
                ExplanationState::None,
                "The node has not been looked at yet.",
            );
        };
        let silent_for = words(self.now.mono - silence.seen_at);
        let told = |state, reason: String| {
            Explanation::new(ExplanationAction::MarkUnknown, state, reason)
                .input("silentFor", silent_for.clone())
                .input("grace", words(silence.grace))
        };
        let is_silent = self.controllers.node_lifecycle.is_silent(&self.node.meta.name);
        match (is_silent, self.ready) {
            (true, Some(ConditionStatus::Unknown)) => told(
                ExplanationState::Done,
                format!("It has been silent for {silent_for}, longer than its grace."),
            ),
            (true, _) => told(
                ExplanationState::Due,
                format!("It has been silent for {silent_for}: that is being written."),
            )
            .earliest(self.now.mono),
            (false, Some(ConditionStatus::Unknown)) => told(
                ExplanationState::Done,
                format!("It was heard {silent_for} ago, but only its agent can say that it is Ready again."),
            ),
            (false, _) => told(
                ExplanationState::Waiting,
                format!("It was heard {silent_for} ago and is given up if it stays silent."),
            )
            .earliest(silence.deadline),
        }
    }

    /// Why the node is or is not tainted so that its pods leave, and when it will be.
    fn taint(&self) -> Explanation {
        let zone = &self.place.zone;
        let told = |state, reason: String| {
            Explanation::new(ExplanationAction::Taint, state, reason)
                .input("zone", &zone.key)
                .input("zoneState", zone.state)
                .input("unhealthy", format!("{} of {}", zone.unhealthy, zone.nodes))
                .input("rate", zone.rate)
        };
        let Some(key) = ready_taint(self.ready) else {
            let reason = match self.ready {
                Some(_) => "It is Ready: nothing drives its pods off.",
                None => "It never said whether it is Ready.",
            };
            return told(ExplanationState::None, reason.to_owned());
        };
        if self.place.strip {
            return told(
                ExplanationState::Waiting,
                "Its taint from before is taken off first and earned anew.".to_owned(),
            );
        }
        if self.node.spec.taints.iter().any(|taint| taint.is(key, TaintEffect::NoExecute)) {
            return told(
                ExplanationState::Done,
                format!("It has the taint {key}:NoExecute; its pods leave as they tolerate it."),
            );
        }
        if self.controllers.node_lifecycle.zones.is_full_disruption() {
            return told(ExplanationState::Paused, full_disruption(&self.controllers.node_lifecycle));
        }
        if self.place.granted {
            return told(ExplanationState::Due, "It is given up; that is being written.".to_owned())
                .earliest(self.now.mono);
        }
        let zone_says = zone_reason(zone, false, self.policy());
        let Some(earliest) = self.earliest_taint() else {
            return told(ExplanationState::Paused, zone_says);
        };
        let told = |state, reason: String| told(state, reason).earliest(earliest);
        let hold = self.controllers.node_lifecycle.hold;
        if self.now.mono < hold.until {
            let reason = hold_reason(self.controllers, self.reconciler.world().node_count(), self.now);
            return told(ExplanationState::Paused, reason).input("holdUntil", self.now.wall_of(hold.until));
        }
        match self.place.position {
            Some(position) => {
                let state = if zone.rate < self.policy().eviction_rate {
                    ExplanationState::Slowed
                } else {
                    ExplanationState::Queued
                };
                told(
                    state,
                    format!(
                        "It is number {position} of {} in its zone's queue. {zone_says}",
                        zone.queue_length
                    ),
                )
                .input("position", position)
            }
            None => told(
                ExplanationState::Waiting,
                "It joins its zone's queue at the next assessment.".to_owned(),
            ),
        }
    }

    /// What the other controllers say of the node.
    fn others(&self) -> Vec<Explanation> {
        let mut told = vec![self.schedule()];
        told.extend(self.controllers.ipam.as_ref().map(|cidrs| cidrs.explain(self.node)));
        let hold_until = self.controllers.node_lifecycle.hold.until;
        told.extend(
            self.controllers
                .cloud_nodes
                .iter()
                .flat_map(|cloud| cloud.explain(self.node, hold_until, self.now)),
        );
        told.extend(self.drain());
        told.extend(collection(self.controllers, &self.node.meta.name, self.now));
        told
    }

    /// Whether new pods come.
    fn schedule(&self) -> Explanation {
        let keeps_away = |taint: &&Taint| taint.effect != TaintEffect::PreferNoSchedule;
        let taints: Vec<String> =
            self.node.spec.taints.iter().filter(keeps_away).map(ToString::to_string).collect();
        let told = match &self.node.spec.cordon {
            Some(cordon) if self.node.spec.unschedulable => Explanation::new(
                ExplanationAction::Schedule,
                ExplanationState::Refused,
                format!("{} cordoned the node: {}.", cordon.requested_by, cordon.reason),
            ),
            _ if self.node.spec.unschedulable => Explanation::new(
                ExplanationAction::Schedule,
                ExplanationState::Refused,
                "The node is cordoned; nobody said why.",
            ),
            _ if taints.is_empty() => {
                Explanation::new(ExplanationAction::Schedule, ExplanationState::Done, "New pods may come.")
            }
            _ => Explanation::new(
                ExplanationAction::Schedule,
                ExplanationState::Refused,
                "Only pods that tolerate its taints may come.",
            ),
        };
        if taints.is_empty() { told } else { told.input("taints", taints.join(" ")) }
    }

    /// How its drain stands, if it has one.
    fn drain(&self) -> Option<Explanation> {
        let drain = self.node.spec.drain.as_ref()?;
        let world = self.reconciler.world();
        let progress = self.controllers.drains.progress(world, self.node.meta.name.as_str(), self.now)?;
        let state = match progress.state {
            ProgressState::Complete => ExplanationState::Done,
            ProgressState::Draining => ExplanationState::Waiting,
            _ => ExplanationState::Refused,
        };
        // Blocked pods are asked for again then.
        let retry_at = progress.pods.iter().filter_map(|pod| pod.retry_at).min();
        let told = Explanation::new(ExplanationAction::Drain, state, progress.message)
            .earliest(retry_at)
            .input("requestedBy", &drain.requested_by)
            .input("reason", &drain.reason);
        Some(match drain.deadline {
            Some(deadline) => told.input("deadline", deadline),
            None => told,
        })
    }

    /// When the node can be tainted if nothing changes; `None` if never.
    fn earliest_taint(&self) -> Option<Mono> {
        let zone = &self.place.zone;
        let token = zone.next_token?;
        let wait = zone.interval.saturating_mul(u32::try_from(self.place.ahead).unwrap_or(u32::MAX));
        // Whoever is not in the queue joins it at the next pass.
        Some(
            token
                .max(self.controllers.node_lifecycle.hold.until)
                .max(self.controllers.node_lifecycle.next_pass())
                + wait,
        )
    }

    /// When a pod has to leave, and what decides that.
    fn pod(&self, pod: &Pod, taint: &Explanation) -> pb::PodExplanation {
        let key = Key::of(pod);
        let mut told = pb::PodExplanation {
            decision: pb::EvictionDecision::from(EvictionDecision::Keep).into(),
            ..named(pod)
        };
        if pod.meta.is_deleting() {
            told.decision = pb::EvictionDecision::from(EvictionDecision::Terminating).into();
            told.reason = "It is being deleted; its agent has to confirm that it has stopped.".to_owned();
            return told;
        }
        let (taints, tainted_at) = self.taints_to_come(taint);
        let taints: Vec<&Taint> = taints.iter().collect();
        let stay = toleration_time(&taints, &pod.spec.tolerations);
        let (decides, time) = match &stay {
            TolerationTime::Unlimited if taints.is_empty() => {
                told.reason = "Nothing drives it off.".to_owned();
                return told;
            }
            TolerationTime::Unlimited => {
                told.reason = "It tolerates every taint of its node for good.".to_owned();
                return told;
            }
            TolerationTime::Limited(time, taint, toleration) => {
                told.toleration = Some((*toleration).clone().into());
                told.reason = format!("It tolerates {taint} for {}.", words(*time));
                (*taint, *time)
            }
            TolerationTime::NotTolerated(taint) => {
                told.reason = format!("It does not tolerate {taint}.");
                (*taint, std::time::Duration::ZERO)
            }
        };
        told.taint = Some(decides.clone().into());
        told.decision = pb::EvictionDecision::from(EvictionDecision::Evict).into();
        let evictions = &self.controllers.taint_evictions;
        let at = if evictions.is_pending(&key) {
            evictions.due_at(&key, self.controllers.node_lifecycle.health_evictions_from())
        } else {
            tainted_at.map(|at| at + time)
        };
        match at {
            Some(at) => told.earliest_eviction = timestamp(self.now, at.max(self.now.mono)),
            None => {
                told.decision = pb::EvictionDecision::from(EvictionDecision::Keep).into();
                told.reason = format!("{} But {}", told.reason, lower_first(&taint.reason));
            }
        }
        told
    }

    /// The taints that drive pods off, with the one that is still to come, and when they are all there.
    fn taints_to_come(&self, taint: &Explanation) -> (Vec<Taint>, Option<Mono>) {
        let held = self.node.spec.taints.iter().filter(|taint| taint.effect == TaintEffect::NoExecute);
        let mut taints: Vec<Taint> = held.cloned().collect();
        let Some(key) = ready_taint(self.ready) else { return (taints, Some(self.now.mono)) };
        if taints.iter().any(is_health_taint) {
            return (taints, Some(self.now.mono));
        }
        taints.push(Taint::new(key, "", TaintEffect::NoExecute));
        (taints, taint.earliest)
    }

    fn summary(&self, silence: Option<Silence>, taint: &Explanation) -> String {
        let name = &self.node.meta.name;
        let health = match (self.ready, silence) {
            (Some(ConditionStatus::True), _) => format!("{name} is Ready."),
            (Some(ConditionStatus::False), _) => format!("{name} says that it is not Ready."),
            (Some(ConditionStatus::Unknown), Some(silence)) => {
                format!("{name} has not been heard for {}.", words(self.now.mono - silence.seen_at))
            }
            (Some(ConditionStatus::Unknown), None) => format!("{name} is not heard."),
            (None, _) => format!("{name} never said whether it is Ready."),
        };
        if taint.state == ExplanationState::None { health } else { format!("{health} {}", taint.reason) }
    }
}

fn heard(silence: Silence, now: Now) -> pb::NodeSilence {
    pb::NodeSilence {
        heard_at: timestamp(now, silence.seen_at),
        heard_by: silence.seen_by.map_or(pb::SignOfLife::Reset, Into::into).into(),
        silent_for: Some(duration(now.mono - silence.seen_at)),
        grace: Some(duration(silence.grace)),
        deadline: timestamp(now, silence.deadline),
    }
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}
