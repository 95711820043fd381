//! The trait that every network function implements, and what it sees of the flow table.

use crate::batch::{Batch, Packet, Verdict};
use crate::flow_table::{EndedFlows, FlowIndex, FlowTable, NoCompanion};
use bytemuck::Pod;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::toeplitz::bucket_of;
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::protocol::images::FlowImages;

/// A network function: a batch of packets in, a verdict on each out.
///
/// A function that keeps state per flow says how many bytes; the chain finds the flow once for all
/// its functions and hands each its own piece. Decisions that depend on the flow key alone are made
/// in [`new_flow`](NetworkFunction::new_flow) and kept there, so that
/// [`process`](NetworkFunction::process) only applies them.
///
/// One value serves one worker. What workers share (rules, tables) is read-only behind an `Arc`.
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
    /// The function's name in specs, documentation and reports.
    fn kind(&self) -> &'static str;

    /// Why it drops packets: stable names, at most [`MAX_DROP_REASONS`]. [`Verdict::Drop`] holds a
    /// place in this list.
    fn drop_reasons(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether packets dropped for this reason are *lost*, for want of room, rather than dropped
    /// because the function decided so.
    fn loses(&self, reason: u8) -> bool {
        let _ = reason;
        false
    }

    /// What else the function counts, of packets that pass: stable names. They stand in reports beside
    /// the drops.
    fn notes(&self) -> &'static [&'static str] {
        &[]
    }

    /// The count for each of the [`notes`](NetworkFunction::notes), in their order.
    fn note_counts(&self) -> &[u64] {
        &[]
    }

    /// Bytes of state for each flow. With 0, here and in the chain's other functions, the chain
    /// does not look flows up at all.
    fn state_bytes(&self) -> usize {
        0
    }

    /// Whether it is this function that the state is for. One that stands for several others has the bytes for them all, and says of
    /// each whether it is that one's, for errors to name the right one.
    fn keeps_state(&self) -> bool {
        self.state_bytes() > 0
    }

    /// Whether its state is one for both directions of a connection. In a chain with such a function a
    /// flow is a connection: the port hashes both directions alike, so that they are in one bucket, the
    /// table finds both under one key, and one core at a time has both. Functions of the chain that say
    /// no here keep a piece of state for each direction all the same, and see no difference.
    fn tracks_connections(&self) -> bool {
        false
    }

    /// How long flows without packets are kept, if the function decides: then it decides for the chain.
    fn lifetimes(&self) -> Option<Arc<dyn Lifetimes>> {
        None
    }

    /// The version of what [`new_flow`](NetworkFunction::new_flow) decides by; neither 0 nor
    /// [`u32::MAX`], which stand for flows that are to be shown whatever the version is. When it
    /// changes (new rules), every flow is shown to `new_flow` again with its next packet.
    fn version(&self) -> u32 {
        1
    }

    /// Told before [`new_flow`](NetworkFunction::new_flow) is called which packets of the batch that will
    /// be for, by their [places](NewFlow::place); of a flow's several packets, only the first is then
    /// asked about. For functions that decide about many flows at once faster than one by one.
    fn prepare(&mut self, batch: &Batch, new: &[u16]) {
        let _ = (batch, new);
    }

    /// Decides about a flow on its first packet since the function's version changed, or since a
    /// function in front [rekeyed](NewFlow::rekeyed) the flow. The flow's state is zero the first time,
    /// and later what the function made of it. With [`Verdict::Drop`] the packet is dropped and the next one
    /// asks again; a lasting refusal is kept in the state and applied in `process`.
    fn new_flow(&mut self, packet: &Packet, frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let _ = (packet, frame, flow);
        Verdict::Forward
    }

    /// Whether [`new_flow`](NetworkFunction::new_flow) opens [companions](NewFlow::open_companion). That
    /// takes the flow table, so that until a flow has been opened its packets are processed by the
    /// core that holds its bucket.
    fn opens_companions(&self) -> bool {
        false
    }

    /// Whether packets that came in one flow may leave it in several, as those do that come out of a tunnel. The
    /// chain looks flows up once, by what came, so that no function behind may have state of flows.
    fn mixes_flows(&self) -> bool {
        false
    }

    /// Whether it reads, writes or moves anything of a frame besides the headers. In front of functions
    /// that do not, a frame may lack the end of its payload, which is copied by who comes to the
    /// first that does.
    fn needs_payload(&self) -> bool {
        true
    }

    /// The most packets that batches should have from now on, if the function, which is the chain's first, has
    /// a wish: it may change with every batch.
    fn wanted_batch(&self) -> Option<usize> {
        None
    }

    /// Whether [`flow_ended`](NetworkFunction::flow_ended) is to be called.
    fn wants_flow_ends(&self) -> bool {
        false
    }

    /// A flow that `new_flow` let pass has left the table; `state` is its last.
    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let _ = (key, state);
    }

    /// How often its state of each flow is to be [looked at](NetworkFunction::look), about, also while the flow has no
    /// packets; at most as often as the chain forgets idle flows. A function in a process of its own is not asked.
    fn looks_every(&self) -> Option<Nanos> {
        None
    }

    /// Looks at a flow's state between batches, to see what its time has come for. The function has let the flow pass,
    /// and none of its packets is in the system.
    fn look(&mut self, key: &FlowKey, state: &mut [u8], now: Nanos) {
        let _ = (key, state, now);
    }

    /// Flows are about to go to another instance, whose places in the flow table are theirs from then on: whatever is
    /// still to be done for flows that ended there is done now.
    fn flows_leave(&mut self) {}

    /// The flows that were still there at the end of the run have ended, too.
    fn finished(&mut self) {}

    /// The last packet has passed. The ends of all flows that are still there follow, away from the
    /// data path: from now on the function may wait.
    fn finish(&mut self) {}

    /// The version of what the bytes of a flow's state mean, if they mean something outside of this process, so
    /// that they are worth keeping there ([`spec.state`](tailwater_api::StateSpec)). `None`: another instance decides
    /// about the flow anew. Bytes may come back that another instance wrote, or somebody else: whatever they
    /// are, no memory but the function's own may be at stake.
    fn durable(&self) -> Option<u32> {
        None
    }

    /// Turns a copy of a flow's state into what it means everywhere. `origin` is the run's start, on the clock of
    /// the world: times in the state count from there.
    fn to_durable(&self, state: &mut [u8], origin: Nanos) {
        let _ = (state, origin);
    }

    /// The reverse of [`to_durable`](NetworkFunction::to_durable), for this instance.
    fn take_durable(&mut self, state: &mut [u8], origin: Nanos) {
        let _ = (state, origin);
    }

    /// The flow's state has come from outside: the function goes on with it, opening what belongs to it. `false`:
    /// it cannot, and the flow is as new. In either case [`new_flow`](NetworkFunction::new_flow) follows.
    fn resume(&mut self, packet: &Packet, flow: &mut NewFlow<'_>) -> bool {
        let _ = (packet, flow);
        true
    }

    /// Keys of flows of which `new_flow` will open one as a companion, should this flow be new: it is asked outside
    /// whether one of them is somebody's. At most [`MAX_WISHES`] of them, best first, each with a number below
    /// that, which [`NewFlow::is_taken`] knows. The search begins at `turn`, and its number is returned.
    fn wishes(&self, packet: &Packet, turn: u8, wish: &mut Wishes<'_>) -> u8 {
        let _ = (packet, wish);
        turn
    }

    /// The function's part of the state that it has in another process, if it stands for a function there.
    fn elsewhere(&mut self) -> Option<&mut dyn Elsewhere> {
        None
    }

    /// Processes a batch. Every packet in it is well-formed IP and, if the function has state, of
    /// a flow that `new_flow` has seen. Dropping is setting the packet's verdict.
    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>);
}

