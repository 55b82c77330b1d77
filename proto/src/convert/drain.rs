//! Cordons and drains.

use std::collections::BTreeSet;

use super::{time_in, time_out};
use crate::drain::{Cordon, Drain, DrainOptions};
use crate::invalid::{Check, Invalid, Path};
use crate::pb;

/// The cordons of a node. A record from before there were several has only `cordon`.
pub(super) fn cordons_in(
    check: &mut Check,
    path: &Path<'_>,
    cordon: Option<pb::NodeCordon>,
    cordons: Vec<pb::NodeCordon>,
) -> Vec<Cordon> {
    if cordons.is_empty() {
        return cordon.and_then(|cordon| cordon_in(check, &path.key("cordon"), cordon)).into_iter().collect();
    }
    let mut owners = BTreeSet::new();
    check.each(&path.key("cordons"), cordons, |check, path, cordon| {
        let cordon = cordon_in(check, path, cordon)?;
        let is_new = owners.insert(cordon.owner.clone());
        check.ensure(&path.key("owner"), is_new, "has a cordon already: there is one for each owner");
        Some(cordon)
    })
}

fn cordon_in(check: &mut Check, path: &Path<'_>, cordon: pb::NodeCordon) -> Option<Cordon> {
    let pb::NodeCordon { requested_by, reason, requested_at, owner, expires_at } = cordon;
    let at = path.key("requestedAt");
    check.ensure(&at, requested_at.is_some(), "is required");
    let requested_at = time_in(check, &at, requested_at);
    let expires_at = time_in(check, &path.key("expiresAt"), expires_at);
    let owner = if owner.is_empty() { requested_by.clone() } else { owner };
    Some(Cordon { owner, requested_by, reason, requested_at: requested_at?, expires_at })
}

pub(super) fn drain_in(check: &mut Check, path: &Path<'_>, drain: pb::NodeDrain) -> Option<Drain> {
    let pb::NodeDrain { requested_by, reason, requested_at, deadline, options, state, message, finished_at } =
        drain;
    let at = path.key("requestedAt");
    check.ensure(&at, requested_at.is_some(), "is required");
    let requested_at = time_in(check, &at, requested_at);
    let deadline = time_in(check, &path.key("deadline"), deadline);
    let options = options_in(check, &path.key("options"), options.unwrap_or_default());
    let state = check.field(&path.key("state"), state.parse());
    let finished_at = time_in(check, &path.key("finishedAt"), finished_at);
    Some(Drain {
        requested_by,
        reason,
        requested_at: requested_at?,
        deadline,
        options,
        state: state?,
        message,
        finished_at,
    })
}

/// The drain options of a request, without a stored drain.
impl TryFrom<pb::DrainOptions> for DrainOptions {
    type Error = Invalid;

    fn try_from(options: pb::DrainOptions) -> Result<Self, Invalid> {
        let mut check = Check::new();
        let options = options_in(&mut check, &Path::ROOT.key("options"), options);
        check.finish(options)
    }
}

fn options_in(check: &mut Check, path: &Path<'_>, options: pb::DrainOptions) -> DrainOptions {
    let pb::DrainOptions {
        force,
        ignore_daemonsets,
        delete_emptydir_data,
        disable_eviction,
        grace_period_seconds,
        skip_wait_for_delete_seconds,
    } = options;
    let negative = "must not be negative";
    check.ensure(
        &path.key("gracePeriodSeconds"),
        grace_period_seconds.is_none_or(|seconds| seconds >= 0),
        negative,
    );
    check.ensure(&path.key("skipWaitForDeleteSeconds"), skip_wait_for_delete_seconds >= 0, negative);
    DrainOptions {
        force,
        ignore_daemonsets,
        delete_emptydir_data,
        disable_eviction,
        grace_period_seconds,
        skip_wait_for_delete_seconds,
    }
}

impl From<Cordon> for pb::NodeCordon {
    fn from(cordon: Cordon) -> Self {
        let Cordon { owner, requested_by, reason, requested_at, expires_at } = cordon;
        Self {
            requested_by,
            reason,
            requested_at: time_out(Some(requested_at)),
            owner,
            expires_at: time_out(expires_at),
        }
    }
}

impl From<Drain> for pb::NodeDrain {
    fn from(drain: Drain) -> Self {
        let Drain { requested_by, reason, requested_at, deadline, options, state, message, finished_at } =
            drain;
        Self {
            requested_by,
            reason,
            requested_at: time_out(Some(requested_at)),
            deadline: time_out(deadline),
            options: Some(options.into()),
            state: state.to_string(),
            message,
            finished_at: time_out(finished_at),
        }
    }
}

impl From<DrainOptions> for pb::DrainOptions {
    fn from(options: DrainOptions) -> Self {
        let DrainOptions {
            force,
            ignore_daemonsets,
            delete_emptydir_data,
            disable_eviction,
            grace_period_seconds,
            skip_wait_for_delete_seconds,
        } = options;
        Self {
            force,
            ignore_daemonsets,
            delete_emptydir_data,
            disable_eviction,
            grace_period_seconds,
            skip_wait_for_delete_seconds,
        }
    }
}
