use super::*;
use crate::fake_store::{Answer, Asked, Fake};
use crate::fixtures::node;
use muster_proto::ERROR_DOMAIN;
use muster_proto::node::Node;
use tokio::net::TcpSocket;
use tonic::Code;
use tonic_types::{ErrorDetails, StatusExt};

fn key(name: &str) -> Key {
    Key::node(name.parse().unwrap())
}

/// An address without a listener, reserved while the socket exists.
fn dead_url() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    (socket, url)
}

fn url(fake: &Fake) -> String {
    format!("http://{}", fake.address)
}

fn client_of<const N: usize>(urls: [String; N]) -> StoreClient {
    StoreClient::connect(StoreEndpoints::new(urls)).unwrap()
}

#[tokio::test]
async fn records_are_sent_and_returned_validated() {
    let stored = || Answer::node(node("a", 7));
    let mut fake = Fake::start([stored(), stored(), stored(), stored()]).await;
    let client = fake.client();
    let wanted = node("a", 6);
    assert_eq!(client.create(wanted.clone()).await.unwrap(), node("a", 7));
    assert_eq!(client.update(wanted.clone()).await.unwrap(), node("a", 7));
    assert_eq!(client.update_status(wanted.clone()).await.unwrap(), node("a", 7));
    assert_eq!(client.delete::<Node>(&key("a"), DeleteOptions::default()).await.unwrap(), node("a", 7));
    let write = || Asked::Write(Box::new(wanted.clone()));
    assert_eq!(fake.all_asked(), [write(), write(), write(), Asked::Get("a".into(), None)]);
}

#[tokio::test]
async fn every_call_sends_its_deadline() {
    let mut fake = Fake::start([Answer::node(node("a", 7)), Answer::node(node("a", 7))]).await;
    let client = fake.client();
    client.get::<Node>(&key("a")).await.unwrap();
    client.with_deadline(Duration::from_secs(3)).get::<Node>(&key("a")).await.unwrap();
    for seconds in [10, 3] {
        assert_eq!(fake.next_asked().await, Asked::Get("a".into(), Some(Duration::from_secs(seconds))));
    }
}

#[tokio::test]
async fn a_leaders_calls_carry_its_fence() {
    let stored = || Answer::node(node("a", 7));
    let fake = Fake::start([stored(), stored(), stored()]).await;
    let fence: Fence = "kube-system/ctl;transitions=3;holder=c-1".parse().unwrap();
    let client = fake.client();
    let leader = client.with_fence(Some(&fence));
    leader.update(node("a", 6)).await.unwrap();
    client.update(node("a", 6)).await.unwrap();
    leader.with_fence(None).update(node("a", 6)).await.unwrap();
    assert_eq!(fake.fences(), [Some(fence), None, None]);
}

#[tokio::test]
async fn a_call_to_a_store_that_does_not_answer_ends_at_the_deadline() {
    let fake = Fake::start([Answer::Silence]).await;
    let client = fake.client().with_deadline(Duration::from_millis(50));
    let error = client.get::<Node>(&key("a")).await.unwrap_err();
    assert!(matches!(error, ClientError::DeadlineExceeded), "{error:?}");
}

#[tokio::test]
async fn the_stores_error_reason_is_received() {
    let mut details =
        ErrorDetails::with_error_info("RESOURCE_VERSION_TOO_LARGE", ERROR_DOMAIN, [("a", "b")].map(owned));
    details.set_retry_info(Some(Duration::from_secs(1)));
    let status = Status::with_error_details(Code::Unavailable, "at 5, not 9", details);
    let fake = Fake::start([Answer::Refuse(status)]).await;
    let error = fake.client().get::<Node>(&key("a")).await.unwrap_err();
    assert_eq!(error.to_string(), "ahead of the store: at 5, not 9");
    assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
}