/// How long flows without packets are kept.
pub trait Lifetimes: Debug + Send + Sync {
    /// How long a flow is kept after its last packet. The state is the function's own, all zero if the
    /// function has not let the flow pass. Asked now and then, not for each packet: a flow may be kept a few seconds
    /// longer. A full table lets that flow go whose time is up first.
    fn idle_timeout(&self, key: &FlowKey, state: &[u8]) -> Nanos;
}

/// Flow state of a function in another process.
pub trait Elsewhere {
    /// Bytes of its piece of state that is worth keeping outside.
    fn piece_bytes(&self) -> usize;

    /// What the function shows of it, if that is kept.
    fn images(&self) -> Option<Arc<FlowImages>>;

    /// The birth of a flow at this place, which `state` begins with: that of the first function of the chain that has
    /// state here. A flow that has none is given one; it is never 0.
    fn birth(&mut self, state: &mut [u8], place: u32) -> u64;
}

/// The most reasons to drop that one function can have.
pub const MAX_DROP_REASONS: usize = 17;

/// The most keys that a function asks about for one flow.
pub const MAX_WISHES: usize = 4;

/// What a function wishes to open for a flow, as [`wishes`](NetworkFunction::wishes) is asked.
pub struct Wishes<'a> {
    pub(crate) table: &'a FlowTable,
    pub(crate) keys: &'a mut Vec<(u8, FlowKey)>,
    pub(crate) failed: bool,
}

