use super::*;

#[test]
fn a_call_is_classed_by_its_caller_and_its_method() {
    const GET: &str = "/muster.v1.NodeService/GetNode";
    const HEARTBEAT: &str = "/muster.v1.HeartbeatService/Heartbeat";
    const RENEW: &str = "/muster.v1.LeaseService/RenewLease";
    const WATCH_LEASES: &str = "/muster.v1.LeaseService/WatchLeases";
    const JOIN: &str = "/muster.v1.JoinService/Join";
    const HEALTH: &str = "/grpc.health.v1.Health/Check";
    let unknown = || Caller::Unknown("CN=x O=".to_owned());
    let node = || Caller::Node("a".to_owned());
    for (caller, path, expected) in [
        (Caller::Controller, GET, Some(Class::Part)),
        (Caller::Controller, RENEW, Some(Class::Part)),
        (node(), HEARTBEAT, Some(Class::NodeHeartbeat)),
        (node(), RENEW, Some(Class::NodeHeartbeat)),
        (node(), GET, Some(Class::Node)),
        (node(), WATCH_LEASES, Some(Class::Node)),
        (Caller::Admin, HEARTBEAT, Some(Class::FleetHeartbeat)),
        (Caller::Admin, RENEW, Some(Class::FleetHeartbeat)),
        (Caller::Admin, WATCH_LEASES, Some(Class::Other)),
        (Caller::Admin, GET, Some(Class::Other)),
        (Caller::Viewer, GET, Some(Class::Other)),
        (Caller::Viewer, HEARTBEAT, Some(Class::Other)),
        (Caller::Scheduler, RENEW, Some(Class::Other)),
        (unknown(), GET, None),
        (unknown(), JOIN, Some(Class::Anonymous)),
        (node(), JOIN, Some(Class::Node)),
        (Caller::Admin, JOIN, Some(Class::Other)),
        (unknown(), HEARTBEAT, None),
        (unknown(), HEALTH, Some(Class::Probe)),
        (Caller::Viewer, HEALTH, Some(Class::Probe)),
    ] {
        assert_eq!(Class::of(&caller, path, path != JOIN), expected, "{caller} calls {path}");
    }
}

#[test]
fn the_defaults_suffice_for_fleets_and_load_tests() {
    let totals = Totals { calls: 20_000, streams: 400_000, bytes: 512 << 20 };
    let mib = |bytes: usize| bytes << 20;
    for (class, resource, is_identified, server, caller, connection) in [
        // ghz has 1,024 calls in flight on one connection.
        (Class::Other, Resource::Calls, true, 15_000, 2_500, 1_250),
        (Class::Other, Resource::Calls, false, 15_000, 2_500, 2_500),
        (Class::Other, Resource::Streams, true, 300_000, 3_125, 1_563),
        (Class::Other, Resource::Bytes, false, mib(384), mib(128), mib(128)),
        // `muster up` has 4,096 heartbeat streams on one connection, without TLS; a load test 10,000 of one caller.
        (Class::FleetHeartbeat, Resource::Calls, false, 20_000, 10_000, 10_000),
        (Class::FleetHeartbeat, Resource::Streams, false, 400_000, 100_000, 100_000),
        (Class::FleetHeartbeat, Resource::Streams, true, 400_000, 100_000, 50_000),
        (Class::NodeHeartbeat, Resource::Calls, true, 20_000, 313, 157),
        (Class::NodeHeartbeat, Resource::Streams, true, 400_000, 98, 49),
        (Class::Node, Resource::Calls, true, 15_000, 313, 157),
        (Class::Node, Resource::Bytes, true, mib(384), mib(8), mib(4)),
        (Class::Part, Resource::Calls, true, 20_000, 5_000, 2_500),
        (Class::Probe, Resource::Calls, true, 1_250, 313, 157),
        (Class::Probe, Resource::Streams, false, 25_000, 782, 782),
        (Class::Anonymous, Resource::Calls, true, 313, 313, 20),
        (Class::Anonymous, Resource::Bytes, true, mib(8), mib(8), mib(8) / 16),
    ] {
        let budget = totals.budget(class, resource, is_identified);
        assert_eq!(budget, Budget { server, caller, connection }, "{class:?}, {resource:?}, {is_identified}");
    }
}

#[test]
fn every_caller_has_a_place_however_small_the_total() {
    let totals = Totals { calls: 1, streams: 1, bytes: 1 };
    for class in [Class::Probe, Class::Part, Class::FleetHeartbeat, Class::NodeHeartbeat, Class::Other] {
        let budget = totals.budget(class, Resource::Calls, true);
        assert_eq!(budget, Budget { server: 1, caller: 1, connection: 1 }, "{class:?}");
    }
}

#[test]
fn the_narrowest_limit_that_would_be_exceeded_is_named() {
    let budget = Budget { server: 10, caller: 5, connection: 3 };
    let held = |server, caller, connection| Held { server, caller, connection };
    for (held, amount, expected) in [
        (held(0, 0, 0), 1, Ok(())),
        (held(9, 4, 2), 1, Ok(())),
        (held(9, 4, 3), 1, Err((Scope::Connection, 3))),
        (held(10, 5, 3), 1, Err((Scope::Connection, 3))),
        (held(9, 5, 2), 1, Err((Scope::Caller, 5))),
        (held(10, 4, 2), 1, Err((Scope::Server, 10))),
        (held(0, 0, 0), 3, Ok(())),
        (held(0, 0, 0), 4, Err((Scope::Connection, 3))),
        (held(0, 0, 1), usize::MAX, Err((Scope::Connection, 3))),
    ] {
        assert_eq!(budget.judge(held, amount), expected, "{held:?} and {amount} more");
    }
}

#[test]
fn a_refusal_says_whose_limit_it_is_and_which_flag_changes_it() {
    for (resource, scope, name, message) in [
        (
            Resource::Calls,
            Scope::Server,
            "in-flight",
            "too many calls in flight: limit 7 (from --max-in-flight)",
        ),
        (
            Resource::Streams,
            Scope::Caller,
            "streams-per-caller",
            "too many open streams of this caller: limit 7 (from --max-open-streams)",
        ),
        (
            Resource::Bytes,
            Scope::Connection,
            "request-bytes-per-connection",
            "too many bytes of unfinished requests on this connection: limit 7 (from --max-request-bytes)",
        ),
    ] {
        let exceeded = Exceeded { resource, scope, limit: 7 };
        assert_eq!((exceeded.name(), exceeded.to_string().as_str()), (name, message));
    }
}
