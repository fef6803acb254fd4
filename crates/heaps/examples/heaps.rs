//! Prints the heaps of a process: `cargo run -p neap-heaps --example heaps -- PID`.

#[path = "../tests/support/mod.rs"]
mod support;

fn main() {
    let pid = std::env::args().nth(1).and_then(|pid| pid.parse().ok()).expect("usage: heaps PID");
    let start = std::time::Instant::now();
    let process = support::Process::open(pid).expect("no such process, or no permission");
    for heap in neap_heaps::find(&process, &process.mappings, &process) {
        println!("{} in {:?} {:?}", heap.allocator, heap.library, heap.doubts);
        for part in &heap.parts {
            let (bytes, resident) = (part.bytes, part.resident_bytes);
            println!("  {}: {bytes} bytes, {resident} resident, {} reserved", part.name, part.reserved_bytes);
            if let Some(split) = &part.split {
                let all = [&split.live, &split.cached, &split.free, &split.top, &split.metadata, &split.unsure];
                for (name, amount) in ["live", "cached", "free", "top", "metadata", "unsure"].iter().zip(all) {
                    println!(
                        "    {name:9} {:12} bytes {:12} resident {:10} blocks",
                        amount.bytes, amount.resident, amount.blocks
                    );
                }
                println!(
                    "    kept {} trimmable {} largest {} pin {:x?}",
                    split.kept_bytes, split.trimmable_bytes, split.largest_free_bytes, split.pin
                );
            }
        }
    }
    eprintln!("{} ms", start.elapsed().as_millis());
}
