//! Revocations.

use super::meta::meta_in;
use super::{time_in, time_out};
use crate::invalid::{Check, Invalid, Path};
use crate::pb;
use crate::record::Kind;
use crate::revocation::{Revocation, RevocationSpec, RevocationStatus, Revoked, revocation_name};

#[cfg(test)]
mod tests;

/// The longest reason, in bytes.
const MAX_REASON: usize = 1024;

/// The name may be absent: it follows from what is revoked.
impl TryFrom<pb::Revocation> for Revocation {
    type Error = Invalid;

    fn try_from(revocation: pb::Revocation) -> Result<Self, Invalid> {
        let pb::Revocation { metadata, spec, status } = revocation;
        let mut check = Check::new();
        let root = Path::ROOT;
        let path = root.key("spec");
        let spec = spec_in(&mut check, &path, spec.unwrap_or_default());
        let mut metadata = metadata.unwrap_or_default();
        if metadata.name.is_empty() {
            // Without valid certificates it is refused anyway; the name is not reported a second time.
            metadata.name = spec
                .as_ref()
                .map_or_else(|| "unnamed".to_owned(), |spec| revocation_name(&spec.revoked).into());
        }
        let meta = meta_in(&mut check, &root.key("metadata"), Kind::Revocation, Some(metadata));
        if let (Some(meta), Some(spec)) = (&meta, &spec) {
            let name = revocation_name(&spec.revoked);
            let holds = meta.name == name;
            check.ensure(&root.key("metadata").key("name"), holds, format_args!("must be empty or {name}"));
        }
        let pb::RevocationStatus { revoked_by, revoke_time } = status.unwrap_or_default();
        let path = root.key("status");
        let status = RevocationStatus {
            revoked_by,
            revoke_time: time_in(&mut check, &path.key("revokeTime"), revoke_time),
        };
        check.finish_some(meta.zip(spec).map(|(meta, spec)| Revocation { meta, spec, status }))
    }
}

fn spec_in(check: &mut Check, path: &Path<'_>, spec: pb::RevocationSpec) -> Option<RevocationSpec> {
    let pb::RevocationSpec { node_name, serial, reason, expire_time } = spec;
    check.ensure(&path.key("reason"), reason.len() <= MAX_REASON, "must be 1024 bytes or fewer");
    let revoked = match (node_name.as_str(), serial.as_str()) {
        ("", "") => {
            check.fail(&path.key("nodeName"), "is required, unless serial is given");
            None
        }
        (node, "") => check.field(&path.key("nodeName"), node.parse()).map(Revoked::Node),
        ("", serial) => check.field(&path.key("serial"), serial.parse()).map(Revoked::Serial),
        _ => {
            check.fail(&path.key("serial"), "must not be given together with nodeName");
            None
        }
    };
    let expire_time = time_in(check, &path.key("expireTime"), expire_time);
    Some(RevocationSpec { revoked: revoked?, reason, expire_time })
}

impl From<Revocation> for pb::Revocation {
    fn from(revocation: Revocation) -> Self {
        let Revocation { meta, spec, status } = revocation;
        let RevocationSpec { revoked, reason, expire_time } = spec;
        let RevocationStatus { revoked_by, revoke_time } = status;
        let (node_name, serial) = match revoked {
            Revoked::Node(node) => (node.into(), String::new()),
            Revoked::Serial(serial) => (String::new(), serial.to_string()),
        };
        Self {
            metadata: Some(meta.into()),
            spec: Some(pb::RevocationSpec { node_name, serial, reason, expire_time: time_out(expire_time) }),
            status: Some(pb::RevocationStatus { revoked_by, revoke_time: time_out(revoke_time) }),
        }
    }
}
