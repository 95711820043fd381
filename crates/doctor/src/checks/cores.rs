//! Checks of the packet cores and of other users of these cores.

use crate::action::Action;
use crate::cpus::CpuList;
use crate::finding::{Finding, Severity, boot_with};
use crate::{Probe, Purpose, System};
use std::collections::BTreeMap;

const FOLDER: &str = "/sys/devices/system/cpu";

/// Reads a list of processors from a file. Returns an empty list if it cannot be read.
pub(super) fn list(system: &dyn System, path: &str) -> CpuList {
    let text = system.read(path).value().unwrap_or_default();
    CpuList::parse(&text).unwrap_or_default()
}

fn wanted(purpose: &Purpose) -> CpuList {
    CpuList::from(purpose.cores.clone())
}

/// Checks that the cores are isolated from other programs and from the kernel's tick.
pub(super) fn isolated(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "isolated-cores";
    let cores = wanted(purpose);
    let isolated = list(system, &format!("{FOLDER}/isolated"));
    let tickless = list(system, &format!("{FOLDER}/nohz_full"));
    let (shared, ticking) = (cores.without(&isolated), cores.without(&tickless));
    let words = format!("isolcpus={cores} nohz_full={cores} rcu_nocbs={cores}");
    if list(system, &format!("{FOLDER}/online")).without(&cores).is_empty() {
        let why = "the kernel, interrupts and all other programs also run on them";
        let found = format!("cores {cores} are all cores of the machine");
        return vec![Finding::bad(CHECK, Severity::Costs, found, why)];
    }
    if !shared.is_empty() {
        let why = "the scheduler may run other programs there at any time";
        let found = format!("not isolated: {shared}");
        return vec![Finding::bad(CHECK, Severity::Costs, found, why).fixed_by(boot_with(&words))];
    }
    if !ticking.is_empty() {
        let why = "the timer interrupts packets 100 to 1,000 times a second";
        let found = format!("the kernel's tick is on for {ticking}");
        return vec![Finding::bad(CHECK, Severity::Costs, found, why).fixed_by(boot_with(&words))];
    }
    vec![Finding::good(CHECK, format!("{cores}, without a tick"))]
}

/// Indices of fields of `/proc/PID/stat` after the name: flags, and the last processor.
const FLAGS: usize = 6;
const PROCESSOR: usize = 36;

/// Flag of a kernel thread.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Maximum number of names in a finding.
const MOST_NAMED: usize = 3;

/// Lists names by count, the most frequent first.
fn named(counts: BTreeMap<String, u64>) -> String {
    let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let more = counts.len().saturating_sub(MOST_NAMED);
    counts.truncate(MOST_NAMED);
    let mut text: Vec<String> = counts.into_iter().map(|(name, _)| name).collect();
    if more > 0 {
        text.push(format!("{more} more"));
    }
    text.join(", ")
}

/// Checks for programs on isolated cores, which must have been placed there explicitly.
pub(super) fn competing_tasks(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "programs-on-cores";
    let isolated = list(system, &format!("{FOLDER}/isolated"));
    let cores = wanted(purpose).and(&isolated);
    if cores.is_empty() {
        // On cores that are not isolated, other programs are expected. Another check reports those cores.
        return Vec::new();
    }
    let Probe::Value(entries) = system.list("/proc") else {
        return vec![Finding::unknown(CHECK, "/proc cannot be read")];
    };
    let own = std::process::id().to_string();
    let mut there = BTreeMap::new();
    let mut first = None;
    let processes = entries
        .iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && **name != own);
    for process in processes {
        let stat = system.read(&format!("/proc/{process}/stat")).value();
        // The name is in parentheses and may contain parentheses itself.
        let Some((front, fields)) = stat.as_deref().and_then(|stat| stat.rsplit_once(')')) else {
            continue;
        };
        let name = front.split_once('(').map_or("", |(_, name)| name);
        let number = |at: usize| fields.split_whitespace().nth(at)?.parse::<u64>().ok();
        let (Some(flags), Some(processor)) = (number(FLAGS), number(PROCESSOR)) else {
            continue;
        };
        if flags & KERNEL_THREAD == 0 && cores.has(processor as usize) {
            *there.entry(format!("{name} ({process})")).or_default() += 1;
            first.get_or_insert(process);
        }
    }
    let Some(process) = first else {
        return vec![Finding::good(CHECK, format!("none on {cores}"))];
    };
    let others = list(system, &format!("{FOLDER}/online")).without(&isolated);
    let found = format!("on {cores}: {}", named(there));
    let why = "packets wait while it runs";
    let finding = Finding::bad(CHECK, Severity::Costs, found, why);
    vec![match process.parse() {
        Ok(process) if !others.is_empty() => finding.fixed_by(Action::Move {
            process,
            cores: others.to_string(),
        }),
        _ => finding,
    }]
}

