//! Rules, ready to be asked: sorted by when and of what they are to be asked.

use crate::address::AddressSet;
use crate::address_index::AddressIndex;
use crate::buffer::{Buffer, BufferKey, Moment};
use crate::evaluate::Checks;
use crate::prefilter::Group;
use crate::rule::{
    App, Bit, Direction, Field, FlagsMode, FlagsTest, PacketTest, Protocol, Rule, Test,
};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// When rules are asked, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Place {
    /// The first packet of a connection in a direction.
    FlowStart,
    /// A packet of TCP.
    PacketTcp,
    /// A packet of UDP.
    PacketUdp,
    /// A packet of ICMP.
    PacketIcmp,
    /// Another packet.
    PacketOther,
    /// New bytes to a server.
    StreamToServer,
    /// New bytes to a client.
    StreamToClient,
    /// An HTTP request's head.
    Request,
    /// An HTTP request as a whole.
    RequestBody,
    /// An HTTP response's head.
    Response,
    /// An HTTP response as a whole.
    ResponseBody,
    /// A TLS ClientHello.
    ClientHello,
    /// A certificate of a TLS server's.
    Certificate,
    /// A question of a DNS request.
    DnsQuery,
}

impl Place {
    pub(crate) const COUNT: usize = Place::DnsQuery as usize + 1;

    /// Where new bytes of a stream are looked at.
    pub(crate) fn stream(direction: Direction) -> Place {
        match direction {
            Direction::ToServer => Place::StreamToServer,
            Direction::ToClient => Place::StreamToClient,
        }
    }
}

/// Bits of connections, by name. The numbers stay when rules change.
#[derive(Clone, Debug, Default)]
pub struct BitNames(HashMap<String, u16>);

impl BitNames {
    /// A name's number, above 0.
    fn number(&mut self, name: &str) -> Option<u16> {
        if let Some(number) = self.0.get(name) {
            return Some(*number);
        }
        let number = u16::try_from(self.0.len() + 1).ok()?;
        self.0.insert(name.to_owned(), number);
        Some(number)
    }
}

/// What a rule does with bits of a connection.
#[derive(Debug)]
pub(crate) struct BitStep {
    pub(crate) what: Bit,
    pub(crate) bits: Vec<u16>,
}

/// A rule, ready to be asked.
#[derive(Debug)]
pub(crate) struct Signature {
    /// All but its tests of buffers.
    pub(crate) rule: Rule,
    pub(crate) checks: Vec<Checks>,
    /// What must be so of the connection's bits.
    pub(crate) asks: Vec<BitStep>,
    /// What is done when the rule matches.
    pub(crate) sets: Vec<BitStep>,
    /// The protocol above TCP or UDP.
    pub(crate) app: Option<App>,
    /// The transport protocols.
    pub(crate) transport: Transport,
    /// Whether tests are a matter of the stream's start.
    pub(crate) from_start: bool,
}

/// Which transport protocols a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Any,
    Tcp,
    Udp,
    Icmp,
    /// What carries protocols above.
    TcpOrUdp,
}

/// Rules that no content stands for.
#[derive(Debug)]
struct Unfiltered {
    plain: Vec<u32>,
    /// Of packets of TCP, by flags; otherwise empty.
    by_flags: Vec<Vec<u32>>,
    by_source: AddressIndex,
    by_destination: AddressIndex,
}

/// Rules that are asked in one place.
#[derive(Debug)]
struct Station {
    /// For bytes to a server, and to a client.
    groups: [Vec<Group>; 2],
    unfiltered: Unfiltered,
}

/// Rules, ready to be asked.
#[derive(Debug)]
pub struct RuleSet {
    pub(crate) signatures: Vec<Signature>,
    stations: Vec<Station>,
    of_streams: bool,
}

/// Why rules cannot be made ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSetError(String);

impl std::fmt::Display for RuleSetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RuleSetError {}

/// Flags that lists are kept for: those without ECE and CWR.
const FLAGS: usize = 0x3f;

impl RuleSet {
    /// Makes rules ready. Their order is the one in which they are asked, but for what they do: first those that let
    /// pass, then those that drop; those that note something in front of those that ask for it.
    ///
    /// # Errors
    /// There are more names of bits, or contents, than can be told apart.
    pub fn new(mut rules: Vec<Rule>, names: &mut BitNames) -> Result<RuleSet, RuleSetError> {
        rules.sort_by_key(|rule| (rule.header.action, rank(rule)));
        let mut waiting: BTreeMap<Place, Waiting> = BTreeMap::new();
        let mut signatures = Vec::with_capacity(rules.len());
        for (i, rule) in rules.into_iter().enumerate() {
            for place in places(&rule) {
                waiting
                    .entry(place)
                    .or_default()
                    .add(i as u32, &rule, place);
            }
            signatures.push(Signature::new(rule, names)?);
        }
        let mut stations = Vec::with_capacity(Place::COUNT);
        for place in ALL {
            let waiting = waiting.remove(&place).unwrap_or_default();
            stations.push(waiting.station(place, &signatures)?);
        }
        let of_streams = ALL[Place::StreamToServer as usize..]
            .iter()
            .any(|place| stations[*place as usize].is_asked());
        Ok(RuleSet {
            signatures,
            stations,
            of_streams,
        })
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.signatures.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.signatures.is_empty()
    }