impl Wishes<'_> {
    /// Whether no flow here has the key.
    pub fn is_free(&self, key: &FlowKey, bucket: u16) -> bool {
        match self.table.is_free_elsewhere(key, bucket) {
            Some(free) => free,
            None => !self.table.contains(key, bucket),
        }
    }

    /// What the function wishes cannot be known now: its flow is not to be opened yet.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Asks about a key.
    pub fn ask(&mut self, number: u8, key: FlowKey) {
        self.keys.push((number, key));
    }
}

/// Seen under this version: never.
pub(crate) const UNSEEN: u32 = 0;
/// Seen under this version: before a function in front rekeyed the flow, so that it is to be shown
/// again.
pub(crate) const SHOWN_BEFORE: u32 = u32::MAX;

/// Where a function's piece of a flow's state lies.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateSlot {
    /// Offset of the 32-bit version under which the function last saw the flow.
    pub(crate) version: usize,
    /// The function's own bytes.
    pub(crate) state: Range<usize>,
    /// How much further on the same two are for packets against the direction of a connection's key: both 0
    /// where directions share them, or flows are no connections.
    pub(crate) version_apart: usize,
    pub(crate) state_apart: usize,
}

impl StateSlot {
    /// Where the version is for packets of a direction.
    #[inline]
    pub(crate) fn version_at(&self, reversed: bool) -> usize {
        // Where it is the same for both, which way a packet goes need not be looked at.
        match self.version_apart {
            0 => self.version,
            apart => self.version + apart * usize::from(reversed),
        }
    }

    /// The function's bytes for packets of a direction.
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

    /// Whether each direction has its own.
    pub(crate) fn is_directed(&self) -> bool {
        self.version_apart > 0
    }

    /// The version for a direction in a copy of all of a flow's state.
    pub(crate) fn seen_version(&self, state: &[u8], reversed: bool) -> u32 {
        let at = self.version_at(reversed);
        bytemuck::pod_read_unaligned(&state[at..at + 4])
    }

    /// The function's piece of a flow's state, as its own type.
    ///
    /// # Panics
    /// If the type is larger than what the function declared, or its alignment above 8.
    // Once a packet in every function with state: see `FlowStates::state`.
    #[inline(always)]
    fn typed<'a, T: Pod>(&self, table: &'a mut FlowTable, flow: FlowIndex, reversed: bool) -> &'a mut T {
        const { assert!(align_of::<T>() <= 8, "flow state is aligned to 8 bytes") };
        let state = table.state(flow, &self.state_of(reversed));
        bytemuck::from_bytes_mut(&mut state[..size_of::<T>()])
    }
}

