//! Fields of the kind `Rack`.

use crate::chain::MOST_BATCH;
use crate::flow_level::{MOST_CHAINS, MOST_SERVERS};
use crate::policies::COMPARABLE;
use crate::simulation::{LONGEST_RUN, SHORTEST_WINDOW};
use std::ops::RangeInclusive;
use tailwater_api::schema::{FILE, Field, Kind, LABEL, Map, Rule, Text, Type};
use tailwater_api::slo::WHEN_OVERLOADED;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{MAX_PAUSES, MAX_PAUSES_PER_SECOND, MAX_SPLITS, MAX_WAKES};

/// `kind` of rack specs.
pub(super) const KIND: &str = "Rack";
/// Valid durations of arrivals.
pub(super) const DURATION: RangeInclusive<Nanos> = Nanos::from_micros(100)..=LONGEST_RUN;
/// Valid lengths of a window.
pub(super) const WINDOW: RangeInclusive<Nanos> = SHORTEST_WINDOW..=LONGEST_RUN;
/// Valid latency objectives, as in chain specs.
pub(super) const SLO: RangeInclusive<Nanos> = Nanos::from_micros(1)..=Nanos::from_secs(10);
/// Valid factors on the number of flows and on the rate.
pub(super) const SCALE: RangeInclusive<f64> = 1e-3..=1e6;
/// The largest seed: all digits of it are kept by whatever reads JSON.
pub(super) const MOST_SEED: u64 = 1 << 53;
/// Maximum number of copies of a chain, and of its servers.
pub(super) const MOST_COPIES: u64 = 10_000;
/// Valid delays of any kind.
pub(super) const DELAY: RangeInclusive<Nanos> = Nanos::ZERO..=Nanos::from_secs(10);
/// Maximum rows of a switch's table, and maximum packets that its controller buffers.
pub(super) const MOST_ROWS: u64 = 1 << 20;
/// Maximum buffer of a switch, in bytes.
pub(super) const MOST_BUFFER: u64 = 1 << 34;
/// Maximum cost, in nanoseconds.
pub(super) const MOST_COST: f64 = 1e9;
/// Valid durations of sleep, wake-ups and pauses, in nanoseconds.
pub(super) const LENGTH: RangeInclusive<u64> = 1..=10_000_000_000;

/// Schema of racks.
pub static SCHEMA: Kind = Kind {
    name: KIND,
    doc: "A rack of servers, its chains and their traffic, for `tailwater simulate`.",
    spec: &FIELDS,
};

