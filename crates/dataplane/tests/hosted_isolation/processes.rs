//! Isolated chains, and the processes of their functions.

use crate::rig::*;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::{RunConfig, RunPlan};
use tailwater_functions::spec::{ChainSpec, FunctionSpec};
use tailwater_isolation::server::{IsolationConfig, Launch, Program};

/// Argument that makes this program a function's process.
pub const PROCESS: &str = "function-process";

const TICK: Duration = Duration::from_millis(1);

/// Chain with isolated functions.
pub struct Isolated {
    pub running: Running,
    file: ChainFile,
}

/// The chain's spec, which processes read at their start. Removed when dropped.
struct ChainFile(PathBuf);

impl Drop for ChainFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn text(network: &str, functions: &str, objective: &str) -> String {
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         match: {{destinations: [{network}]}}\n  slo: {{latency: {objective}}}\n  functions: [{functions}]\n"
    )
}

const OBJECTIVE: &str = "250ms";

/// Plan of a trusted chain on the server's core.
pub fn plan(server: &Server, network: &str, functions: &str) -> RunPlan {
    let spec = ChainSpec::parse(&text(network, functions, OBJECTIVE), "test", Path::new("."));
    RunPlan::new(spec.unwrap(), RunConfig::new(server.cores.clone())).unwrap()
}

impl Isolated {
    /// Starts a chain that gets the packets to one network, on the server's core.
    pub fn start(server: &Server, network: &str, functions: &str) -> Isolated {
        Isolated::replace(server, network, functions, None)
    }

    /// Same, in the place of another chain.
    pub fn replace(server: &Server, network: &str, functions: &str, replaced: Option<&Running>) -> Isolated {
        Isolated::with(server, (network, functions, OBJECTIVE), (None, None), replaced)
    }

    /// Starts a chain that also uses the server's auxiliary cores, with a last function that is not isolated.
    pub fn offloading(
        server: &Server,
        (network, functions): (&str, &str),
        scaling: ScalingConfig,
        last: Option<FunctionSpec>,
    ) -> Isolated {
        // Leases of auxiliary cores last for twice the objective.
        Isolated::with(server, (network, functions, "5ms"), (Some(scaling), last), None)
    }

    fn with(
        server: &Server,
        (network, functions, objective): (&str, &str, &str),
        (scaling, last): (Option<ScalingConfig>, Option<FunctionSpec>),
        replaced: Option<&Running>,
    ) -> Isolated {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-hosted-{}-{number}.yaml", std::process::id());
        let file = std::env::temp_dir().join(name);
        fs::write(&file, text(network, functions, objective)).unwrap();
        let mut spec = ChainSpec::read(&file).unwrap_or_else(|error| panic!("{error}"));
        let launch = Launch {
            program: std::env::current_exe().unwrap().into(),
            arguments: vec![PROCESS.into(), file.clone().into()],
        };
        let programs = Program::of_chain(&spec, &launch);
        spec.functions.extend(last);
        let config = RunConfig {
            isolation: Some(IsolationConfig::new(programs, spec.slo.budget())),
            scaling,
            ..RunConfig::new(server.cores.clone())
        };
        let running = server.start_plan(RunPlan::new(spec, config).unwrap(), replaced);
        Isolated {
            running,
            file: ChainFile(file),
        }
    }

    /// Moves the file away that processes read at their start.
    pub fn remove_chain(&self) {
        fs::rename(&self.file.0, self.file.0.with_extension("away")).unwrap();
    }

    pub fn restore_chain(&self) {
        fs::rename(self.file.0.with_extension("away"), &self.file.0).unwrap();
    }

    /// Waits for the process that takes the turns of the chain's only function.
    pub fn await_process(&self) -> Pid {
        let began = Instant::now();
        loop {
            if let Some(process) = self.processes(true).pop() {
                return process;
            }
            assert!(began.elapsed() < PATIENCE, "the function has no process");
            sleep(TICK);
        }
    }

    /// Waits until the turns are those of another process.
    pub fn await_process_after(&self, before: Pid) {
        let began = Instant::now();
        while self.await_process() == before {
            assert!(began.elapsed() < PATIENCE, "the process has not been replaced");
            sleep(TICK);
        }
    }

    /// Kills the process that takes turns, and before it the one that waits for that.
    pub fn kill_all(&self) {
        let waiting = self.processes(false);
        let all = waiting.into_iter().chain(self.processes(true));
        all.for_each(|process| signal(process, Signal::KILL));
    }

    /// Processes that take turns on a core, with their scheduling policies. Those that wait for that are ordinary ones.
    pub fn on_core(&self, core: usize) -> Vec<(Pid, String)> {
        let file = self.file.0.to_str().unwrap();
        let pinned = format!("Cpus_allowed_list:\t{core}\n");
        let found = all().filter(|id| {
            let command = read(*id, "cmdline");
            command.contains(PROCESS) && command.contains(file) && read(*id, "status").contains(&pinned)
        });
        let found = found.filter_map(|id| Some((Pid::from_raw(id)?, policy(&read(id, "stat"))?)));
        found.filter(|(_, policy)| policy == FIFO || policy == IDLE).collect()
    }

    /// Processes that take turns, or those that wait for that.
    fn processes(&self, at_work: bool) -> Vec<Pid> {
        let file = self.file.0.to_str().unwrap();
        let found = all().filter(|id| {
            let command = read(*id, "cmdline");
            command.contains(PROCESS) && command.contains(file) && is_real_time(&read(*id, "stat")) == Some(at_work)
        });
        found.filter_map(Pid::from_raw).collect()
    }
}

pub fn signal(process: Pid, signal: Signal) {
    // It may have ended.
    let _ = kill_process(process, signal);
}

/// Number of this program's processes of functions.
pub fn children() -> usize {
    let own = format!("tailwater-hosted-{}-", std::process::id());
    let is_own = |id: &i32| read(*id, "cmdline").contains(&own) && is_real_time(&read(*id, "stat")).is_some();
    all().filter(is_own).count()
}

fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn read(id: i32, what: &str) -> String {
    fs::read_to_string(format!("/proc/{id}/{what}")).unwrap_or_default()
}

/// Returns `true` if a process has a real-time policy, and `None` if it is not alive, given the kernel's `stat` line.
fn is_real_time(stat: &str) -> Option<bool> {
    Some(policy(stat)? == FIFO)
}

/// Numbers of scheduling policies in the kernel.
pub const FIFO: &str = "1";
pub const IDLE: &str = "5";

/// Returns the number of a process's scheduling policy. The state is the first word after its name, the policy the
/// thirty-ninth.
fn policy(stat: &str) -> Option<String> {
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let mut words = behind.split_whitespace();
    words.next().filter(|state| !"ZX".contains(state))?;
    words.nth(37).map(str::to_owned)
}