/// A function's state of the flows in a batch.
#[derive(Debug)]
pub struct FlowStates<'a> {
    pub(crate) table: Option<&'a mut FlowTable>,
    pub(crate) slot: &'a StateSlot,
    pub(crate) ends: &'a mut EndedFlows,
    pub(crate) now: Nanos,
    /// The function's version.
    pub(crate) version: u32,
}

impl FlowStates<'_> {
    /// The state of the packet's flow.
    ///
    /// # Panics
    /// If the packet has no flow, or `T` is larger than the
    /// [declared state](NetworkFunction::state_bytes).
    // Once a packet in every function with state: the checks are cheaper than the call.
    #[inline(always)]
    pub fn state<T: Pod>(&mut self, packet: &Packet) -> &mut T {
        let table = self.table.as_mut().expect("only functions with state ask for it");
        self.slot.typed(table, packet.flow, packet.is_reversed())
    }

    /// Where the state of the packet's flow is, aligned to 8: the caller's to touch until the states are used
    /// again.
    ///
    /// # Panics
    /// If the packet has no flow.
    #[inline]
    pub fn address(&mut self, packet: &Packet) -> *mut u8 {
        let table = self.table.as_mut();
        table
            .expect("only functions with state ask for it")
            .state_address(packet.flow, &self.slot.state_of(packet.is_reversed()))
    }

    /// When the batch was taken, since the run's start.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Opens a companion of the packet's flow, as [`NewFlow::open_companion`] does, for a function that
    /// [does so](NetworkFunction::opens_companions) only when it processes. Gives the companion's place, and
    /// the function's state of it. If the flow has a companion of this key already, that is it.
    ///
    /// # Errors
    /// As there; a flow that has another companion says that the key is taken.
    ///
    /// # Panics
    /// If the packet has no flow, or `T` is larger than the
    /// [declared state](NetworkFunction::state_bytes).
    pub fn open_companion<T: Pod>(
        &mut self,
        packet: &Packet,
        key: &FlowKey,
        rss_hash: u32,
    ) -> Result<(u32, &mut T), NoCompanion> {
        let table = self.table.as_mut();
        let table = table.expect("only functions with state ask for it");
        let bucket = bucket_of(rss_hash);
        let (companion, new) = table.open_companion_again(packet.flow, key, bucket, self.now, self.ends)?;
        if new {
            *table.word(companion, self.slot.version) = self.version;
        }
        Ok((companion.place() as u32, self.slot.typed(table, companion, false)))
    }

    /// As [`open_companion`](FlowStates::open_companion); but a flow of that key of which `is_new` says, by its place
    /// and state, that nobody has decided about it becomes the companion as it is
    /// ([`NewFlow::rejoin_companion`]).
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn rejoin_companion<T: Pod>(
        &mut self,
        packet: &Packet,
        key: &FlowKey,
        rss_hash: u32,
        is_new: impl FnOnce(u32, &mut T) -> bool,
    ) -> Result<(u32, &mut T), NoCompanion> {
        let table = self.table.as_mut();
        let table = table.expect("only functions with state ask for it");
        let bucket = bucket_of(rss_hash);
        let opened = table.open_companion_again(packet.flow, key, bucket, self.now, self.ends);
        let companion = match opened {
            Err(NoCompanion::Taken) => {
                let there = table.known(key, bucket).ok_or(NoCompanion::Taken)?;
                let place = there.place() as u32;
                if !is_new(place, self.slot.typed(table, there, false)) {
                    return Err(NoCompanion::Taken);
                }
                table.join(packet.flow, there)?;
                there
            }
            other => other?.0,
        };
        *table.word(companion, self.slot.version) = self.version;
        Ok((companion.place() as u32, self.slot.typed(table, companion, false)))
    }

    /// The key of the packet's flow as it came to the chain, before any function rewrote it.
    ///
    /// # Panics
    /// If the packet has no flow.
    pub fn key(&self, packet: &Packet) -> FlowKey {
        let table = self.table.as_ref();
        let key = table.expect("only functions with state ask for it").key(packet.flow);
        match packet.is_reversed() {
            true => key.reversed(),
            false => key,
        }
    }
}

