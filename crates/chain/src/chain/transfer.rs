//! Flows of a chain that pass to a chain of another process.
//!
//! Functions with [durable] state pass it in its portable form, as they store it in Redis. Other functions either
//! [decide again] about each flow, or lose their state. Isolated functions pass the same form, as far as it can be made
//! from [their memory](RemoteTransfer) without their processes.
//!
//! [durable]: crate::function::NetworkFunction::durable
//! [decide again]: crate::function::NetworkFunction::can_restart
//! [attachments]: crate::function::DurableState::has_attachments
//!
//! # Format
//!
//! Numbers are little-endian. A header: the magic number, bytes of a row (`u32`), whether flows are connections
//! (`u32`), number of groups (`u64`). Then groups of one flow, or two that are companions: bucket (`u16`), number of
//! flows (`u16`); for each flow its key (five words of 8 bytes), ticks of 65,536 ns since its last packet (`u32`), and
//! its row: for each durable function, and direction if it has a state of each, a byte that is 1 if the function has
//! accepted the flow, and the state. Behind the row, for each of these that has [attachments]: their length (`u32`) and
//! bytes. The flows of several workers follow each other, each with a header.

use super::Chain;
use super::flow_callbacks::report_flow_ends;
use super::stage::Stage;
use crate::flow_table::{FlowTable, tick_of};
use crate::function::{RemoteFlow, RemoteFunction, RemoteTransfer, SHOWN_BEFORE, StateSlot, UNSEEN};
use std::ops::Range;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_net::{FlowKey, Nanos};

/// Start of exported flows, with the version of the format.
const MAGIC: [u8; 8] = *b"TWFLOWS1";

/// Function of a chain, and its state that can pass to another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferFunction {
    /// Name of the function in its chain.
    pub name: String,
    /// Type of the function.
    pub kind: &'static str,
    /// State that it has.
    pub state: TransferState,
}

/// State of a function with regard to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferState {
    /// None, or decisions that it makes again.
    None,
    /// Portable flow state.
    Portable {
        /// Version of the state's format.
        version: u32,
        /// Bytes for each flow.
        bytes: usize,
    },
    /// State that another process cannot take.
    Local,
}

/// Flows that were imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportedFlows {
    /// Flows that the chain has now.
    pub flows: u64,
    /// Flows for which the flow table had no slot.
    pub refused: u64,
}

/// Cause why flows cannot be exported or imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// Buckets are on other cores.
    #[error("{0} RSS buckets are on auxiliary cores")]
    Lent(usize),
    /// The flows take more bytes than allowed.
    #[error("the flows take more than {0} bytes")]
    TooLong(usize),
    /// The bytes end early.
    #[error("the exported flows end early, at byte {0}")]
    Short(usize),
    /// A field has a wrong value.
    #[error("exported flows: {field}: expected {expected}, found {found} at byte {at}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Valid values.
        expected: String,
        /// Value.
        found: u64,
        /// Offset behind the field.
        at: usize,
    },
}

/// Bytes of a flow without its row.
const FLOW_BYTES: usize = 5 * size_of::<u64>() + size_of::<u32>();

/// Part of a row: the state of a function, for one direction.
struct RowPart {
    stage: usize,
    bytes: usize,
    location: PartLocation,
}

/// Location of a part's state.
enum PartLocation {
    /// In the flow table.
    Local {
        version: usize,
        state: Range<usize>,
        has_attachments: bool,
    },
    /// In the memory of an isolated function.
    Remote { is_reversed: bool },
}

impl RowPart {
    /// Version and state in the flow table, of a part to which data of variable length are attached.
    fn attached(&self) -> Option<(usize, &Range<usize>)> {
        match &self.location {
            PartLocation::Local {
                version,
                state,
                has_attachments: true,
            } => Some((*version, state)),
            _ => None,
        }
    }
}

/// State of an isolated function that was read, until its flow has a slot: index among the flows of its group, stage,
/// direction, and bytes.
type RemotePart<'b> = (usize, usize, bool, &'b [u8]);

