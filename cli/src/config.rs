//! `muster config`: shows and edits the contexts of the config file.

use std::path::PathBuf;

use clap::Subcommand;
use muster_proto::name::Namespace;

use crate::connection::ConfigPath;
use crate::connection::context::{Context, Contexts};
use crate::failure::{Exit, Failure};
use crate::print::rows::or_none;
use crate::print::{Cell, Table};
use crate::terminal::Terminal;

/// Shows and edits the contexts of the config file: addresses, certificates and namespace
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Subcommand)]
enum Command {
    /// Lists the contexts
    GetContexts {
        #[command(flatten)]
        path: ConfigPath,
    },
    /// Prints the name of the current context
    CurrentContext {
        #[command(flatten)]
        path: ConfigPath,
    },
    /// Makes a context the current one
    UseContext {
        /// Name of the context
        name: String,
        #[command(flatten)]
        path: ConfigPath,
    },
    /// Creates a context, or changes the given settings of a context
    SetContext(SetFlags),
    /// Prints a kubeconfig: with it kubectl uses the store's Kubernetes API
    Kubeconfig(crate::kubeconfig::Flags),
    /// Removes a context
    DeleteContext {
        /// Name of the context
        name: String,
        #[command(flatten)]
        path: ConfigPath,
    },
}

/// The settings of a context. Environment variables are not read here: they are for one call and must not end up in
/// the file.
#[derive(Debug, Clone, clap::Args)]
struct SetFlags {
    /// Name of the context
    name: String,

    /// Addresses of the stores, in order of preference
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    store: Vec<String>,

    /// Addresses of the controllers; of several, the one that leads is called
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    controller: Vec<String>,

    /// CA certificates that the servers' certificates are checked against, PEM
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// Client certificate, PEM
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Default namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<Namespace>,

    #[command(flatten)]
    path: ConfigPath,
}

pub(crate) fn run(flags: Flags) -> Result<(), Failure> {
    let terminal = Terminal::stdout();
    match flags.command {
        Command::GetContexts { path } => {
            let contexts = Contexts::read(&path)?;
            terminal.print(&table(&contexts).take(terminal.paint))
        }
        Command::CurrentContext { path } => match Contexts::read(&path)?.file.current_context {
            Some(name) => terminal.print(&format!("{name}\n")),
            None => Err(Failure::new(Exit::NotFound, "there is no current context").hint(
                "`muster config use-context NAME` selects one, `muster config set-context` creates one",
            )),
        },
        Command::UseContext { name, path } => {
            let mut contexts = Contexts::read(&path)?;
            contexts.get(&name)?;
            contexts.file.current_context = Some(name.clone());
            contexts.write()?;
            terminal.print(&format!("context {name} is now the current one\n"))
        }
        Command::Kubeconfig(flags) => terminal.print(&crate::kubeconfig::text(&flags)?),
        Command::SetContext(set) => {
            let mut contexts = Contexts::read_or_create(&set.path)?;
            let name = set.name.clone();
            let context = contexts.file.contexts.entry(name.clone()).or_default();
            update(context, set)?;
            // The first context becomes the current one.
            contexts.file.current_context.get_or_insert_with(|| name.clone());
            contexts.write()?;
            terminal.print(&format!("context {name} set\n"))
        }
        Command::DeleteContext { name, path } => {
            let mut contexts = Contexts::read(&path)?;
            contexts.get(&name)?;
            contexts.file.contexts.remove(&name);
            contexts.file.current_context.take_if(|current| *current == name);
            contexts.write()?;
            terminal.print(&format!("context {name} deleted\n"))
        }
    }
}

fn update(context: &mut Context, set: SetFlags) -> Result<(), Failure> {
    if !set.store.is_empty() {
        context.store = set.store;
    }
    if !set.controller.is_empty() {
        context.controller = set.controller;
    }
    for (setting, given) in [
        (&mut context.tls_ca, set.tls_ca),
        (&mut context.tls_cert, set.tls_cert),
        (&mut context.tls_key, set.tls_key),
    ] {
        if let Some(path) = given {
            // The flag is relative to this directory, but the file is read from any directory.
            *setting = Some(std::path::absolute(&path).map_err(|error| {
                Failure::usage(format!("{} is not a file path: {error}", path.display()))
            })?);
        }
    }
    if set.namespace.is_some() {
        context.namespace = set.namespace;
    }
    Ok(())
}

fn table(contexts: &Contexts) -> Table {
    let mut table = Table::new(["CURRENT", "NAME", "STORE", "CONTROLLER", "CERTIFICATE", "NAMESPACE"]);
    for (name, context) in &contexts.file.contexts {
        let current = contexts.file.current_context.as_deref() == Some(name);
        let certificate = context.tls_cert.as_ref().map(|path| path.display().to_string());
        let namespace = context.namespace.as_ref().map(ToString::to_string);
        table.push([
            Cell::new(if current { "*" } else { "" }),
            Cell::new(name),
            Cell::new(or_none(&context.store.join(","))),
            Cell::new(or_none(&context.controller.join(","))),
            Cell::new(or_none(&certificate.unwrap_or_default())),
            Cell::new(or_none(&namespace.unwrap_or_default())),
        ]);
    }
    table
}
