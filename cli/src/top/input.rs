//! What keys do: the selection, the filter and the page of an explanation. Pure.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// What the user looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Screen {
    /// The selected node, as an index into the nodes that are shown.
    pub(super) selected: usize,
    /// Only nodes with this text are shown.
    pub(super) filter: String,
    pub(super) mode: Mode,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    List,
    /// The user types the filter.
    Filter,
    /// An explanation over the whole screen.
    Page { lines: Vec<String>, scroll: usize },
}

/// What the command has to do after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Redraw,
    Quit,
    /// Explain the selected node.
    Explain,
}

/// The lines that page keys move by.
const PAGE: i32 = 20;

impl Screen {
    /// Handles an event of the terminal; `None` if it changes nothing.
    pub(super) fn handle(&mut self, event: &Event) -> Option<Action> {
        let key = match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => key,
            Event::Resize(..) => return Some(Action::Redraw),
            _ => return None,
        };
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Some(Action::Quit);
        }
        match self.mode {
            Mode::List => self.in_list(*key),
            Mode::Filter => self.in_filter(*key),
            Mode::Page { .. } => self.in_page(*key),
        }
    }

    fn in_list(&mut self, key: KeyEvent) -> Option<Action> {
        match key.code {
            KeyCode::Char('q') => return Some(Action::Quit),
            // The first escape takes the filter away, the next one quits.
            KeyCode::Esc if self.filter.is_empty() => return Some(Action::Quit),
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Enter => return Some(Action::Explain),
            code => self.selected = self.selected.saturating_add_signed(lines(code)? as isize),
        }
        Some(Action::Redraw)
    }

    fn in_filter(&mut self, key: KeyEvent) -> Option<Action> {
        match key.code {
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::List;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) => self.filter.push(c),
            _ => return None,
        }
        self.selected = 0;
        Some(Action::Redraw)
    }

    fn in_page(&mut self, key: KeyEvent) -> Option<Action> {
        let Mode::Page { lines: page, scroll } = &mut self.mode else { return None };
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::Enter => self.mode = Mode::List,
            code => {
                let moved = scroll.saturating_add_signed(lines(code)? as isize);
                *scroll = moved.min(page.len().saturating_sub(1));
            }
        }
        Some(Action::Redraw)
    }

    /// Keeps the selection within the nodes that are shown.
    pub(super) fn clamp(&mut self, nodes: usize) {
        self.selected = self.selected.min(nodes.saturating_sub(1));
    }
}

/// How many lines a key moves by.
fn lines(code: KeyCode) -> Option<i32> {
    Some(match code {
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::PageDown | KeyCode::Char(' ') => PAGE,
        KeyCode::PageUp => -PAGE,
        KeyCode::Home => i32::MIN,
        KeyCode::End => i32::MAX,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(screen: &mut Screen, code: KeyCode) -> Option<Action> {
        screen.handle(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    #[test]
    fn q_escape_and_control_c_quit() {
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for mode in [Mode::List, Mode::Filter, Mode::Page { lines: Vec::new(), scroll: 0 }] {
            let mut screen = Screen { mode, ..Screen::default() };
            assert_eq!(screen.handle(&Event::Key(control_c)), Some(Action::Quit));
        }
        assert_eq!(press(&mut Screen::default(), KeyCode::Char('q')), Some(Action::Quit));
        assert_eq!(press(&mut Screen::default(), KeyCode::Esc), Some(Action::Quit));
        assert_eq!(press(&mut Screen::default(), KeyCode::Char('c')), None);
        assert_eq!(Screen::default().handle(&Event::Resize(1, 1)), Some(Action::Redraw));
    }

    #[test]
    fn the_filter_is_typed_after_a_slash_and_removed_by_escape() {
        let mut screen = Screen { selected: 7, ..Screen::default() };
        for code in
            [KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Char('x'), KeyCode::Backspace, KeyCode::Enter]
        {
            assert_eq!(press(&mut screen, code), Some(Action::Redraw), "{code:?}");
        }
        assert_eq!(screen, Screen { selected: 0, filter: "q".to_owned(), mode: Mode::List });
        assert_eq!(press(&mut screen, KeyCode::Esc), Some(Action::Redraw));
        assert_eq!(screen.filter, "");
    }

    #[test]
    fn keys_move_the_selection_within_the_list() {
        let mut screen = Screen::default();
        for (code, expected) in [
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 21),
            (KeyCode::Up, 20),
            (KeyCode::Home, 0),
            (KeyCode::Up, 0),
            (KeyCode::End, 29),
        ] {
            press(&mut screen, code);
            screen.clamp(30);
            assert_eq!(screen.selected, expected, "{code:?}");
        }
        screen.clamp(0);
        assert_eq!(screen.selected, 0);
    }

    #[test]
    fn enter_explains_and_leaves_the_page() {
        let mut screen = Screen::default();
        assert_eq!(press(&mut screen, KeyCode::Enter), Some(Action::Explain));
        screen.mode = Mode::Page { lines: vec![String::new(); 3], scroll: 0 };
        press(&mut screen, KeyCode::PageDown);
        assert!(matches!(screen.mode, Mode::Page { scroll: 2, .. }), "{screen:?}");
        press(&mut screen, KeyCode::Enter);
        assert_eq!(screen.mode, Mode::List);
    }
}
