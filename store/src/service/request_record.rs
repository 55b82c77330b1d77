//! A record as a request brings it: read, or with what stands against it.
//!
//! What is wrong with a record is told last. Before that come the caller's rights, whether there is such a
//! record, and whether it is the one that the caller saw.

use muster_proto::identity::Caller;
use muster_proto::invalid::Invalid;
use muster_proto::name::Namespace;
use muster_proto::record::{Kind, Record};

use super::{AuthzRecord, authz_result, namespace_of, record_id};
use crate::error::StoreError;
use muster_store_core::authz::{Call, Denial, Refused, Rule, Verb, authorize};
use muster_store_core::draft::Draft;
use muster_store_core::rules::{self, Preconditions, RecordId, Refusal, Rules};

/// A record that cannot be read as what it claims to be.
pub(super) struct InvalidRecord {
    key: RecordId,
    seen: Preconditions,
    invalid: Invalid,
}

/// The record of a request; or why it has none, or none with a name.
pub(super) fn parse_record<R: Record>(wire: Option<R::Pb>) -> Result<Result<R, InvalidRecord>, StoreError> {
    let wire = required_record::<R>(wire)?;
    let meta = R::wire_meta(&wire);
    let said = meta.map(|meta| {
        (meta.name.clone(), meta.namespace.clone(), meta.uid.parse().ok(), meta.resource_version)
    });
    R::try_from(wire).map(Ok).or_else(|invalid| {
        let (name, namespace, uid, version) = said.unwrap_or_default();
        let Ok(key) = record_id(R::KIND, &namespace, &name) else { return Err(invalid.into()) };
        let seen = Preconditions { uid, resource_version: (version > 0).then_some(version) };
        Ok(Err(InvalidRecord { key, seen, invalid }))
    })
}

/// The record of a request, unread.
pub(super) fn required_record<R: Record>(wire: Option<R::Pb>) -> Result<R::Pb, StoreError> {
    let field = match R::KIND {
        Kind::Node => "node",
        Kind::Lease => "lease",
        Kind::Pod => "pod",
        Kind::DisruptionBudget => "disruptionBudget",
        Kind::Event => "event",
    };
    Ok(wire.ok_or_else(|| Invalid::of(field, "is required"))?)
}

impl InvalidRecord {
    /// The first thing that stands against it.
    pub(super) fn into_error<R: AuthzRecord + Rules>(
        self,
        draft: &Draft<'_>,
        caller: &Caller,
        verb: Verb,
    ) -> StoreError {
        let Self { key, seen, invalid } = self;
        let refused = authorize_unparsed::<R>(caller, verb, &key).and_then(|()| match verb {
            Verb::Create => Ok(()),
            _ => match draft.get::<R>(namespace_of(&key), key.name.as_str())? {
                Some(current) => Ok(rules::check_preconditions(&current, &seen)?),
                None if R::UPDATE_CREATES => Ok(()),
                None => Err(Refusal::NotFound { key: key.clone() }.into()),
            },
        });
        refused.err().unwrap_or_else(|| invalid.into())
    }
}

/// Whether the caller may do this to such a record at all. Whether its content is allowed cannot be told of what
/// cannot be read.
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