fn owned((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[tokio::test]
async fn a_list_reads_all_pages_with_the_same_options() {
    let page = |name, next| Answer::Nodes { nodes: vec![node(name, 1).into()], version: 5, next };
    let mut fake = Fake::start([page("a", "t1"), page("b", "t2"), page("c", ""), page("a", "t1")]).await;
    let options = ListOptions { label_selector: "zone=x".into(), page_size: 1, ..ListOptions::default() };
    let list: List<Node> = fake.client().list(options.clone()).await.unwrap();
    assert_eq!(list.records, [node("a", 1), node("b", 1), node("c", 1)]);
    assert_eq!((list.resource_version, list.next_page_token.as_str()), (5, ""));

    let page: List<Node> = fake.client().list_page(options).await.unwrap();
    assert_eq!(page.records, [node("a", 1)]);
    assert_eq!(page.next_page_token, "t1");

    for token in ["", "t1", "t2", ""] {
        let Asked::List(asked) = fake.next_asked().await else { panic!("not a list") };
        assert_eq!(
            (asked.page_token.as_str(), asked.page_size, asked.label_selector.as_str()),
            (token, 1, "zone=x")
        );
    }
}

#[tokio::test]
async fn an_unreadable_record_does_not_fail_the_list() {
    let mut broken = pb::Node::from(node("b", 2));
    broken.spec.get_or_insert_default().pod_cidrs.push("nonsense".into());
    let nodes = vec![node("a", 1).into(), broken.clone()];
    let fake = Fake::start([Answer::Nodes { nodes, version: 5, next: "" }]).await;
    let list: List<Node> = fake.client().list(ListOptions::default()).await.unwrap();
    assert_eq!(list.records, [node("a", 1)]);
    assert_eq!((list.unreadable[0].key.clone(), list.unreadable[0].resource_version), (Some(key("b")), 2));
}

#[tokio::test]
async fn a_dead_store_is_skipped_and_not_tried_again() {
    let mut fake = Fake::start([Answer::node(node("a", 7)), Answer::node(node("a", 8))]).await;
    let ((_one, one), (_other, other)) = (dead_url(), dead_url());
    let client = client_of([one, other, url(&fake)]);
    assert_eq!(client.create(node("a", 0)).await.unwrap(), node("a", 7));
    assert_eq!(client.ring.in_order().next().unwrap().0, 2, "it stays with the one that answered");
    assert_eq!(client.get::<Node>(&key("a")).await.unwrap(), node("a", 8));
    assert_eq!(fake.all_asked().len(), 2, "no call came twice");
}

#[tokio::test]
async fn no_store_at_all_is_unavailable_and_worth_a_retry() {
    let ((_one, one), (_other, other)) = (dead_url(), dead_url());
    let client = client_of([one, other]);
    let error = client.get::<Node>(&key("a")).await.unwrap_err();
    assert!(matches!(error, ClientError::Unavailable(_)) && error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn after_unavailable_the_next_call_uses_another_store_and_the_call_is_not_repeated() {
    let mut stopping = Fake::start([Answer::Refuse(Status::unavailable("stopping"))]).await;
    let mut other = Fake::start([Answer::node(node("a", 7))]).await;
    let client = client_of([url(&stopping), url(&other)]);
    let error = client.create(node("a", 0)).await.unwrap_err();
    assert!(matches!(error, ClientError::Unavailable(_)), "{error:?}");
    assert_eq!(other.all_asked(), [], "it may have been done: only the caller knows what to do about that");
    assert_eq!(client.create(node("a", 0)).await.unwrap(), node("a", 7));
    assert_eq!((stopping.all_asked().len(), other.all_asked().len()), (1, 1));
}

#[tokio::test]
async fn an_address_of_another_store_is_refused_and_the_others_are_used() {
    let answers = || [Answer::node(node("a", 7)), Answer::node(node("a", 8))];
    let (mut one, mut other) =
        (Fake::start_as(Some("1"), answers()).await, Fake::start_as(Some("2"), answers()).await);
    let client = client_of([url(&one), url(&other)]);
    assert_eq!(client.get::<Node>(&key("a")).await.unwrap(), node("a", 7));
    client.redial();
    assert_eq!(client.create(node("a", 0)).await.unwrap(), node("a", 8));
    assert_eq!(one.all_asked().len(), 2);
    assert_eq!(other.all_asked(), [], "the write did not reach the other store");

    // A heartbeat stream is opened at one address only: the error says what is wrong with it.
    client.ring.settle_on(1);
    let request = futures_util::stream::pending();
    let error = client.heartbeat(request).await.unwrap_err();
    let said = error.to_string();
    let expected = format!("{} is another store (id 2) than {} (id 1)", url(&other), url(&one));
    assert!(matches!(error, ClientError::Unavailable(_)) && said.contains(&expected), "{said}");
    assert_eq!(client.ring.in_order().next().unwrap().0, 0, "the next call uses the right store");
}
