//! The loop: figures, keys, screen.

use crate::args::TopArgs;
use crate::keys::keys;
use crate::rows::Row;
use crate::screen::Screen;
use crate::sys;
use crate::view::View;
use neap_collect::{Background, Shared};
use neap_launch::error::{Error, system_message};
use neap_launch::signals;
use ratatui::Terminal;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Limit on the wait of a key or a change of the window.
const NAP: Duration = Duration::from_millis(100);
/// The screen is drawn again after this time, with new accounts.
const REDRAW: Duration = Duration::from_millis(500);
const CTRL_C: u8 = 3;
const CTRL_Z: u8 = 26;

/// Shows the screen until the user or a signal ends it.
pub fn run(args: &TopArgs, shared: &Shared) -> Result<u8, Error> {
    let failed = |error: io::Error| Error::failed(format!("cannot use the terminal: {}", system_message(&error)));
    let inherited = signals::block();
    let background = Background::start(shared).map_err(failed)?;
    let result = Screen::open().and_then(Terminal::new).and_then(|mut terminal| turn(args, shared, &mut terminal));
    drop(background);
    inherited.release();
    result.map(|()| 0).map_err(failed)
}

fn turn(args: &TopArgs, shared: &Shared, terminal: &mut Terminal<Screen>) -> io::Result<()> {
    let mut view = View::new(args.sort);
    let (mut looked, mut drawn) = (Instant::now(), None::<Instant>);
    loop {
        if looked.elapsed() >= args.interval {
            looked = Instant::now();
            shared.lock().look()?;
        }
        let mut changed = drawn.is_none_or(|at| at.elapsed() >= REDRAW);
        if sys::wait_for_input(NAP) {
            let mut bytes = [0; 64];
            let count = io::stdin().lock().read(&mut bytes)?;
            // The terminal is gone.
            if count == 0 || bytes[..count].contains(&CTRL_C) {
                return Ok(());
            }
            if bytes[..count].contains(&CTRL_Z) {
                terminal.backend_mut().pause(|| signals::suffer(libc::SIGTSTP))?;
                terminal.clear()?;
            }
            for key in keys(&bytes[..count]) {
                if !view.press(key) {
                    return Ok(());
                }
            }
            changed = true;
        }
        if signals::asked_to_end(Duration::ZERO) {
            return Ok(());
        }
        if changed {
            let mut collector = shared.lock();
            view.update(collector.processes().map(Row::of).collect());
            collector.focus(view.on_screen());
            drop(collector);
            terminal.draw(|frame| view.draw(frame))?;
            drawn = Some(Instant::now());
        }
    }
}
