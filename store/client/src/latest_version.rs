//! The version of the newest change of a kind.
//!
//! A watch knows what it has received, not whether there is more. A short watch with bookmarks returns all changes
//! after a version and ends with a bookmark, which shows that there are no more.

use crate::client::StoreClient;
use crate::error::ClientError;
use crate::resource::Resource;
use crate::watch::WatchOptions;

/// The timeout of the short watch; the smallest one that the store accepts.
const ONE_SECOND: u32 = 1;

impl StoreClient {
    /// The version of the newest change of a kind, or `after` if there was none after that. Takes about a second.
    ///
    /// It includes every write that was acknowledged before the call, so a watch that has reached this version has seen
    /// them all.
    ///
    /// # Errors
    /// [`ClientError::Expired`] when the history no longer includes `after`; any [`ClientError`].
    pub async fn latest_version<R: Resource>(&self, after: u64) -> Result<u64, ClientError> {
        let options = WatchOptions { timeout_seconds: ONE_SECOND, ..WatchOptions::default() };
        let mut frames = R::call_watch(self, &options, after).await?;
        let (mut newest, mut is_complete) = (after, false);
        while let Some(frame) = frames.message().await? {
            for event in frame.events {
                let parts = R::into_parts(event);
                is_complete = parts.kind == "BOOKMARK";
                let version =
                    parts.record.as_ref().and_then(R::metadata).map_or(0, |meta| meta.resource_version);
                if !is_complete {
                    newest = newest.max(version);
                }
            }
        }
        // A stream that ends without the last bookmark was interrupted.
        if is_complete { Ok(newest) } else { Err(ClientError::Unavailable(ENDED_EARLY.to_owned())) }
    }
}

const ENDED_EARLY: &str = "the store ended the stream before it had sent all changes";

#[cfg(test)]
mod tests {
    use muster_proto::node::Node;

    use crate::fake_store::{Answer, Asked, Fake, bookmark, frame};
    use crate::fixtures::node;

    #[tokio::test]
    async fn the_latest_version_is_that_of_the_last_change_before_the_bookmark() {
        let changes = frame(&[("ADDED", node("b", 6)), ("DELETED", node("a", 7))]);
        let cut = vec![frame(&[("ADDED", node("b", 6))])];
        let script = [
            Answer::Frames(vec![changes, bookmark(9)]),
            Answer::Frames(vec![bookmark(9)]),
            Answer::Frames(cut),
        ];
        let mut fake = Fake::start(script).await;
        let client = fake.client();
        assert_eq!(client.latest_version::<Node>(5).await.unwrap(), 7);
        let Asked::Watch(asked) = fake.next_asked().await else { panic!("a watch is asked for") };
        assert_eq!((asked.resource_version, asked.timeout_seconds, asked.allow_bookmarks), (5, 1, true));
        assert_eq!(client.latest_version::<Node>(5).await.unwrap(), 5, "nothing came after");
        let error = client.latest_version::<Node>(5).await.unwrap_err();
        assert!(error.to_string().contains("before it had sent all changes"), "{error}");
    }
}
