//! Configuration of `ipForward`.

use crate::forward::unicast;
use crate::ip_forward::route::{MAX_NEXT_HOPS, MAX_ROUTES, NextHop, Route, Target};
use crate::ip_forward::routes_file::{self, Names};
use crate::kind::{ALLOW_EMPTY, Context, allows_empty, check_not_empty};
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use tailwater_api::error::{SpecError, nearest};
use tailwater_api::located::Located;
use tailwater_api::schema::{ADDRESS, FILE, Field, LABEL, MAC, Map, PREFIX, Rule, Type};
use tailwater_api::values::{PacketAction, label, mac, prefix};

/// Maximum size of a routes file in bytes.
const MAX_FILE: u64 = 128 << 20;

/// Reserved words, which cannot name a next hop.
const RESERVED: [&str; 3] = ["local", "blackhole", "drop"];

const TARGET: Type = Type::Any(64);
/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "routes",
            Type::List(&Type::Map(&ROUTE), 1, MAX_ROUTES),
            "Routes, each prefix once. They take precedence over those of the file.",
        )
        .otherwise("none")
        .example("[{prefix: 0.0.0.0/0, nextHop: blackhole}]"),
        Field::new(
            "routesFile",
            Type::Text(&FILE),
            "File of routes, relative to the spec's folder, at most 128 MiB.",
        )
        .otherwise("none"),
        Field::new(
            "nextHops",
            Type::List(&Type::Map(&NEXT_HOP), 1, MAX_NEXT_HOPS),
            "Next hops.",
        )
        .required()
        .example("[{name: core, mac: \"02:00:00:00:00:02\"}]"),
        Field::new(
            "default",
            TARGET,
            "Next hop of packets without a route, in both IP versions, or `drop`.",
        )
        .or("drop"),
        Field::new(
            "sourceMac",
            Type::Text(&MAC),
            "Ethernet source of forwarded packets; unicast.",
        )
        .required()
        .example("02:00:00:00:00:01"),
        Field::new(
            "local",
            PacketAction::TYPE,
            "Packets on a `local` route: dropped, or sent unchanged.",
        )
        .or("drop"),
        Field::new(
            "cache",
            Type::Words(&["none", "flow"]),
            "Whether the decision is kept with the flow.",
        )
        .or("none"),
        Field::new(ALLOW_EMPTY, Type::Bool, "Accepts a `routesFile` without a route.")
            .or("false")
            .only_with("routesFile"),
    ],
    rules: &[Rule::AtLeastOne(&["routes", "routesFile", "default"])],
    nullable: true,
};
static ROUTE: Map = Map {
    fields: &[
        Field::new("prefix", Type::Text(&PREFIX), "Prefix of destination addresses.")
            .required()
            .example("10.0.0.0/8"),
        Field::new(
            "nextHop",
            TARGET,
            "Name or address of a next hop, `local` or `blackhole`.",
        )
        .required()
        .example("blackhole"),
    ],
    ..Map::PLAIN
};
static NEXT_HOP: Map = Map {
    fields: &[
        Field::new(
            "name",
            Type::Text(&LABEL),
            "Name, unique; not `local`, `blackhole` or `drop`.",
        )
        .required()
        .example("core"),
        Field::new(
            "mac",
            Type::Text(&MAC),
            "Ethernet destination; unicast. Not learnt: there is no ARP or ND.",
        )
        .required()
        .example("02:00:00:00:00:02"),
        Field::new(
            "address",
            Type::Text(&ADDRESS),
            "IP address: another name for it in routes; unique.",
        )
        .otherwise("none"),
        Field::new(
            "sourceMac",
            Type::Text(&MAC),
            "Ethernet source of packets to it; unicast.",
        )
        .otherwise("the function's"),
    ],
    ..Map::PLAIN
};

/// Forwarding by longest-prefix match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpForwardConfig {
    /// Routes sorted by prefix, each prefix once.
    pub routes: Vec<Route>,
    /// Next hops, at least one.
    pub next_hops: Vec<NextHop>,
    /// Target of packets without a route; `None` to drop them.
    pub default: Option<Target>,
    /// Source address of frames to next hops that have none of their own.
    pub source_mac: [u8; 6],
    /// Treatment of packets to the router itself.
    pub local: PacketAction,
    /// `true` if the decision is cached with the flow.
    pub cached: bool,
    /// File that routes were read from, if any.
    pub source: Option<PathBuf>,
}

