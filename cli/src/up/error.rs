//! Why `muster up` could not start or had to end, and what the operator can do.

use std::io;

use muster_agent::config::ConfigError;
use muster_agent::identity::IdentityError;
use muster_rpc::server::BindError;
use muster_store::engine::sled::{FormatError, OpenError};

use crate::failure::Exit;
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
            Failure::Agent(error) => return agent_hint(error),
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

    /// What a script is told: settings that cannot be understood are the caller's to correct, the rest is not.
    fn exit(&self) -> Exit {
        use muster_agent::RunError as Agent;
        use muster_controller::run::RunError as Controller;
        use muster_store::RunError as Store;
        match self {
            // Understood, but not fit for this machine.
            Failure::Agent(Agent::Config(ConfigError::Hostname { .. } | ConfigError::SwapOn { .. })) => {
                Exit::Failed
            }
            Failure::Variables(_)
            | Failure::Store(Store::Config(_) | Store::Telemetry(_))
            | Failure::Controller(Controller::Config(_) | Controller::Leader(_))
            | Failure::Agent(Agent::Config(_) | Agent::Threshold(_)) => Exit::Usage,
            _ => Exit::Failed,
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
        Self::new(failure.exit(), &failure).hint(failure.hint())
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

/// The agent names its own flags, which `muster up` has not: here it is told by variables, and keeps what it keeps in the
/// directory of all.
fn agent_hint(error: &muster_agent::RunError) -> String {
    use muster_agent::RunError as Agent;
    match error {
        Agent::Config(ConfigError::Hostname { .. }) => {
            "MUSTER_NODE_NAME=NAME gives the node of this machine a name, and --no-agent does without one"
                .to_owned()
        }
        Agent::Config(ConfigError::Flag { flag, .. }) => {
            let variable = flag.replace('-', "_").to_uppercase();
            format!("`muster up` takes --{flag} from the variable MUSTER_{variable}")
        }
        Agent::Identity(IdentityError::OtherName { kept, .. }) => {
            format!("MUSTER_NODE_NAME={kept} names the node as before, and --data-dir another directory")
        }
        Agent::Identity(IdentityError::InUse { .. }) => {
            "is Muster running already? Otherwise --data-dir names another directory".to_owned()
        }
        Agent::Identity(_) => {
            "the directory is below that of --data-dir, which names another; --ephemeral does without one"
                .to_owned()
        }
        _ => "--no-agent runs Muster without an agent for this machine".to_owned(),
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn name(text: &str) -> muster_proto::name::Name {
        text.parse().unwrap()
    }

    fn agent_flag(flag: &'static str) -> Failure {
        let error = ConfigError::Flag { flag, reason: "no".to_owned() };
        Failure::Agent(error.into())
    }

    fn hostname() -> Failure {
        let error = "a_b".parse::<muster_proto::name::Name>().unwrap_err();
        Failure::Agent(ConfigError::Hostname { hostname: "a_b".to_owned(), error }.into())
    }

    fn identity(error: IdentityError) -> Failure {
        Failure::Agent(error.into())
    }

    #[test]
    fn what_the_agent_cannot_use_is_hinted_at_in_the_words_of_muster_up() {
        let directory = PathBuf::from("/data/agent");
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let other_name =
            IdentityError::OtherName { directory: directory.clone(), kept: name("n1"), wanted: name("n2") };
        for (failure, hints) in [
            (hostname(), &["MUSTER_NODE_NAME=NAME"][..]),
            (agent_flag("node-labels"), &["MUSTER_NODE_LABELS"]),
            (identity(other_name), &["MUSTER_NODE_NAME=n1", "--data-dir"]),
            (identity(IdentityError::InUse { directory: directory.clone() }), &["--data-dir"]),
            (identity(IdentityError::Io { path: directory, error: denied() }), &["--data-dir"]),
            (Failure::Agent(denied().into()), &["--no-agent"]),
        ] {
            let hint = failure.hint();
            for expected in hints {
                assert!(hint.contains(expected), "{failure}: {hint}");
            }
            assert!(!hint.contains("--node-name") && !hint.contains("--state-dir"), "{failure}: {hint}");
        }
    }

    #[test]
    fn settings_that_cannot_be_understood_end_it_as_a_wrong_command_line_does() {
        let controller = muster_controller::config::ConfigError::Zero { flag: "node-monitor-period" };
        let store = muster_store::config::ConfigError::Negative { flag: "history" };
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let in_use = IdentityError::InUse { directory: PathBuf::from("/data/agent") };
        for (failure, expected) in [
            (Failure::Variables("no".to_owned()), Exit::Usage),
            (Failure::Store(store.into()), Exit::Usage),
            (Failure::Controller(controller.into()), Exit::Usage),
            (agent_flag("node-labels"), Exit::Usage),
            (hostname(), Exit::Failed),
            (identity(in_use), Exit::Failed),
            (Failure::Agent(denied().into()), Exit::Failed),
            (Failure::Process(denied()), Exit::Failed),
            (Failure::NoHome, Exit::Failed),
        ] {
            let said = failure.to_string();
            assert_eq!(crate::failure::Failure::from(failure).exit(), Some(expected), "{said}");
        }
    }
}
