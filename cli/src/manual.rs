//! `muster manual`: the manual pages, one for each command, from the same words as `--help`.

use std::path::PathBuf;

use clap::{Command, CommandFactory};

use crate::arguments::Arguments;
use crate::failure::{Exit, Failure};
use crate::terminal::Terminal;

/// Writes the manual pages into a directory
///
/// `man -l DIR/muster.1` reads them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Where they go; it is made if need be
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn run(flags: &Flags) -> Result<(), Failure> {
    let directory = &flags.directory;
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(without_help(Arguments::command()), directory));
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
