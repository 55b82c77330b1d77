//! `muster top`: a live view of the fleet.

mod fleet_view;
mod input;
mod render;

use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::watch_event::{WatchEvent, WatchFailureKind};
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::clock::{Clock, SystemClock};
use muster_store_client::{Cache, ListOptions, Resource, WatchOptions};
use ratatui::crossterm::event::{self, Event};
use tokio::sync::{mpsc, watch};

use self::fleet_view::{ControllerState, FleetView, Heard, HeardByNode, StoreState};
use self::input::{Action, Mode, Screen};
use crate::connection::{Connection, ConnectionFlags, Controller, OrFailure, Store};
use crate::failure::{Exit, Failure};
use crate::print::Paint;
use crate::print::explain::explanation;
use crate::terminal::Terminal;

/// How often the screen is redrawn without changes, because ages change.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// Changes within this time are drawn together.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// Shows a live view of the nodes, the sick first; q quits
///
/// The arrow keys select a node and Enter explains it, / filters by name, zone or status. In the bars, ? is Unknown, !
/// is NotReady, ~ is Ready without its last renewals, - is cordoned and # is Ready. If the output is not a terminal,
/// the view is printed once. The states of the zones come from the controller; if it cannot be reached, only the data
/// of the store is shown.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Only nodes with matching labels, such as `zone=a`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let store = connection.store()?;
    let selector = flags.selector.unwrap_or_default();
    let terminal = Terminal::stdout();
    if terminal.is_tty {
        run_live(&store, connection, selector).await
    } else {
        print_once(&store, &connection.controller().await?, selector, terminal).await
    }
}

async fn print_once(
    store: &Store,
    controller: &Controller,
    selector: String,
    terminal: Terminal,
) -> Result<(), Failure> {
    let options = ListOptions { label_selector: selector, ..ListOptions::default() };
    let node_leases = ListOptions { namespace: node_lease_namespace(), ..ListOptions::default() };
    let (nodes, leases, fleet) = tokio::join!(
        store.client.list::<Node>(options),
        store.client.list::<Lease>(node_leases),
        get_fleet(controller)
    );
    let nodes = nodes.or_failure(&store.peer)?.records;
    let leases = leases.map(|leases| leases.records).unwrap_or_default();
    let now = SystemClock::new().wall();
    let view = FleetView::new(nodes.iter(), &heard(leases.iter()), StoreState::Connected, &fleet, "", now);
    terminal.print(&render::text(&view))
}

fn node_lease_namespace() -> Option<muster_proto::name::Namespace> {
    Some(NODE_LEASE_NAMESPACE.parse().expect("a valid name"))
}

fn heard<'a>(leases: impl Iterator<Item = &'a Lease>) -> HeardByNode<'a> {
    leases.filter_map(|lease| Some((lease.meta.name.as_str(), Heard::of(lease)?))).collect()
}

/// The controller's view of the fleet. `muster top` also works without it.
async fn get_fleet(controller: &Controller) -> ControllerState {
    let answer = controller.client.clone().get_fleet(controller.with_timeout(pb::GetFleetRequest {})).await;
    match answer {
        Ok(answer) => ControllerState::Reachable(Box::new(answer.into_inner().fleet.unwrap_or_default())),
        Err(_) => ControllerState::Unreachable,
    }
}

