//! Traffic of the benchmarks' chains, by the names that rows have.

use super::connections::Connections;
use super::{dns, files, table_of};
use crate::routes::Redirected;
use std::path::Path;
use tailwater_api::IdleTimeouts;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::{FlowKey, Nanos};
use tailwater_traffic::generate::{
    FlowShares, FrameSize, Mixed, MixedConfig, Popularity, Senders, Transport, Uniform, UniformConfig,
};
use tailwater_traffic::{CaptureReader, LoadOptions, PacketSource, ReadOptions, Trace};

/// Constant rate of the traffic, which matters to chains with clocks only.
const RATE_PPS: u64 = 1_000_000;

/// Capture whose frame lengths are those of `mixed-capture`: packets of an Internet provider.
const CAPTURE: &str = "traces/snabb_sanitized4k_notimestamps.pcap.zst";

/// Highest rate of new flows that a flow table has room for, per second. Faster chains evict flows.
const NEW_FLOWS_PER_SECOND: u64 = 2_000_000;

/// Mixture of protocols by its name in figures, such as `mixed-64B`, `tcp-udp-imix` or `mixed-capture-zipf-new1`.
pub struct Mixture {
    shares: FlowShares,
    /// Name of the frame lengths.
    sizes: String,
    popularity: Popularity,
    /// Share of packets that begin a flow.
    new_flows: f64,
}

impl Mixture {
    /// Returns the mixture of a name, `None` for traffic of one protocol.
    pub fn of(name: &str) -> Option<Mixture> {
        let (shares, rest) = match (name.strip_prefix("mixed-"), name.strip_prefix("tcp-udp-")) {
            (Some(rest), _) => (FlowShares::MIXED, rest),
            (_, Some(rest)) => (FlowShares::TCP_UDP, rest),
            _ => return None,
        };
        let (rest, new_flows) = match (rest.strip_suffix("-new1"), rest.strip_suffix("-new10")) {
            (Some(rest), _) => (rest, 0.01),
            (_, Some(rest)) => (rest, 0.1),
            _ => (rest, 0.0),
        };
        let (sizes, popularity) = match rest.strip_suffix("-zipf") {
            Some(sizes) => (sizes, Popularity::Zipf(1.0)),
            None => (rest, Popularity::Uniform),
        };
        Some(Mixture {
            shares,
            sizes: sizes.to_owned(),
            popularity,
            new_flows,
        })
    }

    /// Returns the frame lengths, `None` if they are of a capture that does not exist here.
    fn frames(&self) -> Option<Vec<u16>> {
        if self.sizes != "capture" {
            return Some(frame_size(&self.sizes).frames());
        }
        let path = Path::new(&std::env::var_os("TAILWATER_TEST_DATA")?).join(CAPTURE);
        let mut reader = CaptureReader::open(path, &ReadOptions::default()).ok()?;
        let mut frames = Vec::new();
        while let Ok(Some(packet)) = reader.next_packet() {
            // With the frame check sequence.
            frames.push((packet.wire_length as u16 + 4).clamp(64, 1_518));
        }
        (!frames.is_empty()).then_some(frames)
    }

