//! A bare log, the upper limit for any store on the same disk: appends with fdatasync, without gRPC, records or
//! indexes.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Meter, Throughput};

/// The most records in one append.
const BATCH: usize = 4096;

/// Writers with one record in flight each, which share one append and fdatasync per batch.
pub async fn bare_log(
    path: &Path,
    writers: usize,
    record_bytes: usize,
    warm_up: Duration,
    lasts: Duration,
) -> Throughput {
    let mut file = File::create(path).expect("a log file");
    let (queue, queued) = mpsc::channel::<oneshot::Sender<()>>();
    std::thread::spawn(move || {
        let bytes = vec![7; record_bytes * BATCH.min(writers)];
        while let Ok(first) = queued.recv() {
            let batch: Vec<_> = std::iter::once(first).chain(queued.try_iter().take(BATCH - 1)).collect();
            let appended = file.write_all(&bytes[..record_bytes * batch.len()]);
            appended.and_then(|()| file.sync_data()).expect("the log is written");
            for writer in batch {
                let _ = writer.send(());
            }
        }
    });
    let meter = Meter::new();
    let mut tasks = JoinSet::new();
    for index in 0..writers {
        let (queue, meter) = (queue.clone(), Arc::clone(&meter));
        tasks.spawn(async move {
            meter.join();
            while meter.goes_on() {
                let (done, written) = oneshot::channel();
                let sent = Instant::now();
                queue.send(done).expect("the log's thread lives");
                written.await.expect("the log answers");
                meter.record(index, sent.elapsed());
            }
        });
    }
    drop(queue);
    meter.measure(tasks, warm_up, lasts).await
}