/// Checks for device interrupts served on the cores.
pub(super) fn interrupts(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "interrupts";
    let cores = wanted(purpose);
    let online = list(system, &format!("{FOLDER}/online"));
    let text = match system.read("/proc/interrupts") {
        Probe::Value(text) => text,
        Probe::Absent | Probe::Forbidden => {
            return vec![Finding::unknown(CHECK, "/proc/interrupts cannot be read")];
        }
    };
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let number = |word: &str| word.strip_prefix("CPU")?.parse::<usize>().ok();
    let columns: Vec<usize> = header.split_whitespace().filter_map(number).collect();
    let mut there = BTreeMap::new();
    let mut busiest = (0, 0);
    for line in lines {
        // Interrupts with a name instead of a number belong to the processors: timer, rescheduling.
        let Some((irq, rest)) = line.split_once(':') else {
            continue;
        };
        let Ok(irq) = irq.trim().parse::<u32>() else {
            continue;
        };
        let mut words = rest.split_whitespace();
        let mut count = 0;
        for cpu in &columns {
            let times = words.next().and_then(|word| word.parse::<u64>().ok());
            count += times.filter(|_| cores.has(*cpu)).unwrap_or(0);
        }
        let path = format!("/proc/irq/{irq}/effective_affinity_list");
        if count > 0 && !list(system, &path).and(&cores).is_empty() {
            let name = words.next_back().unwrap_or("unnamed");
            there.insert(format!("{name} (IRQ {irq})"), count);
            busiest = busiest.max((count, irq));
        }
    }
    let (_, irq) = busiest;
    if there.is_empty() {
        return vec![Finding::good(CHECK, format!("of devices: none on {cores}"))];
    }
    let found = format!("served on {cores}: {}", named(there));
    let why = "each occupies the core for some microseconds";
    let finding = Finding::bad(CHECK, Severity::Costs, found, why);
    let elsewhere = online.without(&cores);
    vec![match elsewhere.is_empty() {
        true => finding,
        false => finding.fixed_by(Action::write(
            elsewhere.to_string(),
            format!("/proc/irq/{irq}/smp_affinity_list"),
        )),
    }]
}

/// Checks for hardware threads that share the cores' execution units and caches.
pub(super) fn siblings(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "smt-siblings";
    let cores = wanted(purpose);
    let of = |core: &usize| list(system, &format!("{FOLDER}/cpu{core}/topology/thread_siblings_list"));
    let threads: Vec<CpuList> = cores.numbers().iter().map(of).collect();
    if threads.iter().any(CpuList::is_empty) {
        return vec![Finding::unknown(CHECK, "not reported by the kernel")];
    }
    if threads.iter().any(|threads| threads.and(&cores).numbers().len() > 1) {
        let found = format!("some of {cores} are threads of one core");
        let why = "each slows the other down, and a profile measured on one alone overstates capacity";
        return vec![Finding::bad(CHECK, Severity::Costs, found, why)];
    }
    let all = threads.iter().flat_map(|threads| threads.numbers().to_vec());
    let others = CpuList::from(all.collect::<Vec<_>>()).without(&cores);
    if others.is_empty() {
        return vec![Finding::good(CHECK, format!("{cores} have no siblings in use"))];
    }
    let found = format!("{others} share cores with {cores}");
    let why = "programs on them slow packet processing down by a third or more";
    let off = others.numbers().iter().map(|cpu| format!("{FOLDER}/cpu{cpu}/online"));
    let off = Action::Write {
        value: "0".to_owned(),
        files: off.collect(),
    };
    vec![Finding::bad(CHECK, Severity::Costs, found, why).fixed_by(off)]
}
