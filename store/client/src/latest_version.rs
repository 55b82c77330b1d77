//! How far a kind has come: which change of it is the newest.
//!
//! A follower knows what it was told, not whether there is more. Asked this way the store tells all that followed, and
//! then that this was all.

use crate::client::StoreClient;
use crate::error::ClientError;
use crate::resource::Resource;
use crate::watch::WatchOptions;

/// How long the store gathers, in its own smallest unit.
const ONE_SECOND: u32 = 1;

impl StoreClient {
    /// The version of the newest change of a kind, or `after` if there was none after that. Takes about a second.
    ///
    /// Whatever was acknowledged before the call is counted: who has been told up to this version knows of it.
    ///
    /// # Errors
    /// [`ClientError::Expired`] when history no longer reaches back to `after`; any [`ClientError`].
    pub async fn newest<R: Resource>(&self, after: u64) -> Result<u64, ClientError> {
        let options = WatchOptions { timeout_seconds: ONE_SECOND, ..WatchOptions::default() };
        let mut frames = R::call_watch(self, &options, after).await?;
        let (mut newest, mut is_all) = (after, false);
        while let Some(frame) = frames.message().await? {
            for event in frame.events {
                let parts = R::into_parts(event);
                is_all = parts.kind == "BOOKMARK";
                let version =
                    parts.record.as_ref().and_then(R::metadata).map_or(0, |meta| meta.resource_version);
                if !is_all {
                    newest = newest.max(version);
                }
            }
        }
        // A stream that ends without its last word was cut.
        if is_all { Ok(newest) } else { Err(ClientError::Unavailable(ENDED_EARLY.to_owned())) }
    }
}

const ENDED_EARLY: &str = "the store ended the stream before it had told everything";

#[cfg(test)]
mod tests {
    use muster_proto::node::Node;

    use crate::fake_store::{Answer, Asked, Fake, bookmark, frame};
    use crate::fixtures::node;

    #[tokio::test]
    async fn the_newest_change_is_the_last_one_told_before_the_store_says_that_it_was_all() {
        let told = frame(&[("ADDED", node("b", 6)), ("DELETED", node("a", 7))]);
        let cut = vec![frame(&[("ADDED", node("b", 6))])];
        let script =
            [Answer::Frames(vec![told, bookmark(9)]), Answer::Frames(vec![bookmark(9)]), Answer::Frames(cut)];
        let mut fake = Fake::start(script).await;
        let client = fake.client();
        assert_eq!(client.newest::<Node>(5).await.unwrap(), 7);
        let Asked::Watch(asked) = fake.next_asked().await else { panic!("a watch is asked for") };
        assert_eq!((asked.resource_version, asked.timeout_seconds, asked.allow_bookmarks), (5, 1, true));
        assert_eq!(client.newest::<Node>(5).await.unwrap(), 5, "nothing came after");
        let error = client.newest::<Node>(5).await.unwrap_err();
        assert!(error.to_string().contains("before it had told everything"), "{error}");
    }
}