    /// A rule, by its place.
    pub fn rule(&self, place: u32) -> Option<&Rule> {
        self.signatures
            .get(place as usize)
            .map(|signature| &signature.rule)
    }

    /// Bytes of memory that prefilters take.
    pub fn prefilter_bytes(&self) -> usize {
        let groups = self.stations.iter().flat_map(|station| &station.groups);
        groups.flatten().map(Group::memory_bytes).sum()
    }

    /// The contents that are looked for in a place.
    #[inline]
    pub(crate) fn groups(&self, place: Place, direction: Direction) -> &[Group] {
        &self.stations[place as usize].groups[direction.index()]
    }

    /// Whether any rule is asked in a place.
    #[inline]
    pub(crate) fn asks_in(&self, place: Place) -> bool {
        self.stations[place as usize].is_asked()
    }

    /// Whether any rule is asked about streams, or what is said in them.
    #[inline]
    pub(crate) fn asks_of_streams(&self) -> bool {
        self.of_streams
    }

    /// Whether a rule is asked in a place about packets without payload, if they have these TCP flags.
    #[inline]
    pub(crate) fn asks_without_bytes(&self, place: Place, flags: u8) -> bool {
        let unfiltered = &self.stations[place as usize].unfiltered;
        let by_flags = unfiltered.by_flags.get(usize::from(flags) & FLAGS);
        !unfiltered.plain.is_empty() || by_flags.is_some_and(|rules| !rules.is_empty())
    }

    /// Runs `each` on the rules of a place that could match whatever the bytes are.
    #[inline]
    pub(crate) fn unfiltered(
        &self,
        place: Place,
        [source, destination]: [IpAddr; 2],
        flags: u8,
        mut each: impl FnMut(u32),
    ) {
        let unfiltered = &self.stations[place as usize].unfiltered;
        let mut all = |rules: &[u32]| rules.iter().for_each(|rule| each(*rule));
        all(&unfiltered.plain);
        if let Some(rules) = unfiltered.by_flags.get(usize::from(flags) & FLAGS) {
            all(rules);
        }
        if place == Place::FlowStart {
            all(unfiltered.by_source.find(source));
            all(unfiltered.by_destination.find(destination));
        }
    }
}

const ALL: [Place; Place::COUNT] = [
    Place::FlowStart,
    Place::PacketTcp,
    Place::PacketUdp,
    Place::PacketIcmp,
    Place::PacketOther,
    Place::StreamToServer,
    Place::StreamToClient,
    Place::Request,
    Place::RequestBody,
    Place::Response,
    Place::ResponseBody,
    Place::ClientHello,
    Place::Certificate,
    Place::DnsQuery,
];

/// Those that note something come before those that ask for it.
fn rank(rule: &Rule) -> u8 {
    let asks = rule
        .bits
        .iter()
        .any(|bit| matches!(bit.what, Bit::IsSet | Bit::IsNotSet));
    let sets = rule
        .bits
        .iter()
        .any(|bit| !matches!(bit.what, Bit::IsSet | Bit::IsNotSet));
    match (sets, asks) {
        (true, false) => 0,
        (true, true) => 1,
        (false, _) => 2,
    }
}

/// The protocol above TCP or UDP that a rule is about.
fn app(rule: &Rule) -> Option<App> {
    match rule.header.protocol {
        Protocol::App(app) => Some(app),
        _ => rule.parts.iter().find_map(|part| part.buffer.buffer.app()),
    }
}

/// Whether tests of the payload are a matter of where it begins or ends.
fn is_anchored(rule: &Rule) -> bool {
    let payload = rule
        .parts
        .iter()
        .filter(|part| part.buffer == BufferKey::PAYLOAD);
    payload.flat_map(|part| &part.tests).any(|test| match test {
        Test::Content(content) => content.place.is_anchored() && !content.place.is_relative(),
        Test::Size(_) => true,
        test => !test.is_relative() && !matches!(test, Test::Pattern { .. }),
    })
}

