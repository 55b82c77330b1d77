//! `muster top`: the fleet, live.

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

use self::fleet_view::{Controller, Model, Store as StoreSeen};
use crate::connection::{At, ConnectionFlags, Controller as ControllerClient, Store};
use crate::failure::{Exit, Failure};
use crate::terminal::Terminal;

/// How often the picture is drawn again though nothing was heard: ages pass.
const TICK: Duration = Duration::from_secs(1);
/// Changes that come faster than this are drawn together.
const SHORTEST: Duration = Duration::from_millis(100);

/// Shows nodes by zone, live; q quits
///
/// Where the output is no terminal, the picture is printed once. The controller is asked for the states of
/// zones; without it, only what the store knows is shown.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Only nodes with these labels, such as `zone=a`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.settle()?;
    let (store, controller) = (connection.store()?, connection.controller()?);
    let selector = flags.selector.unwrap_or_default();
    let terminal = Terminal::stdout();
    if terminal.live {
        live(&store, controller, selector).await
    } else {
        once(&store, &controller, selector, terminal).await
    }
}

async fn once(
    store: &Store,
    controller: &ControllerClient,
    selector: String,
    terminal: Terminal,
) -> Result<(), Failure> {
    let options = ListOptions { label_selector: selector, ..ListOptions::default() };
    let (nodes, fleet) = tokio::join!(store.client.list::<Node>(options), ask(controller));
    let nodes = nodes.at(&store.peer)?.records;
    let model = Model::of(nodes.iter(), StoreSeen::Heard, &fleet, SystemClock::new().wall());
    terminal.say(&render::text(&model))
}

/// What the controller says of the fleet. Top shows the nodes with it or without.
async fn ask(controller: &ControllerClient) -> Controller {
    let answer = controller.client.clone().get_fleet(controller.timed(pb::GetFleetRequest {})).await;
    match answer {
        Ok(answer) => Controller::Heard(Box::new(answer.into_inner().fleet.unwrap_or_default())),
        Err(_) => Controller::Silent,
    }
}

/// What can be pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Quit,
    Scroll(i32),
    Redraw,
}

async fn live(store: &Store, controller: ControllerClient, selector: String) -> Result<(), Failure> {
    let options = WatchOptions { label_selector: selector, ..WatchOptions::default() };
    let mut changes = store.client.watch::<Node>(options);
    let mut nodes = Cache::new();
    // Before the screen is taken over: a store that cannot be reached is told like by any other command.
    while !nodes.is_synced() {
        match changes.next().await {
            Some(WatchEvent::Lost(failure)) => {
                let refused = failure.kind == WatchFailureKind::Refused;
                let exit = if refused { Exit::Refused } else { Exit::Unreachable };
                return Err(store.peer.lost(exit, &failure.message));
            }
            Some(event) => nodes.observe(event),
            None => return Ok(()),
        }
    }
    let (told, mut fleet) = watch::channel(Controller::Silent);
    tokio::spawn(async move {
        while told.send(ask(&controller).await).is_ok() {
            tokio::time::sleep(TICK).await;
        }
    });
    let mut keys = keys();
    let clock = SystemClock::new();
    let mut screen = ratatui::init();
    let mut scroll = 0;
    let outcome = loop {
        let seen = if nodes.is_synced() { StoreSeen::Heard } else { StoreSeen::Silent };
        let model = Model::of(nodes.iter(), seen, &fleet.borrow_and_update(), clock.wall());
        scroll = model.scrolled(scroll);
        if let Err(error) = screen.draw(|frame| render::draw(&model, scroll, frame)) {
            break Err(Failure::new(Exit::Failed, format!("the screen cannot be drawn on: {error}"))
                .hint("`muster fleet -w` needs less of a terminal"));
        }
        tokio::select! {
            key = keys.recv() => match key {
                Some(Key::Quit) | None => break Ok(()),
                Some(Key::Scroll(lines)) => scroll = scroll.saturating_add_signed(lines as isize),
                Some(Key::Redraw) => {}
            },
            Some(event) = changes.next() => {
                nodes.observe(event);
                tokio::time::sleep(SHORTEST).await;
                while let Some(Some(event)) = changes.next().now_or_never() {
                    nodes.observe(event);
                }
            }
            changed = fleet.changed() => drop(changed),
            () = tokio::time::sleep(TICK) => {}
        }
    };
    ratatui::restore();
    outcome
}

/// Keys as they are pressed. A thread of its own waits for them: a terminal knows no other way.
fn keys() -> mpsc::Receiver<Key> {
    let (pressed, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let Some(key) = meaning(&event) else { continue };
            if pressed.blocking_send(key).is_err() {
                break;
            }
        }
    });
    keys
}

fn meaning(event: &event::Event) -> Option<Key> {
    const PAGE: i32 = 20;
    let key = match event {
        event::Event::Key(key) if key.kind != KeyEventKind::Release => key,
        event::Event::Resize(..) => return Some(Key::Redraw),
        _ => return None,
    };
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Scroll(1)),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Scroll(-1)),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(Key::Scroll(PAGE)),
        KeyCode::PageUp => Some(Key::Scroll(-PAGE)),
        KeyCode::Home => Some(Key::Scroll(i32::MIN)),
        KeyCode::End => Some(Key::Scroll(i32::MAX)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::crossterm::event::KeyEvent;

    #[test]
    fn q_quits_and_so_does_control_c() {
        let key = |code, modifiers| meaning(&event::Event::Key(KeyEvent::new(code, modifiers)));
        for (code, modifiers, expected) in [
            (KeyCode::Char('q'), KeyModifiers::NONE, Some(Key::Quit)),
            (KeyCode::Esc, KeyModifiers::NONE, Some(Key::Quit)),
            (KeyCode::Char('c'), KeyModifiers::CONTROL, Some(Key::Quit)),
            (KeyCode::Char('c'), KeyModifiers::NONE, None),
            (KeyCode::Down, KeyModifiers::NONE, Some(Key::Scroll(1))),
            (KeyCode::PageUp, KeyModifiers::NONE, Some(Key::Scroll(-20))),
        ] {
            assert_eq!(key(code, modifiers), expected, "{code:?}");
        }
        assert_eq!(meaning(&event::Event::Resize(1, 1)), Some(Key::Redraw));
    }
}
