//! The `DnsGuard` network function.

use super::account::{self, EMPTY, RateVerdict, ticks};
use super::account_table::Found;
use super::explain::{Basis, explain};
use super::message::{Direction, Hash, ResponseKind, class, direction, subject};
use super::rules::{CompiledRules, DnsGuardTable, Fragments, Mode, is_among};
use super::truncate::truncate;
use crate::firewall::fragment::FragmentPosition;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{Explanation, FlowStates, NetworkFunction, TracedPacket};
use tailwater_chain::live::Version;
use tailwater_net::dns::{Message, Name};
use tailwater_net::parse::{Fragment, Headers};
use tailwater_net::protocol;
use tailwater_net::udp::{self, UdpView};

/// Drop reasons. The first five have the indices of the [`ResponseKind`]s.
const DROP_REASONS: &[&str] = &[
    "responses",
    "nodata",
    "referrals",
    "nxdomains",
    "errors",
    "all",
    "queries",
    "amplification",
    "unsolicited",
    "fragment",
];
const ALL: u8 = 5;
const QUERIES: u8 = 6;
const AMPLIFICATION: u8 = 7;
const UNSOLICITED: u8 = 8;
const FRAGMENT: u8 = 9;

const COUNTERS: &[&str] = &[
    "slipped",
    "leaked",
    "accounts-evicted",
    "queries-evicted",
    "fragments-evicted",
    "not-counted",
];
const SLIPPED: usize = 0;
const LEAKED: usize = 1;
const ACCOUNTS_EVICTED: usize = 2;
const QUERIES_EVICTED: usize = 3;
const FRAGMENTS_EVICTED: usize = 4;
const NOT_COUNTED: usize = 5;

/// Time in ticks for which a dropped first fragment is remembered: hosts wait that long for later fragments.
const REASSEMBLY: u64 = 30 * account::SECOND;

/// Decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Pass,
    Drop(u8),
    /// The packet exceeds a limit, with this drop reason. It is truncated at this offset in its message.
    Truncate(u8, usize),
}

/// Limits the rate of DNS responses, and drops unsolicited ones.
///
/// All state is in a table shared by the instances. There is no flow state.
#[derive(Debug)]
pub struct DnsGuard {
    table: Arc<DnsGuardTable>,
    cached_rules: Arc<Version<CompiledRules>>,
    /// Scratch space for a name.
    name: Name,
    counters: [u64; COUNTERS.len()],
    /// Bases of the decisions on the batch's traced UDP packets, by index.
    bases: Box<[Basis; MAX_BATCH]>,
}

impl DnsGuard {
    /// Creates a worker's instance.
    pub fn new(table: Arc<DnsGuardTable>) -> DnsGuard {
        DnsGuard {
            cached_rules: table.live.current(),
            table,
            name: Name::default(),
            counters: [0; COUNTERS.len()],
            bases: Box::new([Basis::NotDns; MAX_BATCH]),
        }
    }
}

/// Context for the decision on one packet.
struct PacketContext<'a> {
    table: &'a DnsGuardTable,
    force: &'a CompiledRules,
    name: &'a mut Name,
    counters: &'a mut [u64; COUNTERS.len()],
    now: u64,
    basis: Basis,
}

impl<'a> PacketContext<'a> {
    fn judge(&mut self, packet: &Packet, frame: &[u8]) -> Decision {
        let headers = &packet.headers;
        if headers.fragment == Fragment::Later {
            self.basis = Basis::LaterFragment;
            return self.later_fragment(packet, frame);
        }
        let Ok(datagram) = UdpView::first_fragment(headers.transport(frame)) else {
            return Decision::Pass;
        };
        let bytes = datagram.payload();
        let message = Message::new(bytes);
        let message = message.as_ref();
        let fate = match direction(&self.force.rules.ports, &headers.key, message) {
            None => Decision::Pass,
            Some(Direction::Query) => self.query(headers, message, bytes.len()),
            Some(Direction::Response) => {
                // Includes the bytes in later fragments.
                let whole = usize::from(datagram.length()).saturating_sub(udp::HEADER);
                self.response(headers, message, whole.max(bytes.len()))
            }
        };
        if headers.fragment == Fragment::First {
            match fate {
                Decision::Pass => self.clear_dropped(packet, frame),
                // A truncated response is complete: its other fragments are useless.
                _ => self.mark_dropped(packet, frame),
            }
        }
        fate
    }

