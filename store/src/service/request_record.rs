//! Parses the record of a request.
//!
//! The violations of an invalid record are reported last. Before that come the caller's authorization, whether the
//! record exists, and its preconditions, all of which need the current record.

use muster_proto::identity::Caller;
use muster_proto::invalid::Invalid;
use muster_proto::name::Namespace;
use muster_proto::record::{Kind, Record};

use muster_store_core::authz::{Call, Denial, Refused, Rule, Verb, authorize};
use muster_store_core::draft::Draft;
use muster_store_core::rules::{self, Preconditions, RecordId, Refusal, Rules};

use super::{AuthzRecord, authz_result, namespace_of, note_in_audit, record_id};
use crate::error::StoreError;

/// A request's record that failed validation, with its id and preconditions.
pub(super) struct InvalidRecord {
    key: RecordId,
    preconditions: Preconditions,
    invalid: Invalid,
}

/// Parses the record of a request. The outer error is for a request without a record, or whose record has no valid
/// name; the inner one is to be reported after the checks of [`InvalidRecord::into_error`].
pub(super) fn parse_record<R: Record>(wire: Option<R::Pb>) -> Result<Result<R, InvalidRecord>, StoreError> {
    let wire = required_record::<R>(wire)?;
    let meta = R::wire_meta(&wire);
    let named = meta.map(|meta| {
        (meta.name.clone(), meta.namespace.clone(), meta.uid.parse().ok(), meta.resource_version)
    });
    let parsed = R::try_from(wire).inspect(|record| note_in_audit(&RecordId::of(record)));
    parsed.map(Ok).or_else(|invalid| {
        let (name, namespace, uid, version) = named.unwrap_or_default();
        let Ok(key) = record_id(R::KIND, &namespace, &name) else { return Err(invalid.into()) };
        let preconditions = Preconditions { uid, resource_version: (version > 0).then_some(version) };
        Ok(Err(InvalidRecord { key, preconditions, invalid }))
    })
}

/// The record of a request, not yet validated; an error if it is missing.
pub(super) fn required_record<R: Record>(wire: Option<R::Pb>) -> Result<R::Pb, StoreError> {
    let field = match R::KIND {
        Kind::Node => "node",
        Kind::Lease => "lease",
        Kind::Pod => "pod",
        Kind::DisruptionBudget => "disruptionBudget",
        Kind::Event => "event",
        Kind::JoinToken => "joinToken",
        Kind::CertificateRequest => "certificateRequest",
        Kind::Revocation => "revocation",
        Kind::PriorityClass => "priorityClass",
    };
    Ok(wire.ok_or_else(|| Invalid::of(field, "is required"))?)
}

impl InvalidRecord {
    /// The first error of the request, in the order of the checks: denied, not found, preconditions, violations.
    pub(super) fn into_error<R: AuthzRecord + Rules>(
        self,
        draft: &Draft<'_>,
        caller: &Caller,
        verb: Verb,
    ) -> StoreError {
        let Self { key, preconditions, invalid } = self;
        let checked = authorize_unparsed::<R>(caller, verb, &key).and_then(|()| match verb {
            Verb::Create => Ok(()),
            _ => match draft.get::<R>(namespace_of(&key), key.name.as_str())? {
                Some(current) => Ok(rules::check_preconditions(&current, &preconditions)?),
                None if R::UPDATE_CREATES => Ok(()),
                None => Err(Refusal::NotFound { key: key.clone() }.into()),
            },
        });
        checked.err().unwrap_or_else(|| invalid.into())
    }
}

/// Authorizes verb and record id only: the rules on a record's content cannot be applied to an invalid record.
fn authorize_unparsed<R: AuthzRecord>(caller: &Caller, verb: Verb, key: &RecordId) -> Result<(), StoreError> {
    let call = Call {
        verb,
        kind: R::KIND,
        namespace: key.namespace.as_ref().map(Namespace::as_str),
        name: Some(key.name.as_str()),
        field_selector: None,
    };
    match authorize(caller, &call, &R::authz_content(None, None, None)) {
        Err(Refused::Denied(Denial { rule: Rule::MissingContent, .. })) => Ok(()),
        verdict => authz_result(verdict),
    }
}
