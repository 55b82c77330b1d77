//! Graceful shutdown: a signal cancels a token, which starts a grace period that ends in a hard stop.
//!
//! Everything that waits for long (streams, watches, loops) also waits for [`Shutdown::requested`] and ends by itself.
//! What does not end is aborted after the grace period.

use std::io::{self, IsTerminal};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code that a shell expects of an interrupted process.
const EXIT_INTERRUPTED: i32 = 130;

/// A request to stop, shared by all parts of a process. Clones share it; it cannot be withdrawn.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    token: CancellationToken,
}

impl Shutdown {
    pub fn new() -> Shutdown {
        Shutdown::default()
    }

    /// A shutdown that SIGTERM or SIGINT triggers. A second signal ends the process at once, with exit code 130: an
    /// operator who sends a second signal does not want to wait for the grace period.
    ///
    /// SIGHUP does not end the process: `tls` reads the certificates again.
    ///
    /// # Errors
    /// When the process may not install signal handlers.
    pub fn on_signals() -> io::Result<Shutdown> {
        Shutdown::on(Hangup::Reload)
    }

    /// As [`Shutdown::on_signals`], for a program that people start in a terminal: when that is closed, SIGHUP is a
    /// request to stop.
    ///
    /// # Errors
    /// When the process may not install signal handlers.
    pub fn on_signals_of_terminal() -> io::Result<Shutdown> {
        let has_terminal = io::stdin().is_terminal() || io::stdout().is_terminal();
        Shutdown::on(if has_terminal { Hangup::Stop } else { Hangup::Reload })
    }

    fn on(hangup: Hangup) -> io::Result<Shutdown> {
        let mut signals = Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: (signal(SignalKind::hangup())?, hangup),
        };
        let shutdown = Shutdown::new();
        let asked = shutdown.clone();
        tokio::spawn(async move {
            let name = signals.next().await;
            tracing::info!(signal = name, "stopping; a second signal stops at once");
            asked.trigger();
            let name = signals.next().await;
            tracing::warn!(signal = name, "stopping at once");
            std::process::exit(EXIT_INTERRUPTED);
        });
        Ok(shutdown)
    }

    /// Requests the stop.
    pub fn trigger(&self) {
        self.token.cancel();
    }

    pub fn is_requested(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Completes when the stop is requested, at once if it already was. The future owns its share of the token, so a
    /// stream can own it.
    pub fn requested(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        self.token.clone().cancelled_owned()
    }

    /// Completes when `grace` has passed since the stop was requested: the moment to abort what still runs.
    pub fn grace_over(&self, grace: Duration) -> impl Future<Output = ()> + Send + use<> {
        let requested = self.requested();
        async move {
            requested.await;
            tokio::time::sleep(grace).await;
        }
    }

    /// A shutdown that follows this one and can also be triggered alone, for a part that may stop before the whole.
    pub fn child(&self) -> Shutdown {
        Shutdown { token: self.token.child_token() }
    }
}

/// What SIGHUP asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hangup {
    Reload,
    Stop,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: (Signal, Hangup),
}

impl Signals {
    /// The name of the next signal that asks to stop.
    async fn next(&mut self) -> &'static str {
        let (hangup, meaning) = &mut self.hangup;
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = hangup.recv() => match meaning {
                    Hangup::Stop => return "SIGHUP",
                    Hangup::Reload => tracing::info!("SIGHUP: the files of certificates are read again, if there are any"),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn every_clone_is_notified_of_the_stop() {
        let shutdown = Shutdown::new();
        let waiting = shutdown.clone().requested();
        assert!(shutdown.requested().now_or_never().is_none(), "not requested yet");
        shutdown.trigger();
        waiting.await;
        assert!(shutdown.is_requested());
    }

    #[tokio::test]
    async fn a_child_stops_with_its_parent_but_not_the_other_way_round() {
        let parent = Shutdown::new();
        let (alone, follower) = (parent.child(), parent.child());
        alone.trigger();
        assert!(!parent.is_requested());
        parent.trigger();
        assert!(follower.is_requested());
    }

    #[tokio::test(start_paused = true)]
    async fn the_grace_starts_when_the_stop_is_requested() {
        const GRACE: Duration = Duration::from_secs(10);
        let shutdown = Shutdown::new();
        let over = shutdown.grace_over(GRACE);
        tokio::pin!(over);
        let early = tokio::time::timeout(Duration::from_secs(3_600), &mut over).await;
        assert!(early.is_err(), "no grace period expires before a stop is requested");
        shutdown.trigger();
        let early = tokio::time::timeout(GRACE - Duration::from_millis(1), &mut over).await;
        assert!(early.is_err(), "the whole grace period passes");
        over.await;
    }
}
