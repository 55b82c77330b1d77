//! The rules that decisions are made by. Their names are stable: logs, filters and `deploy/rules.md` use them.

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    HeartbeatGap,
    GracePeriodPassed,
    NodeReady,
    NodeDeleted,
    ZoneState,
    FullDisruption,
    EvictionHold,
    ZoneEvictionRate,
    HealthTaint,
    HealthTaintRemoved,
    ConditionTaints,
    NodeLabels,
    PodNotReady,
    TolerationTime,
    TolerationOver,
    EvictionCancelled,
    PodGone,
    PodScheduled,
    PodUnschedulable,
    Preemption,
    DrainStarted,
    DrainEviction,
    DrainResult,
    CordonEnded,
    AddressBlock,
    AddressBlockCondition,
    GcTerminatedPods,
    GcOutOfService,
    GcNodeMissing,
    GcNeverBound,
    MachineGone,
    MachineShutDown,
    CloudNodeInitialized,
    CloudNodeAddresses,
    DecisionsLost,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 35] = [
        Rule::HeartbeatGap,
        Rule::GracePeriodPassed,
        Rule::NodeReady,
        Rule::NodeDeleted,
        Rule::ZoneState,
        Rule::FullDisruption,
        Rule::EvictionHold,
        Rule::ZoneEvictionRate,
        Rule::HealthTaint,
        Rule::HealthTaintRemoved,
        Rule::ConditionTaints,
        Rule::NodeLabels,
        Rule::PodNotReady,
        Rule::TolerationTime,
        Rule::TolerationOver,
        Rule::EvictionCancelled,
        Rule::PodGone,
        Rule::PodScheduled,
        Rule::PodUnschedulable,
        Rule::Preemption,
        Rule::DrainStarted,
        Rule::DrainEviction,
        Rule::DrainResult,
        Rule::CordonEnded,
        Rule::AddressBlock,
        Rule::AddressBlockCondition,
        Rule::GcTerminatedPods,
        Rule::GcOutOfService,
        Rule::GcNodeMissing,
        Rule::GcNeverBound,
        Rule::MachineGone,
        Rule::MachineShutDown,
        Rule::CloudNodeInitialized,
        Rule::CloudNodeAddresses,
        Rule::DecisionsLost,
    ];

    /// Its stable name.
    pub const fn id(self) -> &'static str {
        match self {
            Rule::HeartbeatGap => "heartbeat-gap",
            Rule::GracePeriodPassed => "grace-period-passed",
            Rule::NodeReady => "node-ready",
            Rule::NodeDeleted => "node-deleted",
            Rule::ZoneState => "zone-state",
            Rule::FullDisruption => "full-disruption",
            Rule::EvictionHold => "eviction-hold",
            Rule::ZoneEvictionRate => "zone-eviction-rate",
            Rule::HealthTaint => "health-taint",
            Rule::HealthTaintRemoved => "health-taint-removed",
            Rule::ConditionTaints => "condition-taints",
            Rule::NodeLabels => "node-labels",
            Rule::PodNotReady => "pod-not-ready",
            Rule::TolerationTime => "toleration-time",
            Rule::TolerationOver => "toleration-over",
            Rule::EvictionCancelled => "eviction-cancelled",
            Rule::PodGone => "pod-gone",
            Rule::PodScheduled => "pod-scheduled",
            Rule::PodUnschedulable => "pod-unschedulable",
            Rule::Preemption => "preemption",
            Rule::DrainStarted => "drain-started",
            Rule::DrainEviction => "drain-eviction",
            Rule::DrainResult => "drain-result",
            Rule::CordonEnded => "cordon-ended",
            Rule::AddressBlock => "address-block",
            Rule::AddressBlockCondition => "address-block-condition",
            Rule::GcTerminatedPods => "gc-terminated-pods",
            Rule::GcOutOfService => "gc-out-of-service",
            Rule::GcNodeMissing => "gc-node-missing",
            Rule::GcNeverBound => "gc-never-bound",
            Rule::MachineGone => "machine-gone",
            Rule::MachineShutDown => "machine-shut-down",
            Rule::CloudNodeInitialized => "cloud-node-initialized",
            Rule::CloudNodeAddresses => "cloud-node-addresses",
            Rule::DecisionsLost => "decisions-lost",
        }
    }

    /// The rule of that name.
    pub fn of_id(id: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.id() == id)
    }

    /// Whether it begins a chain of decisions: it follows from a fact outside and not from a decision before.
    pub(super) const fn begins_chain(self) -> bool {
        matches!(self, Rule::HeartbeatGap | Rule::GracePeriodPassed | Rule::EvictionHold | Rule::DrainStarted)
    }

    /// Whether it follows from what was decided about the pod's node, and not about the pod.
    pub(super) const fn follows_node(self) -> bool {
        matches!(self, Rule::PodNotReady | Rule::TolerationTime | Rule::EvictionCancelled)
    }
}
