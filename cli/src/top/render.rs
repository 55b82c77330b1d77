//! The picture, on whatever it is drawn on.

use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::{Frame, Terminal};

use super::fleet_view::{Health, Model, NodeRow, ZoneRow};

/// How wide the picture is where there is no screen.
const WIDTH: u16 = 120;
/// A picture that is printed shows at most so many nodes; `muster get nodes` shows them all.
const PRINTED: usize = 500;
/// What the other columns of the zones take, with a space after each.
const BESIDE_THE_MAP: u16 = 20 + 18 + 8 + 6 + 6 + 9 + 9 + 8 + 8;
/// Lines of the headline, of headings and of what separates.
const FRAME: usize = 6;

pub(super) fn draw(model: &Model, scroll: usize, frame: &mut Frame<'_>) {
    let zones = u16::try_from(model.zones.len() + 1).unwrap_or(u16::MAX);
    // However many zones there are, some nodes are seen too.
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
    frame.render_widget(Paragraph::new(Line::styled(model.headline.clone(), bold)), head);
    let map = usize::from(above.width.saturating_sub(BESIDE_THE_MAP));
    frame.render_widget(zone_table(&model.zones, map), above);
    let shown = model.nodes.iter().skip(scroll).take(usize::from(below.height.saturating_sub(1)));
    frame.render_widget(node_table(shown), below);
    let keys = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(Line::styled("q quits, arrows and page keys scroll", keys)), foot);
}

fn zone_table(zones: &[ZoneRow], map: usize) -> Table<'static> {
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
            Line::from(marks(&zone.health, map)),
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

/// A mark for each node; those that do not fit are counted.
fn marks(health: &[Health], width: usize) -> Vec<Span<'static>> {
    let fit = if health.len() > width { width.saturating_sub(6) } else { health.len() };
    let mut marks: Vec<Span<'static>> = health[..fit]
        .chunk_by(|a, b| a == b)
        .map(|same| Span::styled(mark(same[0]).repeat(same.len()), style(same[0])))
        .collect();
    if fit < health.len() {
        marks.push(Span::raw(format!("+{}", health.len() - fit)));
    }
    marks
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

fn mark(health: Health) -> &'static str {
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

/// The picture as text, as tall as it has to be.
pub(super) fn text(model: &Model) -> String {
    let nodes = model.nodes.len().min(PRINTED);
    let height = model.zones.len().max(nodes) + nodes.min(model.zones.len()) + FRAME;
    // Half of the picture is the zones' at most.
    let height = height.max((model.zones.len() + 1) * 2);
    let height = u16::try_from(height).unwrap_or(u16::MAX);
    let mut terminal = Terminal::new(TestBackend::new(WIDTH, height)).expect("a picture in memory");
    terminal.draw(|frame| draw(model, 0, frame)).expect("a picture in memory");
    let mut lines = lines(terminal.backend().buffer());
    // Nobody presses keys here.
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
