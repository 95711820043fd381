//! Check of the clock.

use crate::action::Action;
use crate::finding::{Finding, Severity};
use crate::text::cpu_flags;
use crate::{Purpose, System};

/// Checks that reading the time is cheap. It is read for each batch.
pub(super) fn clock(system: &dyn System, _: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "clock";
    const FOLDER: &str = "/sys/devices/system/clocksource/clocksource0";
    let source = system.read(&format!("{FOLDER}/current_clocksource")).value();
    let flags = cpu_flags(system).unwrap_or_default();
    let has = |name: &str| flags.iter().any(|flag| flag == name);
    let steady = has("constant_tsc") && has("nonstop_tsc");
    let source = source.as_deref().unwrap_or("unknown");
    vec![match (steady, source) {
        (true, "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page") => {
            Finding::good(CHECK, format!("{source}, with an invariant time-stamp counter"))
        }
        (true, _) => {
            let found = format!("the kernel uses {source}, although the time-stamp counter is invariant");
            let why = "Tailwater reads the counter directly; other programs take up to a microsecond per reading";
            Finding::bad(CHECK, Severity::Costs, found, why)
                .fixed_by(Action::write("tsc", format!("{FOLDER}/current_clocksource")))
        }
        (false, _) => {
            let found = format!("no invariant time-stamp counter; the kernel uses {source}");
            let why = "each batch reads the system clock: 30 ns, or a microsecond with hpet";
            Finding::bad(CHECK, Severity::Costs, found, why)
        }
    }]
}
