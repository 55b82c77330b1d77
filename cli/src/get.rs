//! `muster get`: lists records in a table or as documents.

mod output;
mod watch;

use std::collections::BTreeMap;
use std::rc::Rc;

use jiff::Timestamp;
use muster_proto::budget::DisruptionBudget;
use muster_proto::certificate_request::CertificateRequest;
use muster_proto::event::Event;
use muster_proto::join_token::JoinToken;
use muster_proto::lease::Lease;
use muster_proto::name::Namespace;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::priority_class::PriorityClass;
use muster_proto::record::Kind;
use muster_proto::revocation::Revocation;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::clock::{Clock, SystemClock};
use muster_store_client::ListOptions;
use serde_json::Value;

use self::output::Output;
use crate::completion;
use crate::connection::{ConnectionFlags, NamespaceFlags, Namespaces, OrFailure, Store};
use crate::failure::{Failure, Failures};
use crate::jsonpath::{self, Path};
use crate::kind::{Target, Targets, plural, singular};
use crate::print::Table;
use crate::print::document::document;
use crate::print::rows::View;
use crate::records::{Readable, key};
use crate::targets::strip_kind;
use crate::terminal::{Terminal, print_stderr};
use muster_manifest::schema;

/// Lists records, or shows the records that are named
///
/// KIND is nodes, leases, pods, events, budgets, tokens, certificaterequests or revocations, or several of them:
/// nodes,pods. The singular, the short forms (no, po, ev, pdb, csr) and KIND/NAME are accepted too. `muster
/// api-resources` lists the kinds.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Kind of the records, several kinds, or KIND/NAME
    #[arg(value_name = "KIND", add = completion::kinds())]
    targets: Targets,

    /// Names of the records [default: all records of the kind]
    #[arg(value_name = "NAME", add = completion::names())]
    names: Vec<String>,

    /// Output format: wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=HEADER:PATH,...
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Output>,

    /// Only records with matching labels, such as `zone=a,tier in (x,y),!old`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,

    /// Only records with matching fields, such as `spec.nodeName=a` or `status.phase!=Running`
    #[arg(long, value_name = "SELECTOR")]
    field_selector: Option<String>,

    /// Only nodes or pods whose STATUS column has one of these words, such as `Unknown,NotReady`
    #[arg(long, value_name = "STATUS", value_delimiter = ',', conflicts_with = "watch")]
    status: Vec<String>,

    /// Records of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Sort by the value at this path, such as `.metadata.creationTimestamp` [default: by name, n2 before n10]
    #[arg(long, value_name = "PATH", conflicts_with = "watch")]
    sort_by: Option<Path>,

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

    /// Show these labels as columns, such as `topology.kubernetes.io/zone,rack`; can be repeated
    #[arg(short = 'L', long, value_name = "KEY", value_delimiter = ',')]
    label_columns: Vec<String>,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let requests = requests(&flags)?;
    let is_several = requests.len() > 1;
    if is_several && flags.watch {
        return Err(Failure::usage("only one kind can be watched")
            .hint("watch each kind in a terminal of its own, or use `muster top`"));
    }
    let get = Get::new(&flags, is_several)?;
    let mut failures = Failures::default();
    let mut answer = Answer::default();
    for request in &requests {
        match request.kind {
            Kind::Node => get.run::<Node>(request, &mut answer, &mut failures).await?,
            Kind::Lease => get.run::<Lease>(request, &mut answer, &mut failures).await?,
            Kind::Pod => get.run::<Pod>(request, &mut answer, &mut failures).await?,
            Kind::DisruptionBudget => {
                get.run::<DisruptionBudget>(request, &mut answer, &mut failures).await?;
            }
            Kind::Event => get.run::<Event>(request, &mut answer, &mut failures).await?,
            Kind::JoinToken => get.run::<JoinToken>(request, &mut answer, &mut failures).await?,
            Kind::CertificateRequest => {
                get.run::<CertificateRequest>(request, &mut answer, &mut failures).await?;
            }
            Kind::Revocation => get.run::<Revocation>(request, &mut answer, &mut failures).await?,
            Kind::PriorityClass => {
                get.run::<PriorityClass>(request, &mut answer, &mut failures).await?;
            }
        }
    }
    get.print(answer, &requests)?;
    failures.finish()
}

/// The records of one kind that are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KindRequest {
    kind: Kind,
    /// Empty means all.
    names: Vec<String>,
}

