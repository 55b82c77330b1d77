//! The command line of `muster`: its commands and their flags.

use clap::{Parser, Subcommand};

use crate::failure::EXIT_CODES;
use crate::{
    api_resources, apply, approve, certs, cluster_info, completion, config, cordon, create, decisions,
    delete, demo, describe, diff, doctor, drain, edit, exec, explain, fleet, get, label, logs, manual,
    revoke, taint, token, top, ui, up, version, wait, why,
};

/// Manages a fleet of machines
///
/// The flags of the connection and the namespace may stand before the command or behind it.
#[derive(Debug, Parser)]
#[command(name = "muster", version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(up::Flags),
    Demo(demo::Flags),
    Get(get::Flags),
    Describe(describe::Flags),
    Apply(apply::Flags),
    Create(create::Flags),
    Delete(delete::Flags),
    Diff(diff::Flags),
    Edit(edit::Flags),
    Wait(wait::Flags),
    /// Sets or removes labels of records
    ///
    /// KEY=VALUE sets a label, KEY- removes it: `muster label node a zone=x old-`.
    Label(label::Flags),
    /// Sets or removes annotations of records
    ///
    /// KEY=VALUE sets an annotation, KEY- removes it: `muster annotate node a note='new fans' old-`.
    Annotate(label::Flags),
    Taint(taint::Flags),
    Cordon(cordon::CordonFlags),
    Uncordon(cordon::UncordonFlags),
    Drain(drain::Flags),
    Explain(explain::Flags),
    Why(why::Flags),
    Decisions(decisions::Flags),
    Logs(logs::Flags),
    Exec(exec::Flags),
    Fleet(fleet::Flags),
    Top(top::Flags),
    Ui(ui::Flags),
    Token(token::Flags),
    Approve(approve::ApproveFlags),
    Deny(approve::DenyFlags),
    Revoke(revoke::Flags),
    Certs(certs::Flags),
    Doctor(doctor::Flags),
    ClusterInfo(cluster_info::Flags),
    ApiResources(api_resources::Flags),
    Version(version::Flags),
    Config(config::Flags),
    Completion(completion::Flags),
    Manual(manual::Flags),
}

impl Command {
    /// The command's name on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Command::Up(_) => "up",
            Command::Demo(_) => "demo",
            Command::Get(_) => "get",
            Command::Describe(_) => "describe",
            Command::Apply(_) => "apply",
            Command::Create(_) => "create",
            Command::Delete(_) => "delete",
            Command::Diff(_) => "diff",
            Command::Edit(_) => "edit",
            Command::Wait(_) => "wait",
            Command::Label(_) => "label",
            Command::Annotate(_) => "annotate",
            Command::Taint(_) => "taint",
            Command::Cordon(_) => "cordon",
            Command::Uncordon(_) => "uncordon",
            Command::Drain(_) => "drain",
            Command::Explain(_) => "explain",
            Command::Why(_) => "why",
            Command::Decisions(_) => "decisions",
            Command::Logs(_) => "logs",
            Command::Exec(_) => "exec",
            Command::Fleet(_) => "fleet",
            Command::Top(_) => "top",
            Command::Ui(_) => "ui",
            Command::Token(_) => "token",
            Command::Approve(_) => "approve",
            Command::Deny(_) => "deny",
            Command::Revoke(_) => "revoke",
            Command::Certs(_) => "certs",
            Command::Doctor(_) => "doctor",
            Command::ClusterInfo(_) => "cluster-info",
            Command::ApiResources(_) => "api-resources",
            Command::Version(_) => "version",
            Command::Config(_) => "config",
            Command::Completion(_) => "completion",
            Command::Manual(_) => "manual",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_pass_claps_own_checks() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_and_flag_has_a_help_text() {
        let mut command = Arguments::command();
        command.build();
        let mut commands: Vec<&clap::Command> = vec![&command];
        while let Some(command) = commands.pop() {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name} has no help text");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{name} {} has no help text", argument.get_id());
            }
            commands.extend(command.get_subcommands().filter(|command| command.get_name() != "help"));
        }
    }
}