/// Stage that has the generations of flows in its state, if functions are isolated, and that state.
fn generations(stages: &[Stage]) -> Option<(usize, StateSlot)> {
    let mut stages = stages.iter().enumerate();
    stages.find_map(|(i, stage)| Some((i, stage.function.remote().and(stage.slot.clone())?)))
}

impl Chain {
    /// Functions in chain order, and their state that can pass to another process.
    pub fn transfer_functions(&mut self) -> Vec<TransferFunction> {
        let passes = !self.branches && self.external_state.is_none();
        let stages = self.stages.iter_mut();
        let functions = stages.map(|Stage { name, function, .. }| {
            let (version, bytes) = match function.remote().map(RemoteFunction::transfer) {
                Some(transfer) => (
                    transfer.map(RemoteTransfer::format_version),
                    transfer.map_or(0, RemoteTransfer::bytes),
                ),
                None => {
                    let version = function.portable().map(|portable| portable.format_version());
                    (version, function.state_bytes())
                }
            };
            let state = match version {
                _ if function.can_restart() => TransferState::None,
                Some(version) if passes => TransferState::Portable { version, bytes },
                _ => TransferState::Local,
            };
            TransferFunction {
                name: name.clone(),
                kind: function.kind(),
                state,
            }
        });
        functions.collect()
    }

    /// Returns `true` if flow state is stored externally.
    pub fn has_external_state(&self) -> bool {
        self.external_state.is_some()
    }

    fn row_parts(&mut self) -> (Vec<RowPart>, usize) {
        let functions = self.transfer_functions();
        let mut parts = Vec::new();
        for (stage, (kept, Stage { slot, function, .. })) in functions.iter().zip(&mut self.stages).enumerate() {
            let TransferState::Portable { bytes, .. } = kept.state else {
                continue;
            };
            let directions = |is_directed| [false, true].into_iter().take(if is_directed { 2 } else { 1 });
            if let Some(transfer) = function.remote().map(RemoteFunction::transfer) {
                let is_directed = transfer.is_some_and(RemoteTransfer::is_directed);
                parts.extend(directions(is_directed).map(|is_reversed| RowPart {
                    stage,
                    bytes,
                    location: PartLocation::Remote { is_reversed },
                }));
                continue;
            }
            let Some(slot) = slot else { continue };
            let has_attachments = function.portable().is_some_and(|portable| portable.has_attachments());
            parts.extend(directions(slot.is_directed()).map(|reversed| RowPart {
                stage,
                bytes,
                location: PartLocation::Local {
                    version: slot.version_at(reversed),
                    state: slot.state_of(reversed),
                    has_attachments,
                },
            }));
        }
        let bytes = parts.iter().map(|part| 1 + part.bytes).sum();
        (parts, bytes)
    }

