//! The command that `cargo xtask sim` builds and runs.

#[cfg(not(neap_sim))]
fn main() {
    eprintln!("neap-sim: built without the simulation; use `cargo xtask sim`");
    std::process::exit(2);
}

#[cfg(neap_sim)]
fn main() {
    std::process::exit(simulation::main());
}

#[cfg(neap_sim)]
mod simulation {
    use neap_sim::draw;
    use neap_sim::driver::{Budget, Found, Until, run_one, search};
    use neap_sim::report::TRACE;
    use neap_sim::scenario::Scenario;
    use neap_sim::shrink::shrink;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    const USAGE: &str = "neap-sim [--steps N] [--time SECONDS] [--processor SECONDS] [--seed S] [--jobs N] [--only] [--replay FILE]\n\
         \x20        [--schedule random|pct|exhaustive] [--all | --until TEXT] [--no-shrink] [--trace] [--print]\n\
        \x20        [--out FILE]";

    const FOREVER: Duration = Duration::from_secs(u64::MAX / 4);

    /// The command line.
    struct Options {
        budget: Budget,
        seed: u64,
        jobs: u64,
        /// Only the scenario of this seed.
        only: bool,
        replay: Option<String>,
        /// A scenario to run with one seed after another.
        around: Option<String>,
        schedule: Option<u64>,
        until: Until,
        shrink: bool,
        print: bool,
        out: String,
    }

    fn options() -> Result<Options, String> {
        let mut o = Options {
            budget: Budget { steps: u64::MAX, time: FOREVER, processor: FOREVER },
            seed: 1,
            jobs: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            only: false,
            replay: None,
            around: None,
            schedule: None,
            until: Until::Any,
            shrink: true,
            print: false,
            out: "target/sim/finding.txt".into(),
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            let number = |text: String| text.replace('_', "").parse::<u64>().map_err(|e| format!("{text}: {e}"));
            match arg.as_str() {
                "--steps" => o.budget.steps = number(value()?)?,
                "--time" => o.budget.time = Duration::from_secs(number(value()?)?),
                "--processor" => o.budget.processor = Duration::from_secs(number(value()?)?),
                "--seed" => o.seed = number(value()?)?,
                "--jobs" => o.jobs = number(value()?)?.max(1),
                "--only" => o.only = true,
                "--replay" => o.replay = Some(value()?),
                "--around" => o.around = Some(value()?),
                "--schedule" => {
                    o.schedule = Some(match value()?.as_str() {
                        "random" => 0,
                        "pct" => 1,
                        "exhaustive" => 2,
                        other => return Err(format!("no schedule is called {other}")),
                    });
                }
                // For `cargo xtask sim --mutants`, whose builds have faults.
                "--fault" => neap_core::points::set_fault(number(value()?)? as u32),
                "--all" => o.until = Until::Never,
                "--until" => o.until = Until::Says(value()?),
                "--no-shrink" => o.shrink = false,
                "--trace" => TRACE.store(true, Ordering::Relaxed),
                "--print" => o.print = true,
                "--out" => o.out = value()?,
                _ => return Err(format!("unknown option {arg}\n{USAGE}")),
            }
        }
        Ok(o)
    }

    /// Makes the kernel choose the same addresses in each run.
    fn fix_addresses() {
        use std::os::unix::process::CommandExt;
        // SAFETY: asks for the flags, and sets one.
        unsafe {
            let flags = libc::personality(0xFFFF_FFFF);
            if flags & libc::ADDR_NO_RANDOMIZE != 0
                || libc::personality((flags | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) < 0
            {
                return;
            }
        }
        let e = std::process::Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).exec();
        eprintln!("neap-sim: addresses stay random: {e}");
    }

    fn report(o: &Options, scenario: &Scenario, found: &Found) -> i32 {
        println!("FOUND: {}", found.what);
        if !o.shrink {
            println!("to replay it: cargo xtask sim --seed {} --only [--trace]", found.seed);
            return 1;
        }
        let (short, how) = shrink(scenario, found, Duration::from_secs(60));
        let text = format!("# {}\n{}", how.what, short.text());
        println!("the shortest scenario that was found to fail:\n{text}");
        println!("to replay it: cargo xtask sim --replay {} [--trace]", o.out);
        println!("to replay the whole: cargo xtask sim --seed {} --only [--trace]", found.seed);
        if let Err(e) = std::fs::write(&o.out, text) {
            println!("(it cannot be written there: {e})");
        }
        1
    }

    pub fn main() -> i32 {
        fix_addresses();
        neap_core::points::set_hook(neap_sim::sched::point);
        let o = match options() {
            Ok(o) => o,
            Err(e) => {
                eprintln!("neap-sim: {e}");
                return 2;
            }
        };
        let begin = Instant::now();
        let read = |file: &String| {
            let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"));
            text.and_then(|text| Scenario::parse(&text)).unwrap_or_else(|e| {
                eprintln!("neap-sim: {e}");
                std::process::exit(2);
            })
        };
        let around = o.around.as_ref().map(read);
        let adjust = |scenario: &mut Scenario| {
            if let Some(around) = &around {
                let seed = scenario.config.seed;
                *scenario = around.clone();
                scenario.config.seed = seed;
            }
            if let Some(schedule) = o.schedule {
                scenario.config.schedule = schedule;
                if schedule == 2 {
                    scenario.config.rate = 2;
                }
            }
        };
        if o.replay.is_some() || o.only {
            let mut scenario = match &o.replay {
                Some(file) => read(file),
                None => draw::scenario(o.seed),
            };
            adjust(&mut scenario);
            if o.print {
                print!("{}", scenario.text());
                return 0;
            }
            let (found, done) = run_one(&scenario, o.budget.steps);
            let Some(found) = found else {
                println!("passed: {} runs, {} steps in {:.2} s", done.runs, done.steps, begin.elapsed().as_secs_f64());
                return 0;
            };
            if o.shrink && o.only && !TRACE.load(Ordering::Relaxed) {
                return report(&o, &scenario, &found);
            }
            println!("FOUND: {}", found.what);
            return 1;
        }
        let (findings, done) = search(o.seed, o.jobs, o.budget, &o.until, adjust);
        let time = begin.elapsed().as_secs_f64();
        println!(
            "{} runs, {} steps in {time:.1} s ({:.2} million in a second of a processor), {} workers, seeds from {}",
            done.runs,
            done.steps,
            done.steps as f64 / done.processor.as_secs_f64() / 1e6,
            o.jobs,
            o.seed
        );
        for f in &findings {
            let (time, steps) = (f.after.0.as_secs_f64(), f.after.1.steps as f64 / 1e6);
            let processor = f.after.1.processor.as_secs_f64();
            println!(
                "{} times, first after {time:.1} s, {processor:.1} s of a processor, {steps:.1} million steps, seed {}:",
                f.count, f.first.seed
            );
            println!("    {}", f.first.what);
        }
        let wanted = findings.iter().map(|f| &f.first).find(|found| match &o.until {
            Until::Any => true,
            Until::Says(text) => found.what.contains(text),
            Until::Never => false,
        });
        match wanted {
            None => i32::from(!findings.is_empty()),
            Some(found) => {
                let mut scenario = draw::scenario(found.seed);
                adjust(&mut scenario);
                report(&o, &scenario, found)
            }
        }
    }
}
