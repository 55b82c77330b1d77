//! Streams the output of a container to one caller, at the caller's pace.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use muster_proto::pb;
use muster_rpc::clock::SharedClock;
use muster_rpc::shutdown::Shutdown;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::Interest;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tonic::Status;

use super::instances::{Next, Wanted, chosen, is_waiting, next};
use crate::runtime::logs::{ContainerLog, Part};
use crate::runtime::nonblocking::Channel;
use crate::runtime::process::ProcessRuntime;
use crate::runtime::{ContainerId, Runtime, RuntimeError};
use crate::shared_state::SharedState;

/// The bytes of one message.
const CHUNK: usize = 32 << 10;
/// Messages that wait for a caller who reads slowly.
pub(super) const QUEUE: usize = 4;
/// How often a log is read without a sign that it has grown, if the kernel gives such signs, and if it does not.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const POLL_EVERY: Duration = Duration::from_millis(200);

pub(super) type LogSender = mpsc::Sender<Result<pb::ReadLogResponse, Status>>;

/// What a stream reads from.
pub(super) struct LogStream {
    pub(super) runtime: Arc<ProcessRuntime>,
    pub(super) shared: Arc<SharedState>,
    pub(super) request: pb::ReadLogRequest,
    pub(super) stop: Shutdown,
    /// Its place among the streams that may be open.
    pub(super) _permit: OwnedSemaphorePermit,
}

/// The place that is read next.
pub(super) struct Place {
    id: ContainerId,
    log: Arc<ContainerLog>,
    offset: u64,
}

impl LogStream {
    fn wanted(&self) -> Wanted<'_> {
        let pb::ReadLogRequest { node, namespace, pod, container, .. } = &self.request;
        Wanted { node, namespace, pod, container }
    }

    /// Where the caller wants to begin.
    pub(super) async fn begin(&self, clock: &SharedClock) -> Result<Place, Status> {
        let instances = self.wanted().instances(self.runtime.list())?;
        if let Some(after) = self.request.after {
            let known = instances.iter().find(|found| found.id.attempt >= after.instance);
            let id = &known.ok_or_else(|| Status::not_found("that instance is gone"))?.id;
            let offset = if id.attempt == after.instance { after.offset } else { 0 };
            return Ok(Place { id: id.clone(), log: self.log(id)?, offset });
        }
        let newest = &instances[instances.len() - 1].id;
        let waits = self.with_workload(newest, |workload| is_waiting(workload, &newest.container));
        let id = chosen(&instances, self.request.previous, waits).ok_or_else(|| {
            let message = format!("the container {} was not started before", newest.container);
            Status::not_found(message)
        })?;
        let log = self.log(id)?;
        let since = self.request.since.map(|since| since_time(since, clock.wall())).transpose()?;
        let lines = match self.request.tail_lines {
            Some(lines) => Some(
                u64::try_from(lines)
                    .map_err(|_| Status::invalid_argument("tail_lines must not be negative"))?,
            ),
            None => None,
        };
        let reader = Arc::clone(&log);
        let found = spawn_blocking(move || {
            let by_time = since.map_or(Ok(0), |since| reader.since(since))?;
            let by_lines = lines.map_or(Ok(0), |lines| reader.last_lines(lines))?;
            Ok::<_, io::Error>(by_time.max(by_lines))
        });
        let offset =
            found.await.map_err(io::Error::other).flatten().map_err(|error| unreadable(id, &error))?;
        Ok(Place { id: id.clone(), log, offset })
    }

    fn log(&self, id: &ContainerId) -> Result<Arc<ContainerLog>, Status> {
        self.runtime.log(id).map_err(|error| Status::not_found(error.to_string()))
    }

    /// Looks at the pod of a container as the pod loop sees it.
    fn with_workload<T>(&self, id: &ContainerId, look: impl FnOnce(Option<&pb::Workload>) -> T) -> T {
        let (status, uid) = (self.shared.status(), id.pod.to_string());
        look(status.workloads.iter().find(|workload| workload.uid == uid))
    }

    /// Sends the output until its end, or until the caller is gone.
    pub(super) async fn run(self, place: Place, sender: LogSender) {
        tokio::select! {
            () = sender.closed() => {}
            () = self.stop.requested() => {
                let _ = sender.try_send(Err(Status::unavailable("the agent stops")));
            }
            sent = self.send(place, &sender) => if let Err(status) = sent {
                let _ = sender.send(Err(status)).await;
            }
        }
    }

    async fn send(&self, mut place: Place, sender: &LogSender) -> Result<(), Status> {
        let mut changes = self.runtime.changes();
        let mut growth = self.request.follow.then(|| Growth::of(&self.runtime.log_path(&place.id)));
        loop {
            // Before the log is read: an end that comes later is seen in the next round.
            changes.mark_unchanged();
            let next = if self.request.follow { self.next(&place.id) } else { Next::End };
            let part = read(&place).await?;
            let is_empty = part.data.is_empty();
            place.offset = part.end;
            if !is_empty || part.skipped > 0 {
                let position = pb::LogPosition { instance: place.id.attempt, offset: part.end };
                let (data, skipped_bytes) = (part.data, part.skipped);
                let message = pb::ReadLogResponse { data, position: Some(position), skipped_bytes };
                if sender.send(Ok(message)).await.is_err() {
                    return Ok(());
                }
            }
            if !is_empty {
                continue;
            }
            match (next, &mut growth) {
                (Next::End, _) | (_, None) => return Ok(()),
                (Next::Instance(id), Some(growth)) => {
                    let log = match self.runtime.log(&id) {
                        Ok(log) => log,
                        // It was removed meanwhile: the next round finds the one after it, or the end.
                        Err(RuntimeError::Unknown(_)) => continue,
                        Err(error) => return Err(Status::internal(error.to_string())),
                    };
                    *growth = Growth::of(&self.runtime.log_path(&id));
                    place = Place { id, log, offset: 0 };
                }
                (Next::Wait, Some(growth)) => {
                    tokio::select! {
                        () = growth.wait() => {}
                        _ = changes.changed() => {}
                    }
                }
            }
        }
    }

    fn next(&self, current: &ContainerId) -> Next {
        let wanted = Wanted { container: &current.container, ..self.wanted() };
        let instances = wanted.instances(self.runtime.list()).unwrap_or_default();
        self.with_workload(current, |workload| next(&instances, current, workload))
    }
}

