//! The first message of a heartbeat stream: which agent it is, and how long its lease shall last.

use std::time::Duration;

use muster_proto::invalid::{Check, Invalid, Path};
use muster_proto::name::{Name, Uid};
use muster_proto::pb;

/// The lease duration when the agent's hello gives none.
pub(super) const DEFAULT_DURATION: Duration = Duration::from_secs(40);

/// The first message of a heartbeat stream, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    pub node: Name,
    pub node_uid: Uid,
    pub incarnation: String,
    pub lease_duration: Duration,
}

impl TryFrom<pb::HeartbeatHello> for Hello {
    type Error = Invalid;

    fn try_from(hello: pb::HeartbeatHello) -> Result<Self, Invalid> {
        let pb::HeartbeatHello { node_name, node_uid, incarnation, lease_duration } = hello;
        let mut check = Check::new();
        let path = Path::ROOT.key("hello");
        let node = check.field(&path.key("nodeName"), node_name.parse::<Name>());
        let node_uid = check.field(&path.key("nodeUid"), node_uid.parse::<Uid>());
        let fits = !incarnation.is_empty() && incarnation.len() <= 128;
        check.ensure(&path.key("incarnation"), fits, "must have 1 to 128 bytes");
        let duration = match lease_duration.map(Duration::try_from) {
            None => Some(DEFAULT_DURATION),
            Some(Ok(duration)) if (1..=3600).contains(&duration.as_secs()) => Some(duration),
            Some(_) => {
                check.fail(&path.key("leaseDuration"), "must be between 1 second and 1 hour");
                None
            }
        };
        let hello = || Some((node?, node_uid?, duration?));
        let (node, node_uid, lease_duration) = check.finish_some(hello())?;
        Ok(Self { node, node_uid, incarnation, lease_duration })
    }
}

impl Hello {
    /// The interval until the next renewal: a quarter of the lease duration, shortened by up to a tenth depending on
    /// the node's name, so that the nodes of a fleet do not all renew at the same moment.
    pub fn next_renewal(&self) -> Duration {
        let spread = crc32fast::hash(self.node.as_str().as_bytes()) % 1000;
        (self.lease_duration / 4).mul_f64(1.0 - f64::from(spread) / 10_000.0)
    }
}
