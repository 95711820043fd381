//! Data of ResQ's evaluation, published and assumed: its functions, its server and its three mixes of SLOs (Table 1,
//! Figure 6, §6).
//!
//! All curves here were written down before they were used for any placement.
//!
//! **Read off Figure 6**, at steps of 2.25 MB (a way of their processor): `firewall`, `lpm`, `mazu-nat`, `snort`,
//! `stats`. Rates with all of the cache, and references to it, are those of Table 1.
//!
//! **Assumed**, since Figure 6 lacks them:
//!
//! - `efficuts` and `ipsec`, which the paper calls insensitive: within a few percent, they are as fast with one way as
//!   with all. A decision tree of 32,000 rules needs slightly more cache than a tunnel's keys.
//! - `endre`, called neutral: 1.5 references in 560 cycles. If each costs as much as a miss of Snort (about 90 cycles,
//!   by its 43 % at one way), its rate would be 80 % without any cache, and 92 % with one way.
//! - `suricata`, also called neutral. By Figure 8, 55 % of the nine functions' SLOs are violated with two ways each,
//!   and none of the insensitive ones: five functions of nine, the four sensitive ones and one of the two neutral ones.
//!   Suricata runs Snort's 20,000 rules and misses more than all but Snort even with all of the cache. So it is the
//!   fifth, with a curve like Snort's but less steep.
//! - Latency over load, of all: the same convex curve in units of the time per packet. Targets are the latency at full
//!   load, so its shape has no effect.

use crate::cluster::ServerKind;
use crate::curve::{CacheCurve, CurveError, LoadCurve};
use crate::slo::{ChainProfile, Curves, Slo, Target};
use std::sync::Arc;
use tailwater_net::Nanos;

/// Machine of the published curves.
pub const MACHINE: &str = "xeon-45mb";
/// Bytes per way of its cache.
pub const WAY_BYTES: u64 = 2_250_000;
/// Ways of its whole cache, including those that the NICs write into.
pub const ALL_WAYS: u16 = 20;
/// Targets of throughput, as a share of an instance's rate with the whole cache (§6).
pub const TARGET: f64 = 0.9;

/// Returns the server of §6: 9 cores, and 90 % of the cache.
pub fn server() -> ServerKind {
    ServerKind {
        machine: MACHINE.into(),
        nodes: 1,
        cores: 9,
        ways: 18,
        way_bytes: WAY_BYTES,
        classes: 15,
    }
}

/// Function of Table 1.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Name.
    pub name: &'static str,
    /// Millions of packets per second with the whole cache.
    pub mpps: f64,
    /// References to the last-level cache per packet.
    pub references: f64,
    /// Cycles per packet, in thousands.
    pub kilocycles: f64,
    /// Percentage of the rate with 1, 2, 3 ... ways. The last number applies to all that follow.
    pub percent: &'static [f64],
    /// `true` if the curve is assumed instead of read off Figure 6.
    pub assumed: bool,
}

const fn function(
    name: &'static str,
    mpps: f64,
    references: f64,
    kilocycles: f64,
    percent: &'static [f64],
    assumed: bool,
) -> Function {
    Function {
        name,
        mpps,
        references,
        kilocycles,
        percent,
        assumed,
    }
}

/// Stats: counts packets of flows.
pub const STATS: Function = function(
    "stats",
    3.685,
    10.22,
    0.57,
    &[54.0, 66.0, 78.0, 90.0, 98.0, 100.0],
    false,
);
/// LPM: router with 131,000 routes.
pub const LPM: Function = function("lpm", 5.475, 3.87, 0.38, &[70.0, 87.0, 94.0, 98.0, 100.0], false);
/// MazuNAT: address translation.
pub const MAZU_NAT: Function = function(
    "mazu-nat",
    2.698,
    12.14,
    0.78,
    &[54.0, 64.0, 72.0, 80.0, 88.0, 94.0, 99.0, 100.0],
    false,
);
/// Snort: intrusion detection with 20,000 rules.
pub const SNORT: Function = function(
    "snort",
    0.683,
    25.61,
    3.06,
    &[
        57.0, 86.0, 87.0, 88.0, 89.0, 90.0, 91.0, 92.0, 93.0, 94.0, 94.0, 96.0, 97.0, 98.0, 99.0, 100.0,
    ],
    false,
);
/// Firewall: 250 rules, checked one after the other.
pub const FIREWALL: Function = function("firewall", 0.366, 1.59, 5.74, &[100.0], false);
/// EffiCuts: 32,000 rules in a decision tree.
pub const EFFICUTS: Function = function("efficuts", 1.224, 10.23, 1.72, &[96.0, 99.0, 100.0], true);
/// IPsec: a tunnel.
pub const IPSEC: Function = function("ipsec", 0.442, 5.13, 4.75, &[99.0, 100.0], true);
/// Suricata: intrusion detection with 20,000 rules.
pub const SURICATA: Function = function(
    "suricata",
    0.205,
    26.89,
    10.0,
    &[
        68.0, 84.0, 86.0, 88.0, 90.0, 92.0, 94.0, 95.0, 96.0, 97.0, 98.0, 98.0, 99.0, 99.0, 100.0,
    ],
    true,
);
/// EndRE: finds repeated content.
pub const ENDRE: Function = function("endre", 3.77, 1.54, 0.56, &[92.0, 95.0, 97.0, 98.0, 99.0, 100.0], true);

