//! Security contexts of pods and containers.

use crate::invalid::{Check, Path};
use crate::pb;

/// Kubernetes' largest user or group id.
const MAX_ID: i64 = i32::MAX as i64;

pub(super) fn check_pod_security(check: &mut Check, path: &Path<'_>, security: &pb::PodSecurityContext) {
    let pb::PodSecurityContext { run_as_user, run_as_group, run_as_non_root } = security;
    check_ids(check, path, *run_as_user, *run_as_group, *run_as_non_root);
}

pub(super) fn check_security(check: &mut Check, path: &Path<'_>, security: &pb::SecurityContext) {
    let pb::SecurityContext {
        run_as_user,
        run_as_group,
        run_as_non_root,
        privileged,
        allow_privilege_escalation,
    } = security;
    check_ids(check, path, *run_as_user, *run_as_group, *run_as_non_root);
    check.ensure(
        &path.key("allowPrivilegeEscalation"),
        *privileged != Some(true) || *allow_privilege_escalation != Some(false),
        "must not be false when privileged is true",
    );
}

fn check_ids(
    check: &mut Check,
    path: &Path<'_>,
    user: Option<i64>,
    group: Option<i64>,
    non_root: Option<bool>,
) {
    for (field, id) in [("runAsUser", user), ("runAsGroup", group)] {
        let is_id = id.is_none_or(|id| (0..=MAX_ID).contains(&id));
        check.ensure(&path.key(field), is_id, "must be from 0 to 2147483647");
    }
    let contradicts = non_root == Some(true) && user == Some(0);
    check.ensure(&path.key("runAsUser"), !contradicts, "must not be 0 when runAsNonRoot is true");
}
