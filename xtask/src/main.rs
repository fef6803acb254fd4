//! Tasks that people and CI both run: `cargo xtask COMMAND`.
//!
//! One module per command; this file only dispatches.

mod attributes;
mod book;
mod ci;
mod crates;
mod documents;
mod experiments;
mod faults;
mod icount;
mod install;
mod layers;
#[cfg(test)]
mod links;
mod mutants;
mod mutation;
mod nightly;
mod object;
mod package;
mod peers;
mod place;
mod release;
mod remedies;
mod sim;
mod torture;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks of the neap workspace that people and CI both run.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the documents as a site in target/book/html, and check its links (needs mdBook)
    Book(book::Args),
    /// Every check that CI runs
    Ci(ci::Args),
    /// Install library, command, header, pkg-config file, manual pages and completions
    Install(install::Args),
    /// Make neap.o of a release build, for static programs with musl
    Object(object::Args),
    /// Build packages for Debian and Fedora, a wheel, and an archive, in target/package
    Package(package::Args),
    /// Make the packages for crates.io, in target/crates/packages
    Crates(crates::Args),
    /// Build the command with a layout by `neap order`: its start touches fewer pages
    Release(release::Args),
    /// Build the other allocators as preload libraries in lab/peers/build
    Peers(peers::Args),
    /// Try remedies of `neap why` on allocators as they are shipped, and write the tables of results
    Remedies(remedies::Args),
    /// Run the experiments, with the allocation workloads among them
    Experiments(experiments::Args),
    /// The allocation workloads alone: `experiments suite`
    Bench(experiments::Args),
    /// Write BENCHMARKS.md, EXPERIMENTS.md, the README's picture and table from a kept run
    Documents(documents::Args),
    /// Run the programs of earlier faults many times in a row
    Faults(faults::Args),
    /// Torture the library: random programs, options and late or failing system calls
    Torture(torture::Args),
    /// Run the core under Miri
    Miri(nightly::MiriArgs),
    /// Run the core's tests with AddressSanitizer
    Asan(nightly::SanitizerArgs),
    /// Run the core's tests of threads with ThreadSanitizer
    Tsan(nightly::SanitizerArgs),
    /// Count instructions per operation with callgrind
    Icount(icount::Args),
    /// Change the core in thousands of places, one at a time, and see whether a test fails
    Mutants(mutation::Args),
    /// Show which modules of a crate use which, and where in a circle
    Layers(layers::Args),
    /// Simulate the core: threads, handlers, forks and the system, under one schedule after another
    Sim(sim::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Book(args) => book::main(args),
        Command::Ci(args) => ci::main(args),
        Command::Install(args) => install::main(args),
        Command::Object(args) => object::main(&args),
        Command::Package(args) => package::main(args),
        Command::Crates(args) => crates::main(args),
        Command::Release(args) => release::main(args),
        Command::Peers(args) => peers::main(args),
        Command::Remedies(args) => remedies::main(&args),
        Command::Experiments(args) => experiments::main(args),
        Command::Bench(args) => experiments::suite(args),
        Command::Documents(args) => documents::main(args),
        Command::Faults(args) => faults::main(args),
        Command::Torture(args) => torture::main(args),
        Command::Miri(args) => nightly::miri(args),
        Command::Asan(args) => nightly::asan(args),
        Command::Tsan(args) => nightly::tsan(args),
        Command::Icount(args) => icount::main(args),
        Command::Mutants(args) => mutation::main(args),
        Command::Layers(args) => layers::main(&args),
        Command::Sim(args) if args.mutants => mutants::main(&args.options),
        Command::Sim(args) => sim::main(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The causes without this program's stack, which would hide them.
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
