//! Any bytes as a rack spec: reading never panics, and an error is one line that points into the text. A rack that was
//! read can be simulated in bounded time, with every packet accounted for.
//!
//! ```text
//! cargo +nightly fuzz run rack fuzz/corpus/rack fuzz/seeds/rack examples
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use tailwater_net::{FlowKey, Nanos};
use tailwater_sim::spec::RackSpec;
use tailwater_sim::{ChainRun, FlowOptions, Objective, RackPolicy, RunOptions, Workload, simulate};
use tailwater_traffic::bursts::{Arrival, Arrivals};
use tailwater_traffic::{Notice, TrafficError};

/// Largest rack that is simulated, in cores: each core takes memory and time.
const CORES: usize = 64;

/// Packets of a few flows, some simultaneous and some apart.
struct Few(u64);

impl Arrivals for Few {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        self.0 += 1;
        Ok((self.0 < 300).then_some(Arrival {
            time: Nanos(self.0 / 50 * 300_000),
            flow: Some(self.0 % 7),
            bytes: 100,
        }))
    }

    fn flow_key(&self) -> FlowKey {
        let source = (0x0a00_0000 + (self.0 % 7) as u32).into();
        FlowKey::v4(source, 0xc612_0001.into(), 17, 1, 2)
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "few packets"
    }
}

/// Runs a policy on a rack that was read. The number of bytes selects the policy.
fn simulated(spec: &RackSpec, choice: usize) {
    let names: Vec<_> = RackPolicy::names().collect();
    let name = names[choice % names.len()];
    let profiles = spec.chains.iter().map(|chain| chain.profile(chain.slo, 100.0));
    let profiles: Vec<_> = profiles.collect();
    let runs = spec.chains.iter().zip(&profiles).map(|(chain, profile)| {
        let model = chain.model();
        assert!(!profile.frontier.is_empty() && !profile.rates.is_empty());
        let objective = Objective {
            slo: chain.slo,
            profile,
            packet: Nanos(model.packet_nanos(100.0).round() as u64),
            ingress: chain.ingress,
        };
        Some(ChainRun {
            model: model.clone(),
            slo: chain.slo,
            policy: RackPolicy::named(name, &objective).ok()?,
            workload: Workload::stream(Box::new(Few(0)), FlowOptions::default()),
        })
    });
    // A policy that does not support an objective returns an error.
    let Some(runs) = runs.collect::<Option<Vec<_>>>() else {
        return;
    };
    let options = RunOptions {
        window: spec.window,
        check: true,
        ..RunOptions::default()
    };
    if let Ok(report) = simulate(&spec.rack, runs, &options) {
        for chain in &report.chains {
            assert_eq!(chain.packets.offered, 299);
            assert_eq!(chain.packets.delivered + chain.packets.lost, 299);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // No profile exists below a directory that does not exist.
    match RackSpec::parse(text, "rack.yaml", Path::new("no-such-folder")) {
        Ok(spec) => {
            assert!(spec.rack.check().is_ok());
            if spec.rack.cores() <= CORES {
                simulated(&spec, bytes.len());
            }
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.contains(['\n', '\r']), "{shown:?}");
            assert!(error.line <= text.split(['\n', '\r']).count() + 1, "{shown}");
        }
    }
});
