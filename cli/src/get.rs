//! `muster get`: lists records in a table or as documents.

mod watch;

use clap::ValueEnum;
use jiff::Timestamp;
use muster_proto::budget::DisruptionBudget;
use muster_proto::event::Event;
use muster_proto::lease::Lease;
use muster_proto::name::Namespace;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;
use muster_rpc::clock::{Clock, SystemClock};
use muster_store_client::ListOptions;

use crate::connection::{ConnectionFlags, NamespaceFlags, Namespaces, OrFailure, Store};
use crate::failure::{Failure, Failures};
use crate::kind::{Target, plural, singular};
use crate::print::Table;
use crate::print::document::{Language, document};
use crate::print::rows::View;
use crate::records::{Readable, key};
use crate::schema;
use crate::targets::strip_kind;
use crate::terminal::{Terminal, print_stderr};

/// Lists records, or shows the records that are named
///
/// KIND is nodes, leases, pods, events or budgets. The singular, the short forms (no, po, ev, pdb) and KIND/NAME are
/// accepted too.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Kind of the records, or KIND/NAME
    #[arg(value_name = "KIND")]
    target: Target,

    /// Names of the records [default: all records of the kind]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Output>,

    /// Only records with matching labels, such as `zone=a,tier in (x,y),!old`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,

    /// Only records with matching fields, such as `spec.nodeName=a` or `status.phase!=Running`
    #[arg(long, value_name = "SELECTOR")]
    field_selector: Option<String>,

    /// Records of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    /// After the list, keep running and show every change
    #[arg(short, long)]
    watch: bool,

    /// With --watch, show for each line whether the record was ADDED, MODIFIED or DELETED
    #[arg(long, requires = "watch")]
    output_watch_events: bool,

    /// Print the table without headers
    #[arg(long)]
    no_headers: bool,

    /// Show labels as the last column
    #[arg(long)]
    show_labels: bool,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table with more columns
    Wide,
    /// JSON that `muster apply` understands
    Json,
    /// YAML that `muster apply` understands
    Yaml,
    /// KIND/NAME, one per line
    Name,
}

impl Output {
    fn language(self) -> Option<Language> {
        match self {
            Output::Json => Some(Language::Json),
            Output::Yaml => Some(Language::Yaml),
            Output::Wide | Output::Name => None,
        }
    }
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    match flags.target.kind {
        Kind::Node => Get::new(&flags)?.run::<Node>().await,
        Kind::Lease => Get::new(&flags)?.run::<Lease>().await,
        Kind::Pod => Get::new(&flags)?.run::<Pod>().await,
        Kind::DisruptionBudget => Get::new(&flags)?.run::<DisruptionBudget>().await,
        Kind::Event => Get::new(&flags)?.run::<Event>().await,
    }
}

/// The command with its flags checked and its connection resolved.
struct Get<'a> {
    flags: &'a Flags,
    names: Vec<String>,
    namespaces: Namespaces,
    store: Store,
    terminal: Terminal,
    clock: SystemClock,
}

impl<'a> Get<'a> {
    fn new(flags: &'a Flags) -> Result<Get<'a>, Failure> {
        let Target { kind, name } = &flags.target;
        let names = strip_kind(*kind, name.as_ref(), &flags.names)?;
        let is_selecting = flags.selector.is_some() || flags.field_selector.is_some() || flags.all_namespaces;
        if !names.is_empty() && is_selecting {
            let failure = Failure::usage("names cannot be combined with selectors or --all-namespaces");
            return Err(
                failure.hint("give names, or a selector; --namespace sets the namespace of the names")
            );
        }
        let connection = flags.connection.resolve()?;
        let namespaces = connection.namespaces(&flags.namespace);
        let store = connection.store()?;
        Ok(Get { flags, names, namespaces, store, terminal: Terminal::stdout(), clock: SystemClock::new() })
    }

    async fn run<R: Readable>(self) -> Result<(), Failure> {
        if self.flags.watch {
            return self.watch::<R>().await;
        }
        if self.names.is_empty() {
            return self.list::<R>().await;
        }
        let mut failures = Failures::default();
        let mut records = Vec::new();
        for name in &self.names {
            let key = key(R::KIND, name, &self.namespaces)?;
            let read = R::read(&self.store, &key).await.or_failure(&self.store.peer);
            records.extend(failures.keep(read)?);
        }
        self.print(records, self.names.len() == 1)?;
        failures.finish()
    }

    async fn list<R: Readable>(&self) -> Result<(), Failure> {
        let options = ListOptions {
            namespace: self.namespace::<R>(),
            label_selector: self.flags.selector.clone().unwrap_or_default(),
            field_selector: self.flags.field_selector.clone().unwrap_or_default(),
            ..ListOptions::default()
        };
        let mut list = self.store.client.list::<R>(options).await.or_failure(&self.store.peer)?;
        for unreadable in list.unreadable {
            let name = unreadable.key.map(|key| key.to_string()).unwrap_or_default();
            print_stderr(format_args!(
                "warning: {}/{name} cannot be read: {}",
                singular(R::KIND),
                unreadable.reason
            ));
        }
        let is_document = self.flags.output.is_some_and(|output| output.language().is_some());
        if list.records.is_empty() && !is_document {
            print_stderr(self.nothing_found::<R>());
            return Ok(());
        }
        R::sort(&mut list.records);
        self.print(list.records, false)
    }

    fn nothing_found<R: Readable>(&self) -> String {
        let kind = plural(R::KIND);
        match self.namespace::<R>() {
            Some(namespace) => {
                format!("No {kind} found in namespace {namespace}; -A searches all namespaces.")
            }
            None => format!("No {kind} found."),
        }
    }

    /// The namespace to search; `None` means all.
    fn namespace<R: Readable>(&self) -> Option<Namespace> {
        let one = R::KIND.is_namespaced() && !self.flags.all_namespaces;
        one.then(|| self.namespaces.of(R::KIND))
    }

    fn view(&self) -> View {
        View {
            wide: self.flags.output == Some(Output::Wide),
            namespaces: self.flags.all_namespaces && self.flags.target.kind.is_namespaced(),
            labels: self.flags.show_labels,
        }
    }

    fn table<R: Readable>(&self) -> Table {
        if self.flags.no_headers { Table::without_headers() } else { Table::new(self.view().headers::<R>()) }
    }

    /// Prints the records. A document is a `List`, except for a single record that was requested by name.
    fn print<R: Readable>(&self, records: Vec<R>, is_single: bool) -> Result<(), Failure> {
        let text = match self.flags.output {
            Some(Output::Name) => records.iter().map(name_line).collect(),
            Some(output) if let Some(language) = output.language() => {
                let mut values: Vec<_> = records.into_iter().map(schema::to_json).collect();
                match (is_single, values.pop()) {
                    (true, Some(value)) => document(&value, language, true),
                    (true, None) => String::new(),
                    (false, last) => {
                        values.extend(last);
                        document(&schema::list(values), language, true)
                    }
                }
            }
            _ if records.is_empty() => String::new(),
            _ => {
                let mut table = self.table::<R>();
                let now = self.now();
                for record in &records {
                    table.push(self.view().row(record, now));
                }
                table.take(self.terminal.paint)
            }
        };
        self.terminal.print(&text)
    }

    fn now(&self) -> Timestamp {
        self.clock.wall()
    }
}

fn name_line<R: Readable>(record: &R) -> String {
    format!("{}/{}\n", singular(R::KIND), record.meta().name)
}
