//! Bad input and limits: malformed, too large, too old or too new requests fail with a clear error and change nothing.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::pb;
use muster_tests::fixtures::*;
use muster_tests::{
    Api, Deletion, ListQuery, Page, Resource, RpcError, TIMEOUT, TestStore, WatchQuery, eventually,
};
use prost::Message;
use tonic::Code;

/// The size limit of a record.
const MAX_RECORD: usize = 1_500_000;

/// A node whose encoding has about `bytes` bytes. The list of images has no limit of its own.
fn large(name: &str, bytes: usize) -> pb::Node {
    let image = |i: usize| pb::ContainerImage { names: vec![format!("{i:0>1000}")], size_bytes: 1 };
    node(name).status(|status| status.images = (0..bytes / 1009).map(image).collect())
}

fn asked(labels: &'static str, fields: &'static str) -> ListQuery {
    ListQuery { labels, fields, ..Default::default() }
}

#[tokio::test]
async fn an_error_names_all_invalid_fields_of_a_request() {
    let store = TestStore::start().await;
    let api = store.api();
    let bad = node("Bad")
        .label("/x", "")
        .taint("a:NoRun")
        .pod_cidrs(&["10.0.0.0/33"])
        .capacity("cpu", "lots")
        .ready("Maybe");
    let error = api.expect_error(api.create(bad)).await;
    error.is(Code::InvalidArgument, "INVALID");
    let expected = [
        "metadata.name",
        "metadata.labels[\"/x\"]",
        "spec.podCidrs[0]",
        "spec.taints[0].effect",
        "status.conditions[0].status",
        "status.capacity[\"cpu\"]",
    ];
    for field in expected {
        assert!(error.fields.iter().any(|found| found == field), "{field} is not in {:?}", error.fields);
    }
    // The size of headers is limited: the error has as many violations as fit, and the number of the others.
    let many = (0..5_000).fold(node("a"), |node, i| node.label(&format!("/{i}"), ""));
    let error = api.expect_error(api.create(many)).await;
    error.is(Code::InvalidArgument, "INVALID");
    assert!(error.fields.len() > 1 && error.message.len() < 2_000, "{} fields", error.fields.len());
}

#[tokio::test]
async fn a_request_without_its_record_is_refused() {
    let store = TestStore::start().await;
    let api = store.api();
    let empty = async || {
        let mut nodes = NodeServiceClient::new(api.channel());
        nodes.create_node(pb::CreateNodeRequest { node: None }).await.map(tonic::Response::into_inner)
    };
    api.expect_error(empty()).await.is_invalid(&["node"]).mentions("required");
    api.expect_error(api.create(pb::Node::default())).await.is_invalid(&["metadata.name"]);
    let nowhere = api.expect_error(api.create(pod("p").in_namespace(""))).await;
    nowhere.is_invalid(&["metadata.namespace"]);
    api.expect_error(api.create(node("a").in_namespace("x"))).await.is_invalid(&["metadata.namespace"]);
    api.expect_error(api.create(pod("p").in_namespace("a.b"))).await.is_invalid(&["metadata.namespace"]);
    api.expect_error(api.get::<pb::Node>("A")).await.is_invalid(&["name"]);
    api.expect_error(api.get::<pb::Pod>("/p")).await.is_invalid(&["namespace"]);
    api.expect_error(api.delete::<pb::Pod>("Default/P")).await.is_invalid(&["name", "namespace"]);
    let no_containers = pod("p").spec(|spec| spec.containers.clear());
    api.expect_error(api.create(no_containers)).await.is_invalid(&["spec.containers"]);
    let no_uid = api.create(node("a")).await.unwrap().with(|metadata| "x".clone_into(&mut metadata.uid));
    api.expect_error(api.update(no_uid)).await.is_invalid(&["metadata.uid"]);
}

/// The errors of a create, an update and a status update, in this order.
async fn refusals(api: &Api, new: pb::Node, changed: pb::Node) -> [RpcError; 3] {
    let created = Box::pin(api.expect_error(api.create(new))).await;
    let updated = Box::pin(api.expect_error(api.update(changed.clone()))).await;
    let reported = Box::pin(api.expect_error(api.update_status(changed))).await;
    [created, updated, reported]
}

