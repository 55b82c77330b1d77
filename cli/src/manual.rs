//! `muster manual`: the manual pages, one for each command and service, from the same words as `--help`.

use std::path::PathBuf;

use clap::{Command, CommandFactory};

use crate::arguments::Arguments;
use crate::failure::{Exit, Failure};
use crate::terminal::Terminal;

/// Writes the manual pages into a directory, those of the services too
///
/// `man -l DIR/muster.1` reads them; muster-store.1, muster-controller.1 and muster-agent.1 list every flag of these.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Where they go; it is made if need be
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
        Failure::new(Exit::Failed, format!("the pages cannot be written to {}: {error}", directory.display()))
            .hint("name a directory that you may write to")
    })?;
    Terminal::stdout().say(&format!("manual pages are in {0}: man -l {0}/muster.1\n", directory.display()))
}

/// `muster help get` is `man muster-get`: there is no page about asking for pages.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}