/// What follows a place. A log that is gone has no more.
async fn read(place: &Place) -> Result<Part, Status> {
    let (log, offset) = (Arc::clone(&place.log), place.offset);
    let read = spawn_blocking(move || log.read(offset, CHUNK)).await.map_err(io::Error::other).flatten();
    match read {
        Ok(part) => Ok(part),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Part { end: offset, ..Part::default() }),
        Err(error) => Err(unreadable(&place.id, &error)),
    }
}

fn unreadable(id: &ContainerId, error: &io::Error) -> Status {
    Status::internal(format!("the log of {id} cannot be read: {error}"))
}

fn since_time(since: prost_types::Duration, now: Timestamp) -> Result<Timestamp, Status> {
    if since.seconds < 0 || since.nanos < 0 {
        return Err(Status::invalid_argument("since must not be negative"));
    }
    let since = SignedDuration::new(since.seconds, since.nanos);
    Ok(now.checked_sub(since).unwrap_or(Timestamp::MIN))
}

/// Wakes when a log may have grown.
struct Growth(Option<Channel>);

impl Growth {
    fn of(path: &Path) -> Growth {
        let watched = watch(path).and_then(|fd| Channel::new(fd, Interest::READABLE));
        Growth(watched.inspect_err(|error| tracing::debug!(%error, "a log is polled")).ok())
    }

    async fn wait(&self) {
        let Some(signs) = &self.0 else { return sleep(POLL_EVERY).await };
        let mut signs_read = [0; 4096];
        tokio::select! {
            _ = signs.read(&mut signs_read) => {}
            // Files that were removed give no sign.
            () = sleep(LOOK_EVERY) => {}
        }
    }
}

fn watch(path: &Path) -> io::Result<OwnedFd> {
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&changes, path, WatchFlags::MODIFY)?;
    Ok(changes)
}
