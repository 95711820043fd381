//! `NetworkFunction` trait, and the functions' view of the flow table.

use crate::batch::{Batch, Packet, Verdict};
use crate::flow_table::{EndedFlows, FlowIndex, FlowTable, NoCompanion};
use bytemuck::Pod;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::toeplitz::bucket_of;
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::protocol::snapshots::FlowSnapshots;

/// Network function: takes a batch of packets and sets a verdict on each.
///
/// A function with per-flow state declares the number of bytes. The chain looks the flow up once for all its functions
/// and gives each of them its own part of the state. Decisions that depend on the flow key alone are made in
/// [`new_flow`](NetworkFunction::new_flow) and stored in the state, so that [`process`](NetworkFunction::process) only
/// applies them.
///
/// Each worker has its own instance. Data that workers share (rules, tables) is read-only behind an `Arc`.
///
/// # Example
///
/// A function that lets each flow have ten packets:
///
/// ```
/// use tailwater_chain::batch::{Batch, Verdict};
/// use tailwater_chain::function::{FlowStates, NetworkFunction};
///
/// struct TenPackets;
///
/// impl NetworkFunction for TenPackets {
///     fn kind(&self) -> &'static str {
///         "TenPackets"
///     }
///     fn drop_reasons(&self) -> &'static [&'static str] {
///         &["more-than-ten"]
///     }
///     fn state_bytes(&self) -> usize {
///         size_of::<u64>()
///     }
///     fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
///         for packet in batch.iter_mut() {
///             let seen = flows.state::<u64>(packet);
///             *seen += 1;
///             if *seen > 10 {
///                 packet.verdict = Verdict::Drop(0);
///             }
///         }
///     }
/// }
/// ```
pub trait NetworkFunction: Send {
    /// Name of the function's type in specs, documentation and reports.
    fn kind(&self) -> &'static str;

    /// Stable names of the function's drop reasons, at most [`MAX_DROP_REASONS`]. [`Verdict::Drop`] holds an index into
    /// this list.
    fn drop_reasons(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns `true` if packets dropped for this reason are *lost* for lack of resources, not dropped by a decision of
    /// the function.
    fn is_loss(&self, reason: u8) -> bool {
        let _ = reason;
        false
    }

    /// Stable names of the function's counters of packets that pass. Reports list them next to the drops.
    fn counters(&self) -> &'static [&'static str] {
        &[]
    }

    /// Values of the [counters](NetworkFunction::counters), in their order.
    fn counter_values(&self) -> &[u64] {
        &[]
    }

    /// Size of the per-flow state in bytes. If it is 0 here and in the chain's other functions, the chain does not look
    /// flows up at all.
    fn state_bytes(&self) -> usize {
        0
    }

    /// Returns `true` if the state belongs to this function. A proxy for several functions declares the bytes of all of
    /// them; this result tells them apart, so that errors name the right function.
    fn has_own_state(&self) -> bool {
        self.state_bytes() > 0
    }

    /// Returns `true` if both directions of a connection share one state. In a chain with such a function, a flow is a
    /// connection: the port hashes both directions alike, so one bucket and one core have both, and the table finds
    /// both under one key. Functions of the chain that return `false` still have one state for each direction, and see
    /// no difference.
    fn tracks_connections(&self) -> bool {
        false
    }

    /// Source of idle timeouts for the chain's flows, if the function decides on them.
    fn lifetimes(&self) -> Option<Arc<dyn Lifetimes>> {
        None
    }

    /// Version of the rules that [`new_flow`](NetworkFunction::new_flow) decides by. When it changes, every flow is
    /// passed to `new_flow` again with its next packet. It is neither 0 nor [`u32::MAX`], which mark flows that are
    /// passed to `new_flow` under any version.
    fn version(&self) -> u32 {
        1
    }

    /// Called before [`new_flow`](NetworkFunction::new_flow) with the [batch indices](NewFlow::batch_index) of the packets it
    /// will be called for. Of several packets of one flow, only the first is then decided about. For functions that
    /// decide about many flows at once faster than one by one.
    fn prepare(&mut self, batch: &Batch, new: &[u16]) {
        let _ = (batch, new);
    }

    /// Decides about a flow on its first packet since the function's version changed, or since a preceding function
    /// [rekeyed](NewFlow::rekeyed) the flow. The flow's state is zero the first time, and later holds the function's
    /// last value. [`Verdict::Drop`] drops the packet, and the next packet calls `new_flow` again. A lasting refusal is
    /// stored in the state and applied in `process`.
    fn new_flow(&mut self, packet: &Packet, frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let _ = (packet, frame, flow);
        Verdict::Forward
    }

