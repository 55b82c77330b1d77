//! `muster completion`: completion scripts for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::terminal::Terminal;

/// Prints the completion script for a shell
///
/// For bash: `source <(muster completion bash)`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(flags: &Flags) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut Arguments::command(), "muster", &mut script);
    Terminal::stdout().print(&String::from_utf8_lossy(&script))
}
