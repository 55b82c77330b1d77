//! Rules for join tokens. A token does not change but by its uses, which only the store counts.

use jiff::{SignedDuration, Timestamp};
use muster_proto::invalid::{Check, Path};
use muster_proto::join_token::{JoinToken, JoinTokenStatus, SecretToken};

use super::{Context, DeletedWithoutGrace, RecordId, Refusal, Rules, common};

/// The longest life of a token: it is for machines that join now, and is useless to a thief who finds it later.
const MAX_LIFE: SignedDuration = SignedDuration::from_hours(30 * 24);

impl Rules for JoinToken {
    fn prepare_create(&mut self, _cx: &Context) {
        self.status = JoinTokenStatus::default();
    }
}

impl DeletedWithoutGrace for JoinToken {}

/// The record to store for a new token.
pub fn create_join_token(
    current: Option<&JoinToken>,
    wanted: JoinToken,
    created_by: String,
    cx: &Context,
) -> Result<JoinToken, Refusal> {
    let key = RecordId::of(&wanted);
    let mut check = Check::new();
    let root = Path::ROOT;
    let spec = root.key("spec");
    let is_id = SecretToken::is_id(wanted.meta.name.as_str());
    check.ensure(&root.key("metadata").key("name"), is_id, "must be the id of a token: 10 of 0-9 and a-z");
    check.ensure(
        &spec.key("nodeName"),
        wanted.spec.node_name.is_some() || !wanted.spec.labels.is_empty(),
        "is required, unless labels are given: a token is for one node, or for nodes with these labels",
    );
    let life = |now: Timestamp| wanted.spec.expire_time.duration_since(now);
    let expires = spec.key("expireTime");
    check.ensure(&expires, life(cx.now) > SignedDuration::ZERO, "must be in the future");
    check.ensure(&expires, life(cx.now) <= MAX_LIFE, "must be within 30 days");
    let mut token = check
        .finish(wanted)
        .map_err(|invalid| Refusal::Invalid { key, invalid })
        .and_then(|wanted| common::create(current, wanted, cx))?;
    token.spec.created_by = created_by;
    Ok(token)
}
