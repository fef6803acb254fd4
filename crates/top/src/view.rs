//! The screen: its layout, and the effect of keys.

use crate::keys::Key;
use crate::rows::{self, Column, Row, short};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

const HELP: &str = "\
q, Ctrl-C quit
arrows    move (also j, k, PgUp, PgDn, Home, End)
< >       the column to sort by (also left, right)
r         reverse the order
P M B     sort by PID, RSS, what could go back
/         filter by program, container, allocator
Enter     the verdict on a process: why it is so large
h         this list

BACK  what could be given back: kept memory, zeros in huge pages
KEPT  free blocks that the allocator keeps
FRAG  free bytes on OS pages that live blocks keep
-     not known: not read yet, denied, or an allocator that
      cannot be split from outside";

/// What is shown over the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Nothing,
    Help,
    Verdict,
}

/// The screen's state.
#[derive(Debug)]
pub struct View {
    rows: Vec<Row>,
    sort: Column,
    turned: bool,
    filter: String,
    /// Whether the filter is being typed.
    typing: bool,
    over: Over,
    /// The process of the row with the cursor, so that the cursor stays on it when the order changes.
    chosen: Option<u32>,
    /// The first row that is shown, and the number of rows that fit.
    first: usize,
    room: usize,
}

impl View {
    /// An empty screen.
    pub fn new(sort: Column) -> View {
        let (rows, filter) = (Vec::new(), String::new());
        View { rows, sort, turned: false, filter, typing: false, over: Over::Nothing, chosen: None, first: 0, room: 1 }
    }

    /// Takes new figures.
    pub fn update(&mut self, rows: Vec<Row>) {
        self.rows = rows;
        rows::sort(&mut self.rows, self.sort, self.turned);
    }

    /// The rows that pass the filter.
    fn matching(&self) -> Vec<&Row> {
        self.rows.iter().filter(|row| rows::has(row, &self.filter)).collect()
    }

    /// The processes on the screen.
    pub fn on_screen(&self) -> Vec<u32> {
        self.matching().iter().skip(self.first).take(self.room).map(|row| row.pid).collect()
    }

    /// Handles a key; false to end.
    pub fn press(&mut self, key: Key) -> bool {
        if self.typing {
            match key {
                Key::Enter => self.typing = false,
                Key::Escape => {
                    self.typing = false;
                    self.filter.clear();
                }
                Key::Backspace => {
                    self.filter.pop();
                }
                Key::Char(c) => self.filter.push(c),
                _ => {}
            }
            return true;
        }
        if self.over != Over::Nothing {
            self.over = Over::Nothing;
            return true;
        }
        match key {
            Key::Char('q') => return false,
            Key::Char('h' | '?') => self.over = Over::Help,
            Key::Char('/') => self.typing = true,
            Key::Escape => self.filter.clear(),
            Key::Enter => self.over = Over::Verdict,
            Key::Char('r') => self.order(self.sort, !self.turned),
            Key::Char('<') | Key::Left => self.order(self.sort.beside(-1), self.turned),
            Key::Char('>') | Key::Right => self.order(self.sort.beside(1), self.turned),
            Key::Char('P') => self.order(Column::Pid, false),
            Key::Char('M') => self.order(Column::Rss, false),
            Key::Char('B') => self.order(Column::Back, false),
            Key::Up | Key::Char('k') => self.go(-1),
            Key::Down | Key::Char('j') => self.go(1),
            Key::PageUp => self.go(-(self.room as isize)),
            Key::PageDown => self.go(self.room as isize),
            Key::Home => self.go(isize::MIN / 2),
            Key::End => self.go(isize::MAX / 2),
            _ => {}
        }
        true
    }

    fn order(&mut self, sort: Column, turned: bool) {
        (self.sort, self.turned) = (sort, turned);
        rows::sort(&mut self.rows, sort, turned);
    }

    /// The row of the cursor.
    fn place(&self, matching: &[&Row]) -> usize {
        let found = self.chosen.and_then(|pid| matching.iter().position(|row| row.pid == pid));
        found.unwrap_or(self.first).min(matching.len().saturating_sub(1))
    }

    fn go(&mut self, step: isize) {
        let matching = self.matching();
        let last = matching.len().saturating_sub(1);
        let place = (self.place(&matching) as isize).saturating_add(step).clamp(0, last as isize) as usize;
        self.chosen = matching.get(place).map(|row| row.pid);
        self.first = self.first.min(place).max((place + 1).saturating_sub(self.room));
    }

