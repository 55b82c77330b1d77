//! Why `muster up` could not start or had to stop, and what the operator can do.

use std::io;

use muster_agent::config::ConfigError;
use muster_agent::identity::IdentityError;
use muster_rpc::server::BindError;
use muster_store::ledger::embedded::{FormatError, OpenError};

use crate::failure::Exit;
use crate::simulation::SimulationError;
use crate::ui::UiError;

/// The errors of `muster up`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpError {
    #[error("there is no data directory: set XDG_STATE_HOME or HOME")]
    NoHome,
    #[error("cannot create a temporary directory: {0}")]
    NoTemporary(io::Error),
    #[error("a MUSTER_ environment variable is wrong: {0}")]
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
    #[error(transparent)]
    Page(UiError),
    #[error("the {0} at {1} does not answer: {2}")]
    Unanswered(&'static str, String, String),
    #[error("{0}")]
    Process(#[from] io::Error),
}

impl UpError {
    /// What the operator can do.
    pub(crate) fn hint(&self) -> String {
        let hint = match self {
            UpError::NoHome => "give a directory with --data-dir, or use --ephemeral",
            UpError::NoTemporary(_) => "TMPDIR sets the directory for temporary files",
            UpError::Variables(_) => {
                "`--help` of muster-store, muster-controller and muster-agent lists the variables"
            }
            UpError::Bind(error) => return bind_hint(error),
            UpError::Store(muster_store::RunError::Open(error)) => open_hint(error),
            UpError::Agent(error) => return agent_hint(error),
            UpError::Simulation(_) => {
                "--simulation-listen sets the address of the simulation, --nodes the number of nodes"
            }
            UpError::Page(_) => "--ui-listen sets the address of the page",
            UpError::Store(_) | UpError::Controller(_) => {
                "`muster up --help` lists the flags; more settings come from MUSTER_ environment variables"
            }
            UpError::Unanswered(..) => {
                "--listen and --controller-listen set the addresses, --tls-cert the certificate"
            }
            UpError::Process(_) => "`ulimit -a` shows the limits of this user; fewer --nodes need less",
        };
        hint.to_owned()
    }

    /// The exit code: wrong settings are usage errors, all other errors are failures.
    fn exit(&self) -> Exit {
        use muster_agent::RunError as Agent;
        use muster_controller::run::RunError as Controller;
        use muster_store::RunError as Store;
        match self {
            // The settings are valid, but this machine does not meet them.
            UpError::Agent(Agent::Config(ConfigError::Hostname { .. } | ConfigError::SwapOn { .. })) => {
                Exit::Failed
            }
            UpError::Variables(_)
            | UpError::Store(Store::Config(_) | Store::Telemetry(_))
            | UpError::Controller(Controller::Config(_) | Controller::Leader(_))
            | UpError::Agent(Agent::Config(_) | Agent::Threshold(_)) => Exit::Usage,
            _ => Exit::Failed,
        }
    }
}

impl From<muster_store::RunError> for UpError {
    fn from(error: muster_store::RunError) -> Self {
        match error {
            muster_store::RunError::Bind(error) => UpError::Bind(error),
            other => UpError::Store(other),
        }
    }
}

impl From<muster_controller::run::RunError> for UpError {
    fn from(error: muster_controller::run::RunError) -> Self {
        match error {
            muster_controller::run::RunError::Bind(error) => {
                UpError::Bind(renamed(error, "--controller-listen", "--controller-http-listen"))
            }
            other => UpError::Controller(other),
        }
    }
}

impl From<muster_agent::RunError> for UpError {
    fn from(error: muster_agent::RunError) -> Self {
        match error {
            muster_agent::RunError::Bind(error) => {
                UpError::Bind(renamed(error, "--agent-listen", "--agent-http-listen"))
            }
            other => UpError::Agent(other),
        }
    }
}

impl From<UiError> for UpError {
    fn from(error: UiError) -> Self {
        match error {
            UiError::Bind(error) => UpError::Bind(error),
            other => UpError::Page(other),
        }
    }
}

impl From<SimulationError> for UpError {
    fn from(error: SimulationError) -> Self {
        match error {
            SimulationError::Bind(error) => UpError::Bind(error),
            other => UpError::Simulation(other),
        }
    }
}

impl From<UpError> for crate::failure::Failure {
    fn from(failure: UpError) -> Self {
        Self::new(failure.exit(), &failure).hint(failure.hint())
    }
}

impl From<clap::Error> for UpError {
    /// The first line of clap's error, which names the cause; the rest is usage.
    fn from(error: clap::Error) -> Self {
        let page = error.to_string();
        let line = page.lines().next().unwrap_or_default();
        UpError::Variables(line.trim_start_matches("error: ").to_owned())
    }
}

/// Replaces the flag of a component by the flag of `muster up` for the same address.
fn renamed(error: BindError, listen: &'static str, http_listen: &'static str) -> BindError {
    let flag = if error.flag == "--http-listen" { http_listen } else { listen };
    BindError { flag, ..error }
}

fn bind_hint(error: &BindError) -> String {
    let flag = error.flag;
    let free = std::net::SocketAddr::new(error.address.ip(), 0);
    match error.error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("is Muster already running? If not, choose another port; {flag} {free} picks a free one")
        }
        io::ErrorKind::PermissionDenied => {
            format!("ports from 1024 on need no privileges; {flag} {free} picks a free one")
        }
        _ => format!("{flag} sets the address"),
    }
}

