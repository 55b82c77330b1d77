//! `muster manual`: the manual pages, one for each command and service, generated from the `--help` texts.

use std::path::PathBuf;

use clap::{Command, CommandFactory};

use crate::arguments::Arguments;
use crate::failure::{Exit, Failure};
use crate::terminal::Terminal;

/// Writes the manual pages of muster and of the services into a directory
///
/// `man -l DIR/muster.1` shows a page. muster-store.1, muster-controller.1 and muster-agent.1 list all flags of the
/// services.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// The directory; it is created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn run(flags: &Flags) -> Result<(), Failure> {
    let directory = &flags.directory;
    let written = std::fs::create_dir_all(directory).and_then(|()| {
        let commands = [
            Arguments::command(),
            muster_store::config::Flags::command(),
            muster_controller::config::Flags::command(),
            muster_controller::cloud::inventory::Flags::command(),
            muster_agent::config::Flags::command(),
        ];
        commands
            .into_iter()
            .try_for_each(|command| clap_mangen::generate_to(without_help(command), directory))
    });
    written.map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("cannot write the manual pages to {}: {error}", directory.display()),
        )
        .hint("choose a directory that you may write to")
    })?;
    Terminal::stdout().print(&format!(
        "manual pages written to {0}; read them with: man -l {0}/muster.1\n",
        directory.display()
    ))
}

/// Removes the `help` subcommands: `muster help get` shows what `man muster-get` shows and needs no page.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}