/// Mix of SLOs, which use its functions in turn.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Name.
    pub name: &'static str,
    /// Functions.
    pub functions: &'static [Function],
    /// Number of SLOs.
    pub slos: usize,
}

/// Mixes of Figures 8 and 9.
pub const MIXES: [Mix; 3] = [
    Mix {
        name: "insensitive",
        functions: &[EFFICUTS, FIREWALL, IPSEC],
        slos: 198,
    },
    Mix {
        name: "combination",
        functions: &[STATS, LPM, MAZU_NAT, SNORT, EFFICUTS, FIREWALL, IPSEC, SURICATA, ENDRE],
        slos: 200,
    },
    Mix {
        name: "sensitive",
        functions: &[STATS, LPM, MAZU_NAT, SNORT],
        slos: 200,
    },
];

/// Latency by load, in units of the time per packet.
const LATENESS: [(f64, f64); 6] = [
    (0.1, 20.0),
    (0.5, 24.0),
    (0.7, 30.0),
    (0.8, 37.0),
    (0.9, 52.0),
    (1.0, 100.0),
];

impl Function {
    /// Returns the packets per second with the whole cache.
    pub fn rate(&self) -> f64 {
        self.mpps * 1e6
    }

    /// Returns its profile.
    ///
    /// # Errors
    /// Its numbers are not valid curves.
    pub fn profile(&self) -> Result<ChainProfile, CurveError> {
        let last = self.percent[self.percent.len() - 1];
        let way = |i: usize| self.percent.get(i).copied().unwrap_or(last);
        let cache = (0..ALL_WAYS.into())
            .map(|i| (WAY_BYTES * (i as u64 + 1), self.rate() * way(i) / 100.0))
            .collect();
        let packet = 1e9 / self.rate();
        let load = LATENESS.map(|(load, times)| (load, Nanos((times * packet) as u64)));
        Ok(ChainProfile {
            name: self.name.to_owned(),
            configuration: None,
            traffic: None,
            // ResQ measures this percentile of latency.
            percentile: Some(95.0),
            curves: vec![Curves {
                machine: MACHINE.to_owned(),
                cores: 1,
                cache: CacheCurve::new(cache)?,
                load: LoadCurve::new(load.to_vec())?,
            }],
        })
    }
}

/// Returns the SLOs of a mix: 90 % of the throughput of an isolated instance, and its latency.
///
/// # Errors
/// Numbers of a function are not valid curves.
pub fn slos(mix: Mix) -> Result<Vec<Slo>, CurveError> {
    let functions = mix.functions;
    let profiles: Vec<Arc<ChainProfile>> = functions
        .iter()
        .map(|function| function.profile().map(Arc::new))
        .collect::<Result<_, _>>()?;
    let slo = |i: usize| {
        let (function, chain) = (&functions[i % functions.len()], &profiles[i % profiles.len()]);
        Slo {
            name: format!("{}-{i}", function.name),
            latency: chain.curves[0].load.latency(1.0),
            chain: chain.clone(),
            target: Target::Reserved {
                throughput: function.rate() * TARGET,
            },
            cap: None,
            spread: false,
            apart: None,
        }
    };
    Ok((0..mix.slos).map(slo).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_those_of_figure_6_and_table_1() -> Result<(), CurveError> {
        let profile = SNORT.profile()?;
        let cache = &profile.curves[0].cache;
        for (ways, percent) in [(1, 57.0), (2, 86.0), (9, 93.0), (16, 100.0), (20, 100.0)] {
            let rate = cache.rate(ways * WAY_BYTES);
            assert!((rate / 683_000.0 - percent / 100.0).abs() < 1e-9, "{ways}");
        }
        Ok(())
    }

    #[test]
    fn mixes_are_of_their_functions_in_turn() -> Result<(), CurveError> {
        let names = |mix| slos(mix).map(|slos| slos.into_iter().map(|slo| slo.name).collect());
        let names: Vec<String> = names(MIXES[2])?;
        assert_eq!(names.len(), 200);
        assert_eq!(names[..2], ["stats-0", "lpm-1"]);
        assert_eq!(names[199], "snort-199");
        Ok(())
    }
}
