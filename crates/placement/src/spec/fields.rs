//! Fields of the kinds `Cluster` and `SloSet`.

use crate::cluster::{MAX_CORES, MAX_KINDS, MAX_NODES, MAX_SERVERS, MAX_WAYS};
use crate::curve::{MAX_POINTS, MAX_RATE};
use crate::schedule::MAX_INSTANCES;
use std::ops::RangeInclusive;
use tailwater_api::schema::{FILE, Field, Kind, LABEL, Map, Rule, Type};
use tailwater_api::slo::PERCENTILE;
use tailwater_net::Nanos;

/// Maximum number of SLOs in a file.
pub(super) const MAX_SLOS: usize = 20_000;
/// Maximum number of chains in a file.
pub(super) const MAX_CHAINS: usize = 10_000;
/// Valid latency objectives, as in chain specs.
pub(super) const LATENCY: RangeInclusive<Nanos> = Nanos::from_micros(1)..=Nanos::from_secs(10);
/// Maximum length of a traffic name, in bytes.
pub(super) const MAX_TRAFFIC: usize = 256;

/// Maximum size of a way, in KiB.
pub(super) const MAX_WAY: u64 = 1 << 20;
/// Maximum files and folders of profiles.
const MAX_FILES: usize = 1000;
/// Longest text in a description of hardware, in bytes.
const MAX_TEXT: usize = 4096;

/// Schema of clusters.
pub static CLUSTER: Kind = Kind {
    name: "Cluster",
    doc: "Servers that `tailwater place` places instances of chains on.",
    spec: &CLUSTER_SPEC,
};
/// Fields of a cluster.
pub(super) static CLUSTER_SPEC: Map = Map {
    fields: &[Field::new(
        "servers",
        Type::List(&Type::Map(&SERVERS), 1, MAX_SERVERS),
        "Servers, or groups of equal ones.",
    )
    .required()
    .example("[{name: server, machine: lab, cores: 8, ways: 11, wayKibibytes: 2048}]")],
    ..Map::PLAIN
};
/// Fields of a group of servers.
pub static SERVERS: Map = Map {
    fields: &[
        Field::new("name", Type::Text(&LABEL), "Name of the server, or of its group.")
            .required()
            .example("server"),
        Field::new(
            "count",
            Type::Whole(1, MAX_SERVERS as u64),
            "Number of such servers, named `NAME-0`, `NAME-1`, ...",
        )
        .otherwise("one server, named as given"),
        Field::new("machine", Type::Text(&LABEL), "Machine whose curves apply.")
            .required()
            .example("lab"),
        Field::new(
            "hardware",
            Type::Map(&HARDWARE),
            "Description of that machine, by which profiles are found.",
        )
        .otherwise("none"),
        Field::new("numaNodes", Type::Whole(1, MAX_NODES as u64), "NUMA nodes.").or("1"),
        Field::new("cores", Type::Whole(1, MAX_CORES as u64), "Cores of each NUMA node.")
            .required()
            .example("8"),
        Field::new(
            "ways",
            Type::Whole(1, MAX_WAYS as u64),
            "Ways of each NUMA node's last-level cache.",
        )
        .required()
        .example("11"),
        Field::new("wayKibibytes", Type::Whole(1, MAX_WAY), "Size of a way.")
            .required()
            .example("2048"),
        Field::new(
            "classes",
            Type::Whole(1, MAX_CORES as u64),
            "Cache partitions of a NUMA node (15: CAT's 16 classes less one).",
        )
        .or("15"),
    ],
    ..Map::PLAIN
};
const NUMBER: Type = Type::Whole(0, u32::MAX as u64);
const HARDWARE_FIELD: Type = Type::Words(&[
    "processor",
    "megahertz",
    "cacheKibibytes",
    "cacheWays",
    "privateKibibytes",
]);
/// Fields of `hardware`.
pub static HARDWARE: Map = Map {
    fields: &[
        Field::new("processor", Type::Any(MAX_TEXT), "Name of the processor.")
            .required()
            .example("Example CPU"),
        Field::new("megahertz", NUMBER, "Clock rate.")
            .required()
            .example("2400"),
        Field::new("cacheKibibytes", NUMBER, "Size of the last-level cache.")
            .required()
            .example("22528"),
        Field::new("cacheWays", NUMBER, "Ways of the last-level cache.")
            .required()
            .example("11"),
        Field::new("privateKibibytes", NUMBER, "Size of a core's own cache.")
            .required()
            .example("1024"),
        Field::new(
            "mayDiffer",
            Type::List(&HARDWARE_FIELD, 1, 5),
            "Fields in which a profile's machine may differ.",
        )
        .otherwise("none"),
    ],
    ..Map::PLAIN
};

