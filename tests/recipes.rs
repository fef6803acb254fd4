//! Runs `docs/recipes.md` as it stands: each recipe on a machine of its own, which is Debian 12 with systemd in
//! namespaces (`tests/recipes/machine.sh`), with neap from its packages. The service runs on neap, works, and ends when
//! asked to.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use neap_tests::{
    Case, Daemon, Finished, Outcome, Run, SKIP_STATUS, Stop, expect, is_root, library, package_dir, program, suite,
    system,
};
use serde_json::Value;

/// Time limit for a service to start, to work or to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// A release of Debian with what the recipes' services need.
const SYSTEM: [&str; 2] = [
    "--include=curl,dbus,nodejs,openjdk-17-jdk-headless,postgresql,procps,python3,redis-server,ruby,supervisor,systemd,\
     systemd-sysv",
    "bookworm",
];
/// The page's section that installs neap, and shows which process runs on it.
const LIBRARY: &str = "The library";
/// The section on all programs.
const ALL_PROGRAMS: &str = "All programs of a system";

/// A recipe: a section of the page, and how to check that it works.
struct Recipe {
    title: &'static str,
    catches: &'static str,
    /// Commands before the recipe: what its reader has.
    before: &'static str,
    /// Commands after the recipe; the last one may be a server.
    after: &'static str,
    /// Prints the service's process number.
    pid: &'static str,
    /// Succeeds once the service has done some work.
    work: &'static str,
}

/// Requests three answers from one of the services of `tests/recipes`.
const ASK: &str = "for i in 1 2 3; do test \"$(curl -sS http://127.0.0.1:8000/)\" = 20000; done";
const PYTHON: &str = "pgrep -x python3";
const UNIT: &str = "printf '[Service]\\nExecStart=python3 /context/service.py\\n' >/etc/systemd/system/service.service
    systemctl daemon-reload; systemctl start service";

const RECIPES: &[Recipe] = &[
    Recipe { title: "Docker", catches: "an image whose programs lack the library", pid: PYTHON, ..WEB },
    Recipe {
        title: "systemd",
        catches: "a drop-in that systemd does not read",
        before: UNIT,
        after: "systemd-analyze verify service.service",
        pid: "systemctl show --value --property MainPID service",
        ..WEB
    },
    Recipe { title: "Kubernetes", catches: "a manifest that is refused, or copies nothing", pid: PYTHON, ..WEB },
    Recipe {
        title: ALL_PROGRAMS,
        catches: "a name that the loader does not find, and programs of other users without the library",
        after: "runuser -u nobody -- grep -q libneap /proc/self/maps
            install -m 4755 -o nobody /bin/grep /usr/local/bin/setuid; setuid -q libneap /proc/self/maps
            python3 service.py",
        pid: PYTHON,
        ..WEB
    },
    Recipe {
        title: "supervisord",
        catches: "an environment line that supervisord parses differently",
        before: "cp service.py /srv",
        pid: "supervisorctl pid service",
        ..WEB
    },
    Recipe {
        title: "PostgreSQL",
        catches: "a file that PostgreSQL's scripts do not read, and processes without the library",
        pid: "head -n 1 /var/lib/postgresql/15/main/postmaster.pid",
        work: "cd /; runuser -u postgres -- psql -Atc 'create table t as select i, md5(i::text) s from \
            generate_series(1, 200000) i' -c 'create index on t(s)' -c 'select count(distinct s) from t' | grep -x 200000",
        ..WEB
    },
    Recipe {
        title: "Redis",
        catches: "a unit whose filters and namespaces break the library",
        pid: "systemctl show --value --property MainPID redis-server",
        work: "redis-benchmark -q -n 20000 -r 5000 -d 300 -t set,get,lpush,hset; redis-cli save | grep OK",
        ..WEB
    },
    Recipe {
        title: "Java",
        catches: "a JVM that does not start, or without the library",
        before: "javac -d classes Service.java; jar --create --file service.jar --main-class Service -C classes .",
        pid: "pgrep -x java",
        ..WEB
    },
    Recipe { title: "Python", catches: "a service in Python without the library", pid: PYTHON, ..WEB },
    Recipe { title: "Ruby", catches: "a service in Ruby without the library", pid: "pgrep -x ruby", ..WEB },
    Recipe { title: "Node.js", catches: "a service in JavaScript without the library", pid: "pgrep -x node", ..WEB },
];