    /// Opens the account of a hash, which may evict another one.
    fn open(&mut self, hash: Hash) -> Option<&'a AtomicU64> {
        let found = self.table.accounts.open(hash.value(), EMPTY);
        let Some(Found { value, evicted }) = found else {
            self.counters[NOT_COUNTED] += 1;
            return None;
        };
        if evicted.is_some_and(|value| account::is_due(value, self.now)) {
            self.counters[ACCOUNTS_EVICTED] += 1;
        }
        Some(value)
    }

    /// Charges a packet to the account of a hash, if there is a limit.
    fn debit(&mut self, hash: Hash, interval: u64) -> RateVerdict {
        if interval == 0 {
            return RateVerdict::Within;
        }
        let (now, window) = (self.now, self.force.window);
        match self.open(hash) {
            Some(value) => account::debit(value, now, interval, window),
            None => RateVerdict::Within,
        }
    }

    fn is_limited(&self, server: IpAddr, client: IpAddr) -> bool {
        let rules = &self.force.rules;
        let exempt = !rules.exempt.is_empty() && is_among(&rules.exempt, client);
        !exempt && is_among(&rules.servers, server)
    }

    /// Returns the byte account of a client prefix.
    fn credit(&mut self, client: Hash, burst: u32) -> Option<&'a AtomicU64> {
        let (now, most) = (self.now, u64::from(burst));
        let hash = client.class(class::BYTES).value();
        let credits = self.table.credits.as_ref()?;
        let rank = |value| account::credit_rank(value, now, most);
        let found = credits.open_by(hash, account::credit_of(most, now), rank);
        let Some(Found { value, evicted }) = found else {
            self.counters[NOT_COUNTED] += 1;
            return None;
        };
        if evicted.is_some_and(|value| account::spent(value, now, most) > 0) {
            self.counters[ACCOUNTS_EVICTED] += 1;
        }
        Some(value)
    }

    fn query(&mut self, headers: &Headers, message: Option<&Message<'_>>, bytes: usize) -> Decision {
        let key = &headers.key;
        let (client, server) = (key.source(), key.destination());
        let rules = &self.force.rules;
        self.basis = Basis::UnlimitedQuery;
        if self.is_limited(server, client) {
            let hash = Hash::of_client(self.table.seed, self.force, client);
            let standing = self.debit(hash.class(class::QUERIES), self.force.queries);
            let beyond = standing != RateVerdict::Within;
            self.basis = Basis::Query { beyond };
            if beyond {
                return Decision::Drop(QUERIES);
            }
            if let Some(amplification) = rules.amplification
                && let Some(credit) = self.credit(hash, amplification.burst)
            {
                let earned = bytes as u64 * u64::from(amplification.ratio);
                account::earn(credit, self.now, earned, amplification.burst.into());
            }
        }
        let waits = rules.mode == Mode::Strict && is_among(&rules.clients, client);
        let message = message.filter(|message| waits && !message.is_response());
        if let (Some(message), Some(queries)) = (message, &self.table.queries) {
            let hash = Hash::of_query(self.table.seed, key, message.id());
            match queries.open(hash.value(), EMPTY) {
                Some(Found { value, evicted }) => {
                    if evicted.is_some_and(|value| account::is_due(value, self.now)) {
                        self.counters[QUERIES_EVICTED] += 1;
                    }
                    let until = self.now + self.force.query_timeout;
                    // A question that cannot be parsed cannot be compared.
                    let question = self.question(message).unwrap_or_default();
                    account::add_query(value, self.now, until, question);
                }
                None => self.counters[NOT_COUNTED] += 1,
            }
        }
        Decision::Pass
    }

    /// Returns the hash of a message's question.
    fn question(&mut self, message: &Message<'_>) -> Option<u64> {
        let question = message.question(self.name)?;
        let of = [question.kind, question.class];
        Some(Hash::of_question(self.table.seed, self.name, of).value())
    }

    /// Returns `true` if a query waits for this response. A response without a question matches any query: servers send
    /// it if they could not parse the query.
    fn is_solicited(&mut self, headers: &Headers, message: Option<&Message<'_>>) -> bool {
        let Some(message) = message.filter(|message| message.is_response()) else {
            return false;
        };
        let hash = Hash::of_query(self.table.seed, &headers.key.reversed(), message.id());
        let queries = self.table.queries.as_ref();
        let Some(value) = queries.and_then(|queries| queries.find(hash.value())) else {
            return false;
        };
        let question = match message.questions() {
            0 => None,
            _ => match self.question(message) {
                Some(question) => Some(question),
                None => return false,
            },
        };
        account::take_query(value, self.now, question)
    }

    fn response(&mut self, headers: &Headers, message: Option<&Message<'_>>, bytes: usize) -> Decision {
        let key = &headers.key;
        let (server, client) = (key.source(), key.destination());
        let rules = &self.force.rules;
        if rules.mode == Mode::Strict && is_among(&rules.clients, client) && !self.is_solicited(headers, message) {
            self.basis = Basis::Unsolicited;
            return Decision::Drop(UNSOLICITED);
        }
        if !self.is_limited(server, client) {
            self.basis = Basis::UnlimitedResponse;
            return Decision::Pass;
        }
        let hash = Hash::of_client(self.table.seed, self.force, client);
        let subject = subject(message, self.name, hash);
        self.basis = Basis::Within(subject.sort);
        let interval = self.force.intervals[subject.sort as usize];
        let of_sort = self.debit(subject.hash, interval);
        let of_all = self.debit(hash.class(class::ALL), self.force.all);
        let beyond = match (of_sort, of_all) {
            (RateVerdict::Beyond(number), _) => Some((subject.sort as u8, number)),
            (_, RateVerdict::Beyond(number)) => Some((ALL, number)),
            _ => None,
        };
        // A truncated error would make the client retry over TCP, for the same error.
        let rest = subject
            .question_end
            .filter(|_| subject.sort != ResponseKind::Error && rules.slip > 0);
        if let Some((reason, number)) = beyond {
            self.basis = Basis::Beyond {
                kind: subject.sort,
                of_all: reason == ALL,
                number,
            };
            let each = |so_many: u16| so_many > 0 && number % u64::from(so_many) == 0;
            return match rest {
                _ if each(rules.leak) => self.leak(),
                Some(end) if each(rules.slip) => Decision::Truncate(reason, end),
                None if each(rules.slip) && subject.sort == ResponseKind::Error => self.leak(),
                _ => Decision::Drop(reason),
            };
        }
        if let Some(amplification) = rules.amplification
            && let Some(credit) = self.credit(hash, amplification.burst)
            && !account::spend(credit, self.now, bytes as u64)
        {
            self.basis = Basis::Bytes(subject.sort);
            return match rest {
                // The truncated response is about as long as its query.
                Some(end) => Decision::Truncate(AMPLIFICATION, end),
                None => Decision::Drop(AMPLIFICATION),
            };
        }
        Decision::Pass
    }

    fn leak(&mut self) -> Decision {
        self.counters[LEAKED] += 1;
        Decision::Pass
    }

    /// Decides on a fragment without ports. Only its identification number relates it to its datagram.
    fn later_fragment(&self, packet: &Packet, frame: &[u8]) -> Decision {
        let dropped = match self.force.rules.fragments {
            Fragments::Pass => false,
            Fragments::Drop => true,
            Fragments::Follow => {
                let hash = self.datagram(packet, frame);
                let value = hash.and_then(|hash| self.table.fragments.find(hash));
                value.is_some_and(|value| account::is_due(value.load(Ordering::Relaxed), self.now))
            }
        };
        match dropped {
            true => Decision::Drop(FRAGMENT),
            false => Decision::Pass,
        }
    }

    fn datagram(&self, packet: &Packet, frame: &[u8]) -> Option<u64> {
        let place = FragmentPosition::of(frame, &packet.headers)?;
        Some(Hash::of_datagram(self.table.seed, packet, place.identification).value())
    }

    /// Lets the later fragments of this datagram pass, even if an earlier one with its number was dropped.
    fn clear_dropped(&self, packet: &Packet, frame: &[u8]) {
        if self.force.rules.fragments != Fragments::Follow {
            return;
        }
        let hash = self.datagram(packet, frame);
        if let Some(value) = hash.and_then(|hash| self.table.fragments.find(hash)) {
            value.store(EMPTY, Ordering::Relaxed);
        }
    }

    /// Records that the later fragments of this datagram are to be dropped.
    fn mark_dropped(&mut self, packet: &Packet, frame: &[u8]) {
        if self.force.rules.fragments != Fragments::Follow {
            return;
        }
        let until = account::dropped_until(self.now + REASSEMBLY);
        let found = self
            .datagram(packet, frame)
            .and_then(|hash| self.table.fragments.open(hash, until));
        let Some(Found { value, evicted }) = found else {
            self.counters[NOT_COUNTED] += 1;
            return;
        };
        value.store(until, Ordering::Relaxed);
        if evicted.is_some_and(|value| account::is_due(value, self.now)) {
            self.counters[FRAGMENTS_EVICTED] += 1;
        }
    }
}

