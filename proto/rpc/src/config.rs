//! Settings: flags over `MUSTER_*` environment over `--config FILE` over defaults.
//!
//! A config file is TOML whose keys are the names of the command's flags. Its values become the defaults of those
//! flags, so that clap does all parsing. An invalid key or value stops the process with an error that names the file
//! and the key, even where a flag overrides it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, Parser};

const CONFIG: &str = "config";
/// The flag, where a command has it, that a `--config` of a directory is taken for: the kubelet had it that way once.
const MANIFEST_DIRECTORY: &str = "pod-manifest-path";

/// Reads the settings of this process, or prints the error (or the help) and exits, as `clap::Parser::parse` does.
pub fn parse<T: Parser>() -> T {
    parse_with_config(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

/// Converts the text of a file that is not TOML to the table that a TOML file would be, or says what is wrong with it.
pub type Convert = fn(&str) -> Result<toml::Table, String>;

/// As [`parse`], for a command that also reads `.yaml`, `.yml` and `.json` files.
pub fn parse_also<T: Parser>(yaml: Convert) -> T {
    parse_with_files(std::env::args_os(), yaml).unwrap_or_else(|error| error.exit())
}

/// Reads settings from arguments (the program's name first), environment and the file that `--config` names. The flag
/// is added to the command if it does not have it; in commands with subcommands the file applies to the top level only.
///
/// # Errors
/// When an argument, a variable, or a key or value of the file is invalid.
pub fn parse_with_config<T: Parser>(
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<T, clap::Error> {
    parse_from(args, None)
}

/// As [`parse_with_config`], for a command that also reads `.yaml`, `.yml` and `.json` files.
///
/// # Errors
/// When an argument, a variable, or a key or value of the file is invalid.
pub fn parse_with_files<T: Parser>(
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    yaml: Convert,
) -> Result<T, clap::Error> {
    parse_from(args, Some(yaml))
}

fn parse_from<T: Parser>(
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    yaml: Option<Convert>,
) -> Result<T, clap::Error> {
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let mut command = with_config_flag(T::command());
    if let Some(path) = config_path(&command, &args)? {
        command = match manifest_directory(&command) {
            Some(flag) if path.is_dir() => {
                command.mut_arg(flag, |arg| arg.default_value(path.into_os_string()))
            }
            _ => with_file(command, &path, yaml)?,
        };
    }
    let matches = command.try_get_matches_from_mut(args)?;
    T::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn with_config_flag(command: Command) -> Command {
    if command.get_arguments().any(|arg| arg.get_long() == Some(CONFIG)) {
        return command;
    }
    command.arg(
        Arg::new(CONFIG)
            .long(CONFIG)
            .env("MUSTER_CONFIG")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("TOML file of settings; its keys are the names of these flags"),
    )
}

/// The file to read. Errors are ignored in this pass: what is missing may be in the file, and the real pass reports the
/// rest. Only help and version are returned as errors here.
fn config_path(command: &Command, args: &[OsString]) -> Result<Option<PathBuf>, clap::Error> {
    let id =
        command.get_arguments().find(|arg| arg.get_long() == Some(CONFIG)).map(|arg| arg.get_id().clone());
    let matches = command.clone().ignore_errors(true).try_get_matches_from(args)?;
    Ok(id.and_then(|id| matches.try_get_one::<PathBuf>(id.as_str()).ok().flatten().cloned()))
}

fn manifest_directory(command: &Command) -> Option<clap::Id> {
    let mut flags = command.get_arguments();
    flags.find(|arg| arg.get_long() == Some(MANIFEST_DIRECTORY)).map(|arg| arg.get_id().clone())
}

/// The command with the file's values as its defaults.
fn with_file(mut command: Command, path: &Path, yaml: Option<Convert>) -> Result<Command, clap::Error> {
    let text = fs::read_to_string(path).map_err(|error| refuse(ErrorKind::Io, path, &error.to_string()))?;
    let is_yaml =
        path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml" || ending == "json");
    let table = match yaml.filter(|_| is_yaml) {
        Some(convert) => convert(&text).map_err(|reason| refuse(ErrorKind::InvalidValue, path, &reason))?,
        None => text
            .parse::<toml::Table>()
            .map_err(|error| refuse(ErrorKind::InvalidValue, path, error.message()))?,
    };
    for (key, value) in table {
        let setting = command.get_arguments().find(|arg| arg.get_long() == Some(&key) && key != CONFIG);
        let Some(arg) = setting.cloned() else {
            return Err(refuse(ErrorKind::UnknownArgument, path, &format!("unknown key `{key}`")));
        };
        let values = default_values(&arg, &key, &value)
            .map_err(|reason| refuse(ErrorKind::InvalidValue, path, &format!("key `{key}`: {reason}")))?;
        // No longer required: the file sets it.
        command = command.mut_arg(arg.get_id(), |arg| arg.required(false).default_values(values));
    }
    Ok(command)
}

fn refuse(kind: ErrorKind, path: &Path, reason: &str) -> clap::Error {
    clap::Error::raw(kind, format!("{}: {reason}\n", path.display()))
}

/// The file's value as texts for the flag, checked by the flag's own parser.
fn default_values(arg: &Arg, key: &str, value: &toml::Value) -> Result<Vec<String>, String> {
    if !arg.get_action().takes_values() {
        return match value.as_bool() {
            Some(value) if matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse) => {
                Ok(vec![value.to_string()])
            }
            _ => Err("expected true or false".to_owned()),
        };
    }
    let texts = match value {
        toml::Value::Array(values) => values.iter().map(scalar).collect::<Result<Vec<_>, _>>()?,
        value => vec![scalar(value)?],
    };
    // A flag that can be repeated takes the values one by one, any other takes them as one text.
    let texts = if matches!(arg.get_action(), ArgAction::Append) { texts } else { vec![texts.join(",")] };
    check(arg, key, &texts)?;
    Ok(texts)
}

fn scalar(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => Ok(value.to_string()),
        other => Err(format!("expected text, a number, true or false, found {}", other.type_str())),
    }
}

/// Runs the values through a flag of the same parser, alone: the original may be tied to other flags.
fn check(arg: &Arg, key: &str, values: &[String]) -> Result<(), String> {
    let mut alone = Arg::new(CONFIG)
        .long(key.to_owned())
        .value_parser(arg.get_value_parser().clone())
        .action(arg.get_action().clone());
    if let Some(delimiter) = arg.get_value_delimiter() {
        alone = alone.value_delimiter(delimiter);
    }
    let command = Command::new(CONFIG).no_binary_name(true).disable_help_flag(true).arg(alone);
    let args = values.iter().map(|value| format!("--{key}={value}"));
    command.try_get_matches_from(args).map(drop).map_err(|error| in_one_line(&error))
}

/// clap's message without its `error:` in front and its hints behind.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("For more"));
    let line = lines.collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").map_or_else(|| line.clone(), str::to_owned)
}

/// Reads a duration as people and Kubernetes flags write it: `40s`, `100ms`, `1m30s`, `2h`, `0`.
///
/// # Errors
/// When the text is not a duration, or is negative.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    muster_proto::duration::parse(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
