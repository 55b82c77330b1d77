//! Requests for certificates.

use super::meta::meta_in;
use super::{name_in, time_in, time_out};
use crate::certificate_request::{
    CertificateRequest, CertificateRequestSpec, CertificateRequestStatus, IssuedCertificate, RequestState,
};
use crate::invalid::{Check, Invalid, Path};
use crate::label::check_labels;
use crate::pb;
use crate::record::Kind;

#[cfg(test)]
mod tests;

/// The longest reason, in bytes.
const MAX_REASON: usize = 1024;

impl TryFrom<pb::CertificateRequest> for CertificateRequest {
    type Error = Invalid;

    fn try_from(request: pb::CertificateRequest) -> Result<Self, Invalid> {
        let pb::CertificateRequest { metadata, spec, status } = request;
        let mut check = Check::new();
        let meta = meta_in(&mut check, &Path::ROOT.key("metadata"), Kind::CertificateRequest, metadata);
        let spec = spec_in(&mut check, &Path::ROOT.key("spec"), spec.unwrap_or_default());
        let status = status_in(&mut check, &Path::ROOT.key("status"), status.unwrap_or_default());
        let parts = meta.zip(spec).zip(status);
        check.finish_some(parts.map(|((meta, spec), status)| CertificateRequest { meta, spec, status }))
    }
}

fn spec_in(
    check: &mut Check,
    path: &Path<'_>,
    spec: pb::CertificateRequestSpec,
) -> Option<CertificateRequestSpec> {
    let pb::CertificateRequestSpec {
        node_name,
        request,
        public_key_sha256,
        token_id,
        requested_by,
        source_address,
        labels,
    } = spec;
    let node_name = check.field(&path.key("nodeName"), node_name.parse());
    check.ensure(&path.key("request"), !request.is_empty(), "is required");
    let public_key_sha256 = check.field(&path.key("publicKeySha256"), public_key_sha256.parse());
    let token_id = name_in(check, &path.key("tokenId"), &token_id);
    check_labels(check, &path.key("labels"), &labels);
    Some(CertificateRequestSpec {
        node_name: node_name?,
        request,
        public_key_sha256: public_key_sha256?,
        token_id,
        requested_by,
        source_address,
        labels,
    })
}

fn status_in(
    check: &mut Check,
    path: &Path<'_>,
    status: pb::CertificateRequestStatus,
) -> Option<CertificateRequestStatus> {
    let pb::CertificateRequestStatus {
        state,
        reason,
        decided_by,
        transition_time,
        certificate,
        serial,
        not_after,
    } = status;
    let state = check.field(&path.key("state"), state.parse())?;
    check.ensure(&path.key("reason"), reason.len() <= MAX_REASON, "must be 1024 bytes or fewer");
    let transition_time = time_in(check, &path.key("transitionTime"), transition_time);
    let issued = if state == RequestState::Issued {
        check.ensure(&path.key("certificate"), !certificate.is_empty(), "is required if the state is Issued");
        let serial = check.field(&path.key("serial"), serial.parse());
        let expires = path.key("notAfter");
        let not_after = check.required(&expires, not_after);
        let not_after = not_after.and_then(|time| time_in(check, &expires, Some(time)));
        Some(IssuedCertificate { chain: certificate, serial: serial?, not_after: not_after? })
    } else {
        for (field, is_empty) in [
            ("certificate", certificate.is_empty()),
            ("serial", serial.is_empty()),
            ("notAfter", not_after.is_none()),
        ] {
            check.ensure(&path.key(field), is_empty, "must be empty unless the state is Issued");
        }
        None
    };
    Some(CertificateRequestStatus { state, reason, decided_by, transition_time, issued })
}

impl From<CertificateRequest> for pb::CertificateRequest {
    fn from(request: CertificateRequest) -> Self {
        let CertificateRequest { meta, spec, status } = request;
        Self { metadata: Some(meta.into()), spec: Some(spec.into()), status: Some(status.into()) }
    }
}

impl From<CertificateRequestSpec> for pb::CertificateRequestSpec {
    fn from(spec: CertificateRequestSpec) -> Self {
        let CertificateRequestSpec {
            node_name,
            request,
            public_key_sha256,
            token_id,
            requested_by,
            source_address,
            labels,
        } = spec;
        Self {
            node_name: node_name.into(),
            request,
            public_key_sha256: public_key_sha256.to_string(),
            token_id: token_id.map(String::from).unwrap_or_default(),
            requested_by,
            source_address,
            labels,
        }
    }
}

impl From<CertificateRequestStatus> for pb::CertificateRequestStatus {
    fn from(status: CertificateRequestStatus) -> Self {
        let CertificateRequestStatus { state, reason, decided_by, transition_time, issued } = status;
        let (certificate, serial, not_after) = match issued {
            Some(IssuedCertificate { chain, serial, not_after }) => {
                (chain, serial.to_string(), time_out(Some(not_after)))
            }
            None => Default::default(),
        };
        Self {
            state: state.to_string(),
            reason,
            decided_by,
            transition_time: time_out(transition_time),
            certificate,
            serial,
            not_after,
        }
    }
}
