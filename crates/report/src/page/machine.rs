//! The last sections: the machine, the noise, the allocators, the command.

use neap_results::judge::{number, quantity};
use neap_results::{Allocator, Noise, Repeat, Run};

use super::html::Page;
use crate::plot::escaped;

/// Writes them.
pub fn sections(page: &mut Page, run: &Run) {
    page.raw("<section id=\"machine\" aria-labelledby=\"machine-title\">\n");
    page.raw("<h2 id=\"machine-title\">Machine, allocators and noise</h2>\n");
    page.markdown(&run.notes);
    page.raw("<h3>Machine</h3>\n");
    machine(page, run);
    noise(page, &run.noise);
    page.raw("<h3 id=\"allocators\">Allocators</h3>\n<div class=\"scroll\" tabindex=\"0\">\n");
    page.raw("<table class=\"words\">\n<thead><tr><th scope=\"col\">name</th><th scope=\"col\">version</th>");
    page.raw("<th scope=\"col\">environment</th><th scope=\"col\">source</th></tr></thead>\n<tbody>\n");
    for one in &run.allocators {
        let env: Vec<String> = one.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        page.raw(&format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            escaped(&one.name),
            escaped(&one.version),
            escaped(&env.join(" ")),
            escaped(&one.source)
        ));
    }
    page.raw("</tbody>\n</table>\n</div>\n");
    built(page, &run.allocators);
    page.raw("<h3>To repeat all of it</h3>\n");
    page.raw(&format!("<pre><code>{}</code></pre>\n</section>\n", escaped(&run.command)));
}

fn machine(page: &mut Page, run: &Run) {
    let m = &run.machine;
    let size = |mib: u64| if mib == 0 { String::new() } else { format!("{mib} MiB") };
    let neap = match (run.neap.as_str(), &run.commit) {
        ("", None) => String::new(),
        ("", Some(commit)) => format!("commit {commit}"),
        (version, None) => version.to_owned(),
        (version, Some(commit)) => format!("{version}, commit {commit}"),
    };
    let ended = run.ended.clone().filter(|ended| *ended != run.started);
    page.terms(&[
        ("neap", neap),
        ("started", run.started.clone()),
        ("ended", ended.unwrap_or_default()),
        ("processor", m.cpu.clone()),
        ("processors used", m.cores.to_string()),
        ("memory", size(m.memory_mib)),
        ("swap", size(m.swap_mib)),
        ("virtual machine", m.virtualised.clone().unwrap_or_default()),
        ("kernel", m.kernel.clone()),
        ("C library", m.libc.clone()),
        ("transparent huge pages", m.transparent_hugepage.clone()),
        ("vm.overcommit_memory", m.overcommit_memory.clone()),
        ("frequency governor", m.governor.clone().unwrap_or_default()),
        ("load before", m.load_before.clone()),
        ("load after", m.load_after.clone()),
        ("compilers", m.compilers.join("; ")),
    ]);
}

fn noise(page: &mut Page, noise: &Noise) {
    page.raw("<h3 id=\"noise\">Noise</h3>\n");
    page.element(
        "p",
        match noise.quiet {
            None => "Noise was not measured; each figure has its spread beside it.",
            Some(true) => "The machine was quiet.",
            Some(false) => "The machine was not quiet: do not rely on absolute times, and read ratios with care.",
        },
    );
    if !noise.checks.is_empty() {
        page.raw("<ul class=\"plain verdicts\">\n");
        for check in &noise.checks {
            let (word, class) = if check.value <= check.limit { ("quiet", "yes") } else { ("noisy", "no") };
            page.raw(&format!(
                "<li><span class=\"tag {class}\">{word}</span><span>{}: {}, at most {}</span></li>\n",
                escaped(&check.name),
                escaped(&quantity(check.value, &check.unit)),
                escaped(&quantity(check.limit, &check.unit))
            ));
        }
        page.raw("</ul>\n");
    }
    rounds(page, "Rounds run again because the machine was busy", &noise.repeats);
    rounds(page, "Rounds that count although the machine was busy", &noise.doubtful);
}

/// Noisy rounds in a list under their number.
fn rounds(page: &mut Page, words: &str, rounds: &[Repeat]) {
    if rounds.is_empty() {
        return;
    }
    page.raw(&format!("<details>\n<summary>{words}: {}</summary>\n<ul>\n", number(rounds.len() as f64)));
    for round in rounds {
        page.element("li", &format!("{}, {}: {}", round.experiment, round.case, round.reason));
    }
    page.raw("</ul>\n</details>\n");
}

fn built(page: &mut Page, allocators: &[Allocator]) {
    if allocators.iter().all(|one| one.commands.is_empty()) {
        return;
    }
    page.raw("<details>\n<summary>How they were built</summary>\n");
    for one in allocators.iter().filter(|one| !one.commands.is_empty() && one.base.is_none()) {
        page.raw(&format!("<p>{} with {}:</p>\n", escaped(&one.name), escaped(&one.compiler)));
        page.raw(&format!("<pre><code>{}</code></pre>\n", escaped(&one.commands.join("\n"))));
    }
    page.raw("</details>\n");
}
