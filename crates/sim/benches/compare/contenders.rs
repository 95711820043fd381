//! Policies of the comparison, with what of each is swept and what it was frozen to.

use super::cells::Cell;
use super::machine;
use std::sync::Arc;
use tailwater_baselines::catalog::{Policy, pooled};
use tailwater_baselines::netblaze::{
    Capacity, NetBlazeMapper, NetBlazeOptions, NetBlazeServerConfig, NetBlazeServerMapper,
};
use tailwater_baselines::{
    Dyssect, DyssectConfig, LatencySignal, Metron, MetronConfig, Quadrant, QuadrantConfig, RssPlusPlus,
    RssPlusPlusConfig,
};
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, SplitProfile};
use tailwater_policy::core::Unit;
use tailwater_policy::server::{IngressConfig, TailwaterServerConfig, TailwaterServerMapper};
use tailwater_policy::tailwater::{TailwaterMapper, TailwaterOptions, divides};
use tailwater_sim::RackPolicy;
use tailwater_sim::policies::Steered;

/// Setting of a policy.
#[derive(Debug)]
pub struct Knob {
    pub name: &'static str,
    /// Value of the paper, of its code, or, where neither has any, of this repository's module. The sweep starts here.
    pub published: f64,
    /// Other values that the sweep tries.
    pub others: &'static [f64],
    /// Value found on training seeds by `compare sweep`, used in the table.
    pub frozen: f64,
}

const fn knob(name: &'static str, published: f64, others: &'static [f64], frozen: f64) -> Knob {
    Knob {
        name,
        published,
        others,
        frozen,
    }
}

/// Largest batch: smaller ones wait less and cost more.
const fn batch(frozen: f64) -> Knob {
    knob("batch", 32.0, &[16.0, 12.0], frozen)
}

/// Policies with their knobs. Times are in milliseconds.
pub const POLICIES: &[(&str, &[Knob])] = &[
    ("static", &[batch(32.0)]),
    (
        "rss++",
        &[
            knob("target", 0.8, &[0.7, 0.6, 0.5, 0.4], 0.5),
            knob("margin", 0.1, &[0.05, 0.2], 0.1),
            knob("longest period", 1000.0, &[300.0], 300.0),
            knob("threshold", 0.02, &[0.05, 0.1], 0.02),
            batch(32.0),
        ],
    ),
    (
        "metron",
        &[
            knob("period", 500.0, &[100.0, 1000.0], 100.0),
            knob("merge below", 0.5, &[0.3, 0.2], 0.5),
            knob("lost", 1.0, &[100.0], 1.0),
            batch(32.0),
        ],
    ),
    (
        "quadrant",
        &[
            knob("signal", 1.0, &[0.0], 1.0),
            knob("smoothing", 200.0, &[50.0, 0.0], 50.0),
            knob("alpha", 0.7, &[0.5, 0.3], 0.7),
            knob("beta", 0.9, &[0.8, 0.95], 0.9),
            knob("load limit", 0.9, &[0.7, 0.5], 0.5),
            knob("most flows", 0.5, &[1.0, 0.1], 0.1),
            batch(12.0),
        ],
    ),
    (
        "dyssect",
        &[
            knob("median of the objective", 1.0, &[0.3, 0.1, 0.03], 1.0),
            knob("margin", 0.9, &[0.7, 0.5], 0.5),
            knob("period", 100.0, &[50.0, 200.0], 100.0),
            batch(16.0),
        ],
    ),
    ("netblaze", NETBLAZE),
    (
        "tailwater",
        &[
            knob("fill", 0.97, &[0.9, 0.8], 0.97),
            knob("late", 0.003, &[0.002, 0.005, 0.01], 0.003),
            knob("pooled", -1.0, &[1.0, 4.5], -1.0),
            knob("activate", 60.0, &[45.0, 75.0], 45.0),
            knob("share", 20.0, &[10.0, 35.0], 20.0),
            knob("release", 50.0, &[25.0, 100.0], 25.0),
            knob("relieve", 60.0, &[40.0, 80.0], 60.0),
            knob("by bucket", 1.0, &[0.0], 1.0),
            batch(32.0),
        ],
    ),
];

/// Variants by number: the whole, without boost mode, on-demand RSS, static-safe core mapper, static-safe server
/// mapper.
const NETBLAZE: &[Knob] = &[
    knob("variant", 0.0, &[1.0, 2.0, 3.0, 4.0], 3.0),
    knob("fill", 0.95, &[0.85, 0.7, 0.55], 0.7),
    knob("reclaim below fill", 0.1, &[0.05, 0.2], 0.05),
    knob("settle", 3000.0, &[1000.0, 300.0], 3000.0),
    knob("period", 1000.0, &[250.0], 250.0),
    knob("release after", 5.0, &[1.0, 2.0, 10.0], 1.0),
    knob("boost after", 3.0, &[2.0, 6.0], 3.0),
    knob("splits", 1.0, &[0.0], 1.0),
    batch(16.0),
];