impl IpForwardConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let allow_empty = allows_empty(&fields, "routesFile")?;
        let next_hops = next_hops(&fields.required("nextHops", "a list of next hops")?)?;
        let source_mac = unicast(&fields.required("sourceMac", "a MAC address")?)?;
        let names = Names::new(&next_hops);
        let inline = match fields.optional("routes") {
            None => Vec::new(),
            Some(node) => inline_routes(&node, &names, &next_hops)?,
        };
        let (mut routes, source) = match fields.optional("routesFile") {
            None => (Vec::new(), None),
            Some(node) => {
                let path = context.file(node.string("the name of a file")?);
                let routes = file_routes(&node, &path, &next_hops)?;
                if !allow_empty {
                    check_not_empty(&path.display().to_string(), "route", routes.len())?;
                }
                (routes, Some(path))
            }
        };
        let default = match fields.optional("default") {
            Some(node) if node.text("drop").is_ok_and(|text| text != "drop") => {
                Some(target(&node, &names, &next_hops)?)
            }
            Some(node) => node.word(&[("drop", None)])?,
            None => None,
        };
        if inline.is_empty() && source.is_none() && default.is_none() {
            let message = "expected routes, routesFile or a next hop as default, found none";
            return Err(fields.error(message));
        }
        // A prefix in the spec overrides the same prefix in the file.
        if !inline.is_empty() {
            let own: HashSet<_> = inline.iter().map(|route| route.prefix).collect();
            routes.retain(|route| !own.contains(&route.prefix));
            routes.extend(inline);
            routes.sort_by_key(|route| route.prefix);
        }
        Ok(IpForwardConfig {
            default,
            source_mac,
            local: match fields.optional("local") {
                None => PacketAction::Drop,
                Some(node) => PacketAction::parse(&node)?,
            },
            cached: match fields.optional("cache") {
                None => false,
                Some(node) => node.word(&[("none", false), ("flow", true)])?,
            },
            routes,
            next_hops,
            source,
        })
    }
}

fn next_hops(list: &Located<'_>) -> Result<Vec<NextHop>, SpecError> {
    let mut hops: Vec<NextHop> = Vec::new();
    let (mut names, mut addresses) = (HashSet::new(), HashSet::new());
    for item in list.list("next hops", MAX_NEXT_HOPS)? {
        let fields = item.fields_of(&NEXT_HOP)?;
        let name_node = fields.required("name", "a name")?;
        let name = label(&name_node)?;
        if RESERVED.contains(&&*name) {
            let what = format!("a name other than {}", RESERVED.join(", "));
            return Err(name_node.expected(&what));
        }
        if !names.insert(name.clone()) {
            return Err(name_node.expected("a name that no other next hop has"));
        }
        let address = fields.optional("address");
        let address = address
            .map(|node| {
                let what = "an IP address that no other next hop has";
                let text = node.text(what)?;
                let address = text.parse::<IpAddr>().ok();
                let address = address.filter(|address| addresses.insert(*address));
                address.ok_or_else(|| node.expected(what))
            })
            .transpose()?;
        let source_mac = fields.optional("sourceMac");
        hops.push(NextHop {
            name,
            address,
            mac: next_mac(&fields.required("mac", "a MAC address")?)?,
            source_mac: source_mac.map(|node| unicast(&node)).transpose()?,
        });
    }
    Ok(hops)
}

/// Parses a next hop's MAC address. A group address would make every member forward the packet.
fn next_mac(node: &Located<'_>) -> Result<[u8; 6], SpecError> {
    let address = mac(node)?;
    match address[0] & 1 {
        0 => Ok(address),
        _ => Err(node.expected("a unicast MAC address")),
    }
}

/// Parses a next hop by name or address, `local` or `blackhole`.
fn target(node: &Located<'_>, names: &Names<'_>, hops: &[NextHop]) -> Result<Target, SpecError> {
    let what = "local, blackhole, or the name or address of one of nextHops";
    let text = node.text(what)?;
    names.find(text).ok_or_else(|| {
        let known = hops.iter().map(|hop| &*hop.name).chain(RESERVED);
        node.expected(what).suggest(nearest(text, known))
    })
}

fn inline_routes(list: &Located<'_>, names: &Names<'_>, hops: &[NextHop]) -> Result<Vec<Route>, SpecError> {
    let mut seen = HashMap::new();
    let mut routes = Vec::new();
    for (i, item) in list.list("routes", MAX_ROUTES)?.iter().enumerate() {
        let fields = item.fields_of(&ROUTE)?;
        let prefix_node = fields.required("prefix", "an IP prefix")?;
        let prefix = prefix(&prefix_node)?;
        if let Some(first) = seen.insert(prefix, i) {
            let what = format!("each prefix once (also in routes[{first}])");
            return Err(prefix_node.expected(&what));
        }
        let next_hop = fields.required("nextHop", "a next hop")?;
        let target = target(&next_hop, names, hops)?;
        routes.push(Route { prefix, target });
    }
    Ok(routes)
}

fn file_routes(node: &Located<'_>, path: &Path, next_hops: &[NextHop]) -> Result<Vec<Route>, SpecError> {
    let name = path.display().to_string();
    let text = tailwater_files::read(path, MAX_FILE).map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => {
            let most = MAX_FILE >> 20;
            node.error(format!("expected at most {most} MiB, {name} is larger"))
        }
        _ => node.error(format!("{name} cannot be read: {error}")),
    })?;
    routes_file::parse(&text, next_hops).map_err(|error| {
        let message = format!("expected {}, found {}", error.expected, error.found);
        SpecError::whole_file(&name, message)
            .at(error.line, error.column)
            .in_field(node.path())
    })
}
