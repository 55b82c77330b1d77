//! `muster top`: a live view of the fleet.

mod fleet_view;
mod render;

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::watch_event::WatchEvent;
use muster_proto::watch_event::WatchFailureKind;
use muster_rpc::clock::{Clock, SystemClock};
use muster_store_client::{Cache, ListOptions, WatchOptions};
use ratatui::crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::{mpsc, watch};

use self::fleet_view::{ControllerState, FleetView, StoreState};
use crate::connection::{ConnectionFlags, Controller, OrFailure, Store};
use crate::failure::{Exit, Failure};
use crate::terminal::Terminal;

/// How often the screen is redrawn without changes, because ages change.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// Changes within this time are drawn together.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// Shows a live view of the nodes by zone; q quits
///
/// If the output is not a terminal, the view is printed once. The states of the zones come from the controller; if it
/// cannot be reached, only the data of the store is shown.
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
    let (store, controller) = (connection.store()?, connection.controller()?);
    let selector = flags.selector.unwrap_or_default();
    let terminal = Terminal::stdout();
    if terminal.is_tty {
        run_live(&store, controller, selector).await
    } else {
        print_once(&store, &controller, selector, terminal).await
    }
}

async fn print_once(
    store: &Store,
    controller: &Controller,
    selector: String,
    terminal: Terminal,
) -> Result<(), Failure> {
    let options = ListOptions { label_selector: selector, ..ListOptions::default() };
    let (nodes, fleet) = tokio::join!(store.client.list::<Node>(options), get_fleet(controller));
    let nodes = nodes.or_failure(&store.peer)?.records;
    let view = FleetView::new(nodes.iter(), StoreState::Connected, &fleet, SystemClock::new().wall());
    terminal.print(&render::text(&view))
}

/// The controller's view of the fleet. `muster top` also works without it.
async fn get_fleet(controller: &Controller) -> ControllerState {
    let answer = controller.client.clone().get_fleet(controller.with_timeout(pb::GetFleetRequest {})).await;
    match answer {
        Ok(answer) => ControllerState::Reachable(Box::new(answer.into_inner().fleet.unwrap_or_default())),
        Err(_) => ControllerState::Unreachable,
    }
}

/// What the user or the terminal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Quit,
    Scroll(i32),
    Redraw,
}

async fn run_live(store: &Store, controller: Controller, selector: String) -> Result<(), Failure> {
    let options = WatchOptions { label_selector: selector, ..WatchOptions::default() };
    let mut changes = store.client.watch::<Node>(options);
    let mut nodes = Cache::new();
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
    let (fleet_sender, mut fleet) = watch::channel(ControllerState::Unreachable);
    tokio::spawn(async move {
        while fleet_sender.send(get_fleet(&controller).await).is_ok() {
            tokio::time::sleep(REDRAW_INTERVAL).await;
        }
    });
    let mut inputs = read_inputs();
    let clock = SystemClock::new();
    let mut screen = ratatui::init();
    let mut scroll = 0;
    let outcome = loop {
        let state = if nodes.is_synced() { StoreState::Connected } else { StoreState::Disconnected };
        let view = FleetView::new(nodes.iter(), state, &fleet.borrow_and_update(), clock.wall());
        scroll = view.clamp_scroll(scroll);
        if let Err(error) = screen.draw(|frame| render::draw(&view, scroll, frame)) {
            break Err(Failure::new(Exit::Failed, format!("cannot draw on the terminal: {error}"))
                .hint("`muster fleet -w` works on simpler terminals"));
        }
        tokio::select! {
            input = inputs.recv() => match input {
                Some(Input::Quit) | None => break Ok(()),
                Some(Input::Scroll(lines)) => scroll = scroll.saturating_add_signed(lines as isize),
                Some(Input::Redraw) => {}
            },
            Some(event) = changes.next() => {
                nodes.observe(event);
                tokio::time::sleep(DEBOUNCE).await;
                while let Some(Some(event)) = changes.next().now_or_never() {
                    nodes.observe(event);
                }
            }
            changed = fleet.changed() => drop(changed),
            () = tokio::time::sleep(REDRAW_INTERVAL) => {}
        }
    };
    ratatui::restore();
    outcome
}

/// Reads key presses in a thread of its own, because reading a terminal blocks.
fn read_inputs() -> mpsc::Receiver<Input> {
    let (sender, inputs) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let Some(input) = parse_input(&event) else { continue };
            if sender.blocking_send(input).is_err() {
                break;
            }
        }
    });
    inputs
}

fn parse_input(event: &event::Event) -> Option<Input> {
    const PAGE: i32 = 20;
    let key = match event {
        event::Event::Key(key) if key.kind != KeyEventKind::Release => key,
        event::Event::Resize(..) => return Some(Input::Redraw),
        _ => return None,
    };
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Input::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Input::Quit),
        KeyCode::Down | KeyCode::Char('j') => Some(Input::Scroll(1)),
        KeyCode::Up | KeyCode::Char('k') => Some(Input::Scroll(-1)),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(Input::Scroll(PAGE)),
        KeyCode::PageUp => Some(Input::Scroll(-PAGE)),
        KeyCode::Home => Some(Input::Scroll(i32::MIN)),
        KeyCode::End => Some(Input::Scroll(i32::MAX)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::crossterm::event::KeyEvent;

    #[test]
    fn q_escape_and_control_c_quit() {
        let key = |code, modifiers| parse_input(&event::Event::Key(KeyEvent::new(code, modifiers)));
        for (code, modifiers, expected) in [
            (KeyCode::Char('q'), KeyModifiers::NONE, Some(Input::Quit)),
            (KeyCode::Esc, KeyModifiers::NONE, Some(Input::Quit)),
            (KeyCode::Char('c'), KeyModifiers::CONTROL, Some(Input::Quit)),
            (KeyCode::Char('c'), KeyModifiers::NONE, None),
            (KeyCode::Down, KeyModifiers::NONE, Some(Input::Scroll(1))),
            (KeyCode::PageUp, KeyModifiers::NONE, Some(Input::Scroll(-20))),
        ] {
            assert_eq!(key(code, modifiers), expected, "{code:?}");
        }
        assert_eq!(parse_input(&event::Event::Resize(1, 1)), Some(Input::Redraw));
    }
}
