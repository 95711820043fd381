//! What the papers ran on, as far as they tell: rack, chains, traffic.

use ruzstd::decoding::StreamingDecoder;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_baselines::catalog::epoch;
use tailwater_net::{FlowKey, Nanos};
use tailwater_policy::capacity::{CapacityProfile, DetailedCosts, EpochFrontier, RateFrontier, ServiceCosts};
use tailwater_policy::server::IngressConfig;
use tailwater_sim::policies::Steered;
use tailwater_sim::{ChainModel, FlowOptions, Objective, Rack, RackPolicy, Recording, Server};
use tailwater_traffic::bursts::{Arrival, Arrivals};
use tailwater_traffic::generate::{Preset, preset};
use tailwater_traffic::{Notice, TrafficError};

/// Selects the packets of all presets.
pub const SEED: u64 = 1;
/// Bytes of a packet, on average (section 4.1).
const BYTES: f64 = 988.0;
/// For how long presets send before the first packet that counts: making them takes most of the time.
const BEFORE: Nanos = Nanos::from_secs(2);
/// Cores that controllers of whole racks begin with, fewer than any of them ends with: Metron doubles them
/// once a second, and from one it would take three seconds more.
const START: u16 = 8;
/// Memory for a case's packets.
const MEMORY: u64 = 8 << 30;

/// A chain and a trace, with what was found by `calibrate`.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The table that it is in.
    pub table: &'static str,
    pub chain: &'static NetBlazeChain,
    pub trace: &'static str,
    /// So many times the preset's flows: `calibrate` prints the value for which the Metron-like policy
    /// uses the published average cores.
    pub flows_scale: f64,
    pub rows: &'static [super::published::Rows],
}

/// One of NetBlaze's chains.
#[derive(Debug)]
pub struct NetBlazeChain {
    pub name: &'static str,
    /// Its folder among the published profiles.
    folder: &'static str,
    /// Costs that come to the published rate of a core (`long_200_p50.pro`, 500 flows) in full batches
    /// of packets of average length, and a new flow's from the published steps of `short_200.pro`.
    pub costs: ServiceCosts,
    /// Table 7: the loose objective, and the profiles that were published for it.
    pub loose: (Nanos, &'static str),
}

/// ACL, load balancer, accounting: 2.14 Mpps. An epoch of 100 us has 352 packets of a flow, or 96 of 312:
/// 235 ns for each flow.
pub const CHAIN_1: NetBlazeChain = NetBlazeChain {
    name: "chain-1",
    folder: "chain4",
    costs: ServiceCosts {
        batch: 320.0,
        packet: 457.3,
        byte: 0.0,
        new_flow: 235.0,
    },
    loose: (Nanos::from_micros(2500), "2000"),
};

/// ACL, URL filter, encryption: 0.74 Mpps, of which half a nanosecond goes into each byte. An epoch of
/// 100 us has 96 packets of a flow, or 64 of 266: 126 ns for each flow.
pub const CHAIN_2: NetBlazeChain = NetBlazeChain {
    name: "chain-2",
    folder: "chain2",
    costs: ServiceCosts {
        batch: 640.0,
        packet: 837.4,
        byte: 0.5,
        new_flow: 126.0,
    },
    loose: (Nanos::from_micros(5000), "5000"),
};

impl NetBlazeChain {
    /// What policies know for an objective whose published profiles are named so.
    pub fn profile(&self, published: &Published, slo: Nanos, named: &str) -> CapacityProfile {
        let folder = self.folder;
        let file = |name: String| (published.file(&name), name);
        let (short, name) = file(format!("{folder}/short_{named}.pro"));
        let frontier = EpochFrontier::from_published(short, &name);
        let (long, name) = file(format!("{folder}/long_{named}_p50.pro"));
        let rates = RateFrontier::from_published(long, &name);
        CapacityProfile {
            chain: self.name.to_owned(),
            machine: "published".to_owned(),
            slo,
            epoch: epoch(slo).unwrap_or_else(|error| panic!("{error}")),
            frontier: frontier.unwrap_or_else(|error| panic!("{error}")),
            rates: rates.unwrap_or_else(|error| panic!("{error}")),
            costs: Some(self.costs),
            details: Some(between_cores()),
            ..CapacityProfile::default()
        }
    }
}

/// The published profiles.
pub struct Published(BTreeMap<String, Vec<u8>>);

impl Published {
    /// From the archive in TAILWATER_TEST_DATA, or says that it is not there.
    pub fn load() -> Option<Published> {
        let Some(folder) = std::env::var_os("TAILWATER_TEST_DATA") else {
            eprintln!("skipped: TAILWATER_TEST_DATA is not set, and NetBlaze's profiles are there");
            return None;
        };
        let path = PathBuf::from(folder).join("profiles/netblaze_profiles.tar.zst");
        let packed = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut archive = Vec::new();
        StreamingDecoder::new(&packed[..])
            .map_err(std::io::Error::other)
            .and_then(|mut decoder| decoder.read_to_end(&mut archive))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Some(Published(untarred(&archive)))
    }