    /// Draws the screen.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let [summary, head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
                .areas(frame.area());
        let width = usize::from(frame.area().width);
        self.room = usize::from(body.height).max(1);
        let matching: Vec<Row> = self.matching().into_iter().cloned().collect();
        let place = self.place(&matching.iter().collect::<Vec<_>>());
        self.first = self.first.min(place).max((place + 1).saturating_sub(self.room));
        frame.render_widget(Line::raw(self.summary(&matching)), summary);
        let mark = |column: Column| match column.head().0 {
            name if column == self.sort => format!("{name}{}", if self.turned { '^' } else { '*' }),
            name => name.to_owned(),
        };
        let bar = Style::new().add_modifier(Modifier::REVERSED);
        frame.render_widget(Line::styled(format!("{:<width$}", rows::line(mark, width)), bar), head);
        let lines = matching.iter().enumerate().skip(self.first).take(self.room).map(|(at, row)| {
            let text = format!("{:<width$}", rows::line(|column| row.text(column), width));
            let style = if at == place {
                Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
            } else {
                Style::new()
            };
            Line::styled(text, style)
        });
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), body);
        let typed = match self.typing {
            true => format!("filter: {}_  Enter keeps it, Esc drops it", self.filter),
            false if self.filter.is_empty() => "q quit  / filter  < > sort  r reverse  Enter why  h help".to_owned(),
            false => format!("filter: {}  / changes it, Esc drops it", self.filter),
        };
        frame.render_widget(Line::raw(typed), foot);
        self.draw_over(frame, matching.get(place));
    }

    fn draw_over(&self, frame: &mut Frame<'_>, row: Option<&Row>) {
        let (title, text) = match (self.over, row) {
            (Over::Nothing, _) | (Over::Verdict, None) => return,
            (Over::Help, _) => (" neap top ".to_owned(), HELP.to_owned()),
            (Over::Verdict, Some(row)) => {
                let unknown = match row.denied {
                    true => "Its files may not be read: run neap as its user, or as root.",
                    false => "Not read yet.",
                };
                let verdict = row.verdict.clone().unwrap_or_else(|| unknown.to_owned()).replace(char::is_control, "?");
                let text = format!("{verdict}\n\nneap why {} shows more.", row.pid);
                (format!(" {} {} ", row.text(Column::Pid), row.text(Column::Command)), text)
            }
        };
        let area = frame.area();
        let width = area.width.min(72);
        let inner = usize::from(width.saturating_sub(2)).max(1);
        // Wrapped words do not fill the lines: a third more lines.
        let lines: usize = text.lines().map(|line| (line.chars().count() * 4 / 3).div_ceil(inner).max(1)).sum();
        let height = u16::try_from(lines + 2).unwrap_or(u16::MAX).min(area.height);
        let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
        frame.render_widget(Clear, place);
        frame.render_widget(
            Paragraph::new(text).wrap(Wrap { trim: false }).block(Block::bordered().title(title)),
            place,
        );
    }

    fn summary(&self, matching: &[Row]) -> String {
        let sum = |value: fn(&Row) -> u64| short(matching.iter().map(value).sum());
        let read = matching.iter().filter(|row| row.verdict.is_some()).count();
        format!(
            "neap top: {} processes, {} accounted for; PSS {}, live {}, could go back {}",
            matching.len(),
            read,
            sum(|row| row.pss_bytes.unwrap_or(0)),
            sum(|row| row.live_bytes.unwrap_or(0)),
            sum(|row| row.reclaimable_bytes.unwrap_or(0))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn view() -> View {
        let row = |pid: u32| Row {
            pid,
            command: format!("program-{pid}"),
            allocator: "glibc".into(),
            rss_bytes: u64::from(pid) << 20,
            reclaimable_bytes: Some(u64::from(pid) << 19),
            verdict: Some("Most of it is live.".into()),
            ..Row::default()
        };
        let mut view = View::new(Column::Back);
        view.update((1..=100).map(row).collect());
        view
    }

    fn shown(view: &mut View, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 24)).expect("a terminal");
        terminal.draw(|frame| view.draw(frame)).expect("it draws");
        let buffer = terminal.backend().buffer();
        (0..24).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned()).collect()
    }

    /// Catches lines that are cut at 80 columns, and rows in the wrong order.
    #[test]
    fn the_screen_at_80_columns() {
        let mut view = view();
        let lines = shown(&mut view, 80);
        assert!(lines[0].starts_with("neap top: 100 processes, 100 accounted for"), "{lines:#?}");
        assert!(lines[1].contains("BACK*") && lines[1].contains("COMMAND"), "{lines:#?}");
        assert!(lines[2].contains(" 100M ") && lines[2].ends_with("program-100"), "{lines:#?}");
        assert_eq!(view.on_screen().len(), 21);
        assert!(shown(&mut view, 20).iter().all(|line| line.chars().count() <= 20));
    }

    /// Catches keys that do nothing, a cursor that leaves the screen, and letters of a filter that are taken for keys.
    #[test]
    fn keys_work() {
        let mut view = view();
        shown(&mut view, 80);
        assert!(view.press(Key::End));
        let lines = shown(&mut view, 80);
        assert!(lines[22].ends_with("program-1"), "{lines:#?}");
        view.press(Key::Home);
        view.press(Key::Down);
        view.press(Key::Enter);
        assert!(shown(&mut view, 80).iter().any(|line| line.contains("neap why 99 shows more.")));
        view.press(Key::Char('q'));
        for c in "/QGRAM-42".chars() {
            assert!(view.press(Key::Char(if c == 'Q' { 'o' } else { c })));
        }
        view.press(Key::Enter);
        assert_eq!(view.on_screen(), [42]);
        view.press(Key::Escape);
        view.press(Key::Char('P'));
        assert_eq!(view.on_screen()[0], 1);
        view.press(Key::Char('r'));
        assert_eq!(view.on_screen()[0], 100);
        assert!(!view.press(Key::Char('q')));
    }
}
