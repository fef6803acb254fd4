//! `survey DIRECTORY` or `survey PID SECONDS INTERVAL`: the call sites of live and of all blocks, as a listing.

use neap_profile::Profile;
use neap_survey::{Scope, collect, in_directory, profile};
use std::path::Path;
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [directory] => in_directory(Path::new(directory))
            .map(|all| all.iter().map(|one| profile(Some(one), None, &Scope::default())).collect::<Vec<_>>()),
        [pid, seconds, interval] => {
            let [pid, interval] = [pid, interval].map(|text| text.parse::<u64>().expect("a number"));
            let duration = Duration::from_secs_f64(seconds.parse().expect("a number"));
            collect(pid as u32, duration, interval).map(|one| vec![one])
        }
        _ => panic!("survey DIRECTORY | PID SECONDS INTERVAL"),
    };
    match result {
        Ok(all) => all.iter().for_each(show),
        Err(error) => {
            eprintln!("survey: {error}");
            std::process::exit(1);
        }
    }
}

fn show(profile: &Profile) {
    println!("process {}: {}", profile.pid, profile.command.join(" "));
    profile.notes.iter().for_each(|note| println!("  {note}"));
    for name in ["inuse_space", "inuse_objects", "alloc_space", "alloc_objects"] {
        let column = profile.column(name).expect("a heap profile");
        println!("{name} {}", profile.total(column));
        let mut samples: Vec<_> = profile.samples.iter().filter(|sample| sample.values[column] != 0).collect();
        samples.sort_by_key(|sample| std::cmp::Reverse(sample.values[column]));
        for sample in samples.iter().take(8) {
            let names: Vec<String> = profile
                .locations_of(sample.stack)
                .take(5)
                .map(|id| {
                    let location = &profile.locations[id];
                    let named = location.frames.first().map(|frame| profile.functions[frame.function].name.clone());
                    named.unwrap_or_else(|| format!("{:#x}", location.address))
                })
                .collect();
            let oldest = sample.label("oldest").map(|label| format!("{label:?}")).unwrap_or_default();
            println!("  {:>12}  {} {oldest}", sample.values[column], names.join(" < "));
        }
    }
}
