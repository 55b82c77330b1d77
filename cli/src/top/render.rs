//! Draws the view on a terminal or into text. Pure.

use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::{Frame, Terminal};

use super::fleet_view::{FleetView, Health, NodeRow, ZoneRow};

/// The width of the printed view.
const WIDTH: u16 = 120;
/// The printed view shows at most this many nodes; `muster get nodes` shows all.
const MAX_PRINTED_NODES: usize = 500;
/// The width of the zone columns left of the health bar, with a space after each.
const COLUMNS_WIDTH: u16 = 20 + 18 + 8 + 6 + 6 + 9 + 9 + 8 + 8;
/// The lines of the headline, the table headers, the separators and the footer.
const FRAME_LINES: usize = 6;

pub(super) fn draw(view: &FleetView, scroll: usize, frame: &mut Frame<'_>) {
    let zones = u16::try_from(view.zones.len() + 1).unwrap_or(u16::MAX);
    // Zones take at most half of the screen, so that nodes are visible too.
    let zones = zones.min(frame.area().height / 2);
    let [head, _, above, _, below, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(zones),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Paragraph::new(Line::styled(view.headline.clone(), bold)), head);
    let bar_width = usize::from(above.width.saturating_sub(COLUMNS_WIDTH));
    frame.render_widget(zone_table(&view.zones, bar_width), above);
    let shown = view.nodes.iter().skip(scroll).take(usize::from(below.height.saturating_sub(1)));
    frame.render_widget(node_table(shown), below);
    let keys = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(Line::styled("q quits, arrow and page keys scroll", keys)), foot);
}

fn zone_table(zones: &[ZoneRow], bar_width: usize) -> Table<'static> {
    let rows = zones.iter().map(|zone| {
        let count = |health| zone.count(health).to_string();
        Row::new([
            Line::from(zone.name.clone()),
            Line::from(zone.state.clone()),
            Line::from(zone.rate.clone()),
            Line::from(zone.queue.clone()),
            Line::from(count(Health::Ready)),
            Line::from(count(Health::Cordoned)),
            Line::from(count(Health::NotReady)),
            Line::from(count(Health::Unknown)),
            Line::from(health_bar(&zone.health, bar_width)),
        ])
    });
    let widths = [
        Constraint::Length(20),
        Constraint::Length(18),
        Constraint::Length(8),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Fill(1),
    ];
    let headers = ["ZONE", "STATE", "RATE", "QUEUE", "READY", "CORDONED", "NOTREADY", "UNKNOWN", "NODES"];
    Table::new(rows, widths).header(Row::new(headers)).column_spacing(1)
}

/// One symbol per node; the number of nodes that do not fit is at the end.
fn health_bar(health: &[Health], width: usize) -> Vec<Span<'static>> {
    let fit = if health.len() > width { width.saturating_sub(6) } else { health.len() };
    let mut symbols: Vec<Span<'static>> = health[..fit]
        .chunk_by(|a, b| a == b)
        .map(|same| Span::styled(symbol(same[0]).repeat(same.len()), style(same[0])))
        .collect();
    if fit < health.len() {
        symbols.push(Span::raw(format!("+{}", health.len() - fit)));
    }
    symbols
}

fn node_table<'a>(nodes: impl Iterator<Item = &'a NodeRow>) -> Table<'static> {
    let rows = nodes.map(|node| {
        Row::new([
            Line::from(node.zone.clone()),
            Line::from(node.name.clone()),
            Line::styled(node.status.clone(), style(node.health)),
            Line::from(node.since.clone()),
            Line::from(node.reason.clone()),
        ])
    });
    let widths = [
        Constraint::Length(20),
        Constraint::Fill(2),
        Constraint::Length(32),
        Constraint::Length(8),
        Constraint::Fill(1),
    ];
    let headers = ["ZONE", "NODE", "STATUS", "SINCE", "REASON"];
    Table::new(rows, widths).header(Row::new(headers)).column_spacing(1)
}

fn symbol(health: Health) -> &'static str {
    match health {
        Health::Ready => "#",
        Health::Cordoned => "-",
        Health::NotReady => "!",
        Health::Unknown => "?",
    }
}

fn style(health: Health) -> Style {
    Style::new().fg(match health {
        Health::Ready => Color::Green,
        Health::Cordoned => Color::Yellow,
        Health::NotReady | Health::Unknown => Color::Red,
    })
}

/// The view as text, with as many lines as it needs.
pub(super) fn text(view: &FleetView) -> String {
    let nodes = view.nodes.len().min(MAX_PRINTED_NODES);
    let height = view.zones.len().max(nodes) + nodes.min(view.zones.len()) + FRAME_LINES;
    // `draw` gives at most half of the height to the zones.
    let height = height.max((view.zones.len() + 1) * 2);
    let height = u16::try_from(height).unwrap_or(u16::MAX);
    let mut terminal =
        Terminal::new(TestBackend::new(WIDTH, height)).expect("drawing in memory does not fail");
    terminal.draw(|frame| draw(view, 0, frame)).expect("drawing in memory does not fail");
    let mut lines = lines(terminal.backend().buffer());
    // Remove the footer with the keys.
    lines.pop();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width);
    let rows = buffer.content.chunks(width);
    rows.map(|row| row.iter().map(Cell::symbol).collect::<String>().trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests;
