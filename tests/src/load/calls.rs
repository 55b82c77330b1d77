//! Load by calls: tasks with one call in flight each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::raw_client::{NumberedMessage, RawClient};
use super::{Meter, Throughput};

/// Calls of one method over shared connections.
#[derive(Clone, Copy, Debug)]
pub struct Calls<'a> {
    pub channels: &'a [Channel],
    /// `/package.Service/Method`
    pub method: &'static str,
}

impl Calls<'_> {
    fn client(&self, index: usize) -> RawClient {
        RawClient::new(self.channels[index % self.channels.len()].clone(), self.method)
    }

    /// The throughput of `in_flight` tasks; task *i* sends copies of message *i*, modulo the number of messages.
    pub async fn measure(
        &self,
        messages: &[NumberedMessage],
        in_flight: usize,
        warm_up: Duration,
        lasts: Duration,
    ) -> Throughput {
        let meter = Meter::new();
        let mut tasks = JoinSet::new();
        for index in 0..in_flight {
            let (mut client, meter) = (self.client(index), Arc::clone(&meter));
            let message = messages[index % messages.len()].clone();
            tasks.spawn(async move {
                meter.join();
                while meter.goes_on() {
                    let request = message.next();
                    let sent = Instant::now();
                    client.call(request).await.expect("the write is acknowledged");
                    meter.record(index, sent.elapsed());
                }
            });
        }
        meter.measure(tasks, warm_up, lasts).await
    }

    /// Sends one copy with each of the numbers below `count`.
    pub async fn send(&self, message: &NumberedMessage, count: usize, in_flight: usize) {
        let mut tasks = JoinSet::new();
        for index in 0..in_flight {
            let (mut client, message) = (self.client(index), message.clone());
            tasks.spawn(async move {
                for number in (index..count).step_by(in_flight) {
                    client.call(message.numbered(number as u64)).await.expect("the write is acknowledged");
                }
            });
        }
        tasks.join_all().await;
    }
}
