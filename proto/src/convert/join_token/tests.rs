use proptest::prelude::*;

use super::*;
use crate::convert::testing::{any_metadata, any_time, at, complaints, map, named, stored};
use crate::digest::Sha256;

fn valid() -> pb::JoinToken {
    pb::JoinToken {
        metadata: named("", "8000000000"),
        spec: Some(pb::JoinTokenSpec {
            secret_sha256: Sha256::of(b"secret").to_string(),
            expire_time: at(1, 0),
            max_uses: 1,
            node_name: "a".into(),
            ..Default::default()
        }),
        status: None,
    }
}

#[test]
fn everything_wrong_with_a_token_is_reported_at_once() {
    assert_eq!(complaints::<JoinToken>(valid()), "");
    let token = pb::JoinToken {
        metadata: named("x", "t"),
        spec: Some(pb::JoinTokenSpec {
            secret_sha256: "secret".into(),
            node_name: "A".into(),
            labels: map(&[("a b", "c")]),
            ..Default::default()
        }),
        status: Some(pb::JoinTokenStatus { uses: -1, last_use_time: None }),
    };
    let found = JoinToken::try_from(token).unwrap_err();
    let fields: Vec<&str> = found.violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "metadata.namespace",
            "spec.secretSha256",
            "spec.expireTime",
            "spec.maxUses",
            "spec.nodeName",
            "spec.labels[\"a b\"]",
            "status.uses",
        ]
    );
}

proptest! {
    #[test]
    fn a_token_is_the_same_after_it_was_stored(
        metadata in any_metadata(""), seconds in 0..253_402_207_200i64, max_uses in 1..i32::MAX,
        uses in 0..9i32, last_use_time in any_time(), node_name in "[a-z]{0,3}", value in "[a-z]{0,3}",
    ) {
        let mut token = valid();
        let spec = token.spec.as_mut().unwrap();
        (spec.expire_time, spec.max_uses, spec.node_name) = (at(seconds, 1), max_uses, node_name);
        spec.labels = map(&[("pool", &value)]);
        let status = Some(pb::JoinTokenStatus { uses, last_use_time });
        stored::<JoinToken>(pb::JoinToken { metadata, status, ..token });
    }
}
