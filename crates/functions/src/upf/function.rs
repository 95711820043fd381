//! The `Upf` network function.

use super::answer;
use super::capsule::{Encapsulation, read, uncover};
use super::direction::LinkDirection;
use super::gtp::{self, Header, PORT, message};
use super::index::Buckets;
use super::reasons::*;
use super::records::{NO_PEER, Record};
use super::services::Services;
use super::session::Treatment;
use super::table::{CompiledProfile, UpfTable, take};
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{
    Explanation, FlowStates, FunctionProperties, NetworkFunction, NewFlow, RunEnd, TracedPacket,
};
use tailwater_net::parse::Fragment;
use tailwater_net::{FlowKey, Nanos, protocol};

/// State of a flow to be encapsulated.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct FlowState {
    /// Generation of the session when this was decided.
    generation: u64,
    /// Slot of the session.
    index: u32,
    /// Profile of the session at that time, and index of the treatment in it.
    profile: u16,
    treatment: u16,
}

/// Kind of a packet, seen from this endpoint.
#[derive(Clone, Copy, Debug, Default)]
enum Kind {
    /// Verdict already set.
    #[default]
    Done,
    /// G-PDU to this endpoint.
    Tunnelled,
    /// Any other packet; one of its addresses may be a UE's.
    Plain,
    /// Like `Plain`, with a session cached in the flow state: no lookup is needed.
    Kept,
}

/// Intermediate result for a packet of the batch.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    kind: Kind,
    header: Header,
    buckets: Buckets,
}

/// Network function that decapsulates UEs' packets from GTP-U tunnels, and encapsulates packets to UEs.
pub struct Upf {
    table: Arc<UpfTable>,
    /// Report file, until the instance has ended; `None` without one.
    services: Option<Arc<Services>>,
    work: Box<[Work; MAX_BATCH]>,
    hands: WorkerState,
}

/// Mutable per-worker state.
struct WorkerState {
    /// Identification of the last outer IPv4 header.
    identification: u16,
    counts: [u64; COUNTERS.len()],
}

impl Upf {
    /// Creates a worker's instance.
    pub fn new(table: Arc<UpfTable>) -> Upf {
        Upf {
            table,
            services: None,
            work: Box::new([Work::default(); MAX_BATCH]),
            hands: WorkerState {
                identification: 0,
                counts: [0; COUNTERS.len()],
            },
        }
    }

    /// Creates a worker's instance that counts the usage reports that could not be written.
    pub fn with_services(table: Arc<UpfTable>, services: Arc<Services>) -> Upf {
        let services = services.unwritten().is_some().then(|| Arc::clone(&services));
        if let Some(unwritten) = services.as_ref().and_then(|services| services.unwritten()) {
            unwritten.register();
        }
        let mut upf = Upf::new(table);
        upf.services = services;
        upf
    }

    /// Ends counting. The last instance waits for the report file if it `may_wait`.
    fn leave(&mut self, may_wait: bool) {
        let Some(services) = self.services.take() else {
            return;
        };
        if let Some(unwritten) = services.unwritten()
            && unwritten.deregister(0)
            && may_wait
        {
            services.end_reports();
            self.hands.counts[USAGE_UNWRITTEN] += self.table.take_unwritten();
        }
    }
}

impl RunEnd for Upf {
    fn drain(&mut self) {}

    fn after_flow_ends(&mut self) {
        self.leave(true);
    }
}

impl Drop for Upf {
    fn drop(&mut self) {
        self.leave(false);
    }
}

