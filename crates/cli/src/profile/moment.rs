//! Reads a program while it runs, and keeps the moment at which its live blocks pinned the most memory, because at its
//! end a program has often freed the blocks that pinned memory.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use neap_survey::{Asked, Error, Look};

/// Time before the first look, and the least between two.
const FIRST: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(50);
/// Looking takes at most one part in this many of the time.
const PART: u32 = 10;

/// What was seen.
#[derive(Default)]
pub struct Moment {
    /// The look at which most was pinned.
    pub look: Option<Look>,
    /// Number of looks.
    pub looks: u64,
    /// Why the last one failed.
    pub error: Option<Error>,
}

/// A thread that looks at a process.
pub struct Looking {
    stop: Sender<()>,
    thread: JoinHandle<Moment>,
}

impl Looking {
    /// Begins to look at process `pid`.
    pub fn start(pid: u32) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name("looking".to_owned()).spawn(move || {
            let (mut moment, mut pause) = (Moment::default(), FIRST);
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                moment.add(Asked::join(pid).and_then(|asked| asked.map(|asked| asked.look()).transpose()));
                pause = PAUSE.max(began.elapsed() * PART);
            }
            moment
        })?;
        Ok(Looking { stop, thread })
    }

    /// Ends that.
    pub fn end(self) -> Moment {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_default()
    }
}

impl Moment {
    fn add(&mut self, look: Result<Option<Look>, Error>) {
        match look {
            Ok(None) => {}
            Ok(Some(look)) => {
                self.looks += 1;
                if self.look.as_ref().is_none_or(|best| look.tally.pinned() >= best.tally.pinned()) {
                    self.look = Some(look);
                }
            }
            Err(error) => self.error = Some(error),
        }
    }
}