    fn file(&self, name: &str) -> &[u8] {
        let found = self.0.get(name);
        found.unwrap_or_else(|| panic!("no {name} among the published profiles"))
    }
}

/// The profiles of a tar archive (POSIX ustar): headers of 512 bytes, each before its file.
fn untarred(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut rest = archive;
    while let Some((header, after)) = rest.split_first_chunk::<512>() {
        let text = |field: &[u8]| {
            let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..end]).trim().to_owned()
        };
        let Ok(size) = usize::from_str_radix(&text(&header[124..136]), 8) else {
            break;
        };
        let name = text(&header[..100]);
        if let Some((_, name)) = name.split_once("nf_profiles/") {
            files.insert(name.to_owned(), after[..size].to_vec());
        }
        rest = &after[size.next_multiple_of(512).min(after.len())..];
    }
    files
}

/// Four servers of 64 cores. Queues of 4,096 packets are not in the text, but in the tables: it takes 5.5 ms
/// to empty one at 0.74 Mpps, and that is the 99th percentile of whatever overruns its queues on chain
/// 2, whoever it is. Links have no limit: packets that keep the published cores busy are more
/// than one link of 100 Gbit/s brings, through which all of them came.
pub fn rack() -> Rack {
    let mut rack = Rack::of_one(64);
    let server = Server {
        cores: 64,
        numa_nodes: 2,
        ring: 4096,
        link_bps: 0,
        ..Server::default()
    };
    rack.servers = vec![server; 4];
    rack
}

/// A policy for an objective.
pub fn policy(name: &str, profile: &CapacityProfile) -> RackPolicy {
    let model = model(profile);
    let objective = Objective {
        slo: profile.slo,
        profile,
        packet: Nanos(model.packet_nanos(BYTES).round() as u64),
        ingress: IngressConfig {
            prefix_v4: 24,
            prefix_v6: 48,
            // Half of a server's cores are left for bursts.
            threshold: 32,
            table: 2000,
            default_row: false,
        },
    };
    let mut policy = RackPolicy::named(name, &objective).unwrap_or_else(|error| panic!("{name}: {error}"));
    if matches!(policy.steered, Steered::Rack(Some(_)) | Steered::Flows(_)) {
        policy.start_cores = Some(START);
    }
    policy
}

/// What lies between cores: a little more than the authors' program takes there, which is 72 cycles a batch in
/// and out of a queue, and 12 cycles a packet that is mapped anew.
fn between_cores() -> DetailedCosts {
    DetailedCosts {
        receive_packet: 35.0,
        queue_packet: 10.0,
        hand_over_packet: 17.0,
        take_over_packet: 10.0,
        ..DetailedCosts::default()
    }
}

/// What packets take.
pub fn model(profile: &CapacityProfile) -> ChainModel {
    let model = ChainModel::from_profile(profile).unwrap_or_else(|error| panic!("{error}"));
    ChainModel {
        hand_over_batch: 60.0,
        hand_over_packet: 12.0,
        receipt_packet: 5.0,
        ..model
    }
}

/// So many seconds of a preset, with so many times its flows.
pub fn record(trace: &str, flows_scale: f64, seconds: f64) -> Arc<Recording> {
    load(open(trace, flows_scale, seconds))
}

/// Ten seconds of a preset, with so many times its flows, played at half its speed at first and at one and
/// a half times its speed in the end.
pub fn record_growing(trace: &str, flows_scale: f64) -> Arc<Recording> {
    load(Box::new(Growing(open(trace, flows_scale, 10.0))))
}

fn open(trace: &str, flows_scale: f64, seconds: f64) -> Box<dyn Arrivals> {
    let preset = preset(trace).unwrap_or_else(|error| panic!("{error}"));
    let mut preset = preset.scaled(flows_scale).with(SEED, Nanos::from_secs_f64(seconds));
    if let Preset::Aggregate { config, .. } = &mut preset {
        config.warm_up = BEFORE;
    }
    preset.arrivals().unwrap_or_else(|error| panic!("{error}"))
}

fn load(source: Box<dyn Arrivals>) -> Arc<Recording> {
    let recording = Recording::load(source, FlowOptions::default(), MEMORY);
    Arc::new(recording.unwrap_or_else(|error| panic!("{error}")))
}

/// Arrivals at a speed that grows by a tenth a second, from a half.
struct Growing(Box<dyn Arrivals>);

impl Arrivals for Growing {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        let arrival = self.0.next_arrival()?;
        Ok(arrival.map(|arrival| {
            // After t seconds, t / 2 + t^2 / 20 have been played.
            let played = arrival.time.as_secs_f64();
            let time = 10.0 * ((0.25 + 0.2 * played).sqrt() - 0.5);
            Arrival {
                time: Nanos::from_secs_f64(time),
                ..arrival
            }
        }))
    }

    fn flow_key(&self) -> FlowKey {
        self.0.flow_key()
    }

    fn notices(&self) -> Vec<Notice> {
        self.0.notices()
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}