impl NetworkFunction for Upf {
    fn kind(&self) -> &'static str {
        "Upf"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        DROP_REASONS
    }

    fn is_loss(&self, reason: u8) -> bool {
        reason == NO_ROOM
    }

    fn counters(&self) -> &'static [&'static str] {
        COUNTERS
    }

    fn counter_values(&self) -> &[u64] {
        &self.hands.counts
    }

    fn state_bytes(&self) -> usize {
        match self.table.options.cached {
            true => size_of::<FlowState>(),
            false => 0,
        }
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            mixes_flows: true,
            ..FunctionProperties::default()
        }
    }

    fn run_end(&mut self) -> Option<&mut dyn RunEnd> {
        Some(self)
    }

    fn new_flow(&mut self, _: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        if self.table.options.cached {
            // An earlier function may have changed the flow's key, and so its UE.
            *flow.state::<FlowState>() = FlowState::zeroed();
        }
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        let Upf { table, work, hands, .. } = self;
        let table = &**table;
        hands.counts[USAGE_UNWRITTEN] += table.take_unwritten();
        if let Some(packet) = batch.last() {
            table.set_now(packet.arrival);
        }
        // Three passes, so that one packet's memory is prefetched while others are processed.
        for i in 0..batch.len() {
            work[i] = match hands.sort(table, batch, i, flows) {
                Ok(work) => work,
                Err(reason) => {
                    batch.packet_mut(i).0.verdict = Verdict::Drop(reason);
                    Work::default()
                }
            };
        }
        for (packet, work) in batch.iter().zip(&**work) {
            fetch(table, packet, work);
        }
        for (i, work) in work[..batch.len()].iter().enumerate() {
            let done = match work.kind {
                Kind::Done => Ok(()),
                Kind::Tunnelled => hands.decapsulate(table, batch, i, work),
                Kind::Plain | Kind::Kept => hands.encapsulate(table, batch, i, work, flows),
            };
            if let Err(reason) = done {
                batch.packet_mut(i).0.verdict = Verdict::Drop(reason);
            }
        }
    }

    fn explain(&self, traced: &TracedPacket<'_>, _: &mut FlowStates<'_>, text: &mut Explanation) {
        let Some(work) = self.work.get(traced.at) else {
            return;
        };
        let (table, session) = match work.kind {
            Kind::Done => return,
            Kind::Tunnelled => {
                text.add(format_args!("TEID {:#x}", work.header.teid));
                (&self.table, self.table.find_teid(work.header.teid))
            }
            Kind::Plain | Kind::Kept => {
                let user = self.table.options.role.user(&traced.key);
                text.add(format_args!("UE {user}"));
                (&self.table, self.table.find_user(user))
            }
        };
        let Some((_, record)) = session else {
            return text.add_part(format_args!("no session"));
        };
        text.add_part(format_args!("session {}", record.id));
        if let Some(used) = table.profiles.get(usize::from(record.forward.profile)) {
            text.add_part(format_args!("profile {}", used.profile.name));
        }
    }
}

/// Prefetches the packet's session.
#[inline]
fn fetch(table: &UpfTable, packet: &Packet, work: &Work) {
    let index = match work.kind {
        // A cached session is being prefetched already.
        Kind::Done | Kind::Kept => None,
        Kind::Tunnelled => table.guess_teid(work.buckets),
        Kind::Plain => {
            let user = table.options.role.user(&packet.headers.key);
            table.guess_user(user, work.buckets)
        }
    };
    if let Some(index) = index {
        table.records.prefetch(index);
    }
}

impl WorkerState {
    /// Classifies a packet and prefetches the index entries it needs.
    #[inline]
    fn sort(&mut self, table: &UpfTable, batch: &mut Batch, i: usize, flows: &mut FlowStates<'_>) -> Result<Work, u8> {
        let packet = batch.packet(i);
        let key = &packet.headers.key;
        // Later fragments of a datagram have no ports.
        let later = packet.headers.fragment == Fragment::Later;
        if key.protocol() == protocol::UDP
            && (key.destination_port() == PORT || later)
            && table.is_own(key.destination())
        {
            let header = read(&packet.headers, batch.frame(i))?;
            if header.message != message::G_PDU {
                self.signalled(table, batch, i, &header)?;
                return Ok(Work::default());
            }
            return Ok(Work {
                kind: Kind::Tunnelled,
                buckets: table.prefetch_teid(header.teid),
                header,
            });
        }
        if table.options.cached {
            let state = flows.state::<FlowState>(packet);
            if state.generation != 0 {
                table.records.prefetch(state.index);
                return Ok(Work {
                    kind: Kind::Kept,
                    ..Work::default()
                });
            }
        }
        Ok(Work {
            kind: Kind::Plain,
            buckets: table.prefetch_user(table.options.role.user(key)),
            ..Work::default()
        })
    }