/// A service of `tests/recipes`, which the recipe's own commands start.
const WEB: Recipe = Recipe { title: "", catches: "", before: "", after: "", pid: "", work: ASK };

fn main() -> ExitCode {
    let mut cases = vec![Case::new("page", "a recipe that is not run, and a test without one", page)];
    cases.push(Case::new("preload::setuid", "a line for all programs that leaves setuid ones out", all_programs));
    cases.extend(RECIPES.iter().map(|recipe| Case::new(recipe.title, recipe.catches, || run(recipe)).exclusive()));
    suite::main(cases)
}

/// A code block of the page: its language, its lines, and the file that it is, if the line before names one.
struct Block {
    language: String,
    text: String,
    file: Option<String>,
}

/// The page's sections, with their blocks.
fn sections() -> Result<Vec<(String, Vec<Block>)>, Stop> {
    let page = std::fs::read_to_string(package_dir().join("../docs/recipes.md"))?;
    let mut sections: Vec<(String, Vec<Block>)> = Vec::new();
    let (mut inside, mut before) = (false, "");
    for line in page.lines() {
        let section = sections.last_mut().map(|(_, blocks)| blocks);
        if let Some(language) = line.strip_prefix("```") {
            inside = !inside;
            if let (true, Some(blocks)) = (inside, section) {
                // A path in backquotes, and a colon at the end: the block is that file.
                let named =
                    before.strip_suffix(':').and_then(|text| text.split('`').find(|part| part.starts_with('/')));
                let (language, file) = (language.to_owned(), named.map(str::to_owned));
                blocks.push(Block { language, text: String::new(), file });
                before = "";
            }
        } else if let (true, Some(block)) = (inside, section.and_then(|blocks| blocks.last_mut())) {
            block.text += line;
            block.text += "\n";
        } else if let Some(title) = line.strip_prefix("## ") {
            sections.push((title.to_owned(), Vec::new()));
        } else if !line.is_empty() {
            before = line;
        }
    }
    Ok(sections)
}

/// The blocks of one section.
fn blocks(title: &str) -> Result<Vec<Block>, Stop> {
    let section = sections()?.into_iter().find(|(name, _)| name == title);
    section.map(|(_, blocks)| blocks).ok_or_else(|| Stop::Fail(format!("docs/recipes.md has no section {title}")))
}

fn page() -> Outcome {
    let titles: Vec<String> = sections()?.into_iter().map(|(title, _)| title).collect();
    let tested: Vec<&str> = std::iter::once(LIBRARY).chain(RECIPES.iter().map(|recipe| recipe.title)).collect();
    if titles == tested { Ok(()) } else { Err(Stop::Fail(format!("the page has {titles:?}, the test {tested:?}"))) }
}

/// The recipe for all programs, on this machine in a mount namespace.
fn all_programs() -> Outcome {
    if !is_root() {
        return Err(Stop::Skip("mounts need root".into()));
    }
    let recipe = blocks(ALL_PROGRAMS)?;
    let script = package_dir().join("recipes/preload.sh");
    let run = Run::new(program("unshare")?).args(["--mount", "sh"]).arg(script).arg(library::require_neap()?);
    let done = run.arg(&recipe[0].text).plain().run()?;
    if done.status.code() == Some(SKIP_STATUS) {
        return Err(Stop::Skip("no overlay mounts here".into()));
    }
    let done = done.success()?;
    expect(!done.stderr.contains("ERROR: ld.so"), &done, "a program runs without the library")
}

/// A machine that ends when it is dropped.
struct Machine {
    // Held: `unshare` kills its child, and with that first process all others of the machine end.
    _supervisor: Daemon,
    first: String,
}