/// Where a rule is asked.
fn places(rule: &Rule) -> Vec<Place> {
    let app = app(rule);
    let buffers = || rule.parts.iter().map(|part| part.buffer.buffer);
    if let Some(moment) = buffers()
        .filter(|b| b.app().is_some())
        .map(Buffer::moment)
        .max()
    {
        let both = |request, response| match rule.flow.direction {
            Some(Direction::ToServer) => vec![request],
            Some(Direction::ToClient) => vec![response],
            None => vec![request, response],
        };
        return match (app, moment) {
            (Some(App::Tls), _) if rule.flow.direction == Some(Direction::ToServer) => {
                vec![Place::ClientHello]
            }
            (Some(App::Tls), _) => vec![Place::Certificate],
            (Some(App::Dns), _) => vec![Place::DnsQuery],
            (_, Moment::Body) => both(Place::RequestBody, Place::ResponseBody),
            _ => both(Place::Request, Place::Response),
        };
    }
    let packets = match rule.header.protocol {
        Protocol::Tcp | Protocol::TcpPacket => vec![Place::PacketTcp],
        Protocol::Udp => vec![Place::PacketUdp],
        Protocol::Icmp => vec![Place::PacketIcmp],
        Protocol::App(App::Dns) => vec![Place::PacketTcp, Place::PacketUdp],
        Protocol::App(_) => vec![Place::PacketTcp],
        Protocol::Ip => vec![
            Place::PacketTcp,
            Place::PacketUdp,
            Place::PacketIcmp,
            Place::PacketOther,
        ],
    };
    if rule.parts.is_empty() {
        let asks = rule
            .bits
            .iter()
            .any(|bit| matches!(bit.what, Bit::IsSet | Bit::IsNotSet));
        let alone = rule.packet.is_empty() && !asks && app.is_none();
        let plain = alone && rule.flow.established.is_none();
        return match plain {
            true => vec![Place::FlowStart],
            false => packets,
        };
    }
    let streams = match rule.flow.direction {
        Some(direction) => vec![Place::stream(direction)],
        None => vec![Place::StreamToServer, Place::StreamToClient],
    };
    let of_packet = rule.packet.iter().any(|test| {
        let stream = |field: &Field| matches!(field, Field::StreamSize(_));
        !matches!(test, PacketTest::Number { field, .. } if stream(field))
    });
    match (rule.header.protocol, rule.flow.stream) {
        (Protocol::Udp | Protocol::Icmp | Protocol::Ip | Protocol::TcpPacket, _)
        | (_, Some(false)) => packets,
        (Protocol::App(App::Dns), _) => [vec![Place::PacketUdp], streams].concat(),
        (_, Some(true)) => streams,
        _ if of_packet => packets,
        (Protocol::Tcp, _) if is_anchored(rule) => [packets, streams].concat(),
        _ => streams,
    }
}

/// The content that stands for a rule in a place, with its buffer.
fn fast_content(rule: &Rule) -> Option<(BufferKey, &[u8])> {
    let parts = rule.parts.iter();
    let contents = parts.flat_map(|part| {
        part.tests.iter().filter_map(|test| match test {
            Test::Content(content) if !content.negated => Some((part.buffer, content)),
            _ => None,
        })
    });
    // The rule's own wish first, then what is of a message, then the longest.
    let best = contents.max_by_key(|(buffer, content)| {
        let of_message = buffer.buffer != Buffer::Payload;
        (content.fast, of_message, content.bytes.len())
    });
    best.map(|(buffer, content)| (buffer, &content.bytes[..]))
}

/// Whether a rule could match in a place about bytes of a direction.
fn goes(rule: &Rule, place: Place, direction: Direction) -> bool {
    let of_place = match place {
        Place::StreamToServer | Place::Request | Place::RequestBody | Place::ClientHello => {
            Some(Direction::ToServer)
        }
        Place::StreamToClient | Place::Response | Place::ResponseBody | Place::Certificate => {
            Some(Direction::ToClient)
        }
        _ => None,
    };
    let other = |wanted: Option<Direction>| wanted.is_some_and(|wanted| wanted != direction);
    !other(of_place) && !other(rule.flow.direction)
}

/// Rules of each buffer, with the content that stands for each.
type ByBuffer = BTreeMap<BufferKey, Vec<(u32, Vec<u8>)>>;

/// Rules of a place while all are gone through.
#[derive(Debug, Default)]
struct Waiting {
    /// For bytes to a server, and to a client.
    by_buffer: [ByBuffer; 2],
    unfiltered: Vec<u32>,
}

