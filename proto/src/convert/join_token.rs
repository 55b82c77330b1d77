//! Join tokens.

use super::meta::meta_in;
use super::{name_in, time_in, time_out};
use crate::invalid::{Check, Invalid, Path};
use crate::join_token::{JoinToken, JoinTokenSpec, JoinTokenStatus};
use crate::label::check_labels;
use crate::pb;
use crate::record::Kind;

#[cfg(test)]
mod tests;

impl TryFrom<pb::JoinToken> for JoinToken {
    type Error = Invalid;

    fn try_from(token: pb::JoinToken) -> Result<Self, Invalid> {
        let pb::JoinToken { metadata, spec, status } = token;
        let mut check = Check::new();
        let meta = meta_in(&mut check, &Path::ROOT.key("metadata"), Kind::JoinToken, metadata);
        let spec = spec_in(&mut check, &Path::ROOT.key("spec"), spec.unwrap_or_default());
        let status = status_in(&mut check, &Path::ROOT.key("status"), status.unwrap_or_default());
        let token = meta.zip(spec).map(|(meta, spec)| JoinToken { meta, spec, status });
        check.finish_some(token)
    }
}

fn spec_in(check: &mut Check, path: &Path<'_>, spec: pb::JoinTokenSpec) -> Option<JoinTokenSpec> {
    let pb::JoinTokenSpec { secret_sha256, expire_time, max_uses, node_name, labels, created_by } = spec;
    let secret_sha256 = check.field(&path.key("secretSha256"), secret_sha256.parse());
    let expires = path.key("expireTime");
    let expire_time =
        check.required(&expires, expire_time).and_then(|time| time_in(check, &expires, Some(time)));
    check.ensure(&path.key("maxUses"), max_uses > 0, "must be more than 0");
    let node_name = name_in(check, &path.key("nodeName"), &node_name);
    check_labels(check, &path.key("labels"), &labels);
    Some(JoinTokenSpec {
        secret_sha256: secret_sha256?,
        expire_time: expire_time?,
        max_uses,
        node_name,
        labels,
        created_by,
    })
}

fn status_in(check: &mut Check, path: &Path<'_>, status: pb::JoinTokenStatus) -> JoinTokenStatus {
    let pb::JoinTokenStatus { uses, last_use_time } = status;
    check.ensure(&path.key("uses"), uses >= 0, "must not be negative");
    JoinTokenStatus { uses, last_use_time: time_in(check, &path.key("lastUseTime"), last_use_time) }
}

impl From<JoinToken> for pb::JoinToken {
    fn from(token: JoinToken) -> Self {
        let JoinToken { meta, spec, status } = token;
        let JoinTokenSpec { secret_sha256, expire_time, max_uses, node_name, labels, created_by } = spec;
        let JoinTokenStatus { uses, last_use_time } = status;
        Self {
            metadata: Some(meta.into()),
            spec: Some(pb::JoinTokenSpec {
                secret_sha256: secret_sha256.to_string(),
                expire_time: time_out(Some(expire_time)),
                max_uses,
                node_name: node_name.map(String::from).unwrap_or_default(),
                labels,
                created_by,
            }),
            status: Some(pb::JoinTokenStatus { uses, last_use_time: time_out(last_use_time) }),
        }
    }
}
