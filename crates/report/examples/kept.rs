//! Writes the page of a run that was kept before the schema: `kept DIR > page.html`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("name a folder: lab/results/NAME")?;
    let read = |name: &str| std::fs::read_to_string(Path::new(&dir).join(name));
    let (machine, notes) = (read("machine.json")?, read("notes.md").unwrap_or_default());
    let run = match read("metrics.csv") {
        Ok(metrics) => neap_results::kept::pages(&machine, &metrics, &notes)?,
        Err(_) => neap_results::kept::suite(&machine, &read("runs.csv")?, &notes)?,
    };
    print!("{}", neap_report::page::html(&run));
    Ok(())
}