#[tokio::test]
async fn missing_permission_is_reported_before_invalid_fields() {
    let store = TestStore::secure().await;
    let api = store.api();
    let old = api.create(node("a")).await.unwrap();
    let now = api.update(old.clone().label("zone", "a")).await.unwrap();
    let bad = |node: pb::Node| node.label("/x", "");
    let fields = ["metadata.labels[\"/x\"]"];
    let viewer = store.api_as("joe", "muster:viewers");
    for denied in [viewer.clone(), store.api_as_node("b")] {
        for error in refusals(&denied, bad(node("a")), bad(now.clone())).await {
            error.is_denied();
        }
    }
    for caller in [api.clone(), store.api_as_node("a")] {
        for error in refusals(&caller, bad(node("a")), bad(now.clone())).await {
            error.is_invalid(&fields);
        }
        let [_, updated, reported] = refusals(&caller, bad(node("a")), bad(old.clone())).await;
        updated.is(Code::Aborted, "CONFLICT");
        reported.is(Code::Aborted, "CONFLICT");
    }
    let [_, updated, reported] = refusals(&api, bad(node("b")), bad(node("b"))).await;
    updated.is(Code::NotFound, "NOT_FOUND");
    reported.is(Code::NotFound, "NOT_FOUND");
    viewer.expect_error(viewer.record(event("a", "", ""))).await.is_denied();
}

