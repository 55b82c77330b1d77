//! Calls about decisions, which are no records.

use muster_grpc::decision_service_client::DecisionServiceClient;
use muster_proto::pb;
use tonic::Streaming;

use crate::client::StoreClient;
use crate::error::ClientError;

impl StoreClient {
    /// Adds decisions to the log; returns the number of the newest one. Those that the log has already are skipped.
    ///
    /// # Errors
    /// [`ClientError::Fenced`] when another controller leads; any [`ClientError`].
    pub async fn record_decisions(&self, decisions: Vec<pb::Decision>) -> Result<u64, ClientError> {
        let request = pb::RecordDecisionsRequest { decisions };
        let answer = self.call(request, |transport, request| async move {
            DecisionServiceClient::new(transport).record_decisions(request).await
        });
        Ok(answer.await?.last_id)
    }

    /// One page of decisions, the newest first.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn list_decisions(
        &self,
        request: pb::ListDecisionsRequest,
    ) -> Result<pb::ListDecisionsResponse, ClientError> {
        self.call(request, |transport, request| async move {
            DecisionServiceClient::new(transport).list_decisions(request).await
        })
        .await
    }

    /// A stream of decisions as they are recorded.
    ///
    /// # Errors
    /// [`ClientError::Expired`] when those after the requested one are not kept any more; any [`ClientError`].
    pub async fn watch_decisions(
        &self,
        request: pb::WatchDecisionsRequest,
    ) -> Result<Streaming<pb::WatchDecisionsResponse>, ClientError> {
        self.open(request, |transport, request| async move {
            DecisionServiceClient::new(transport).watch_decisions(request).await
        })
        .await
    }
}
