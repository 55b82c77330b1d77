//! Draws the view on a terminal or into text. Pure.

use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::{Frame, Terminal};

use super::fleet_view::{FleetView, Health, NodeRow, ZoneRow};
use super::input::{Mode, Screen};
use crate::print::wrap::wrap;

/// The width of the printed view.
const WIDTH: u16 = 120;
/// The printed view shows at most this many nodes; `muster get nodes` shows all.
const MAX_PRINTED_NODES: usize = 500;
/// From this width on, the reason of a node's status has a column.
const WIDTH_WITH_REASONS: u16 = 100;
/// The widths of the zone columns left of the health bar.
const ZONE_COLUMNS: [u16; 6] = [18, 8, 9, 8, 5, 6];
/// The headline is long when the controller has a reason to give; more lines would hide the nodes.
const MAX_HEAD_LINES: usize = 3;
/// The lines of the table headers, the separators and the footer.
const FRAME_LINES: usize = 5;

pub(super) fn draw(view: &FleetView, screen: &Screen, frame: &mut Frame<'_>) {
    if let Mode::Page { lines, scroll } = &screen.mode {
        return draw_page(lines, *scroll, frame);
    }
    let area = frame.area();
    let mut headline = wrap(&view.headline, usize::from(area.width));
    headline.truncate(MAX_HEAD_LINES);
    let zones = u16::try_from(view.zones.len() + 1).unwrap_or(u16::MAX);
    // Zones take at most a third of a small screen, so that nodes are visible too.
    let zones = zones.min((area.height / 3).max(4));
    let [head, _, above, _, below, foot] = Layout::vertical([
        Constraint::Length(headline.len() as u16),
        Constraint::Length(1),
        Constraint::Length(zones),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let headline: Vec<Line<'_>> = headline.into_iter().map(|line| Line::styled(line, bold)).collect();
    frame.render_widget(Paragraph::new(headline), head);
    draw_zones(&view.zones, above, frame);
    draw_nodes(view, screen, below, frame);
    let keys = match (&screen.mode, screen.filter.as_str()) {
        (Mode::Filter, filter) => format!("/{filter}_   Enter applies, Esc removes the filter"),
        (_, "") => "q quits, arrows select, Enter explains, / filters".to_owned(),
        (_, filter) => {
            let (count, s) = (view.nodes.len(), if view.nodes.len() == 1 { "" } else { "s" });
            format!("{count} node{s} with `{filter}`; Esc shows all, Enter explains, q quits")
        }
    };
    let dim = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(Line::styled(keys, dim)), foot);
}

fn draw_page(lines: &[String], scroll: usize, frame: &mut Frame<'_>) {
    let [page, foot] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
    let shown: Vec<Line<'_>> = lines.iter().skip(scroll).map(|line| Line::from(line.as_str())).collect();
    frame.render_widget(Paragraph::new(shown), page);
    let dim = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(Line::styled("Esc goes back, arrow and page keys scroll", dim)), foot);
}

/// The zones that fit; the last line counts those that do not.
fn draw_zones(zones: &[ZoneRow], area: Rect, frame: &mut Frame<'_>) {
    let columns: u16 = ZONE_COLUMNS.iter().map(|width| width + 1).sum();
    let bar_width = usize::from(area.width.saturating_sub(columns));
    let lines = usize::from(area.height.saturating_sub(1));
    let shown = if zones.len() > lines { lines.saturating_sub(1) } else { zones.len() };
    let mut rows: Vec<Row<'_>> = zones.iter().take(shown).map(|zone| zone_row(zone, bar_width)).collect();
    if shown < zones.len() {
        rows.push(Row::new([Line::from(format!("... {} more", zones.len() - shown))]));
    }
    let widths = ZONE_COLUMNS.map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let headers = ["ZONE", "STATE", "READY", "RATE", "QUEUE", "ETA", "NODES"];
    frame.render_widget(Table::new(rows, widths).header(Row::new(headers)).column_spacing(1), area);
}

