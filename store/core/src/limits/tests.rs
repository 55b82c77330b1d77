use super::*;

#[test]
fn a_scope_takes_records_up_to_its_limit() {
    let limit = Amount { records: 10, bytes: 80_000 };
    let used = |records, bytes| Amount { records, bytes };
    for (used, was, is, expected, what) in [
        (used(0, 0), None, 80_000, Ok(()), "the whole limit at once"),
        (used(0, 0), None, 80_001, Err(Limit::Bytes(80_000)), "more than the limit"),
        (used(9, 100), None, 10, Ok(()), "the last record"),
        (used(10, 100), None, 10, Err(Limit::Records(10)), "one record too many"),
        (used(10, 100), Some(10), 20, Ok(()), "an update creates no record"),
        (used(10, 80_000), Some(10), 10, Ok(()), "an update of the same size"),
        (used(99, 999_999), Some(10), 9, Ok(()), "a smaller record, far above the limit"),
        (used(5, 80_000), Some(10), 110, Ok(()), "small growth uses the reserve"),
        (used(5, 89_999), Some(10), 11, Ok(()), "up to an eighth"),
        (used(5, 90_000), Some(10), 11, Err(Limit::Bytes(80_000)), "the reserve is used up"),
        (
            used(5, 80_000),
            Some(10),
            4_107,
            Err(Limit::Bytes(80_000)),
            "large growth does not use the reserve",
        ),
        (used(5, 80_000), None, 10, Err(Limit::Bytes(80_000)), "nor does a new record"),
    ] {
        assert_eq!(check(used, limit, was, is), expected, "{what}");
    }
}

#[test]
fn amounts_follow_the_records() {
    let mut amount = Amount::default();
    for (was, is, records, bytes) in
        [(None, Some(10), 1, 10), (None, Some(5), 2, 15), (Some(10), Some(30), 2, 35), (Some(5), None, 1, 30)]
    {
        amount.replace(was, is);
        assert_eq!(amount, Amount { records, bytes });
    }
    for (records, bytes, expected) in [(1, 30, false), (0, 30, true), (1, 29, true)] {
        assert_eq!(amount.exceeds(Amount { records, bytes }), expected);
    }
}

#[test]
fn every_kind_is_limited() {
    const FLEET: usize = 100_000;
    for kind in [Kind::Node, Kind::Lease, Kind::Pod, Kind::DisruptionBudget, Kind::Event] {
        let (record, namespace) = (max_record(kind), namespace_limit(kind));
        assert!(record <= 1_500_000, "{kind}");
        match kind {
            Kind::Node | Kind::Pod => assert_eq!(record, 1_500_000, "{kind}"),
            _ => assert!(record <= 64 * 1024, "{kind}"),
        }
        match (kind, namespace) {
            (Kind::Event, limit) => assert_eq!(limit, None),
            (Kind::Node | Kind::Lease | Kind::Pod, Some(limit)) => {
                assert!(limit.records > 2 * FLEET && limit.bytes > FLEET * 32 * 1024, "{kind}");
            }
            (_, limit) => assert!(limit.is_some(), "{kind}"),
        }
    }
}

#[test]
fn an_error_names_kind_scope_and_limit() {
    for (scope, limit, expected) in [
        (Scope::Namespace("a".into()), Limit::Records(3), "in namespace a: the limit is 3 records"),
        (Scope::Namespace(String::new()), Limit::Bytes(3), "in the fleet: the limit is 3 bytes"),
        (Scope::Node("n1".into()), Limit::Records(3), "of node n1: the limit is 3 records"),
    ] {
        let text = LimitExceeded { kind: Kind::Pod, scope, limit }.to_string();
        assert_eq!(text, format!("there are too many Pod records {expected}"));
    }
}