    /// Returns `true` if [`new_flow`](NetworkFunction::new_flow) opens [companions](NewFlow::open_companion). That
    /// requires the flow table, so the core that holds the flow's bucket processes its packets until the flow has been
    /// opened.
    fn opens_companions(&self) -> bool {
        false
    }

    /// Returns `true` if packets that arrive in one flow can leave in several, as packets out of a tunnel do. The chain
    /// looks flows up once, by the arriving packet, so no later function may have flow state.
    fn mixes_flows(&self) -> bool {
        false
    }

    /// Returns `true` if the function reads, writes or moves any part of a frame other than its headers. In front of
    /// functions that do not, a frame may lack the end of its payload. It is copied before the first function that
    /// needs it.
    fn needs_payload(&self) -> bool {
        true
    }

    /// Maximum size of further batches, if this function is the chain's first and requires one. It may change with
    /// every batch.
    fn wanted_batch(&self) -> Option<usize> {
        None
    }

    /// Returns `true` if the chain must call [`flow_ended`](NetworkFunction::flow_ended).
    fn wants_flow_ends(&self) -> bool {
        false
    }

    /// Called after a flow that `new_flow` accepted has left the table, with its last state.
    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let _ = (key, state);
    }

    /// Approximate interval of the [timer](NetworkFunction::on_timer) on each flow's state, which also runs while the flow
    /// has no packets. It is not shorter than the chain's expiry of idle flows. A function in a process of its own has
    /// no timer.
    fn timer_interval(&self) -> Option<Nanos> {
        None
    }

    /// Timer callback on a flow's state, between batches. The function has accepted the flow, and none of its packets
    /// is in the system.
    fn on_timer(&mut self, key: &FlowKey, state: &mut [u8], now: Nanos) {
        let _ = (key, state, now);
    }

    /// Called before flows move to another instance, which then owns their indices in the flow table. The function
    /// completes pending work for flows that have ended there.
    fn before_flows_move(&mut self) {}

    /// Called after the flows remaining at the end of the run have ended.
    fn after_flow_ends(&mut self) {}

    /// Called after the last packet. The ends of all remaining flows follow, off the data path, so the function may
    /// block from now on.
    fn drain(&mut self) {}

    /// Version of the state's format, if a flow's state is meaningful outside this process and can be stored externally
    /// (`spec.state`). With `None`, another instance decides about the flow anew. Stored
    /// bytes may come from another instance or an untrusted writer: whatever they hold, they must not endanger memory
    /// other than the function's own.
    fn durable(&self) -> Option<u32> {
        None
    }

    /// Converts a copy of a flow's state to its portable form. `origin` is the wall-clock time of the run's start, from
    /// which times in the state count.
    fn to_durable(&self, state: &mut [u8], origin: Nanos) {
        let _ = (state, origin);
    }

    /// Converts a flow's state from its portable form, the reverse of [`to_durable`](NetworkFunction::to_durable), for
    /// this instance.
    fn restore_durable(&mut self, state: &mut [u8], origin: Nanos) {
        let _ = (state, origin);
    }

    /// Resumes a flow whose state was loaded from external storage, and opens what belongs to it. With `false`, it
    /// cannot, and the flow counts as new. In either case [`new_flow`](NetworkFunction::new_flow) follows.
    fn resume(&mut self, packet: &Packet, flow: &mut NewFlow<'_>) -> bool {
        let _ = (packet, flow);
        true
    }

    /// Adds the keys of candidate companions, one of which `new_flow` will open if this flow is new. Redis is queried
    /// whether another instance has them. There are at most [`MAX_CANDIDATES`] keys, best first, each with a number below
    /// that for [`NewFlow::is_taken`]. The search starts at `turn`; the turn that was used is returned.
    fn companion_candidates(&self, packet: &Packet, turn: u8, candidates: &mut CompanionCandidates<'_>) -> u8 {
        let _ = (packet, candidates);
        turn
    }

    /// State of an isolated function for which this one is the proxy.
    fn remote_state(&mut self) -> Option<&mut dyn RemoteState> {
        None
    }

    /// Processes a batch. Every packet in it is well-formed IP and, if the function has state, belongs to a flow that
    /// `new_flow` has seen. The function drops a packet by setting its verdict.
    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>);
}