impl Machine {
    /// A started machine with neap installed as the page says.
    fn start() -> Result<Self, Stop> {
        if !is_root() {
            return Err(Stop::Skip("making a system needs root".into()));
        }
        let folder = system::made("services", &SYSTEM, |_| Ok(()))?;
        let script = package_dir().join("recipes/machine.sh");
        let services = ["service.py", "service.rb", "service.js", "Service.java"];
        let files = services.map(|name| package_dir().join("recipes").join(name)).into_iter().chain(packages()?);
        let mut supervisor = Run::new(program("unshare")?)
            .args(["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--fork", "--kill-child", "sh"])
            .args([&script, &folder])
            .args(files)
            .plain()
            .daemon()?;
        let children = format!("/proc/{0}/task/{0}/children", supervisor.pid());
        let first = || std::fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
        supervisor.wait_until(PATIENCE, || {
            let state = enter(&first(), "systemctl is-system-running --wait").run();
            state.is_ok_and(|done| ["running\n", "degraded\n"].contains(&&*done.stdout))
        })?;
        let machine = Machine { first: first(), _supervisor: supervisor };
        machine.run(&blocks(LIBRARY)?[0].text)?;
        Ok(machine)
    }

    /// Runs commands to their end; all must succeed.
    fn run(&self, commands: &str) -> Result<Finished, Stop> {
        enter(&self.first, commands).timeout(PATIENCE).run()?.success()?.no_complaint()
    }

    /// Starts commands of which the last one is a server.
    fn serve(&self, commands: &str) -> Result<Daemon, Stop> {
        enter(&self.first, commands).daemon()
    }

    /// Runs a command until it succeeds.
    fn wait(&self, command: &str) -> Result<Finished, Stop> {
        let started = Instant::now();
        loop {
            let done = enter(&self.first, command).timeout(PATIENCE).run()?;
            if done.status.success() {
                return Ok(done);
            }
            if started.elapsed() > PATIENCE {
                return Err(done.fail("it does not succeed"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Commands of a shell in the machine with this first process.
fn enter(first: &str, commands: &str) -> Run {
    let all = ["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--root", "--wd"];
    let clean = ["env", "-i", "--chdir=/context", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "sh", "-ec"];
    Run::new("nsenter").args(["--target", first]).args(all).args(clean).arg(commands).plain()
}

/// neap's Debian packages, built once.
fn packages() -> Result<Vec<PathBuf>, Stop> {
    static BUILT: OnceLock<Vec<PathBuf>> = OnceLock::new();
    if let Some(built) = BUILT.get() {
        return Ok(built.clone());
    }
    let mut build = Run::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())).dir(package_dir()).plain();
    build = build.args(["run", "-q", "-p", "xtask", "--", "package", "deb"]).timeout(Duration::from_secs(3600));
    let done = build.run()?.success()?;
    let files = done.stdout.lines().filter_map(|line| line.split(" (").next()).map(PathBuf::from);
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "deb")).collect();
    Ok(BUILT.get_or_init(|| files).clone())
}

/// Runs a recipe and checks its service.
fn run(recipe: &Recipe) -> Outcome {
    let machine = Machine::start()?;
    machine.run(recipe.before)?;
    let mut server = None;
    for block in blocks(recipe.title)? {
        match (&*block.language, &block.file) {
            (_, Some(file)) => {
                let write = format!("mkdir -p \"$(dirname '{file}')\"\ncat >'{file}' <<'END'\n{}END", block.text);
                machine.run(&write)?;
            }
            ("dockerfile", None) => server = Some(image(&machine, &block.text)?),
            ("yaml", None) => server = Some(pod(&machine, &block.text)?),
            // A server in the foreground.
            ("sh", None) if block.text.starts_with("LD_PRELOAD=") => server = Some(machine.serve(&block.text)?),
            ("sh", None) => drop(machine.run(&block.text)?),
            (language, None) => return Err(Stop::Fail(format!("{}: a block of {language}", recipe.title))),
        }
    }
    if recipe.after.contains("service.py") {
        server = Some(machine.serve(recipe.after)?);
    } else {
        machine.run(recipe.after)?;
    }
    machine.wait(recipe.work)?;
    let pid = machine.run(recipe.pid)?.stdout.trim().to_owned();
    machine.run(&format!("PID={pid}\n{}", blocks(LIBRARY)?[1].text))?;
    machine.run(&format!("kill {pid}"))?;
    machine.wait(&format!("! kill -0 {pid} 2>/dev/null"))?;
    machine.run("! journalctl --quiet --boot --grep '^neap: '")?;
    // Lines of the server's output are shown behind a bar.
    match server.map(|server| server.fail("neap reports misuse")) {
        Some(Stop::Fail(text)) if text.contains("| neap: ") => Err(Stop::Fail(text)),
        _ => Ok(()),
    }
}

/// Does what the lines of a Dockerfile say in the machine, and starts its command.
fn image(machine: &Machine, lines: &str) -> Result<Daemon, Stop> {
    let mut environment = String::new();
    for line in lines.lines() {
        let (instruction, rest) = line.split_once(' ').unwrap_or((line, ""));
        match instruction {
            // This system, with more packages, is the base image.
            "FROM" if rest.starts_with("debian:12") => {}
            "COPY" => drop(machine.run(&format!("cp {rest}"))?),
            "RUN" => drop(machine.run(&format!("{environment}{rest}"))?),
            "ENV" => environment += &format!("export {rest}\n"),
            "CMD" => {
                let words: Vec<String> = serde_json::from_str(rest).map_err(|e| Stop::Fail(format!("{line}: {e}")))?;
                return machine.serve(&format!("{environment}exec {}", quoted(&words)));
            }
            _ => return Err(Stop::Fail(format!("the test knows no instruction like `{line}`"))),
        }
    }
    Err(Stop::Fail("the Dockerfile has no CMD".into()))
}

/// Quotes words for a shell.
fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!("'{}' ", word.replace('\'', "'\\''"))).collect()
}

