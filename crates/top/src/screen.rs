//! The terminal as a backend of ratatui, with the control sequences that all current terminals know (ECMA-48 and the
//! alternate screen of xterm). ratatui's own backends need the `std` of libc or rustix, see `docs/dependencies.md`.

use crate::sys::{self, Raw};
use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Error, ErrorKind, Write};

const USUAL: (u16, u16) = (80, 24);
/// Limit on the columns and lines that are drawn: a terminal may report 65535, and each cell takes memory.
const LARGEST: u16 = 1000;

/// The terminal of this process. Dropping this value restores it.
pub struct Screen {
    out: File,
    raw: Raw,
    text: String,
}

impl Screen {
    /// Takes the terminal.
    pub fn open() -> io::Result<Screen> {
        let mut screen = Screen { out: neap_launch::sys::standard_output()?, raw: Raw::enter()?, text: String::new() };
        screen.enter()?;
        Ok(screen)
    }

    /// Switches to the alternate screen, so that the old content returns afterwards.
    fn enter(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?1049h\x1b[?25l\x1b[2J")
    }

    fn leave(&mut self) {
        let _ = self.out.write_all(b"\x1b[0m\x1b[?25h\x1b[?1049l");
    }

    /// Restores the terminal while `stop` runs, and takes it again.
    pub fn pause(&mut self, stop: impl FnOnce()) -> io::Result<()> {
        self.leave();
        self.raw.leave();
        stop();
        self.raw.again()?;
        self.enter()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The sequence of a style.
fn style(text: &mut String, cell: &Cell) {
    text.push_str("\x1b[0");
    let colour = |base: u8, colour: Color| match colour {
        Color::Black => Some(base),
        Color::Red => Some(base + 1),
        Color::Green => Some(base + 2),
        Color::Yellow => Some(base + 3),
        Color::Blue => Some(base + 4),
        Color::Magenta => Some(base + 5),
        Color::Cyan => Some(base + 6),
        Color::Gray => Some(base + 7),
        _ => None,
    };
    for (modifier, code) in
        [(Modifier::BOLD, 1), (Modifier::DIM, 2), (Modifier::UNDERLINED, 4), (Modifier::REVERSED, 7)]
    {
        if cell.modifier.contains(modifier) {
            let _ = write!(text, ";{code}");
        }
    }
    for code in [colour(30, cell.fg), colour(40, cell.bg)].into_iter().flatten() {
        let _ = write!(text, ";{code}");
    }
    text.push('m');
}

impl Backend for Screen {
    type Error = Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut at = None;
        let mut last: Option<(Color, Color, Modifier)> = None;
        for (x, y, cell) in content {
            if at != Some((x, y)) {
                let _ = write!(self.text, "\x1b[{};{}H", y + 1, x + 1);
            }
            let looks = (cell.fg, cell.bg, cell.modifier);
            if last != Some(looks) {
                style(&mut self.text, cell);
                last = Some(looks);
            }
            self.text.push_str(cell.symbol());
            // Wide characters move the cursor by two, so the position is written again.
            at = cell.symbol().is_ascii().then_some((x + 1, y));
        }
        self.text.push_str("\x1b[0m");
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.text.push_str("\x1b[?25l");
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.text.push_str("\x1b[?25h");
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Err(Error::from(ErrorKind::Unsupported))
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        let _ = write!(self.text, "\x1b[{};{}H", y + 1, x + 1);
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.text.push_str("\x1b[2J");
        Ok(())
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.text.push_str(match region {
            ClearType::All => "\x1b[2J",
            ClearType::AfterCursor => "\x1b[J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[K",
        });
        Ok(())
    }

    fn size(&self) -> io::Result<Size> {
        let (width, height) = sys::size().unwrap_or(USUAL);
        Ok(Size { width: width.min(LARGEST), height: height.min(LARGEST) })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::default() })
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.out.write_all(self.text.as_bytes());
        self.text.clear();
        written
    }
}
