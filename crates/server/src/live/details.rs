//! Details of chains and cores, from the data plane.

use crate::details::{ChainDetails, CoreDetails, CoreRole, FunctionDetails};
use tailwater_dataplane::core_host::CoreHost;
use tailwater_dataplane::run::{FunctionProgress, Progress};
use tailwater_net::Nanos;

pub(super) fn of_chain(progress: &Progress) -> ChainDetails {
    let scaling = &progress.scaling;
    let reasons = progress.packets.reasons.iter().filter(|(_, count)| **count > 0);
    let late = progress.late_by_cause.iter().filter(|(_, count)| **count > 0);
    ChainDetails {
        measured: progress.work.until,
        late: late.map(|(cause, count)| (*cause, *count)).collect(),
        reasons: reasons.map(|(reason, count)| (reason.clone(), *count)).collect(),
        functions: progress.functions.iter().map(of_function).collect(),
        offloaded: [
            scaling.packets_offloaded - scaling.packets_to_dedicated,
            scaling.packets_to_dedicated,
        ],
        flows: progress.flows,
        preemptions: progress.gaps,
    }
}

fn of_function(function: &FunctionProgress) -> FunctionDetails {
    FunctionDetails {
        name: function.name.clone(),
        packets: function.totals.packets,
        dropped: function.dropped,
        timed: (function.totals.timed, Nanos(function.totals.nanos)),
    }
}

pub(super) fn of_cores(host: &CoreHost) -> Vec<CoreDetails> {
    let dedicated = host.cores().count();
    let core = |(number, (core, busy)): (usize, (usize, Nanos))| CoreDetails {
        core: core as u32,
        role: if number < dedicated {
            CoreRole::Dedicated
        } else {
            CoreRole::Auxiliary
        },
        busy,
    };
    host.busy().enumerate().map(core).collect()
}