/// Rows of the table: name, policy, which values it has, and whether its profile is the published one.
pub struct Row {
    pub name: &'static str,
    pub policy: &'static str,
    pub frozen: bool,
    pub published_profile: bool,
    /// Value that differs from those.
    pub but: Option<(&'static str, f64)>,
}

const fn row(name: &'static str, policy: &'static str, frozen: bool) -> Row {
    Row {
        name,
        policy,
        frozen,
        published_profile: false,
        but: None,
    }
}

pub const ROWS: &[Row] = &[
    row("static", "static", true),
    row("rss++", "rss++", true),
    row("metron", "metron", true),
    row("quadrant", "quadrant", true),
    row("dyssect", "dyssect", true),
    Row {
        published_profile: true,
        ..row("netblaze as published", "netblaze", false)
    },
    row("netblaze retrained", "netblaze", false),
    row("netblaze swept", "netblaze", true),
    row("tailwater as shipped", "tailwater", false),
    row("tailwater swept", "tailwater", true),
];

/// Returns a policy's knobs.
pub fn knobs(policy: &str) -> &'static [Knob] {
    let found = POLICIES.iter().find(|(name, _)| *name == policy);
    found.unwrap_or_else(|| panic!("no policy {policy}")).1
}

/// Values of a policy's knobs, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    pub policy: &'static str,
    pub values: Vec<f64>,
}

impl Values {
    pub fn published(policy: &'static str) -> Values {
        let values = knobs(policy).iter().map(|knob| knob.published).collect();
        Values { policy, values }
    }

    pub fn frozen(policy: &'static str) -> Values {
        let values = knobs(policy).iter().map(|knob| knob.frozen).collect();
        Values { policy, values }
    }

    pub fn set(&mut self, name: &str, value: f64) {
        let found = knobs(self.policy).iter().position(|knob| knob.name == name);
        self.values[found.unwrap_or_else(|| panic!("no knob {name}"))] = value;
    }

    fn get(&self, name: &str) -> f64 {
        let found = knobs(self.policy).iter().position(|knob| knob.name == name);
        self.values[found.unwrap_or_else(|| panic!("no knob {name}"))]
    }

    fn time(&self, name: &str) -> Nanos {
        Nanos((self.get(name) * 1e6) as u64)
    }

    pub fn batch(&self) -> u16 {
        self.get("batch") as u16
    }

    /// Creates the policy for a cell. It knows the profile, and nothing else of the machine.
    pub fn policy(&self, cell: &Cell, profile: &CapacityProfile) -> RackPolicy {
        let (slo, most) = (cell.slo(), profile.rates.largest());
        let packet = Nanos((1e9 / most) as u64);
        let (steered, core) = match self.policy {
            "static" => (Steered::Rack(None), None),
            "rss++" => (self.rss_plus_plus(), None),
            "metron" => {
                let config = MetronConfig {
                    period: self.time("period"),
                    merge_below: self.get("merge below"),
                    lost: self.get("lost") as u64,
                    ..MetronConfig::default()
                };
                (Steered::Rack(Some(Box::new(Metron::new(config)))), None)
            }
            "quadrant" => (self.quadrant(slo, most), None),
            "dyssect" => {
                let median = Nanos((slo.0 as f64 * self.get("median of the objective")) as u64);
                let mut config = DyssectConfig::for_median(median.max(packet + Nanos(1)), packet);
                config.margin = self.get("margin");
                config.control_loop.period = self.time("period");
                (Steered::Flows(Box::new(Dyssect::new(config))), None)
            }
            "netblaze" => self.netblaze(cell, profile),
            "tailwater" => self.tailwater(cell, profile),
            other => panic!("no policy {other}"),
        };
        // A quarter of the machine's cores to begin with, for all.
        let start = (self.policy != "static").then_some(cell.cores.div_ceil(4));
        RackPolicy {
            name: self.policy.to_owned(),
            steered,
            core,
            start_cores: start,
        }
    }

    fn rss_plus_plus(&self) -> Steered {
        let longest = self.time("longest period");
        let config = RssPlusPlusConfig {
            target: Some(self.get("target")),
            margin: self.get("margin"),
            longest_period: longest,
            threshold: self.get("threshold"),
            ..RssPlusPlusConfig::default()
        };
        Steered::Rack(Some(Box::new(RssPlusPlus::new(config))))
    }