#[tokio::test]
async fn malformed_quantities_cidrs_and_addresses_are_refused() {
    let store = TestStore::start().await;
    let api = store.api();
    for quantity in ["", "lots", "-1", "1e", "1Xi", "0x10", "1 Gi", "NaN", "1.1.1"] {
        let error = api.expect_error(api.create(node("bad").capacity("memory", quantity))).await;
        error.is_invalid(&["status.capacity[\"memory\"]"]);
    }
    for (i, quantity) in ["0", "2", "0.5", "100m", "1Gi", "1e3", "128974848"].into_iter().enumerate() {
        let name = format!("good-{i}");
        api.create(node(&name).capacity("memory", quantity)).await.unwrap();
    }
    for cidr in ["10.0.0.0", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "10.0.0.0/-1", "x/24", "10.0.0.0/24/24"]
    {
        let error = api.expect_error(api.create(node("bad").pod_cidrs(&[cidr]))).await;
        error.is(Code::InvalidArgument, "INVALID");
        assert!(error.fields.iter().all(|field| field.starts_with("spec.podCidr")), "{error:?}");
    }
    let addressed = |kinds: &[&str]| {
        node("bad").status(|status| {
            let address =
                |kind: &&str| pb::NodeAddress { r#type: (*kind).to_owned(), address: "10.0.0.1".to_owned() };
            status.addresses = kinds.iter().map(address).collect();
        })
    };
    api.expect_error(api.create(addressed(&["AgentHost"]))).await.is_invalid(&["status.addresses[0].type"]);
    let twice = addressed(&["InternalIP", "ExternalIP", "InternalIP"]);
    api.expect_error(api.create(twice)).await.is_invalid(&["status.addresses[2]"]);
    let swap = node("bad").status(|status| {
        let swap = Some(pb::NodeSwapStatus { capacity: Some(-1) });
        status.node_info = Some(pb::NodeSystemInfo { swap, ..Default::default() });
    });
    api.expect_error(api.create(swap)).await.is_invalid(&["status.nodeInfo.swap.capacity"]);
    let two_masters = pod("p").owned_by("A", "a", "1").owned_by("B", "b", "2");
    let error = api.expect_error(api.create(two_masters)).await;
    error.is_invalid(&["metadata.ownerReferences[1].controller"]);
}

#[tokio::test]
async fn malformed_selectors_and_page_tokens_are_refused() {
    let store = TestStore::start().await;
    let api = store.api();
    for i in 0..3 {
        api.create(node(&format!("n{i}"))).await.unwrap();
    }
    for labels in ["a in", "a in (", "=b", "a==b==c", "a=b,,c", "/x", "a=-b"] {
        let error = api.expect_error(api.list::<pb::Node>(asked(labels, ""))).await;
        error.is_invalid(&["labelSelector"]);
        let follow = WatchQuery { labels, ..Default::default() };
        api.expect_error(api.watch::<pb::Node>(follow)).await.is_invalid(&["labelSelector"]);
    }
    for fields in ["spec.nodeName=a", "metadata.uid=x", "status.phase=Running", "nonsense", "metadata.name"] {
        let error = api.expect_error(api.list::<pb::Node>(asked("", fields))).await;
        error.is_invalid(&["fieldSelector"]);
        let follow = WatchQuery { fields, ..Default::default() };
        api.expect_error(api.watch::<pb::Node>(follow)).await.is_invalid(&["fieldSelector"]);
    }
    let bad_space = ListQuery { namespace: "A b", ..Default::default() };
    api.expect_error(api.list::<pb::Pod>(bad_space)).await.is_invalid(&["namespace"]);

    let first = api.list::<pb::Node>(ListQuery { page_size: 1, ..Default::default() }).await.unwrap();
    let with = |page_token: &str| ListQuery {
        page_token: page_token.to_owned(),
        page_size: 1,
        ..Default::default()
    };
    let mut tampered = first.next.clone();
    tampered.replace_range(0..1, if tampered.starts_with('0') { "1" } else { "0" });
    for token in ["x", "00", "abc", &tampered, &first.next[2..], "ää"] {
        api.expect_error(api.list::<pb::Node>(with(token))).await.is_invalid(&["pageToken"]);
    }
    let other_labels = ListQuery { labels: "!zone", ..with(&first.next) };
    api.expect_error(api.list::<pb::Node>(other_labels))
        .await
        .is_invalid(&["pageToken"])
        .mentions("other selectors");
    api.expect_error(api.list::<pb::Pod>(with(&first.next))).await.is_invalid(&["pageToken"]);
    let both = ListQuery { version: first.version, ..with(&first.next) };
    api.expect_error(api.list::<pb::Node>(both)).await.is_invalid(&["resourceVersion"]);
    api.list::<pb::Node>(with(&first.next)).await.unwrap();
}

#[tokio::test]
async fn an_impossible_resource_version_is_refused() {
    let store = TestStore::start().await;
    let api = store.api();
    api.create(node("a")).await.unwrap();
    let exact = ListQuery { version_match: "Exact", ..Default::default() };
    api.expect_error(api.list::<pb::Node>(exact)).await.is_invalid(&["resourceVersionMatch"]);
    let nonsense = ListQuery { version_match: "Newest", version: 1, ..Default::default() };
    api.expect_error(api.list::<pb::Node>(nonsense)).await.is_invalid(&["resourceVersionMatch"]);
    let past = ListQuery { version: 1, version_match: "Exact", ..Default::default() };
    assert_eq!(api.list::<pb::Node>(past).await.unwrap().records.len(), 1);
    let far = ListQuery { version: u64::MAX, ..Default::default() };
    let error = api.expect_error(api.list::<pb::Node>(far)).await;
    error.is(Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE");
    let stale = Deletion { version: u64::MAX, ..Default::default() };
    api.expect_error(api.delete_with::<pb::Node>("a", stale)).await.is(Code::Aborted, "CONFLICT");
    let ahead = node("a").at(99);
    api.expect_error(api.update(ahead)).await.is(Code::Aborted, "CONFLICT");
}

#[tokio::test]
async fn a_record_that_is_too_large_is_refused_with_its_size() {
    let store = TestStore::start().await;
    let api = store.api();
    let error = api.expect_error(api.create(large("big", MAX_RECORD + 5_000))).await;
    error.is(Code::InvalidArgument, "TOO_LARGE").mentions("1500000");
    assert_eq!(error.resource, "Node big");

    // Exact to the byte: a string of this length takes its bytes and three more for tag and length.
    let probe = api.create(large("edge", MAX_RECORD - 5_000)).await.unwrap();
    let available = MAX_RECORD - probe.encoded_len() - 3;
    let phased = |bytes: usize| probe.clone().status(|status| status.phase = "x".repeat(bytes));
    let error = api.expect_error(api.update_status(phased(available + 1))).await;
    error.is(Code::InvalidArgument, "TOO_LARGE").mentions("1500001");
    let fits = api.update_status(phased(available)).await.unwrap();
    assert_eq!(fits.encoded_len(), MAX_RECORD);

    let small = api.create(node("a")).await.unwrap();
    let grown = large("a", MAX_RECORD + 5_000);
    let error = api.expect_error(api.update_status(grown)).await;
    error.is(Code::InvalidArgument, "TOO_LARGE");
    assert_eq!(api.get::<pb::Node>("a").await.unwrap(), small);

    // A message above the limit is not decoded at all.
    let huge = large("huge", 3_000_000);
    let error = api.expect_error(api.create(huge)).await;
    error.is(Code::InvalidArgument, "TOO_LARGE").mentions("the limit is: 2097152 bytes");
    api.create(node("after")).await.unwrap();
}

#[tokio::test]
async fn a_large_record_survives_a_restart_unchanged() {
    let store = TestStore::start().await;
    let api = store.api();
    let wanted = large("big", 1_200_000);
    let created = api.create(wanted.clone()).await.unwrap();
    assert!((1_190_000..MAX_RECORD).contains(&created.encoded_len()), "{}", created.encoded_len());
    assert_eq!(created.status, wanted.status);
    let from = WatchQuery { version: created.version() - 1, ..Default::default() };
    drop(api);

    let store = store.restart().await;
    let api = store.api();
    assert_eq!(api.get::<pb::Node>("big").await.unwrap(), created);
    assert_eq!(
        api.list::<pb::Node>(ListQuery::default()).await.unwrap().records,
        std::slice::from_ref(&created)
    );
    let mut present = api.watch::<pb::Node>(from).await.unwrap();
    assert_eq!(present.next().await.record, created);
    let labelled = api.update(created.clone().label("zone", "a")).await.unwrap();
    assert_eq!(present.next().await.record, labelled);
    let then = ListQuery { version: created.version(), version_match: "Exact", ..Default::default() };
    assert_eq!(api.list::<pb::Node>(then).await.unwrap().records, [created], "also from history");
    api.delete::<pb::Node>("big").await.unwrap();
}

/// All pages of a list, with the store's own page size.
async fn all_pages(api: &Api, first: ListQuery) -> Result<Vec<Page<pb::Node>>, RpcError> {
    let mut pages: Vec<Page<pb::Node>> = Vec::new();
    loop {
        let page_token = pages.last().map(|page| page.next.clone()).unwrap_or_default();
        let query = if pages.is_empty() {
            first.clone()
        } else {
            ListQuery { version: 0, version_match: "", ..first.clone() }
        };
        let page =
            api.list(ListQuery { page_token, ..query }).await.map_err(|status| RpcError::from(&status))?;
        let more = !page.next.is_empty();
        pages.push(page);
        if !more {
            return Ok(pages);
        }
    }
}

/// Six nodes that together are twice as large as a client accepts: by default, also in Muster's own clients, messages
/// above 4 MiB are refused.
async fn six_large(api: &Api) -> Vec<pb::Node> {
    let mut stored = Vec::new();
    for (i, bytes) in
        [1_040_000, 1_040_000, 1_040_000, 1_450_000, 1_450_000, 1_450_000].into_iter().enumerate()
    {
        stored.push(api.create(large(&format!("n{i}"), bytes)).await.unwrap());
    }
    stored
}

fn together(pages: Vec<Page<pb::Node>>) -> Vec<pb::Node> {
    pages.into_iter().flat_map(|page| page.records).collect()
}

#[tokio::test]
async fn large_records_are_split_into_pages_that_a_client_accepts() {
    let store = TestStore::start().await;
    let api = store.api();
    let stored = six_large(&api).await;
    let pages = all_pages(&api, ListQuery::default()).await.expect("the current records in pages");
    assert!(together(pages) == stored, "all of them, in order");
}

#[tokio::test]
async fn large_records_from_history_are_split_into_pages_that_a_client_accepts() {
    let store = TestStore::start().await;
    let api = store.api();
    let stored = six_large(&api).await;
    let head = api.revision().await;
    for node in &stored {
        api.delete::<pb::Node>(node.name()).await.unwrap();
    }
    let then = ListQuery { version: head, version_match: "Exact", ..Default::default() };
    let pages = all_pages(&api, then).await.expect("the records at an older version in pages");
    assert!(together(pages) == stored, "all of them, in order");
}

#[tokio::test]
async fn large_records_are_split_into_watch_messages_that_a_client_accepts() {
    let store = TestStore::start().await;
    let api = store.api();
    let stored = six_large(&api).await;
    for version in [0, stored[0].version()] {
        let follow = WatchQuery { version, ..Default::default() };
        let mut watch = api.watch::<pb::Node>(follow).await.unwrap();
        for expected in stored.iter().filter(|node| node.version() > version) {
            assert!(watch.next().await.record == *expected, "from {version}: {}", expected.name());
        }
    }
}

#[tokio::test]
async fn all_pages_of_a_list_have_the_version_of_the_first() {
    let store = TestStore::start().await;
    let api = store.api();
    let mut nodes = Vec::new();
    for i in 0..10 {
        nodes.push(api.create(node(&format!("n{i}"))).await.unwrap());
    }
    let threes = |page_token: String| ListQuery { page_size: 3, page_token, ..Default::default() };
    let version = api.revision().await;
    let mut seen = Vec::new();
    let mut token = String::new();
    for round in 0..4 {
        let page = api.list::<pb::Node>(threes(token)).await.unwrap();
        assert_eq!(page.version, version, "page {round}");
        assert_eq!(page.records.len(), if round < 3 { 3 } else { 1 });
        seen.extend(page.records);
        token = page.next;
        assert_eq!(token.is_empty(), round == 3);
        // Records before, at and after the last page are changed, deleted, added, or deleted and created again.
        match round {
            0 => {
                api.update(nodes[0].clone().label("x", "y")).await.unwrap();
                api.update(nodes[4].clone().label("x", "y")).await.unwrap();
                api.delete::<pb::Node>("n5").await.unwrap();
                api.create(node("n3a")).await.unwrap();
            }
            1 => {
                api.delete::<pb::Node>("n6").await.unwrap();
                api.create(node("n6").label("new", "yes")).await.unwrap();
                api.delete::<pb::Node>("n9").await.unwrap();
                api.delete::<pb::Node>("n0").await.unwrap();
            }
            2 => {
                api.create(node("n99")).await.unwrap();
                api.delete::<pb::Node>("n8").await.unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(seen, nodes, "exactly the records at the version of the first page");
    let now = api.list::<pb::Node>(ListQuery::default()).await.unwrap();
    let names: Vec<_> = now.records.iter().map(Resource::name).collect();
    assert_eq!(names, ["n1", "n2", "n3", "n3a", "n4", "n6", "n7", "n99"]);
    let then = ListQuery { version, version_match: "Exact", ..Default::default() };
    assert_eq!(api.list::<pb::Node>(then).await.unwrap().records, nodes);
}

#[tokio::test]
async fn all_pages_of_a_list_with_a_selector_have_the_version_of_the_first() {
    let store = TestStore::start().await;
    let api = store.api();
    for i in 0..9 {
        let place = if i % 3 == 0 { "b" } else { "a" };
        api.create(pod(&format!("p{i}")).on(place).label("parity", ["even", "odd"][i % 2])).await.unwrap();
        api.create(pod(&format!("p{i}")).in_namespace("other").on("a")).await.unwrap();
        api.create(pod(&format!("q{i}")).in_namespace("queue")).await.unwrap();
    }
    let selected = [
        ListQuery { fields: "spec.nodeName=a", namespace: "default", ..Default::default() },
        ListQuery { fields: "spec.nodeName=", ..Default::default() },
        ListQuery { labels: "parity=odd", ..Default::default() },
        ListQuery { namespace: "other", ..Default::default() },
    ];
    for query in selected {
        let whole = api.list::<pb::Pod>(query.clone()).await.unwrap();
        assert!(whole.records.len() > 3);
        let (mut seen, mut page_token) = (Vec::new(), String::new());
        loop {
            let page = ListQuery { page_size: 2, page_token, ..query.clone() };
            let page = api.list::<pb::Pod>(page).await.unwrap();
            assert_eq!(page.version, whole.version);
            seen.extend(page.records);
            page_token = page.next;
            if page_token.is_empty() {
                break;
            }
            // Change records of later pages so that the selector would not match them now.
            let current = api.get::<pb::Pod>("default/p7").await.unwrap();
            api.update(current.label("parity", &format!("v{}", seen.len()))).await.unwrap();
            let gone = || Deletion { grace: Some(0), ..Default::default() };
            let _ = api.delete_with::<pb::Pod>("other/p8", gone()).await;
            let _ = api.delete_with::<pb::Pod>("default/p8", gone()).await;
        }
        assert_eq!(seen, whole.records, "{query:?}");
        let current = api.get::<pb::Pod>("default/p7").await.unwrap();
        api.update(current.label("parity", "odd")).await.unwrap();
    }
}

#[tokio::test]
async fn a_page_token_older_than_history_is_expired() {
    let store = TestStore::with_flags(&["--history-min-age=0", "--history-min-changes=0"]).await;
    let api = store.api();
    let mut last = node("n0");
    for i in 0..5 {
        last = api.create(node(&format!("n{i}"))).await.unwrap();
    }
    let first = api.list::<pb::Node>(ListQuery { page_size: 2, ..Default::default() }).await.unwrap();
    for value in ["a", "b", "c"] {
        last = api.update(last.label("zone", value)).await.unwrap();
    }
    let next = ListQuery { page_size: 2, page_token: first.next.clone(), ..Default::default() };
    let error = eventually(TIMEOUT, "the token expires", || async {
        api.list::<pb::Node>(next.clone()).await.err().map(|status| RpcError::from(&status))
    })
    .await;
    error.is(Code::OutOfRange, "EXPIRED").mentions("list again");
}

#[tokio::test]
async fn the_oldest_events_give_way_to_new_ones() {
    let store = TestStore::with_flags(&["--event-max-count=3"]).await;
    let api = store.api();
    let mut watch = api.watch::<pb::Event>(WatchQuery::default()).await.unwrap();
    let mut recorded = Vec::new();
    for name in ["a", "b", "c", "d"] {
        recorded.push(api.record(event(name, "Starting", "starts")).await.unwrap());
    }
    let (oldest, newest) = (recorded[0].clone(), recorded[3].clone());
    let kinds: Vec<_> = watch.summaries(5).await.into_iter().skip(3).collect();
    let expected = [
        format!("ADDED {} {}", newest.name(), newest.version()),
        format!("DELETED {} {}", oldest.name(), newest.version() + 1),
    ];
    assert_eq!(kinds, expected, "in the same commit");
    assert_eq!(api.list::<pb::Event>(ListQuery::default()).await.unwrap().records.len(), 3);
}

#[tokio::test]
async fn an_event_has_limits_for_each_field_and_names_the_node_of_its_agent() {
    let store = TestStore::secure().await;
    let agent = store.api_as_node("a");
    let mut long = event("a", "Starting", "starts");
    long.source_component = "x".repeat(254);
    agent.expect_error(agent.record(long)).await.is_invalid(&["sourceComponent"]);
    let long = event("a", &"R".repeat(129), &"m".repeat(1025));
    agent.expect_error(agent.record(long)).await.is_invalid(&["reason", "message"]);
    let mut forged = event("a", "Starting", "starts");
    "agent".clone_into(&mut forged.source_component);
    "b".clone_into(&mut forged.source_host);
    assert_eq!(agent.record(forged.clone()).await.unwrap().source_host, "a");
    "other".clone_into(&mut forged.message);
    assert_eq!(store.api().record(forged).await.unwrap().source_host, "", "only agents have a node");
}

#[tokio::test]
async fn a_kind_has_its_own_largest_record() {
    let store = TestStore::start().await;
    let api = store.api();
    let large = lease("l").annotation("a", &"x".repeat(64 * 1024));
    let error = api.expect_error(api.create(large)).await;
    error.is(Code::InvalidArgument, "TOO_LARGE").mentions("65536");
}
