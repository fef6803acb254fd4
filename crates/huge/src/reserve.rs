//! `neap huge reserve`: adds pages to a pool, runs a command, and takes them away again.

use neap_hugetlb::pool::Place;
use neap_hugetlb::reservation::{Request, Reservation};
use neap_hugetlb::{Refused, Root, size};
use neap_launch::child::{self, Attendant, Program};
use neap_launch::error::{Error, tell};
use neap_launch::target;
use neap_launch::units::counted;

use crate::args::ReserveArgs;
use crate::{held, sys};

/// How many files and segments are named that hold pages after the command.
const SHOWN: usize = 3;

/// The reservation, while the command runs.
struct Held(Reservation);

impl Attendant for Held {}

/// Runs the command; the result is its exit status.
pub fn run(args: &ReserveArgs) -> Result<u8, Error> {
    let Some(command) = args.command.first() else { return Err(Error::failed("no command is given")) };
    let path = target::resolve(command)?;
    let program = Program::new(&path, &args.command, std::env::vars_os().collect())?;
    let request = Request { bytes: args.size, node: args.node, pages: args.pages };
    // Inside: signals are blocked from before the change of the pool until after the change back. A journal beyond the
    // limit on file sizes is an error.
    let reserve = || Reservation::new(&Root::system(), request).map(Held).map_err(error);
    let root = Root::system();
    let surplus = || Place::machine(args.size).counts(&root).map_or(0, |counts| counts.surplus);
    let before = surplus();
    let (ended, held, _) = child::supervise_watched(&program, |_| neap_launch::sys::with_size_errors(reserve))?;
    match held.0.give_back() {
        Ok(0) => {}
        Ok(gone) => Error::failed(format!(
            "{} had been taken out of the pool while the command ran: none is left to give back",
            counted(gone, "page", "pages")
        ))
        .report(),
        Err(refused) => error(refused).report(),
    }
    let stay = surplus().saturating_sub(before);
    if stay > 0 {
        tell(format_args!("{}", staying(&root, args.size, stay)));
    }
    Ok(child::end_like(ended.status))
}

/// Says that pages are still in use, and by what, as far as that is known.
fn staying(root: &Root, bytes: u64, stay: u64) -> String {
    let mut text = format!(
        "neap: {} of {} are still in use after the command: the pool keeps them until they are freed",
        counted(stay, "page", "pages"),
        size::text(bytes)
    );
    let left = held::left(root, &held::mounts(root), sys::segment);
    for left in left.iter().filter(|left| left.page_bytes == bytes).take(SHOWN) {
        text.push_str(&format!("\n  {}", left.text()));
        if let Some(command) = &left.change {
            text.push_str(&format!("; if no program needs its contents: {command}"));
        }
    }
    text
}

fn error(refused: Refused) -> Error {
    Error::failed(refused.cause).remedy(refused.remedy)
}