    fn quadrant(&self, slo: Nanos, most: f64) -> Steered {
        let config = QuadrantConfig {
            signal: match self.get("signal") > 0.0 {
                true => LatencySignal::WorstDelay,
                false => LatencySignal::TwiceBatchP99,
            },
            smoothing: self.time("smoothing"),
            alpha: self.get("alpha"),
            beta: self.get("beta"),
            load_limit: self.get("load limit"),
            most_flows: self.get("most flows"),
            ..QuadrantConfig::as_compared(slo, most)
        };
        Steered::Flows(Box::new(Quadrant::new(config)))
    }

    fn netblaze(
        &self,
        cell: &Cell,
        profile: &CapacityProfile,
    ) -> (Steered, Option<tailwater_policy::core::MakeMapper>) {
        let variant = self.get("variant") as u32;
        let options = NetBlazeOptions {
            network_allowance: Nanos::ZERO,
            capacity: if variant == 3 {
                Capacity::StaticSafe
            } else {
                Capacity::Frontier
            },
            boost_after: (!matches!(variant, 1 | 2)).then_some(self.get("boost after") as u32),
            release_after: self.get("release after") as u32,
            ..NetBlazeOptions::new(cell.slo())
        };
        let config = NetBlazeServerConfig {
            period: self.time("period"),
            on_overload: variant == 2,
            fill: self.get("fill"),
            reclaim_fill: self.get("fill") - self.get("reclaim below fill"),
            settle: self.time("settle"),
        };
        let rates = match variant {
            4 => profile.rates.static_safe(),
            _ => profile.rates.clone(),
        };
        let splits = match self.get("splits") > 0.0 {
            true => profile.splits.clone(),
            false => SplitProfile::new(),
        };
        let frontier = profile.frontier.clone();
        let make = Arc::new(move || {
            let mapper = NetBlazeMapper::new(options, &frontier, splits.clone());
            Box::new(mapper.unwrap_or_else(|error| panic!("{error}"))) as _
        });
        let servers = Steered::Servers {
            ingress: ingress(cell, false),
            make: Arc::new(move || Box::new(NetBlazeServerMapper::new(config, rates.clone()))),
        };
        (servers, Some(make))
    }

    fn tailwater(
        &self,
        cell: &Cell,
        profile: &CapacityProfile,
    ) -> (Steered, Option<tailwater_policy::core::MakeMapper>) {
        let percent = |name: &str| self.get(name) as u32;
        let options = TailwaterOptions {
            activate_percent: percent("activate"),
            share_percent: percent("share"),
            release_percent: percent("release"),
            relieve_percent: Some(percent("relieve")),
            unit: if self.get("by bucket") > 0.0 {
                Unit::Bucket
            } else {
                Unit::Flow
            },
            ..TailwaterOptions::measured(cell.slo(), profile)
        };
        let fill = self.get("fill");
        let default = TailwaterServerConfig::default();
        let config = TailwaterServerConfig {
            fill,
            reclaim_fill: fill - (default.fill - default.reclaim_fill),
            late: self.get("late"),
            pooled: match self.get("pooled") {
                chosen if chosen > 0.0 => chosen,
                _ => pooled(profile),
            },
            divides: divides(profile),
            ..default
        };
        let (rates, splits) = (profile.rates.clone(), profile.splits.clone());
        let servers = Steered::Servers {
            ingress: ingress(cell, true),
            make: Arc::new(move || Box::new(TailwaterServerMapper::new(config, rates.clone()))),
        };
        let make = Arc::new(move || {
            let mapper = TailwaterMapper::new(options, splits.clone());
            Box::new(mapper.unwrap_or_else(|error| panic!("{error}"))) as _
        });
        (servers, Some(make))
    }
}

/// Steering to servers. With only one there is none.
fn ingress(cell: &Cell, rebalance: bool) -> IngressConfig {
    IngressConfig {
        prefix_v4: 24,
        prefix_v6: 48,
        // Half of a server's cores are reserved for bursts, as in rack specs.
        threshold: (cell.cores / 2).max(1),
        table: machine::rack(1).switch.table,
        flow_hash: false,
        rebalance,
        scale_in: false,
    }
}

/// Checks that the shipped policy is what the row says.
pub fn check_shipped() {
    let options = TailwaterOptions::new(Nanos::from_micros(200));
    let values = Values::published("tailwater");
    let server = TailwaterServerConfig::default();
    let shipped = [
        ("activate", options.activate_percent.into()),
        ("share", options.share_percent.into()),
        ("release", options.release_percent.into()),
        ("relieve", options.relieve_percent.unwrap_or(0).into()),
        ("fill", server.fill),
        ("late", server.late),
    ];
    for (name, value) in shipped {
        assert!(
            (values.get(name) - value).abs() < 1e-9,
            "{name} is {value} in the product"
        );
    }
    assert!(Policy::Tailwater.rebalances());
}