/// A hint with the settings of `muster up`. The agent's errors name flags that `muster up` does not have: here the
/// agent is configured by environment variables, and its state is below --data-dir.
fn agent_hint(error: &muster_agent::RunError) -> String {
    use muster_agent::RunError as Agent;
    match error {
        Agent::Config(ConfigError::Hostname { .. }) => {
            "MUSTER_NODE_NAME=NAME sets the name of this machine's node; --no-agent runs without an agent"
                .to_owned()
        }
        Agent::Config(ConfigError::Flag { flag, .. }) => {
            let variable = flag.replace('-', "_").to_uppercase();
            format!("in `muster up`, the variable MUSTER_{variable} sets --{flag}")
        }
        Agent::Identity(IdentityError::OtherName { kept, .. }) => {
            format!("MUSTER_NODE_NAME={kept} keeps the old name; --data-dir sets another directory")
        }
        Agent::Identity(IdentityError::InUse { .. }) => {
            "is Muster already running? If not, --data-dir sets another directory".to_owned()
        }
        Agent::Identity(_) => {
            "the directory is below --data-dir, which sets another one; --ephemeral uses a temporary one"
                .to_owned()
        }
        _ => "--no-agent runs Muster without an agent for this machine".to_owned(),
    }
}

fn open_hint(error: &OpenError) -> &'static str {
    let blocked = match error {
        OpenError::Directory { .. } | OpenError::Format(FormatError::Unreadable { .. }) => true,
        OpenError::Unready { source, .. } => source.to_string().contains("ermission denied"),
        _ => false,
    };
    if blocked {
        "give a directory that you may write to with --data-dir, or use --ephemeral"
    } else {
        "--data-dir sets another directory, --ephemeral uses a temporary one"
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn name(text: &str) -> muster_proto::name::Name {
        text.parse().unwrap()
    }

    fn agent_flag(flag: &'static str) -> UpError {
        let error = ConfigError::Flag { flag, reason: "no".to_owned() };
        UpError::Agent(error.into())
    }

    fn hostname() -> UpError {
        let error = "a_b".parse::<muster_proto::name::Name>().unwrap_err();
        UpError::Agent(ConfigError::Hostname { hostname: "a_b".to_owned(), error }.into())
    }

    fn identity(error: IdentityError) -> UpError {
        UpError::Agent(error.into())
    }

    #[test]
    fn hints_for_agent_errors_name_settings_of_muster_up() {
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
            (UpError::Agent(denied().into()), &["--no-agent"]),
        ] {
            let hint = failure.hint();
            for expected in hints {
                assert!(hint.contains(expected), "{failure}: {hint}");
            }
            assert!(!hint.contains("--node-name") && !hint.contains("--state-dir"), "{failure}: {hint}");
        }
    }

    #[test]
    fn wrong_settings_have_the_exit_code_of_usage_errors() {
        let controller = muster_controller::config::ConfigError::Zero { flag: "node-monitor-period" };
        let store = muster_store::config::ConfigError::Negative { flag: "history" };
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let in_use = IdentityError::InUse { directory: PathBuf::from("/data/agent") };
        for (failure, expected) in [
            (UpError::Variables("no".to_owned()), Exit::Usage),
            (UpError::Store(store.into()), Exit::Usage),
            (UpError::Controller(controller.into()), Exit::Usage),
            (agent_flag("node-labels"), Exit::Usage),
            (hostname(), Exit::Failed),
            (identity(in_use), Exit::Failed),
            (UpError::Agent(denied().into()), Exit::Failed),
            (UpError::Process(denied()), Exit::Failed),
            (UpError::NoHome, Exit::Failed),
        ] {
            let message = failure.to_string();
            assert_eq!(crate::failure::Failure::from(failure).exit(), Some(expected), "{message}");
        }
    }
}