async fn run_live(store: &Store, connection: Connection, selector: String) -> Result<(), Failure> {
    let options = WatchOptions { label_selector: selector, ..WatchOptions::default() };
    let mut changes = store.client.watch::<Node>(options);
    let node_leases = WatchOptions { namespace: node_lease_namespace(), ..WatchOptions::default() };
    let mut renewals = store.client.watch::<Lease>(node_leases);
    let (mut nodes, mut leases) = (Cache::new(), Cache::new());
    // Before the screen is taken over, so that an unreachable store is reported as in any other command.
    while !nodes.is_synced() {
        match changes.next().await {
            Some(WatchEvent::Lost(failure)) => {
                let refused = failure.kind == WatchFailureKind::Refused;
                let exit = if refused { Exit::Refused } else { Exit::Unreachable };
                return Err(store.peer.watch_failure(exit, &failure.message));
            }
            Some(event) => nodes.observe(event),
            None => return Ok(()),
        }
    }
    let mut fleet = follow_fleet(connection.clone());
    let mut inputs = read_inputs();
    let clock = SystemClock::new();
    let mut terminal = ratatui::init();
    let mut screen = Screen::default();
    let outcome = loop {
        let state = if nodes.is_synced() { StoreState::Connected } else { StoreState::Disconnected };
        let view = FleetView::new(
            nodes.iter(),
            &heard(leases.iter()),
            state,
            &fleet.borrow_and_update(),
            &screen.filter,
            clock.wall(),
        );
        screen.clamp(view.nodes.len());
        if let Err(error) = terminal.draw(|frame| render::draw(&view, &screen, frame)) {
            break Err(Failure::new(Exit::Failed, format!("cannot draw on the terminal: {error}"))
                .hint("`muster fleet -w` works on simpler terminals"));
        }
        tokio::select! {
            input = inputs.recv() => {
                let Some(input) = input else { break Ok(()) };
                match screen.handle(&input) {
                    Some(Action::Quit) => break Ok(()),
                    Some(Action::Explain) => {
                        if let Some(node) = view.nodes.get(screen.selected) {
                            let width = terminal.size().map_or(80, |size| usize::from(size.width));
                            let lines = explain(&connection, &node.name, width).await;
                            screen.mode = Mode::Page { lines, scroll: 0 };
                        }
                    }
                    Some(Action::Redraw) | None => {}
                }
            }
            Some(event) = changes.next() => {
                nodes.observe(event);
                tokio::time::sleep(DEBOUNCE).await;
                observe_waiting(&mut changes, &mut nodes);
                observe_waiting(&mut renewals, &mut leases);
            }
            // Renewals come all the time: they are drawn with the next change or second.
            () = next_second(&mut renewals, &mut leases) => {}
            changed = fleet.changed() => drop(changed),
        }
    };
    ratatui::restore();
    outcome
}

/// Takes in what has arrived, without waiting.
fn observe_waiting<R: Resource>(
    events: &mut (impl Stream<Item = WatchEvent<R>> + Unpin),
    cache: &mut Cache<R>,
) {
    while let Some(Some(event)) = events.next().now_or_never() {
        cache.observe(event);
    }
}

/// Takes in renewals until the next redraw is due.
async fn next_second(
    renewals: &mut (impl Stream<Item = WatchEvent<Lease>> + Unpin),
    leases: &mut Cache<Lease>,
) {
    let observe_all = async {
        while let Some(event) = renewals.next().await {
            leases.observe(event);
        }
    };
    let _ = tokio::time::timeout(REDRAW_INTERVAL, observe_all).await;
}

/// The controller's view, again every second. Of several controllers, the leader is found again when it changes.
fn follow_fleet(connection: Connection) -> watch::Receiver<ControllerState> {
    let (sender, fleet) = watch::channel(ControllerState::Unreachable);
    tokio::spawn(async move {
        let mut controller = connection.controller().await;
        loop {
            let state = match &controller {
                Ok(controller) => get_fleet(controller).await,
                Err(_) => ControllerState::Unreachable,
            };
            let leads = matches!(&state, ControllerState::Reachable(fleet) if fleet.state() != pb::FleetState::Standby);
            if sender.send(state).is_err() {
                return;
            }
            tokio::time::sleep(REDRAW_INTERVAL).await;
            if !leads {
                controller = connection.controller().await;
            }
        }
    });
    fleet
}

/// The lines of a node's explanation, or why there is none.
async fn explain(connection: &Connection, name: &str, width: usize) -> Vec<String> {
    let page = async {
        let controller = connection.controller().await?;
        let request = controller.with_timeout(pb::ExplainNodeRequest { name: name.to_owned() });
        let answer = controller.client.clone().explain_node(request).await.or_failure(&controller.peer)?;
        Ok::<_, Failure>(explanation(answer.get_ref(), Paint::Plain, width))
    };
    let text = page.await.unwrap_or_else(|failure| failure.report("explain"));
    text.lines().map(str::to_owned).collect()
}

/// Reads key presses in a thread of its own, because reading a terminal blocks.
fn read_inputs() -> mpsc::Receiver<Event> {
    let (sender, inputs) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                break;
            }
        }
    });
    inputs
}