/// Source of idle timeouts of flows.
pub trait Lifetimes: Debug + Send + Sync {
    /// Returns the time a flow is kept after its last packet. The state is the function's own, all zero if the function
    /// has not accepted the flow. It is evaluated from time to time and not for each packet, so a flow may stay a few
    /// seconds longer. A full table evicts the flow whose timeout ends first.
    fn idle_timeout(&self, key: &FlowKey, state: &[u8]) -> Nanos;
}

/// Flow state of a function in another process.
pub trait RemoteState {
    /// Size in bytes of the part of its state that can be stored externally.
    fn piece_bytes(&self) -> usize;

    /// Snapshots that the function writes of its state, if it is stored externally.
    fn snapshots(&self) -> Option<Arc<FlowSnapshots>>;

    /// Returns the generation of the flow in slot `place`, which `state` begins with: that of the first function of the
    /// chain with state there. A flow without a generation is given one; it is never 0.
    fn generation(&mut self, state: &mut [u8], place: u32) -> u64;
}

/// Maximum number of drop reasons of one function.
pub const MAX_DROP_REASONS: usize = 17;

/// Maximum number of candidate companion keys for one flow.
pub const MAX_CANDIDATES: usize = 4;

/// Candidate companions of a flow, as [`companion_candidates`](NetworkFunction::companion_candidates) collects them.
pub struct CompanionCandidates<'a> {
    pub(crate) table: &'a FlowTable,
    pub(crate) keys: &'a mut Vec<(u8, FlowKey)>,
    pub(crate) failed: bool,
}

impl CompanionCandidates<'_> {
    /// Returns `true` if no local flow has the key.
    pub fn is_free(&self, key: &FlowKey, bucket: u16) -> bool {
        match self.table.is_free_remotely(key, bucket) {
            Some(free) => free,
            None => !self.table.contains(key, bucket),
        }
    }

    /// Marks the candidates as unknown for now: the flow is not to be opened yet.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Adds a key to query, under this number.
    pub fn add(&mut self, number: u8, key: FlowKey) {
        self.keys.push((number, key));
    }
}

/// Version of a flow that the function has never seen.
pub(crate) const UNSEEN: u32 = 0;
/// Version of a flow that a preceding function has rekeyed since the function saw it, so that it must see it again.
pub(crate) const SHOWN_BEFORE: u32 = u32::MAX;

/// Location of a function's part of a flow's state.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateSlot {
    /// Offset of the 32-bit version under which the function last saw the flow.
    pub(crate) version: usize,
    /// Function's own bytes.
    pub(crate) state: Range<usize>,
    /// Distances from these two to their counterparts for packets against the direction of a connection's key. Both are
    /// 0 if directions share the state, or if flows are no connections.
    pub(crate) version_apart: usize,
    pub(crate) state_apart: usize,
}

impl StateSlot {
    /// Offset of the version for packets of a direction.
    #[inline]
    pub(crate) fn version_at(&self, reversed: bool) -> usize {
        // If it is shared, the packet's direction need not be read.
        match self.version_apart {
            0 => self.version,
            apart => self.version + apart * usize::from(reversed),
        }
    }

    /// Function's bytes for packets of a direction.
    #[inline(always)]
    pub(crate) fn state_of(&self, reversed: bool) -> Range<usize> {
        match self.state_apart {
            0 => self.state.clone(),
            apart => {
                let apart = apart * usize::from(reversed);
                self.state.start + apart..self.state.end + apart
            }
        }
    }

    /// Returns `true` if each direction has its own state.
    pub(crate) fn is_directed(&self) -> bool {
        self.version_apart > 0
    }

    /// Reads the version for a direction from a copy of a flow's entire state.
    pub(crate) fn seen_version(&self, state: &[u8], reversed: bool) -> u32 {
        let at = self.version_at(reversed);
        bytemuck::pod_read_unaligned(&state[at..at + 4])
    }

    /// Function's part of a flow's state, as its own type.
    ///
    /// # Panics
    /// If the type is larger than the declared state, or its alignment is above 8.
    // Runs once for each packet in every function with state: see `FlowStates::state`.
    #[inline(always)]
    fn typed<'a, T: Pod>(&self, table: &'a mut FlowTable, flow: FlowIndex, reversed: bool) -> &'a mut T {
        const { assert!(align_of::<T>() <= 8, "flow state is aligned to 8 bytes") };
        let state = table.state(flow, &self.state_of(reversed));
        bytemuck::from_bytes_mut(&mut state[..size_of::<T>()])
    }
}