    /// Handles a GTP-U message other than a G-PDU.
    #[cold]
    fn signalled(&mut self, table: &UpfTable, batch: &mut Batch, i: usize, header: &Header) -> Result<(), u8> {
        match header.message {
            message::ECHO_REQUEST => {
                answer::echo(batch, i, header.sequence.unwrap_or(0)).ok_or(NO_ROOM)?;
                self.counts[ECHO_ANSWERED] += 1;
                return Ok(());
            }
            message::END_MARKER => {
                let buckets = table.prefetch_teid(header.teid);
                table.session_of_teid(header.teid, buckets).ok_or(UNKNOWN_TEID)?;
                self.counts[END_MARKERS] += 1;
            }
            message::ERROR_INDICATION => self.counts[PEER_ERRORS] += 1,
            message::ECHO_RESPONSE | message::EXTENSIONS => {}
            _ => return Err(UNSUPPORTED),
        }
        Err(SIGNALLING)
    }

    /// Decapsulates packet `i`, or returns a drop reason.
    #[inline]
    fn decapsulate(&mut self, table: &UpfTable, batch: &mut Batch, i: usize, work: &Work) -> Result<(), u8> {
        let Work { header, buckets, .. } = work;
        let Some((index, record)) = table.session_of_teid(header.teid, *buckets) else {
            return self.unknown(table, batch, i, header.teid);
        };
        let used = used(table, &record)?;
        uncover(batch, i, header)?;
        let [direction, _] = table.options.role.directions();
        let (packet, _) = batch.packet_mut(i);
        let (headers, now) = (&packet.headers, packet.arrival);
        let user = match direction {
            LinkDirection::Up => headers.key.source(),
            LinkDirection::Down => headers.key.destination(),
        };
        if !record.is_of(user) {
            return Err(NOT_ITS_ADDRESS);
        }
        let found = used.profile.find(&headers.key, direction).ok_or(NO_RULE)?;
        let treatment = used.profile.treatment(found).ok_or(NO_RULE)?;
        if !treatment.open[direction.at()] {
            return Err(GATE_CLOSED);
        }
        if let (Some(came), Some(expected)) = (header.qfi, treatment.qfi)
            && came != expected
        {
            if table.options.check_qfi {
                return Err(WRONG_QFI);
            }
            self.counts[WRONG_QFI_PASSED] += 1;
        }
        let bytes = usize::from(headers.end - headers.network_offset);
        let treated = (used, treatment, found);
        enforce(table, index, treated, direction, (now, bytes))?;
        self.counts[DECAPSULATED] += 1;
        Ok(())
    }

    /// Handles a packet with an unknown TEID: sends an error indication if the rate permits.
    #[cold]
    fn unknown(&mut self, table: &UpfTable, batch: &mut Batch, i: usize, teid: u32) -> Result<(), u8> {
        if !table.may_send_error(0, batch.packet(i).arrival) {
            return Err(UNKNOWN_TEID);
        }
        answer::error_indication(batch, i, teid).ok_or(NO_ROOM)?;
        self.counts[ERRORS_SENT] += 1;
        Ok(())
    }

    /// Encapsulates packet `i` in its session's tunnel, or returns a drop reason.
    #[inline]
    fn encapsulate(
        &mut self,
        table: &UpfTable,
        batch: &mut Batch,
        i: usize,
        work: &Work,
        flows: &mut FlowStates<'_>,
    ) -> Result<(), u8> {
        let (packet, _) = batch.packet_mut(i);
        let (headers, now) = (packet.headers, packet.arrival);
        let kept = match table.options.cached {
            true => Some(flows.state::<FlowState>(packet)),
            false => None,
        };
        let Some((index, record, found)) = decide(table, &headers.key, work.buckets, kept)? else {
            return match table.options.others {
                PacketAction::Pass => Ok(()),
                PacketAction::Drop => Err(UNKNOWN_USER),
            };
        };
        let used = used(table, &record)?;
        let treatment = used.profile.treatment(found).ok_or(NO_RULE)?;
        if record.forward.peer == NO_PEER {
            return Err(NO_TUNNEL);
        }
        let outer = table.outer(record.forward.peer).ok_or(NO_TUNNEL)?;
        let [_, direction] = table.options.role.directions();
        if !treatment.open[direction.at()] {
            return Err(GATE_CLOSED);
        }
        let front = outer.length + gtp::length(treatment.qfi);
        let bytes = usize::from(headers.end - headers.network_offset);
        if front + bytes > table.options.mtu.into() {
            return self.too_big(table, batch, i, front);
        }
        let treated = (used, treatment, found);
        enforce(table, index, treated, direction, (now, bytes))?;
        self.identification = self.identification.wrapping_add(1);
        let into = Encapsulation {
            outer,
            teid: record.forward.teid,
            treatment,
            identification: self.identification,
        };
        into.wrap(batch, i, &table.options)?;
        self.counts[ENCAPSULATED] += 1;
        Ok(())
    }