/// Schema of sets of SLOs.
pub static SLO_SET: Kind = Kind {
    name: "SloSet",
    doc: "Chains with their measured curves, and SLOs in the order of their admission.",
    spec: &SLO_SET_SPEC,
};
/// Fields of a set of SLOs.
pub(super) static SLO_SET_SPEC: Map = Map {
    fields: &[
        Field::new(
            "profiles",
            Type::List(&Type::Text(&FILE), 1, MAX_FILES),
            "Files of `tailwater profile`, and folders of files `*.curves.yaml`; relative to this file.",
        )
        .otherwise("none"),
        Field::new(
            "chains",
            Type::List(&Type::Map(&CHAIN), 1, MAX_CHAINS),
            "Chains with their curves.",
        )
        .required()
        .example("[{name: a, curves: [{machine: lab, throughput: [[1024, 1000000]], latency: [[1, 50]]}]}]"),
        Field::new(
            "slos",
            Type::List(&Type::Map(&SLO), 1, MAX_SLOS),
            "SLOs, each with its own name.",
        )
        .otherwise("none"),
    ],
    ..Map::PLAIN
};
/// Fields of a chain of a set of SLOs.
pub(super) static CHAIN: Map = Map {
    fields: &[
        Field::new(
            "name",
            Type::Text(&LABEL),
            "Name of a chain with its configuration and traffic.",
        )
        .required()
        .example("a"),
        Field::new(
            "curves",
            Type::List(&Type::Map(&CURVES), 1, MAX_KINDS),
            "Curves, for each machine.",
        )
        .example("[{machine: lab, throughput: [[1024, 1000000]], latency: [[1, 50]]}]"),
        Field::new("profile", Type::Map(&CHAIN_PROFILE), "Selects profiles of `profiles`."),
    ],
    rules: &[Rule::ExactlyOne(&["curves", "profile"])],
    ..Map::PLAIN
};
const CORES: Field = Field::new(
    "cores",
    Type::Whole(1, MAX_CORES as u64),
    "Cores of one instance, all on one NUMA node.",
)
.or("1");
/// Fields of a chain's `profile`.
pub static CHAIN_PROFILE: Map = Map {
    fields: &[
        Field::new("chain", Type::Any(MAX_TEXT), "A profile fits with this chain.").otherwise("the name of the chain"),
        Field::new(
            "spec",
            Type::Text(&FILE),
            "A profile fits with the configuration of this chain spec, relative to the file.",
        )
        .otherwise("any"),
        Field::new(
            "configuration",
            Type::Any(MAX_TEXT),
            "A profile fits with this configuration, as the file has it.",
        )
        .otherwise("any"),
        Field::new(
            "traffic",
            Type::Any(MAX_TEXT),
            "A profile fits with this traffic, such as `backbone, seed 1`.",
        )
        .otherwise("any"),
        Field::new(
            "percentile",
            PERCENTILE,
            "A profile fits with latencies of this percentile.",
        )
        .otherwise("any"),
        Field::new(
            "machines",
            Type::List(&Type::Text(&LABEL), 1, MAX_KINDS),
            "Only for these machines of the cluster; no instance is placed on others.",
        )
        .otherwise("all"),
        CORES,
    ],
    rules: &[Rule::AtMostOne(&["spec", "configuration"])],
    ..Map::PLAIN
};
const CACHE_NUMBER: Type = Type::number(0.0, MAX_RATE);
const CACHE_POINT: Type = Type::List(&CACHE_NUMBER, 2, 2);
const LOAD_NUMBER: Type = Type::number(0.0, 1e7);
const LOAD_POINT: Type = Type::List(&LOAD_NUMBER, 2, 2);
/// Fields of curves on a machine.
pub(super) static CURVES: Map = Map {
    fields: &[
        Field::new(
            "machine",
            Type::Text(&LABEL),
            "Measured machine; servers of another kind require their own curves.",
        )
        .required()
        .example("lab"),
        CORES,
        Field::new(
            "traffic",
            Type::Any(MAX_TRAFFIC),
            "Measured traffic; equal for all machines of a chain.",
        )
        .otherwise("none"),
        Field::new(
            "percentile",
            PERCENTILE,
            "Percentile of `latency`; equal for all machines of a chain.",
        )
        .otherwise("none"),
        Field::new(
            "throughput",
            Type::List(&CACHE_POINT, 1, MAX_POINTS),
            "Points [KiB of cache, packets per second], rising.",
        )
        .required()
        .example("[[1024, 1000000]]"),
        Field::new(
            "latency",
            Type::List(&LOAD_POINT, 1, MAX_POINTS),
            "Points [load up to 1, microseconds], rising: of the objective's percentile.",
        )
        .required()
        .example("[[1, 50]]"),
    ],
    ..Map::PLAIN
};
/// Fields of an SLO.
pub static SLO: Map = Map {
    fields: &[
        Field::new("name", Type::Text(&LABEL), "Name of the SLO.")
            .required()
            .example("gold"),
        Field::new("chain", Type::Any(253), "Name of its chain.")
            .required()
            .example("a"),
        Field::new("throughput", Type::PacketRate, "Reserved: packets per second.").example("100kpps"),
        Field::new(
            "onDemand",
            Type::Map(&ON_DEMAND),
            "On demand instead: starts with one instance with the least measured cache.",
        ),
        Field::new("latency", Type::duration(&LATENCY), "Latency objective.")
            .required()
            .example("200us"),
        Field::new(
            "traffic",
            Type::Any(MAX_TRAFFIC),
            "Traffic that the chain's curves must name.",
        )
        .otherwise("any"),
        Field::new(
            "percentile",
            PERCENTILE,
            "Percentile that the chain's curves must name.",
        )
        .otherwise("any"),
        Field::new(
            "cap",
            Type::PacketRate,
            "Packets per second, at least `throughput`: policers in front of the chain drop packets beyond it.",
        )
        .otherwise("none"),
        Field::new("spread", Type::Bool, "All its instances are on different servers.").or("false"),
        Field::new(
            "apart",
            Type::Text(&LABEL),
            "Group: no two SLOs of it are on one server.",
        )
        .otherwise("none"),
    ],
    rules: &[Rule::ExactlyOne(&["throughput", "onDemand"])],
    ..Map::PLAIN
};
/// Fields of `onDemand`.
pub(super) static ON_DEMAND: Map = Map {
    fields: &[Field::new(
        "mostInstances",
        Type::Whole(1, MAX_INSTANCES as u64),
        "Maximum number of instances.",
    )
    .required()
    .example("4")],
    ..Map::PLAIN
};