/// What the words of the command line ask for: kinds, one kind with names, or KIND/NAME again and again.
fn requests(flags: &Flags) -> Result<Vec<KindRequest>, Failure> {
    let is_selecting = flags.selector.is_some()
        || flags.field_selector.is_some()
        || flags.all_namespaces
        || !flags.status.is_empty();
    let requests = match flags.targets.0.as_slice() {
        [Target { kind, name: Some(name) }] if flags.names.iter().all(|name| name.contains('/')) => {
            let mut requests = vec![KindRequest { kind: *kind, names: vec![name.clone()] }];
            for text in &flags.names {
                let Target { kind, name } = text.parse().map_err(Failure::usage)?;
                let names: Vec<String> = name.into_iter().collect();
                match requests.iter_mut().find(|request| request.kind == kind) {
                    Some(request) => request.names.extend(names),
                    None => requests.push(KindRequest { kind, names }),
                }
            }
            requests
        }
        [Target { kind, name }] => {
            vec![KindRequest { kind: *kind, names: strip_kind(*kind, name.as_ref(), &flags.names)? }]
        }
        several => {
            if !flags.names.is_empty() {
                return Err(Failure::usage("names cannot be combined with several kinds")
                    .hint("give KIND/NAME for each record: `muster get node/a pod/b`"));
            }
            several.iter().map(|target| KindRequest { kind: target.kind, names: Vec::new() }).collect()
        }
    };
    if is_selecting && requests.iter().any(|request| !request.names.is_empty()) {
        return Err(Failure::usage("names cannot be combined with selectors, --status or --all-namespaces")
            .hint("give names, or a selector; --namespace sets the namespace of the names"));
    }
    Ok(requests)
}

/// What was found, in the form that the output needs.
#[derive(Default)]
struct Answer {
    /// The tables or lines, for people.
    texts: Vec<String>,
    /// The records, for programs.
    documents: Vec<Value>,
    /// What to say if nothing was found.
    nothing: Vec<String>,
}

/// The command with its connection resolved.
struct Get<'a> {
    flags: &'a Flags,
    /// Whether several kinds are shown, so that names need their kind.
    is_several: bool,
    namespaces: Namespaces,
    store: Store,
    terminal: Terminal,
    clock: SystemClock,
}