fn zone_row(zone: &ZoneRow, bar_width: usize) -> Row<'static> {
    Row::new([
        Line::from(zone.name.clone()),
        Line::from(zone.state.clone()),
        Line::from(format!("{}/{}", zone.ready(), zone.nodes())),
        Line::from(zone.rate.clone()),
        Line::from(zone.queue.clone()),
        Line::from(zone.eta.clone()),
        Line::from(health_bar(zone, bar_width)),
    ])
}

/// One symbol per node, or in proportion if there are more nodes than columns.
fn health_bar(zone: &ZoneRow, width: usize) -> Vec<Span<'static>> {
    let parts = Health::ALL.into_iter().zip(zone.bar(width));
    parts.map(|(health, count)| Span::styled(symbol(health).repeat(count), style(health))).collect()
}

fn draw_nodes(view: &FleetView, screen: &Screen, area: Rect, frame: &mut Frame<'_>) {
    let lines = usize::from(area.height.saturating_sub(1));
    // The list scrolls when the selection reaches its end.
    let first = screen.selected.saturating_sub(lines.saturating_sub(1));
    let with_reasons = area.width >= WIDTH_WITH_REASONS;
    let rows = view.nodes.iter().enumerate().skip(first).take(lines).map(|(i, node)| {
        let row = node_row(node, with_reasons);
        if i == screen.selected { row.style(Style::new().add_modifier(Modifier::REVERSED)) } else { row }
    });
    let reason = with_reasons.then_some(("REASON", Constraint::Fill(1)));
    let columns = [
        ("NODE", Constraint::Fill(1)),
        ("STATUS", Constraint::Length(24)),
        ("HEARD", Constraint::Length(9)),
        ("SINCE", Constraint::Length(7)),
        ("ZONE", Constraint::Length(18)),
    ];
    let (headers, widths): (Vec<&str>, Vec<Constraint>) = columns.into_iter().chain(reason).unzip();
    frame.render_widget(Table::new(rows, widths).header(Row::new(headers)).column_spacing(1), area);
}

fn node_row(node: &NodeRow, with_reasons: bool) -> Row<'static> {
    let mut cells = vec![
        Line::from(node.name.clone()),
        Line::styled(node.status.clone(), style(node.health)),
        Line::styled(
            node.heard.clone(),
            if node.health == Health::Late { style(Health::Late) } else { Style::new() },
        ),
        Line::from(node.since.clone()),
        Line::from(node.zone.clone()),
    ];
    if with_reasons {
        cells.push(Line::from(node.reason.clone()));
    }
    Row::new(cells)
}

fn symbol(health: Health) -> &'static str {
    match health {
        Health::Ready => "#",
        Health::Cordoned => "-",
        Health::Late => "~",
        Health::NotReady => "!",
        Health::Unknown => "?",
    }
}

fn style(health: Health) -> Style {
    Style::new().fg(match health {
        Health::Ready => Color::Green,
        Health::Cordoned | Health::Late => Color::Yellow,
        Health::NotReady | Health::Unknown => Color::Red,
    })
}

/// The view as text, with as many lines as it needs.
pub(super) fn text(view: &FleetView) -> String {
    let nodes = view.nodes.len().min(MAX_PRINTED_NODES);
    let height = nodes + MAX_HEAD_LINES + view.zones.len() + FRAME_LINES;
    // `draw` gives at most a third of the height to the zones.
    let height = height.max((view.zones.len() + 1) * 3);
    let height = u16::try_from(height).unwrap_or(u16::MAX);
    let mut terminal =
        Terminal::new(TestBackend::new(WIDTH, height)).expect("drawing in memory does not fail");
    let printed = FleetView { nodes: view.nodes[..nodes].to_vec(), ..view.clone() };
    // The selection is a style and does not show in text.
    let drawn = terminal.draw(|frame| draw(&printed, &Screen::default(), frame));
    drawn.expect("drawing in memory does not fail");
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
