//! Functions' view of the flow table: the state that a function has of its flows.

use super::candidates::MAX_CANDIDATES;
use crate::batch::packet::Packet;
use crate::flow_table::FlowTable;
use crate::flow_table::ended::EndedFlows;
use crate::flow_table::index::FlowIndex;
use crate::flow_table::remote_companions::NoCompanion;
use bytemuck::Pod;
use std::ops::Range;
use tailwater_net::toeplitz::bucket_of;
use tailwater_net::{FlowKey, Nanos};

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
    /// If the packet has no flow, or `T` is larger than the [declared state](super::NetworkFunction::state_bytes).
    // Runs once for each packet in every function with state: the checks are cheaper than a call.
    #[inline(always)]
    pub fn state<T: Pod>(&mut self, packet: &Packet) -> &mut T {
        let table = self.table.as_mut().expect("called only by functions with flow state");
        self.slot.typed(table, packet.flow, packet.is_reversed())
    }

    /// Bytes of the state of the packet's flow.
    ///
    /// # Panics
    /// If the packet has no flow.
    #[inline]
    pub fn bytes(&mut self, packet: &Packet) -> &mut [u8] {
        let table = self.table.as_mut().expect("called only by functions with flow state");
        table.state(packet.flow, &self.slot.state_of(packet.is_reversed()))
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
    /// companions](super::FunctionProperties::opens_companions) only in `process`. Returns the companion's index and
    /// the function's state of it. If the flow already has a companion with this key, that one is returned.
    ///
    /// # Errors
    /// Same as [`NewFlow::open_companion`]. If the flow has a companion with another key, the error is that the key is
    /// taken.
    ///
    /// # Panics
    /// If the packet has no flow, or `T` is larger than the [declared state](super::NetworkFunction::state_bytes).
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
                // The other flow belongs to a connection already.
                table.join(packet.flow, there).map_err(|_| NoCompanion::Taken)?;
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

    /// Index of the packet in the batch, as passed to [`prepare`](super::NetworkFunction::prepare).
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
    /// A function that [opens companions](super::FunctionProperties::opens_companions) does not see the flow again. It
    /// may open a companion only where the flow was looked up, and keeps the one it has.
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

    /// Turn of the function's [companion candidates](super::DurableState::companion_candidates), if Redis was queried.
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
                // The other flow belongs to a connection already.
                self.table.join(flow, there).map_err(|_| NoCompanion::Taken)?;
                there
            }
            other => other?,
        };
        *self.table.word(companion, self.slot.version) = self.version;
        Ok(self.slot.typed(self.table, companion, false))
    }
}
