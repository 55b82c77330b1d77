//! Why `muster up` could not start or had to end, and what the operator can do.

use std::io;

use muster_rpc::server::BindError;
use muster_store::engine::sled::{FormatError, OpenError};

use crate::simulation::SimulationError;

/// What ended `muster up`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("neither XDG_STATE_HOME nor HOME says where this user's files are")]
    NoHome,
    #[error("no temporary directory can be made: {0}")]
    NoTemporary(io::Error),
    #[error("a MUSTER_ variable is wrong: {0}")]
    Variables(String),
    #[error(transparent)]
    Bind(BindError),
    #[error(transparent)]
    Store(muster_store::RunError),
    #[error("the controller: {0}")]
    Controller(muster_controller::run::RunError),
    #[error("this machine's agent: {0}")]
    Agent(muster_agent::RunError),
    #[error(transparent)]
    Simulation(SimulationError),
    #[error("the controller at {0} does not answer: {1}")]
    Unanswered(String, String),
    #[error("{0}")]
    Process(#[from] io::Error),
}

impl Failure {
    /// What to try, where the message does not say so itself.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Failure::NoHome => Some("name a directory with --data-dir, or try --ephemeral".to_owned()),
            Failure::NoTemporary(_) => Some("TMPDIR names the place for temporary files".to_owned()),
            Failure::Variables(_) => Some(
                "--help of muster-store, muster-controller and muster-agent lists the variables".to_owned(),
            ),
            Failure::Bind(error) => Some(bind_hint(error)),
            Failure::Store(muster_store::RunError::Open(error)) => open_hint(error),
            Failure::Agent(_) => Some("--no-agent runs Muster without an agent for this machine".to_owned()),
            Failure::Store(_)
            | Failure::Controller(_)
            | Failure::Simulation(_)
            | Failure::Unanswered(..)
            | Failure::Process(_) => None,
        }
    }
}

impl From<muster_store::RunError> for Failure {
    fn from(error: muster_store::RunError) -> Self {
        match error {
            muster_store::RunError::Bind(error) => Failure::Bind(error),
            other => Failure::Store(other),
        }
    }
}

impl From<muster_controller::run::RunError> for Failure {
    fn from(error: muster_controller::run::RunError) -> Self {
        match error {
            muster_controller::run::RunError::Bind(error) => {
                Failure::Bind(renamed(error, "--controller-listen", "--controller-http-listen"))
            }
            other => Failure::Controller(other),
        }
    }
}

impl From<muster_agent::RunError> for Failure {
    fn from(error: muster_agent::RunError) -> Self {
        match error {
            muster_agent::RunError::Bind(error) => {
                Failure::Bind(renamed(error, "--agent-listen", "--agent-http-listen"))
            }
            other => Failure::Agent(other),
        }
    }
}

impl From<SimulationError> for Failure {
    fn from(error: SimulationError) -> Self {
        match error {
            SimulationError::Bind(error) => Failure::Bind(error),
            other => Failure::Simulation(other),
        }
    }
}

impl From<Failure> for crate::failure::Failure {
    fn from(failure: Failure) -> Self {
        let told = Self::new(crate::failure::Exit::Failed, &failure);
        match failure.hint() {
            Some(hint) => told.hint(hint),
            None => told,
        }
    }
}

impl From<clap::Error> for Failure {
    /// clap writes a page; its first line says it.
    fn from(error: clap::Error) -> Self {
        let page = error.to_string();
        let line = page.lines().next().unwrap_or_default();
        Failure::Variables(line.trim_start_matches("error: ").to_owned())
    }
}

/// Each part has a --listen and a --http-listen of its own; here they have other names.
fn renamed(error: BindError, listen: &'static str, http_listen: &'static str) -> BindError {
    let flag = if error.flag == "--http-listen" { http_listen } else { listen };
    BindError { flag, ..error }
}

fn bind_hint(error: &BindError) -> String {
    let flag = error.flag;
    let free = std::net::SocketAddr::new(error.address.ip(), 0);
    match error.error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "is Muster running already? Otherwise choose another port; {flag} {free} picks a free one"
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!("ports from 1024 on are open to everybody; {flag} {free} picks a free one")
        }
        _ => format!("{flag} says where to listen"),
    }
}

/// The other messages name their way out themselves.
fn open_hint(error: &OpenError) -> Option<String> {
    let blocked = match error {
        OpenError::Directory { .. } | OpenError::Format(FormatError::Unreadable { .. }) => true,
        OpenError::Sled { reason, .. } => reason.contains("ermission denied"),
        _ => false,
    };
    let hint = "name a directory that you may write to with --data-dir, or try --ephemeral";
    blocked.then(|| hint.to_owned())
}