/// A flow that a function sees for the first time.
#[derive(Debug)]
pub struct NewFlow<'a> {
    pub(crate) table: &'a mut FlowTable,
    pub(crate) ends: &'a mut EndedFlows,
    pub(crate) slot: &'a StateSlot,
    pub(crate) packet: &'a Packet,
    pub(crate) now: Nanos,
    pub(crate) version: u32,
    pub(crate) rekeyed: bool,
    /// The packet's place in the batch.
    pub(crate) at: u16,
    /// Which of the function's wishes are somebody's, and their turn; `None` if nobody was asked.
    pub(crate) wishes: Option<(u8, u8)>,
}

impl NewFlow<'_> {
    /// Now, since the run's start.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The packet's place in the batch, as [`prepare`](NetworkFunction::prepare) was told.
    #[inline]
    pub fn place(&self) -> usize {
        usize::from(self.at)
    }

    /// The RSS bucket that owns the flow.
    pub fn bucket(&self) -> u16 {
        bucket_of(self.packet.rss_hash)
    }

    /// The function's state of this flow.
    #[inline]
    pub fn state<T: Pod>(&mut self) -> &mut T {
        let packet = self.packet;
        self.slot.typed(self.table, packet.flow, packet.is_reversed())
    }

    /// The function will from now on give the flow's packets other addresses or ports than before: what
    /// the functions behind it decided by has changed, so that they are shown the flow again. When
    /// the function sees the flow for the first time this changes nothing.
    ///
    /// A function that [opens companions](NetworkFunction::opens_companions) is not shown the flow
    /// again: it may open one only where the flow was looked up, and keeps what it has.
    pub fn rekeyed(&mut self) {
        self.rekeyed = true;
    }

    /// Opens a second flow of the same bucket that lives and ends with this one, such as the
    /// return direction of a translated connection, and gives the function's state of it. For this
    /// function the new flow counts as seen; the chain's others see it with its first packet.
    ///
    /// # Errors
    /// If the flow has a companion, or the key is taken, of another bucket, or finds no place.
    pub fn open_companion<T: Pod>(&mut self, key: &FlowKey, rss_hash: u32) -> Result<&mut T, NoCompanion> {
        let elsewhere = self.table.ask_for_companion(self.packet.number, key, rss_hash);
        let companion = match elsewhere {
            Some(opened) => opened?,
            None => self
                .table
                .open_companion(self.packet.flow, key, bucket_of(rss_hash), self.now, self.ends)?,
        };
        *self.table.word(companion, self.slot.version) = self.version;
        Ok(self.slot.typed(self.table, companion, false))
    }

    /// The turn of the function's [`wishes`](NetworkFunction::wishes), if it was asked for them.
    pub fn turn(&self) -> Option<u8> {
        self.wishes.map(|(_, turn)| turn)
    }

    /// Whether the key with this number among the function's wishes is somebody's.
    #[inline]
    pub fn is_taken(&self, number: usize) -> bool {
        self.wishes
            .is_some_and(|(taken, _)| number < MAX_WISHES && taken >> number & 1 != 0)
    }

    /// As [`open_companion`](NewFlow::open_companion); but a flow of that key that the function has not seen yet
    /// becomes the companion as it is.
    ///
    /// # Errors
    /// As [`open_companion`](NewFlow::open_companion).
    pub fn rejoin_companion<T: Pod>(&mut self, key: &FlowKey, rss_hash: u32) -> Result<&mut T, NoCompanion> {
        let (flow, bucket) = (self.packet.flow, bucket_of(rss_hash));
        let elsewhere = self.table.ask_to_rejoin_companion(self.packet.number, key, rss_hash);
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