/// State that a function has of the flows in a batch.
#[derive(Debug)]
pub struct FlowStates<'a> {
    pub(crate) table: Option<&'a mut FlowTable>,
    pub(crate) slot: &'a StateSlot,
    pub(crate) ends: &'a mut EndedFlows,
    pub(crate) now: Nanos,
    /// Version of the function.
    pub(crate) version: u32,
}

impl FlowStates<'_> {
    /// State of the packet's flow.
    ///
    /// # Panics
    /// If the packet has no flow, or `T` is larger than the [declared state](NetworkFunction::state_bytes).
    // Runs once for each packet in every function with state: the checks are cheaper than a call.
    #[inline(always)]
    pub fn state<T: Pod>(&mut self, packet: &Packet) -> &mut T {
        let table = self.table.as_mut().expect("called only by functions with flow state");
        self.slot.typed(table, packet.flow, packet.is_reversed())
    }

    /// Address of the state of the packet's flow, aligned to 8 bytes. The caller may access it until the states are
    /// used again.
    ///
    /// # Panics
    /// If the packet has no flow.
    #[inline]
    pub fn address(&mut self, packet: &Packet) -> *mut u8 {
        let table = self.table.as_mut();
        table
            .expect("called only by functions with flow state")
            .state_address(packet.flow, &self.slot.state_of(packet.is_reversed()))
    }

    /// Time at which the batch was taken, since the run's start.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Opens a companion of the packet's flow, as [`NewFlow::open_companion`] does, for a function that [opens
    /// companions](NetworkFunction::opens_companions) only in `process`. Returns the companion's index and the
    /// function's state of it. If the flow already has a companion with this key, that one is returned.
    ///
    /// # Errors
    /// Same as [`NewFlow::open_companion`]. If the flow has a companion with another key, the error is that the key is
    /// taken.
    ///
    /// # Panics
    /// If the packet has no flow, or `T` is larger than the [declared state](NetworkFunction::state_bytes).
    pub fn open_companion<T: Pod>(
        &mut self,
        packet: &Packet,
        key: &FlowKey,
        rss_hash: u32,
    ) -> Result<(u32, &mut T), NoCompanion> {
        let table = self.table.as_mut();
        let table = table.expect("called only by functions with flow state");
        let bucket = bucket_of(rss_hash);
        let (companion, new) = table.reopen_companion(packet.flow, key, bucket, self.now, self.ends)?;
        if new {
            *table.word(companion, self.slot.version) = self.version;
        }
        Ok((companion.index() as u32, self.slot.typed(table, companion, false)))
    }

    /// Same as [`open_companion`](FlowStates::open_companion), except for an existing flow with that key. If `is_new`
    /// returns `true` for its index and state, no function has decided about it, and it becomes the companion as it is
    /// ([`NewFlow::rejoin_companion`]).
    ///
    /// # Errors
    /// Same as [`open_companion`](FlowStates::open_companion).
    ///
    /// # Panics
    /// Same as [`open_companion`](FlowStates::open_companion).
    pub fn rejoin_companion<T: Pod>(
        &mut self,
        packet: &Packet,
        key: &FlowKey,
        rss_hash: u32,
        is_new: impl FnOnce(u32, &mut T) -> bool,
    ) -> Result<(u32, &mut T), NoCompanion> {
        let table = self.table.as_mut();
        let table = table.expect("called only by functions with flow state");
        let bucket = bucket_of(rss_hash);
        let opened = table.reopen_companion(packet.flow, key, bucket, self.now, self.ends);
        let companion = match opened {
            Err(NoCompanion::Taken) => {
                let there = table.known(key, bucket).ok_or(NoCompanion::Taken)?;
                let place = there.index() as u32;
                if !is_new(place, self.slot.typed(table, there, false)) {
                    return Err(NoCompanion::Taken);
                }
                table.join(packet.flow, there)?;
                there
            }
            other => other?.0,
        };
        *table.word(companion, self.slot.version) = self.version;
        Ok((companion.index() as u32, self.slot.typed(table, companion, false)))
    }

    /// Key of the packet's flow as it entered the chain, before any function rewrote it.
    ///
    /// # Panics
    /// If the packet has no flow.
    pub fn key(&self, packet: &Packet) -> FlowKey {
        let table = self.table.as_ref();
        let key = table
            .expect("called only by functions with flow state")
            .key(packet.flow);
        match packet.is_reversed() {
            true => key.reversed(),
            false => key,
        }
    }
}

