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
    #[error("the {0} at {1} does not answer: {2}")]
    Unanswered(&'static str, String, String),
    #[error("{0}")]
    Process(#[from] io::Error),
}

impl Failure {
    /// What to try.
    pub(crate) fn hint(&self) -> String {
        let hint = match self {
            Failure::NoHome => "name a directory with --data-dir, or try --ephemeral",
            Failure::NoTemporary(_) => "TMPDIR names the place for temporary files",
            Failure::Variables(_) => {
                "--help of muster-store, muster-controller and muster-agent lists the variables"
            }
            Failure::Bind(error) => return bind_hint(error),
            Failure::Store(muster_store::RunError::Open(error)) => open_hint(error),
            Failure::Agent(_) => "--no-agent runs Muster without an agent for this machine",
            Failure::Simulation(_) => "--simulation-listen and --nodes say where, and how many there are",
            Failure::Store(_) | Failure::Controller(_) => {
                "`muster up --help` lists the flags; further settings come from MUSTER_ variables"
            }
            Failure::Unanswered(..) => {
                "--listen and --controller-listen say where they are, --tls-cert who asks"
            }
            Failure::Process(_) => "`ulimit -a` shows what this user may have; fewer --nodes need less",
        };
        hint.to_owned()
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
        Self::new(crate::failure::Exit::Failed, &failure).hint(failure.hint())
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

fn open_hint(error: &OpenError) -> &'static str {
    let blocked = match error {
        OpenError::Directory { .. } | OpenError::Format(FormatError::Unreadable { .. }) => true,
        OpenError::Sled { reason, .. } => reason.contains("ermission denied"),
        _ => false,
    };
    if blocked {
        "name a directory that you may write to with --data-dir, or try --ephemeral"
    } else {
        "--data-dir names another directory, and --ephemeral does without one"
    }
}