    /// Exports all flows, which stay here, and are [held](Chain::hold_flows). No packet may be in the system. `now` is
    /// the current time, `origin` the wall-clock time at which the clock was 0. The result has at most `most` bytes.
    /// Returns it with the number of flows; it is empty if no function has state that passes.
    ///
    /// # Errors
    /// If buckets are lent to other cores, or the flows take more bytes.
    pub fn export_flows(&mut self, now: Nanos, origin: Nanos, most: usize) -> Result<(Vec<u8>, u64), TransferError> {
        self.claim_all();
        self.flows_are_held = true;
        let (parts, row_bytes) = self.row_parts();
        let (Some(table), false) = (&mut self.table, parts.is_empty()) else {
            return Ok((Vec::new(), 0));
        };
        let opened = generations(&self.stages);
        match table.lent_buckets() {
            0 => {}
            lent => return Err(TransferError::Lent(lent)),
        }
        let mut out = Vec::with_capacity((24 + table.flows() * (50 + row_bytes)).min(most));
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&(row_bytes as u32).to_le_bytes());
        out.extend_from_slice(&u32::from(table.has_connections()).to_le_bytes());
        let groups_at = out.len();
        out.extend_from_slice(&0u64.to_le_bytes());
        let (mut groups, mut flows, mut index) = (0u64, 0u64, 0);
        while let Some(flow) = table.next_from(index) {
            index = flow.index() as u32 + 1;
            let companion = table.companion(flow);
            // The first of two passes both.
            if companion.is_some_and(|companion| companion.index() < flow.index()) {
                continue;
            }
            let members = [Some(flow), companion].into_iter().flatten();
            out.extend_from_slice(&table.bucket(flow).to_le_bytes());
            out.extend_from_slice(&(members.clone().count() as u16).to_le_bytes());
            groups += 1;
            for member in members {
                flows += 1;
                let key = table.key(member).words();
                key.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
                let idle = tick_of(now).wrapping_sub(table.last_seen(member)) as i32;
                out.extend_from_slice(&idle.max(0).to_le_bytes());
                // Of isolated functions, all have the same.
                let generation = opened
                    .as_ref()
                    .map_or(0, |(_, slot)| generation_in(table.state(member, &slot.state)));
                for part in &parts {
                    let at = out.len() + 1;
                    let is_seen = match &part.location {
                        PartLocation::Local { version, state, .. } => {
                            let is_seen = *table.word(member, *version) != UNSEEN;
                            out.push(u8::from(is_seen));
                            out.extend_from_slice(table.state(member, state));
                            if let (true, Some(portable)) = (is_seen, self.stages[part.stage].function.portable()) {
                                portable.to_durable(&mut out[at..], origin);
                            }
                            continue;
                        }
                        PartLocation::Remote { is_reversed } => {
                            let flow = RemoteFlow {
                                slot: member.index() as u32,
                                generation,
                                is_reversed: *is_reversed,
                            };
                            out.resize(at + part.bytes, 0);
                            let remote = self.stages[part.stage].function.remote();
                            let transfer = remote.and_then(RemoteFunction::transfer);
                            transfer.is_some_and(|transfer| transfer.export(flow, origin, &mut out[at..]))
                        }
                    };
                    out[at - 1] = u8::from(is_seen);
                }
                for part in &parts {
                    let Some((version, state)) = part.attached() else {
                        continue;
                    };
                    let at = out.len();
                    out.extend_from_slice(&0u32.to_le_bytes());
                    let is_seen = *table.word(member, version) != UNSEEN;
                    if let (true, Some(portable)) = (is_seen, self.stages[part.stage].function.portable()) {
                        portable.detach(table.state(member, state), now, &mut out);
                    }
                    let length = (out.len() - at - size_of::<u32>()) as u32;
                    out[at..at + size_of::<u32>()].copy_from_slice(&length.to_le_bytes());
                }
            }
            if out.len() > most {
                return Err(TransferError::TooLong(most));
            }
        }
        out[groups_at..groups_at + 8].copy_from_slice(&groups.to_le_bytes());
        Ok((out, flows))
    }

    /// Imports flows that another chain of the same functions has exported, before the first packet. Functions are
    /// presented each flow again with its next packet, as with state from Redis. Flows take no more memory than the
    /// flow table has.
    ///
    /// # Errors
    /// If the bytes are not as they were written, or of other functions. Flows before the error are here.
    pub fn import_flows(&mut self, bytes: &[u8], now: Nanos, origin: Nanos) -> Result<ImportedFlows, TransferError> {
        self.import_flows_of(|_| true, bytes, now, origin)
    }

    /// Same, for the flows of the RSS buckets that this worker `owns`.
    ///
    /// # Errors
    /// Same as [`import_flows`](Chain::import_flows).
    pub fn import_flows_of(
        &mut self,
        owns: impl Fn(u16) -> bool,
        bytes: &[u8],
        now: Nanos,
        origin: Nanos,
    ) -> Result<ImportedFlows, TransferError> {
        let mut reader = Reader { bytes, at: 0 };
        let mut all = ImportedFlows::default();
        while self.table.is_some() && reader.at != bytes.len() {
            let imported = self.import_part(&mut reader, &owns, now, origin)?;
            all.flows += imported.flows;
            all.refused += imported.refused;
        }
        Ok(all)
    }

    /// Imports the flows of one worker.
    fn import_part(
        &mut self,
        reader: &mut Reader<'_>,
        owns: &impl Fn(u16) -> bool,
        now: Nanos,
        origin: Nanos,
    ) -> Result<ImportedFlows, TransferError> {
        let (parts, row_bytes) = self.row_parts();
        let opened = generations(&self.stages);
        let mut remote = Vec::new();
        let Some(table) = &mut self.table else {
            return Ok(ImportedFlows::default());
        };
        let magic = u64::from_le_bytes(reader.array()?);
        reader.expect("magic number", u64::from_le_bytes(MAGIC), magic)?;
        let found = u64::from(u32::from_le_bytes(reader.array()?));
        reader.expect("bytes of a row", row_bytes as u64, found)?;
        let found = u64::from(u32::from_le_bytes(reader.array()?));
        reader.expect("connections", u64::from(table.has_connections()), found)?;
        let groups = u64::from_le_bytes(reader.array()?);
        let (state_bytes, before) = (table.state_bytes(), table.flows());
        let (mut states, mut flows, mut read) = (Vec::with_capacity(2 * state_bytes), Vec::with_capacity(2), 0);
        for _ in 0..groups {
            let bucket = u16::from_le_bytes(reader.array()?);
            if usize::from(bucket) >= BUCKETS {
                return Err(reader.field("bucket", format!("below {BUCKETS}"), bucket.into()));
            }
            let members = u16::from_le_bytes(reader.array()?);
            if !matches!(members, 1 | 2) {
                return Err(reader.field("flows of a group", "1 or 2".to_owned(), members.into()));
            }
            if !owns(bucket) {
                for _ in 0..members {
                    reader.take(FLOW_BYTES + row_bytes)?;
                    for _ in parts.iter().filter(|part| part.attached().is_some()) {
                        reader.attachment()?;
                    }
                }
                continue;
            }
            states.clear();
            flows.clear();
            remote.clear();
            for _ in 0..members {
                let key = reader.key()?;
                let idle = u32::from_le_bytes(reader.array()?);
                let start = states.len();
                states.resize(start + state_bytes, 0);
                for part in &parts {
                    let [is_seen] = reader.array()?;
                    let bytes = reader.take(part.bytes)?;
                    if is_seen == 0 {
                        continue;
                    }
                    let (version, state) = match &part.location {
                        PartLocation::Local { version, state, .. } => (*version, state),
                        PartLocation::Remote { is_reversed } => {
                            remote.push((flows.len(), part.stage, *is_reversed, bytes));
                            continue;
                        }
                    };
                    let to = &mut states[start + state.start..start + state.end];
                    to.copy_from_slice(bytes);
                    if let Some(portable) = self.stages[part.stage].function.portable() {
                        portable.restore_durable(to, origin);
                        portable.open_imported(&key, to);
                    }
                    let version = start + version..start + version + size_of::<u32>();
                    states[version].copy_from_slice(&SHOWN_BEFORE.to_ne_bytes());
                }
                for part in &parts {
                    let Some((version, state)) = part.attached() else {
                        continue;
                    };
                    let bytes = reader.attachment()?;
                    let version = start + version..start + version + size_of::<u32>();
                    let state = start + state.start..start + state.end;
                    let is_seen = states[version] == SHOWN_BEFORE.to_ne_bytes();
                    if let (true, Some(portable)) = (is_seen, self.stages[part.stage].function.portable()) {
                        portable.attach(&mut states[state], bytes, now);
                    }
                }
                flows.push((key, tick_of(now).wrapping_sub(idle.min(i32::MAX as u32))));
            }
            read += flows.len();
            let is_double = flows.len() == 2 && flows[0].0 == flows[1].0;
            if is_double || flows.iter().any(|(key, _)| table.contains(key, bucket)) {
                return Err(reader.field("key", "flows that differ".to_owned(), bucket.into()));
            }
            table.receive_flows(bucket, &flows, &states, now, &mut self.ends);
            report_flow_ends(&mut self.stages, &mut self.ends);
            if let Some(opened) = &opened {
                import_remote((&self.stages, opened), table, (bucket, &flows), &remote, origin);
            }
        }
        let flows = table.flows() - before;
        Ok(ImportedFlows {
            flows: flows as u64,
            refused: read.saturating_sub(flows) as u64,
        })
    }

    /// Keeps flows that are idle from ending, and timers from running, until this is called with `false`: another
    /// process may continue with the flows, and would report them a second time.
    pub fn hold_flows(&mut self, are_held: bool) {
        self.flows_are_held = are_held;
    }

    /// Removes all flows without reporting their ends: another process continues with them. Flows of isolated functions
    /// none of whose state passes stay, and end here.
    pub fn forget_flows(&mut self) {
        self.claim_all();
        if self.has_isolated_functions() && self.external_state.is_none() && self.row_parts().0.is_empty() {
            return;
        }
        if let Some(table) = &mut self.table {
            for bucket in 0..BUCKETS as u16 {
                while let Some(flow) = table.first_flow(bucket) {
                    table.take_flow(flow, |_, _, _| ());
                }
            }
        }
    }
}