/// Flow that a function sees for the first time.
#[derive(Debug)]
pub struct NewFlow<'a> {
    pub(crate) table: &'a mut FlowTable,
    pub(crate) ends: &'a mut EndedFlows,
    pub(crate) slot: &'a StateSlot,
    pub(crate) packet: &'a Packet,
    pub(crate) now: Nanos,
    pub(crate) version: u32,
    pub(crate) rekeyed: bool,
    /// Index of the packet in the batch.
    pub(crate) at: u16,
    /// Bit map of the candidate companions that are taken, and their turn; `None` if Redis was not queried.
    pub(crate) taken_candidates: Option<(u8, u8)>,
}

impl NewFlow<'_> {
    /// Current time, since the run's start.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Index of the packet in the batch, as passed to [`prepare`](NetworkFunction::prepare).
    #[inline]
    pub fn batch_index(&self) -> usize {
        usize::from(self.at)
    }

    /// RSS bucket that owns the flow.
    pub fn bucket(&self) -> u16 {
        bucket_of(self.packet.rss_hash)
    }

    /// Function's state of this flow.
    #[inline]
    pub fn state<T: Pod>(&mut self) -> &mut T {
        let packet = self.packet;
        self.slot.typed(self.table, packet.flow, packet.is_reversed())
    }

    /// Marks the flow as rekeyed: from now on the function gives its packets other addresses or ports than before. The
    /// functions behind it see the flow again, since the input of their decisions has changed. There is no effect when
    /// the function sees the flow for the first time.
    ///
    /// A function that [opens companions](NetworkFunction::opens_companions) does not see the flow again. It may open a
    /// companion only where the flow was looked up, and keeps the one it has.
    pub fn rekeyed(&mut self) {
        self.rekeyed = true;
    }

    /// Opens a second flow in the same bucket that lives and ends with this one, such as the return direction of a
    /// translated connection. Returns the function's state of it. This function counts the new flow as seen; the
    /// chain's others see it with its first packet.
    ///
    /// # Errors
    /// If the flow already has a companion, or if the key is taken, belongs to another bucket, or finds no slot.
    pub fn open_companion<T: Pod>(&mut self, key: &FlowKey, rss_hash: u32) -> Result<&mut T, NoCompanion> {
        let elsewhere = self.table.request_companion(self.packet.number, key, rss_hash);
        let companion = match elsewhere {
            Some(opened) => opened?,
            None => self
                .table
                .open_companion(self.packet.flow, key, bucket_of(rss_hash), self.now, self.ends)?,
        };
        *self.table.word(companion, self.slot.version) = self.version;
        Ok(self.slot.typed(self.table, companion, false))
    }

    /// Turn of the function's [companion candidates](NetworkFunction::companion_candidates), if Redis was queried.
    pub fn turn(&self) -> Option<u8> {
        self.taken_candidates.map(|(_, turn)| turn)
    }

    /// Returns `true` if another instance has the candidate key with this number.
    #[inline]
    pub fn is_taken(&self, number: usize) -> bool {
        self.taken_candidates
            .is_some_and(|(taken, _)| number < MAX_CANDIDATES && taken >> number & 1 != 0)
    }

    /// Same as [`open_companion`](NewFlow::open_companion), except that an existing flow with that key becomes the
    /// companion as it is if the function has not seen it yet.
    ///
    /// # Errors
    /// Same as [`open_companion`](NewFlow::open_companion).
    pub fn rejoin_companion<T: Pod>(&mut self, key: &FlowKey, rss_hash: u32) -> Result<&mut T, NoCompanion> {
        let (flow, bucket) = (self.packet.flow, bucket_of(rss_hash));
        let elsewhere = self.table.request_companion_rejoin(self.packet.number, key, rss_hash);
        let open = match elsewhere {
            Some(joined) => joined,
            None => self.table.open_companion(flow, key, bucket, self.now, self.ends),
        };
        let companion = match open {
            Err(NoCompanion::Taken) => {
                let there = self.table.known(key, bucket).ok_or(NoCompanion::Taken)?;
                if *self.table.word(there, self.slot.version) != UNSEEN {
                    return Err(NoCompanion::Taken);
                }
                self.table.join(flow, there)?;
                there
            }
            other => other?,
        };
        *self.table.word(companion, self.slot.version) = self.version;
        Ok(self.slot.typed(self.table, companion, false))
    }
}