impl<'a> Get<'a> {
    fn new(flags: &'a Flags, is_several: bool) -> Result<Get<'a>, Failure> {
        let connection = flags.connection.resolve()?;
        let namespaces = connection.namespaces(&flags.namespace);
        let (store, terminal, clock) = (connection.store()?, Terminal::stdout(), SystemClock::new());
        Ok(Get { flags, is_several, namespaces, store, terminal, clock })
    }

    async fn run<R: Readable>(
        &self,
        request: &KindRequest,
        answer: &mut Answer,
        failures: &mut Failures,
    ) -> Result<(), Failure> {
        if self.flags.watch {
            return self.watch::<R>(&request.names).await;
        }
        let mut records = Vec::new();
        if request.names.is_empty() {
            records = self.list::<R>().await?;
        }
        for name in &request.names {
            let key = key(R::KIND, name, &self.namespaces)?;
            let read = R::read(&self.store, &key).await.or_failure(&self.store.peer);
            records.extend(failures.keep(read)?);
        }
        if let Some(path) = &self.flags.sort_by {
            sort_by(&mut records, path);
        }
        if records.is_empty() && request.names.is_empty() {
            answer.nothing.push(self.nothing_found::<R>());
        }
        match &self.flags.output {
            None | Some(Output::Wide) if !records.is_empty() => {
                answer.texts.push(self.table_of(&records).await);
            }
            Some(Output::Name) => answer.texts.extend(records.iter().map(name_line)),
            None | Some(Output::Wide) => {}
            Some(Output::Document(_) | Output::JsonPath(_) | Output::Columns(_)) => {
                answer.documents.extend(records.into_iter().map(schema::to_json));
            }
        }
        Ok(())
    }

    async fn list<R: Readable>(&self) -> Result<Vec<R>, Failure> {
        if !self.flags.status.is_empty() && R::STATUSES.is_empty() {
            return Err(Failure::usage(format!("{} have no STATUS column", plural(R::KIND)))
                .hint("--status is for nodes and pods"));
        }
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
        if !self.flags.status.is_empty() {
            list.records.retain(|record| {
                let words = record.status_words();
                let has = |wanted: &String| words.iter().any(|word| word.eq_ignore_ascii_case(wanted));
                self.flags.status.iter().any(has)
            });
        }
        R::sort(&mut list.records);
        Ok(list.records)
    }

    fn nothing_found<R: Readable>(&self) -> String {
        let kind = plural(R::KIND);
        let status = match self.flags.status.as_slice() {
            [] => String::new(),
            words => format!(" with status {}", words.join(" or ")),
        };
        match self.namespace::<R>() {
            Some(namespace) => {
                format!("No {kind}{status} found in namespace {namespace}; -A searches all namespaces.")
            }
            None if !status.is_empty() => {
                format!("No {kind}{status} found; the statuses are {}.", R::STATUSES.join(", "))
            }
            None => format!("No {kind} found."),
        }
    }

    /// The namespace to search; `None` means all.
    fn namespace<R: Readable>(&self) -> Option<Namespace> {
        let one = R::KIND.is_namespaced() && !self.flags.all_namespaces;
        one.then(|| self.namespaces.of(R::KIND))
    }

    fn view(&self, kind: Kind) -> View {
        View {
            wide: self.flags.output == Some(Output::Wide),
            namespaces: self.flags.all_namespaces && kind.is_namespaced(),
            label_columns: self.flags.label_columns.clone(),
            labels: self.flags.show_labels,
            kinds: self.is_several,
            heard: None,
        }
    }

    async fn table_of<R: Readable>(&self, records: &[R]) -> String {
        let mut view = self.view(R::KIND);
        if view.wide && R::KIND == Kind::Node {
            view.heard = self.heard(records).await;
        }
        let headers = view.headers::<R>();
        let mut table = if self.flags.no_headers { Table::without_headers() } else { Table::new(headers) };
        let now = self.now();
        for record in records {
            table.push(view.row(record, now));
        }
        table.take(self.terminal.paint)
    }

    /// When each node's lease was last renewed: a node that has gone silent shows it here before it is Unknown.
    async fn heard<R: Readable>(&self, nodes: &[R]) -> Option<Rc<BTreeMap<String, Timestamp>>> {
        let namespace: Namespace = NODE_LEASE_NAMESPACE.parse().expect("a valid name");
        let mut options = ListOptions { namespace: Some(namespace), ..ListOptions::default() };
        if let [node] = nodes {
            options.field_selector = format!("metadata.name={}", node.meta().name);
        }
        match self.store.client.list::<Lease>(options).await {
            Ok(leases) => Some(Rc::new(
                leases
                    .records
                    .into_iter()
                    .filter_map(|lease| Some((lease.meta.name.to_string(), lease.spec.renew_time?)))
                    .collect(),
            )),
            Err(error) => {
                print_stderr(format_args!("warning: the column HEARD is missing: {error}"));
                None
            }
        }
    }

    /// Prints what was found. A document is a `List`, except for a single record that was requested by name.
    fn print(&self, mut answer: Answer, requests: &[KindRequest]) -> Result<(), Failure> {
        let is_single = matches!(requests, [KindRequest { names, .. }] if names.len() == 1);
        let is_empty = answer.texts.is_empty() && answer.documents.is_empty();
        let is_document = matches!(self.flags.output, Some(Output::Document(_) | Output::JsonPath(_)));
        if is_empty && !is_document {
            answer.nothing.into_iter().for_each(print_stderr);
            return Ok(());
        }
        let text = match &self.flags.output {
            None | Some(Output::Wide) => answer.texts.join("\n"),
            Some(Output::Name) => answer.texts.concat(),
            Some(Output::Columns(columns)) => {
                columns.table(&answer.documents, !self.flags.no_headers).take(self.terminal.paint)
            }
            // A record that does not exist has no document.
            Some(Output::Document(_) | Output::JsonPath(_)) if is_single && is_empty => String::new(),
            Some(format) => {
                let value = match (is_single, answer.documents.pop()) {
                    (true, Some(value)) => value,
                    (_, last) => {
                        answer.documents.extend(last);
                        schema::list(answer.documents)
                    }
                };
                match format {
                    Output::JsonPath(template) => template.render(&value),
                    Output::Document(language) => document(&value, *language, true),
                    Output::Wide | Output::Name | Output::Columns(_) => unreachable!("handled above"),
                }
            }
        };
        self.terminal.print(&text)
    }

    fn now(&self) -> Timestamp {
        self.clock.wall()
    }
}

/// Sorts by the first value at the path. Records with equal values keep their order.
fn sort_by<R: Readable>(records: &mut Vec<R>, path: &Path) {
    let mut keyed: Vec<(Option<Value>, R)> = std::mem::take(records)
        .into_iter()
        .map(|record| {
            let value = schema::to_json(record.clone());
            (path.find(&value).first().map(|value| (*value).clone()), record)
        })
        .collect();
    keyed.sort_by(|(a, _), (b, _)| jsonpath::compare(a.as_ref(), b.as_ref()));
    records.extend(keyed.into_iter().map(|(_, record)| record));
}

fn name_line<R: Readable>(record: &R) -> String {
    format!("{}/{}\n", singular(R::KIND), record.meta().name)
}