impl NetworkFunction for DnsGuard {
    fn kind(&self) -> &'static str {
        "DnsGuard"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        DROP_REASONS
    }

    fn counters(&self) -> &'static [&'static str] {
        COUNTERS
    }

    fn counter_values(&self) -> &[u64] {
        &self.counters
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        self.table.live.refresh(&mut self.cached_rules);
        for i in 0..batch.len() {
            let packet = batch.packet(i);
            if packet.headers.key.protocol() != protocol::UDP {
                continue;
            }
            let mut turn = PacketContext {
                table: &self.table,
                force: &self.cached_rules.value,
                name: &mut self.name,
                counters: &mut self.counters,
                now: ticks(packet.arrival),
                basis: Basis::NotDns,
            };
            let decision = turn.judge(packet, batch.frame(i));
            if packet.is_traced() {
                self.bases[i] = turn.basis;
            }
            let verdict = match decision {
                Decision::Pass => continue,
                Decision::Drop(reason) => Verdict::Drop(reason),
                Decision::Truncate(_, end) if truncate(batch, i, end) => {
                    self.counters[SLIPPED] += 1;
                    continue;
                }
                Decision::Truncate(reason, _) => Verdict::Drop(reason),
            };
            batch.packet_mut(i).0.verdict = verdict;
        }
    }
    fn explain(&self, traced: &TracedPacket<'_>, _: &mut FlowStates<'_>, text: &mut Explanation) {
        let basis = match traced.key.protocol() {
            protocol::UDP => self.bases.get(traced.at).copied().unwrap_or_default(),
            _ => Basis::NotDns,
        };
        explain(basis, &self.cached_rules.value, traced, text);
    }
}