impl Waiting {
    fn add(&mut self, rule: u32, of: &Rule, place: Place) {
        match fast_content(of) {
            Some((buffer, content)) if place != Place::FlowStart => {
                for direction in [Direction::ToServer, Direction::ToClient] {
                    if goes(of, place, direction) {
                        let groups = &mut self.by_buffer[direction.index()];
                        let group = groups.entry(buffer).or_default();
                        group.push((rule, content.to_vec()));
                    }
                }
            }
            _ => self.unfiltered.push(rule),
        }
    }

    fn station(self, place: Place, signatures: &[Signature]) -> Result<Station, RuleSetError> {
        let ready = |rules: ByBuffer| {
            let groups = rules
                .iter()
                .map(|(buffer, rules)| Group::new(*buffer, rules));
            groups
                .collect::<Result<Vec<Group>, _>>()
                .map_err(RuleSetError)
        };
        let [to_server, to_client] = self.by_buffer;
        Ok(Station {
            groups: [ready(to_server)?, ready(to_client)?],
            unfiltered: Unfiltered::new(&self.unfiltered, place, signatures),
        })
    }
}

impl Station {
    #[inline]
    fn is_asked(&self) -> bool {
        self.groups.iter().any(|groups| !groups.is_empty()) || !self.unfiltered.is_empty()
    }
}

impl Unfiltered {
    fn new(rules: &[u32], place: Place, signatures: &[Signature]) -> Unfiltered {
        let mut plain = Vec::new();
        let mut by_flags = match place {
            Place::PacketTcp => vec![Vec::new(); FLAGS + 1],
            _ => Vec::new(),
        };
        let (mut sources, mut destinations): (Vec<(u32, &AddressSet)>, Vec<_>) = Default::default();
        for &rule in rules {
            let signature = &signatures[rule as usize];
            let header = &signature.rule.header;
            if place == Place::PacketTcp {
                for (flags, rules) in by_flags.iter_mut().enumerate() {
                    if signature.may_have_flags(flags as u8) {
                        rules.push(rule);
                    }
                }
            } else if place != Place::FlowStart || header.both_ways {
                plain.push(rule);
            } else if header.source.is_narrow() {
                sources.push((rule, &*header.source));
            } else if header.destination.is_narrow() {
                destinations.push((rule, &*header.destination));
            } else {
                plain.push(rule);
            }
        }
        Unfiltered {
            plain,
            by_flags,
            by_source: AddressIndex::new(&sources),
            by_destination: AddressIndex::new(&destinations),
        }
    }

    fn is_empty(&self) -> bool {
        let flags = self.by_flags.iter().all(Vec::is_empty);
        let addresses = self.by_source.is_empty() && self.by_destination.is_empty();
        self.plain.is_empty() && flags && addresses
    }
}

impl Signature {
    fn new(rule: Rule, names: &mut BitNames) -> Result<Signature, RuleSetError> {
        let (mut asks, mut sets) = (Vec::new(), Vec::new());
        for bit in &rule.bits {
            let bits = bit.names.iter().map(|name| names.number(name));
            let bits = bits.collect::<Option<Vec<u16>>>().ok_or_else(|| {
                RuleSetError(format!("rules name more than {} bits of flows", u16::MAX))
            })?;
            let step = BitStep {
                what: bit.what,
                bits,
            };
            match bit.what {
                Bit::IsSet | Bit::IsNotSet => asks.push(step),
                _ => sets.push(step),
            }
        }
        let app = app(&rule);
        let transport = match rule.header.protocol {
            Protocol::Ip => Transport::Any,
            Protocol::Tcp | Protocol::TcpPacket => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Icmp => Transport::Icmp,
            Protocol::App(_) => Transport::TcpOrUdp,
        };
        let checks = rule.parts.iter().map(Checks::new).collect();
        let from_start = is_anchored(&rule);
        Ok(Signature {
            rule: Rule {
                parts: Vec::new(),
                ..rule
            },
            checks,
            asks,
            sets,
            app,
            transport,
            from_start,
        })
    }

    /// Whether a packet with these flags can match, whatever its others are.
    fn may_have_flags(&self, flags: u8) -> bool {
        let mut tests = self.rule.packet.iter().filter_map(|test| match test {
            PacketTest::Flags(test) => Some(test),
            _ => None,
        });
        tests.all(|test| (0..4).any(|high| flags_match(test, flags | high << 6)))
    }
}

/// Whether TCP flags are as a test wants them.
pub(crate) fn flags_match(test: &FlagsTest, flags: u8) -> bool {
    let flags = flags & !test.ignored;
    match test.mode {
        FlagsMode::Exactly => flags == test.flags,
        FlagsMode::AllOf => flags & test.flags == test.flags,
        FlagsMode::AnyOf => flags & test.flags != 0,
        FlagsMode::NoneOf => flags & test.flags == 0,
    }
}
