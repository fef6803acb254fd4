//! `neap huge reserve`: adds pages to a pool, runs a command, and takes them away again.

use neap_hugetlb::reservation::{Request, Reservation};
use neap_hugetlb::{Refused, Root};
use neap_launch::child::{self, Attendant, Program};
use neap_launch::error::Error;
use neap_launch::sys;
use neap_launch::target;
use neap_launch::units::counted;

use crate::args::ReserveArgs;

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
    let (ended, held, _) = child::supervise_watched(&program, |_| sys::with_size_errors(reserve))?;
    match held.0.give_back() {
        Ok(0) => {}
        Ok(gone) => Error::failed(format!(
            "{} had been taken out of the pool while the command ran: none is left to give back",
            counted(gone, "page", "pages")
        ))
        .report(),
        Err(refused) => error(refused).report(),
    }
    Ok(child::end_like(ended.status))
}

fn error(refused: Refused) -> Error {
    Error::failed(refused.cause).remedy(refused.remedy)
}