    fn source(self, chain: &str, flows: u32, packets: u64) -> Mixed {
        let config = MixedConfig {
            seed: 1,
            flows,
            sizes: self.frames().unwrap_or_else(|| panic!("no {CAPTURE}")),
            shares: match chain {
                // Users' addresses are of IPv4.
                "upf" => FlowShares {
                    ipv6: 0.0,
                    ..self.shares
                },
                _ => self.shares,
            },
            popularity: self.popularity,
            // Responses would go to addresses that only the chain knows, or have none to route by.
            senders: match chain {
                "firewall" | "firewall-tcp" => Senders::BothEnds,
                _ => Senders::Clients,
            },
            open: chain != "new-flows",
            new_flows: self.new_flows,
            rate_pps: RATE_PPS,
            packets,
        };
        Mixed::new(config).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Reason why a chain has no such traffic here, if it has not.
pub fn reason_to_skip(chain: &str, size: &str) -> Option<&'static str> {
    match Mixture::of(size)? {
        // Bytes already seen cost little, so its connections must begin and end.
        _ if chain.starts_with("ids") => Some("its traffic is HTTP"),
        mixture if mixture.frames().is_none() => Some("TAILWATER_TEST_DATA has no such capture"),
        _ => None,
    }
}

/// Returns `true` for traffic in which flows begin.
pub fn has_new_flows(size: &str) -> bool {
    Mixture::of(size).is_some_and(|mixture| mixture.new_flows > 0.0)
}

/// Gives a chain's flow table the room and the lifetimes that new flows require: they expire as fast as others begin,
/// and those that stay have packets often enough.
pub fn make_room(spec: &mut ChainSpec, size: &str, flows: u32) {
    if !has_new_flows(size) {
        return;
    }
    let timeout = Nanos(u64::from(flows) * 500) + Nanos::from_millis(5);
    let idle = u64::from(flows) + timeout.0 * NEW_FLOWS_PER_SECOND / 1_000_000_000;
    spec.flows.idle_timeout = IdleTimeouts {
        tcp: timeout,
        udp: timeout,
        other: timeout,
    };
    // Translated flows have a return direction.
    spec.flows.capacity = 2 * idle as u32;
}

/// Frame size by its name in figures.
fn frame_size(name: &str) -> FrameSize {
    let bytes = name.strip_suffix('B').and_then(|bytes| bytes.parse().ok());
    match (name, bytes) {
        ("imix", _) => FrameSize::Imix,
        (_, Some(bytes)) => FrameSize::Fixed(bytes),
        _ => panic!("--sizes takes 64B,imix,1024B,mixed-64B,mixed-capture-zipf,tcp-udp-64B-new1, found {name}"),
    }
}

fn load(source: &mut dyn PacketSource) -> Trace {
    let options = LoadOptions {
        memory_limit_bytes: 12 << 30,
        ..LoadOptions::default()
    };
    Trace::load(source, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// Traffic that precedes a chain's traffic once, if its flows are connections that must be opened.
pub fn opening(chain: &str, size: &str, flows: u32) -> Option<Trace> {
    let opens = matches!(chain, "firewall-tcp" | "ids" | "ids-1000") && Mixture::of(size).is_none();
    opens.then(|| load(&mut Connections::opening(flows)))
}

/// Traffic of a chain: `packets` packets of `flows` flows.
pub fn trace(chain: &str, size: &str, flows: u32, packets: u64) -> Trace {
    // With as many flows as packets, each packet is the first of a flow.
    let flows = if chain == "new-flows" { packets as u32 } else { flows };
    if let Some(mixture) = Mixture::of(size) {
        return adapted(chain, mixture.source(chain, flows, packets));
    }
    match chain {
        "firewall-tcp" => {
            let rounds = packets.div_ceil(flows.into());
            return load(&mut Connections::data(flows, frame_size(size), rounds));
        }
        // Bytes already seen cost little, so connections begin and end.
        "ids" | "ids-1000" => return load(&mut Connections::http(flows, frame_size(size))),
        _ => {}
    }
    let config = UniformConfig {
        seed: 1,
        flows,
        size: frame_size(size),
        // The URL filter ignores UDP.
        transport: match chain {
            "url-filter" => Transport::Tcp,
            _ => Transport::Udp,
        },
        rate_pps: RATE_PPS,
        packets,
    };
    adapted(chain, Uniform::new(config).unwrap_or_else(|error| panic!("{error}")))
}

/// Loads traffic after giving it the addresses and contents that a chain needs.
fn adapted(chain: &str, mut source: impl PacketSource) -> Trace {
    let frame = Vec::new();
    match table_of(chain) {
        Some(table) => load(&mut Redirected {
            source,
            destination: |key: &FlowKey| table.destination(key),
            frame,
        }),
        None if chain == "upf" => load(&mut Redirected {
            source,
            destination: files::user,
            frame,
        }),
        None if chain == "dns-guard" => load(&mut dns::Answers { source, frame }),
        None => load(&mut source),
    }
}
