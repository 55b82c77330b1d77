//! etcd as the ledger calls it: from threads that may block.

use std::sync::Arc;
use std::time::Duration;

use muster_etcd::{Client, EtcdError, pb};
use tokio::runtime::Handle;

/// What the ledger needs of etcd. Each call is sent once, except that a read may ask every member.
pub trait Kv: Send + Sync + 'static {
    fn range(&self, request: pb::RangeRequest, deadline: Duration) -> Result<pb::RangeResponse, EtcdError>;

    fn txn(&self, request: pb::TxnRequest, deadline: Duration) -> Result<pb::TxnResponse, EtcdError>;

    fn alarms(&self, deadline: Duration) -> Result<Vec<pb::AlarmMember>, EtcdError>;

    /// Waits before something is tried again.
    fn pause(&self, duration: Duration);
}

/// The real one. Its calls must not be made on a thread of the runtime.
pub struct BlockingClient {
    client: Arc<Client>,
    runtime: Handle,
}

impl BlockingClient {
    /// Must be called within the runtime whose threads do the work.
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, runtime: Handle::current() }
    }
}

impl Kv for BlockingClient {
    fn range(&self, request: pb::RangeRequest, deadline: Duration) -> Result<pb::RangeResponse, EtcdError> {
        self.runtime.block_on(self.client.range(request, deadline))
    }

    fn txn(&self, request: pb::TxnRequest, deadline: Duration) -> Result<pb::TxnResponse, EtcdError> {
        self.runtime.block_on(self.client.txn(request, deadline))
    }

    fn alarms(&self, deadline: Duration) -> Result<Vec<pb::AlarmMember>, EtcdError> {
        self.runtime.block_on(self.client.alarms(deadline))
    }

    fn pause(&self, duration: Duration) {
        // Within the runtime, which has the timer.
        self.runtime.block_on(async { tokio::time::sleep(duration).await });
    }
}