/// Prints a manifest as JSON if it is valid by Kubernetes' schema.
const CHECK: &str = "import json, kubernetes_validate, sys, yaml
manifest = yaml.safe_load(sys.stdin)
kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
print(json.dumps(manifest))";

/// Runs the containers of a manifest in the machine, with folders as volumes. Starts the last one.
fn pod(machine: &Machine, manifest: &str) -> Result<Daemon, Stop> {
    let python = validator()?;
    let done = Run::new(python).args(["-c", CHECK]).input(manifest).plain().run()?.success()?;
    let manifest: Value = serde_json::from_str(&done.stdout).map_err(|e| done.fail(&e.to_string()))?;
    let spec = &manifest["spec"]["template"]["spec"];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut containers = [list(&spec["initContainers"]), list(&spec["containers"])].concat();
    let mut commands = "mkdir -p /srv; cp service.py /srv\n".to_owned();
    let last = containers.pop().ok_or_else(|| done.fail("no containers"))?;
    for container in containers.iter().chain([&last]) {
        for mount in list(&container["volumeMounts"]) {
            let volume = list(&spec["volumes"]).into_iter().find(|volume| volume["name"] == mount["name"]);
            let known = volume.is_some_and(|volume| volume["emptyDir"].is_object());
            expect(known, &done, &format!("no volume {}", mount["name"]))?;
            let (volume, path) = (text(&mount["name"]), text(&mount["mountPath"]));
            commands += &format!("mkdir -p /volumes/{volume}; ln -sfn /volumes/{volume} {path}\n");
        }
        // Each container has an environment of its own; the last one becomes the server.
        let variables = list(&container["env"]);
        let variables = variables.iter().map(|pair| format!("{}={}", text(&pair["name"]), text(&pair["value"])));
        let words: Vec<String> = variables.chain(list(&container["command"]).iter().map(text)).collect();
        let exec = if *container == last { "exec " } else { "" };
        commands += &format!("{exec}env {}\n", quoted(&words));
    }
    machine.serve(&commands)
}

/// A Python with Kubernetes' schema.
fn validator() -> Result<PathBuf, Stop> {
    let folder = neap_tests::target_dir().join("kubernetes");
    let python = folder.join("bin/python");
    let got = |python: &Path| Run::new(python).args(["-c", "import kubernetes_validate"]).plain().run();
    if !got(&python).is_ok_and(|done| done.status.success()) {
        Run::new(program("python3")?).args(["-m", "venv"]).arg(&folder).plain().run()?.success()?;
        let install = ["-m", "pip", "install", "--quiet", "kubernetes-validate==1.37.0"];
        let done = Run::new(&python).args(install).plain().run()?;
        if !done.status.success() {
            return Err(Stop::Skip(format!("kubernetes-validate is not to be had: {}", done.stderr)));
        }
    }
    Ok(python)
}