/// Generation of a flow in the state of the [stage that has it](generations); 0 if no isolated function has seen it.
fn generation_in(state: &[u8]) -> u64 {
    bytemuck::pod_read_unaligned(&state[..size_of::<u64>()])
}

/// Gives the flows of a group to the isolated functions that have accepted them in another process.
fn import_remote(
    (stages, (first, slot)): (&[Stage], &(usize, StateSlot)),
    table: &mut FlowTable,
    (bucket, flows): (u16, &[(FlowKey, u32)]),
    parts: &[RemotePart<'_>],
    origin: Nanos,
) {
    for (member, (key, _)) in flows.iter().enumerate() {
        let mut own = parts.iter().filter(|(of, ..)| *of == member).peekable();
        // A flow without a slot has ended.
        let (Some(_), Some(flow)) = (own.peek(), table.known(key, bucket)) else {
            continue;
        };
        let Some(remote) = stages[*first].function.remote() else {
            continue;
        };
        let index = flow.index() as u32;
        let generation = remote.generation(table.state(flow, &slot.state), index);
        // Functions are notified of its end, even if it has no packet here.
        *table.word(flow, slot.version_at(false)) = SHOWN_BEFORE;
        for (_, stage, is_reversed, bytes) in own {
            let transfer = stages[*stage].function.remote().and_then(RemoteFunction::transfer);
            let Some(transfer) = transfer else { continue };
            let flow = RemoteFlow {
                slot: index,
                generation,
                is_reversed: *is_reversed,
            };
            let key = if *is_reversed { key.reversed() } else { *key };
            transfer.import(flow, &key, origin, bytes);
        }
    }
}

/// Reader of exported flows.
struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], TransferError> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..count));
        let taken = taken.ok_or(TransferError::Short(self.bytes.len()))?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TransferError> {
        let taken = self.take(N)?;
        Ok(std::array::from_fn(|at| taken[at]))
    }

    /// Bytes behind their length.
    fn attachment(&mut self) -> Result<&'b [u8], TransferError> {
        let length = u32::from_le_bytes(self.array()?);
        self.take(length as usize)
    }

    fn key(&mut self) -> Result<FlowKey, TransferError> {
        let mut words = [0; 5];
        for word in &mut words {
            *word = u64::from_le_bytes(self.array()?);
        }
        Ok(FlowKey::from_words(words))
    }

    fn field(&self, field: &'static str, expected: String, found: u64) -> TransferError {
        TransferError::Field {
            field,
            expected,
            found,
            at: self.at,
        }
    }

    fn expect(&self, field: &'static str, expected: u64, found: u64) -> Result<(), TransferError> {
        match expected == found {
            true => Ok(()),
            false => Err(self.field(field, expected.to_string(), found)),
        }
    }
}

#[cfg(test)]
mod tests;