    /// Handles packet `i`, which exceeds the MTU with `front` bytes of headers: sends an ICMP error if permitted.
    #[cold]
    fn too_big(&mut self, table: &UpfTable, batch: &mut Batch, i: usize, front: usize) -> Result<(), u8> {
        let packet = batch.packet(i);
        let source = table.options.error_sources[usize::from(!packet.headers.key.is_v4())];
        let own = source.ok_or(TOO_BIG)?;
        let may = answer::may_send_icmp_error(&packet.headers, batch.frame(i));
        if !may || !table.may_send_error(1, packet.arrival) {
            return Err(TOO_BIG);
        }
        let left = table.options.mtu.saturating_sub(front as u16);
        answer::too_big(batch, i, own, left).ok_or(NO_ROOM)?;
        self.counts[TOO_BIG_TOLD] += 1;
        Ok(())
    }
}

/// Finds the session and treatment of a packet to encapsulate: slot, record and treatment index; `None` without a
/// session. The flow's cached decision is valid while the session exists with the same profile.
#[inline]
fn decide(
    table: &UpfTable,
    key: &FlowKey,
    buckets: Buckets,
    kept: Option<&mut FlowState>,
) -> Result<Option<(u32, Record, u16)>, u8> {
    let role = table.options.role;
    let user = role.user(key);
    let mut buckets = buckets;
    if let Some(state) = &kept
        && state.generation != 0
    {
        if let Some(record) = table.records.read(state.index)
            && (record.generation, record.forward.profile) == (state.generation, state.profile)
        {
            return Ok(Some((state.index, record, state.treatment)));
        }
        buckets = table.prefetch_user(user);
    }
    let Some((index, record)) = table.session_of_user(user, buckets) else {
        return Ok(None);
    };
    let [_, direction] = role.directions();
    let found = used(table, &record)?.profile.find(key, direction);
    let found = found.ok_or(NO_RULE)?;
    if let Some(state) = kept {
        *state = FlowState {
            generation: record.generation,
            index,
            profile: record.forward.profile,
            treatment: found,
        };
    }
    Ok(Some((index, record, found)))
}

/// Returns the session's profile.
#[inline]
fn used<'a>(table: &'a UpfTable, record: &Record) -> Result<&'a CompiledProfile, u8> {
    let index = usize::from(record.forward.profile);
    table.profiles.get(index).ok_or(NO_RULE)
}

/// Enforces rates, and counts packets that pass. The third argument holds the profile, and the treatment with its
/// index.
#[inline]
fn enforce(
    table: &UpfTable,
    index: u32,
    (used, treatment, found): (&CompiledProfile, &Treatment, u16),
    direction: LinkDirection,
    (now, bytes): (Nanos, usize),
) -> Result<(), u8> {
    if let Some(meter) = &treatment.rates[direction.at()] {
        let pair = used.pairs.get(usize::from(found)).copied();
        let bucket = pair.and_then(|pair| table.records.rule_rate(index, pair, direction));
        if !bucket.is_some_and(|bucket| take(meter, bucket, now, bytes)) {
            return Err(OVER_RATE);
        }
    }
    if treatment.in_session_rate
        && let Some(meter) = &used.profile.session_rates[direction.at()]
        && !take(meter, table.records.session_rate(index, direction), now, bytes)
    {
        return Err(OVER_SESSION_RATE);
    }
    if treatment.counted {
        let all = table.records.count(index, direction, bytes as u64);
        if let Some(volume) = used.profile.volume
            && table.records.volume_is_due(index, all, volume)
        {
            table.set_due(index);
        }
    }
    Ok(())
}