const POLICY: Type = Type::Words(&COMPARABLE);
/// Fields of `spec`.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "model",
            Type::Words(&["packets", "flows"]),
            "`packets`: every packet. `flows`: rates and backlogs, for large racks and long times.",
        )
        .or("packets"),
        Field::new(
            "servers",
            Type::List(&Type::Map(&SERVER), 1, MOST_SERVERS),
            "Groups of equal servers; at most 256 servers and 4,096 cores in all, at flow level 20,000 and 1,048,576.",
        )
        .required()
        .example("[{cores: 32}]"),
        Field::new(
            "coreSharing",
            Type::Words(&["first-come", "own", "broker"]),
            "Sharing of a server's cores among chains. `first-come`: equal shares of all servers for queues, and all \
             others as auxiliary cores. With the other two each chain is on one server: `own`: an equal share; \
             `broker`: all cores, under the core broker. Not at flow level.",
        )
        .or("first-come"),
        Field::new("switch", Type::Map(&SWITCH), "Switch in front of the servers."),
        Field::new("timing", Type::Map(&TIMING), "Delays between cores and machines."),
        Field::new("ingress", Type::Map(&INGRESS), "Steering of prefixes to servers."),
        Field::new(
            "chains",
            Type::List(&Type::Map(&CHAIN), 1, MOST_CHAINS),
            "Chains; at most 64, at flow level 10,000.",
        )
        .required()
        .example("[{name: a, slo: 200us, costs: {packetNanoseconds: 500}, traffic: {source: bursty}}]"),
        Field::new(
            "policies",
            Type::List(&POLICY, 1, COMPARABLE.len()),
            "Policies to compare; `oracle` is the bound.",
        )
        .otherwise("all"),
        Field::new(
            "duration",
            Type::duration(&DURATION),
            "Time during which packets arrive.",
        )
        .otherwise("captures whole, presets 1s"),
        Field::new(
            "warmUp",
            Type::Duration(Nanos::ZERO, LONGEST_RUN),
            "Initial time without report, since policies start with few cores; less than `duration`.",
        )
        .or("0s"),
        Field::new(
            "window",
            Type::duration(&WINDOW),
            "Report window; at most a million per run.",
        )
        .or("10ms"),
        Field::new(
            "seed",
            Type::Whole(0, MOST_SEED),
            "Selects presets' packets, and draws jitter, wake-ups and pauses.",
        )
        .or("1"),
    ],
    ..Map::PLAIN
};
const WAIT: Type = Type::duration(&DELAY);
static LINK: Text = Text {
    what: "a rate in bits such as 100Gbps, or unlimited",
    pattern: "^(unlimited|[0-9]+(\\.[0-9]+)? ?(bps|kbps|Mbps|Gbps))$",
    most: 40,
    example: "100Gbps",
    whole: None,
};
/// Fields of a group of servers.
pub(super) static SERVER: Map = Map {
    fields: &[
        Field::new("count", Type::Whole(1, MOST_SERVERS as u64), "Number of such servers.").or("1"),
        Field::new(
            "cores",
            Type::Whole(1, 512),
            "Cores of each server; chains share them equally.",
        )
        .or("32"),
        Field::new(
            "numaNodes",
            Type::Whole(1, 512),
            "NUMA nodes, over which the cores are distributed.",
        )
        .otherwise("2, at most the cores"),
        Field::new("link", Type::Text(&LINK), "Link from the switch, or `unlimited`.").or("100Gbps"),
        Field::new("ring", Type::Whole(1, 1 << 20), "Descriptors of each receive queue.").or("1024"),
        Field::new("retaDelay", WAIT, "Delay until a new RSS table takes effect.").or("2ms"),
        Field::new(
            "buffers",
            Type::Whole(64, 65_535),
            "Packet buffers of each dedicated core.",
        )
        .or("2048"),
        Field::new(
            "failsAt",
            Type::Duration(Nanos::ZERO, LONGEST_RUN),
            "Time from the first packet at which each server of the group fails; not at flow level.",
        )
        .otherwise("never"),
    ],
    ..Map::PLAIN
};
/// Fields of `switch`.
pub(super) static SWITCH: Map = Map {
    fields: &[
        Field::new("table", Type::Whole(0, MOST_ROWS), "Rows for destination prefixes.").or("2000"),
        Field::new("ruleLatency", WAIT, "Time to write a row.").or("1ms"),
        Field::new("held", Type::Whole(0, MOST_ROWS), "Packets that may wait for rows.").or("4096"),
        Field::new("bufferBytes", Type::Whole(65_536, MOST_BUFFER), "Buffer of each link.").or("1048576"),
        Field::new(
            "flowHash",
            Type::Bool,
            "Rows can also match a part of the flow hash (select groups of OpenFlow).",
        )
        .or("true"),
    ],
    ..Map::PLAIN
};
/// Fields of `timing`.
pub(super) static TIMING: Map = Map {
    fields: &[
        Field::new("poll", WAIT, "Delay until a polling core finds a packet.")
            .otherwise("0s, or the profile's if that is longer"),
        Field::new("wake", WAIT, "Wake-up time of an auxiliary core.").or("20us"),
        Field::new("spin", WAIT, "Polling time of an auxiliary core before it sleeps.").or("0s"),
        Field::new("handOver", WAIT, "Transfer to an auxiliary core.").or("300ns"),
        Field::new("receipt", WAIT, "Transfer back from an auxiliary core.").or("300ns"),
        Field::new("migration", WAIT, "Transfer of a bucket or flow between cores.").or("1us"),
        Field::new(
            "look",
            Type::Duration(Nanos(1), *DELAY.end()),
            "Interval at which a core polls its auxiliary cores.",
        )
        .or("2us"),
        Field::new("rpc", WAIT, "A remote call between machines.").or("1ms"),
        Field::new(
            "flowTransfer",
            WAIT,
            "Transfer of a flow's state between servers, in addition to a call.",
        )
        .or("50ns"),
    ],
    ..Map::PLAIN
};
/// Fields of `ingress`.
pub(super) static INGRESS: Map = Map {
    fields: &[
        Field::new(
            "prefixV4",
            Type::Whole(0, 32),
            "Length of the IPv4 prefixes that are steered to servers.",
        )
        .or("24"),
        Field::new(
            "prefixV6",
            Type::Whole(0, 128),
            "Length of the IPv6 prefixes that are steered to servers.",
        )
        .or("48"),
        Field::new(
            "threshold",
            Type::Whole(1, 512),
            "With NetBlaze's policies, a server with this many queues gets no new prefix.",
        )
        .otherwise("half of a chain's cores of a server"),
        Field::new(
            "scaleIn",
            Type::Bool,
            "With `tailwater`: servers that are not needed are emptied; not at flow level.",
        )
        .or("false"),
    ],
    ..Map::PLAIN
};
const COPIES: Type = Type::Whole(1, MOST_COPIES);
/// Fields of a chain.
pub(super) static CHAIN: Map = Map {
    fields: &[
        Field::new("name", Type::Text(&LABEL), "Name, different for each.")
            .required()
            .example("a"),
        Field::new(
            "count",
            COPIES,
            "Number of such chains, each with its own traffic; named `NAME-1`, `NAME-2`, ...",
        )
        .or("1"),
        Field::new(
            "servers",
            COPIES,
            "At flow level: number of servers of each chain, the next ones in turn.",
        )
        .otherwise("all"),
        Field::new(
            "server",
            Type::Whole(1, MOST_SERVERS as u64),
            "With `coreSharing` `own` or `broker`: number of its server.",
        )
        .otherwise("in turn"),
        Field::new(
            "rate",
            Type::Number {
                least: 0.0,
                most: 1e15,
                above: true,
                below: false,
            },
            "Packets per second that it was admitted with.",
        )
        .otherwise("unknown"),
        Field::new(
            "slo",
            Type::duration(&SLO),
            "Latency objective, for 99 % of the packets.",
        )
        .required()
        .example("200us"),
        Field::new(
            "whenOverloaded",
            WHEN_OVERLOADED,
            "As in a chain spec; a discarded packet costs `receivePacketNanoseconds`.",
        )
        .or("in-order"),
        Field::new("profile", Type::Text(&FILE), "Capacity profile, relative to this file."),
        Field::new("costs", Type::Map(&COSTS), "Costs of packets, in place of a profile.")
            .example("{packetNanoseconds: 500}"),
        Field::new(
            "frontier",
            Type::Text(&FILE),
            "Frontier of an epoch, as NetBlaze's authors published it (`short_*.pro`).",
        )
        .otherwise("from the costs")
        .only_with("costs"),
        Field::new(
            "rates",
            Type::Text(&FILE),
            "Frontier of rates, as NetBlaze's authors published it (`long_*.pro`).",
        )
        .otherwise("from the costs")
        .only_with("costs"),
        Field::new(
            "splits",
            Type::List(&Type::Map(&SPLIT), 1, MAX_SPLITS - 1),
            "Where the chain can be split for a whale (a flow that exceeds a core).",
        )
        .otherwise("none")
        .only_with("costs"),
        Field::new(
            "dispatch",
            Type::Map(&DISPATCH),
            "Costs of receiving and offloading, in nanoseconds.",
        )
        .otherwise("as measured live"),
        Field::new(
            "batch",
            Type::Whole(1, MOST_BATCH as u64),
            "Maximum packets of a batch.",
        )
        .or("32"),
        Field::new(
            "opensAtHome",
            Type::Bool,
            "Only the owner of a flow's bucket can open it, as with NAT.",
        )
        .or("false"),
        Field::new(
            "jitter",
            Type::number(0.0, 2.0),
            "Random batch times: log-normal with the mean of the costs and this deviation of the logarithm.",
        )
        .or("0"),
        Field::new(
            "wakes",
            Type::List(&Type::Map(&WAKE), 1, MAX_WAKES),
            "Wake-up times of auxiliary cores, by the time asleep.",
        )
        .otherwise("the profile's, or `timing.wake`"),
        Field::new(
            "pauses",
            Type::List(&Type::Map(&PAUSE), 1, MAX_PAUSES),
            "Interruptions of cores.",
        )
        .otherwise("the profile's"),
        Field::new("traffic", Type::Map(&TRAFFIC), "Source of its packets.")
            .required()
            .example("{source: bursty}"),
    ],
    rules: &[Rule::ExactlyOne(&["costs", "profile"])],
    ..Map::PLAIN
};
const COST: Type = Type::number(0.0, MOST_COST);
/// Fields of `costs`.
pub(super) static COSTS: Map = Map {
    fields: &[
        Field::new("batchNanoseconds", COST, "Cost of a batch.").or("0"),
        Field::new("packetNanoseconds", COST, "Cost of a packet.")
            .required()
            .example("500"),
        Field::new("byteNanoseconds", COST, "Cost of a byte.").or("0"),
        Field::new("newFlowNanoseconds", COST, "Cost of a new flow.").or("0"),
    ],
    ..Map::PLAIN
};
/// Fields of `dispatch`.
pub(super) static DISPATCH: Map = Map {
    fields: &[
        Field::new(
            "receiveBatchNanoseconds",
            COST,
            "Part of the costs of a batch spent on receiving and look-up.",
        )
        .otherwise("60"),
        Field::new(
            "receivePacketNanoseconds",
            COST,
            "Part of the costs of a packet spent on receiving and look-up.",
        )
        .otherwise("35"),
        Field::new(
            "queuePacketNanoseconds",
            COST,
            "The dedicated core, for each packet that is queued or offloaded.",
        )
        .otherwise("85"),
        Field::new("leasePacketNanoseconds", COST, "The same if RSS buckets are offloaded.").otherwise("15"),
        Field::new(
            "handOverBatchNanoseconds",
            COST,
            "The dedicated core, for each group of packets to an auxiliary core.",
        )
        .otherwise("0"),
        Field::new(
            "handOverPacketNanoseconds",
            COST,
            "The dedicated core, for each packet to an auxiliary core.",
        )
        .otherwise("25"),
        Field::new(
            "receiptPacketNanoseconds",
            COST,
            "The dedicated core, for each packet returned by an auxiliary core.",
        )
        .otherwise("0"),
        Field::new(
            "decisionNanoseconds",
            COST,
            "The dedicated core, for each decision of the core mapper.",
        )
        .otherwise("500"),
        Field::new(
            "decisionFlowNanoseconds",
            COST,
            "The same, for each flow in a decision.",
        )
        .otherwise("4"),
        Field::new(
            "movePacketNanoseconds",
            COST,
            "The dedicated core, for each packet moved by a decision.",
        )
        .otherwise("5"),
        Field::new(
            "helperBatchNanoseconds",
            COST,
            "An auxiliary core, for each batch, in addition to the costs.",
        )
        .otherwise("0"),
        Field::new(
            "helperPacketNanoseconds",
            COST,
            "An auxiliary core, for each packet, in addition to the costs.",
        )
        .otherwise("35"),
        Field::new(
            "numaPacketNanoseconds",
            COST,
            "An auxiliary core, for a packet from another NUMA node.",
        )
        .otherwise("0"),
        Field::new(
            "migratedFlowNanoseconds",
            COST,
            "A flow's new core, for its first packet after a permanent move.",
        )
        .otherwise("0"),
        Field::new(
            "ringPacketNanoseconds",
            COST,
            "The processing core, for each packet of a batch while others wait in the ring.",
        )
        .otherwise("0"),
        Field::new(
            "coldAfterPackets",
            Type::Whole(0, u32::MAX as u64),
            "Number of other packets, of the core that processed its flow's last one, after which a packet is cold.",
        )
        .otherwise("0: never"),
        Field::new(
            "coldBatchNanoseconds",
            COST,
            "The processing core, for each batch with a cold packet.",
        )
        .otherwise("0"),
        Field::new(
            "coldPacketNanoseconds",
            COST,
            "The processing core, for each cold packet.",
        )
        .otherwise("0"),
        Field::new(
            "newBatchNanoseconds",
            COST,
            "The processing core, for each batch with a packet that opens a flow.",
        )
        .otherwise("0"),
    ],
    ..Map::PLAIN
};
const TIME: Type = Type::whole(&LENGTH);
/// Fields of a wake-up time.
pub(super) static WAKE: Map = Map {
    fields: &[
        Field::new("asleepNanoseconds", TIME, "Time asleep.")
            .required()
            .example("1000"),
        Field::new("p50Nanoseconds", TIME, "Median of the wake-up time.")
            .required()
            .example("5000"),
        Field::new("p90Nanoseconds", TIME, "90th percentile.")
            .required()
            .example("5000"),
        Field::new("p99Nanoseconds", TIME, "99th percentile.")
            .required()
            .example("5000"),
    ],
    ..Map::PLAIN
};
/// Fields of an interruption.
pub(super) static PAUSE: Map = Map {
    fields: &[
        Field::new(
            "perSecond",
            Type::Number {
                least: 0.0,
                most: MAX_PAUSES_PER_SECOND,
                above: true,
                below: false,
            },
            "Number of interruptions per second, at random times.",
        )
        .required()
        .example("10"),
        Field::new("nanoseconds", TIME, "Length of an interruption.")
            .required()
            .example("10000"),
    ],
    ..Map::PLAIN
};
const SHARE: Type = Type::number(0.0, 1.0);
/// Fields of a split point.
pub(super) static SPLIT: Map = Map {
    fields: &[
        Field::new(
            "lastFunctions",
            Type::Whole(1, MAX_SPLITS as u64 - 1),
            "Number of functions on the auxiliary core.",
        )
        .required()
        .example("1"),
        Field::new("first", SHARE, "Share of the packets' costs before the split.")
            .required()
            .example("0.5"),
        Field::new("last", SHARE, "Share of the packets' costs behind the split.")
            .required()
            .example("0.5"),
    ],
    ..Map::PLAIN
};
const FACTOR: Type = Type::number(*SCALE.start(), *SCALE.end());
/// Fields of `traffic`.
pub(super) static TRAFFIC: Map = Map {
    fields: &[
        Field::new(
            "source",
            Type::Text(&FILE),
            "Preset, or capture file relative to this file.",
        )
        .required()
        .example("bursty"),
        Field::new("flowsScale", FACTOR, "Multiple of a preset's flows.").or("1"),
        Field::new("rateScale", FACTOR, "Speed-up of the traffic.").or("1"),
        Field::new("seed", Type::Whole(0, MOST_SEED), "Selects a preset's packets.")
            .otherwise("the run's, plus the chain's number"),
    ],
    ..Map::PLAIN
};
