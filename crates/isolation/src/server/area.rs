//! Shared memory of a group, and of its functions' flow state.

use super::error::IsolationError;
use super::lifetimes::RemoteLifetimes;
use super::transfer::FlowTransfer;
use crate::layout::{REQUEST_AREA_BYTES, RESPONSE_AREA_BYTES, RequestArea, ResponseArea};
use crate::memory::{Memory, file, filled, read_only};
use crate::message::Description;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::flow_table::ReplicaConfig;
use tailwater_functions::build::Requirements;
use tailwater_net::Nanos;
use tailwater_sdk::protocol::snapshots::{self, FlowSnapshots};

/// Shape of the flow table that functions keep state for.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableShape {
    /// Maximum number of flows.
    pub(super) capacity: usize,
    /// `true` if flows are connections.
    pub(super) connections: bool,
}

/// Flow state of each function. All processes of a function share it, so a flow continues with its state when its
/// process is replaced, or when its RSS bucket moves to another worker.
#[derive(Debug)]
pub(super) struct Flows {
    functions: Vec<FlowsOf>,
    /// `true` for each function that gets the packets' memory for reading only.
    reads_only: Vec<bool>,
    pub(super) capacity: usize,
    /// `true` if flows are connections. Each connection then has two slots, except in functions that track connections.
    connections: bool,
    /// Wall-clock time of the run's start, if flow state is also stored externally.
    pub(super) origin: Option<Nanos>,
}

/// Function, and the memory of the counters that its processes share, if it has any.
pub(super) type SharedFunction = (Description, Requirements, Option<Arc<File>>);

/// Flow state of one function.
#[derive(Clone, Debug, Default)]
struct FlowsOf {
    /// `None` for a stateless function.
    flows: Option<Arc<File>>,
    /// Snapshots of the state; only if it is also stored externally.
    snapshots: Option<(Arc<File>, Arc<FlowSnapshots>)>,
    /// Flow lifetimes; only if this function determines them.
    lifetimes: Option<Arc<RemoteLifetimes>>,
    /// State that can pass to another process of the server; only if it can.
    transfer: Option<Arc<FlowTransfer>>,
}

impl FlowsOf {
    fn create(
        (function, requirements, counters): &SharedFunction,
        table: TableShape,
        durable: bool,
    ) -> io::Result<FlowsOf> {
        if function.state_bytes == 0 {
            return Ok(FlowsOf::default());
        }
        let config = ReplicaConfig {
            capacity: table.capacity,
            state_bytes: function.state_bytes as usize,
            directed: table.connections && !requirements.tracks_connections,
        };
        let flows = Arc::new(filled("tailwater-flows", config.file_bytes())?);
        let lifetimes = requirements.lifetimes.as_ref();
        let lifetimes = lifetimes.map(|(by, bytes)| RemoteLifetimes::open(&flows, config, by, *bytes));
        let lifetimes = lifetimes.transpose()?.map(Arc::new);
        let transfer =
            FlowTransfer::open((&flows, counters.as_deref()), config, function, &requirements.transfer)?.map(Arc::new);
        if !durable || function.durable.is_none() || function.piece_bytes == 0 {
            return Ok(FlowsOf {
                flows: Some(flows),
                snapshots: None,
                lifetimes,
                transfer,
            });
        }
        let piece_bytes = function.piece_bytes as usize;
        let bytes = snapshots::file_bytes(config.slots(), piece_bytes);
        let file = Arc::new(filled("tailwater-images", bytes)?);
        let memory = Memory::whole(&file, Duration::MAX)?;
        let images = Arc::new(FlowSnapshots::open(memory, piece_bytes)?);
        Ok(FlowsOf {
            flows: Some(flows),
            snapshots: Some((file, images)),
            lifetimes,
            transfer,
        })
    }
}

impl Flows {
    pub(super) fn create(
        functions: &[SharedFunction],
        table: TableShape,
        origin: Option<Nanos>,
    ) -> Result<Flows, IsolationError> {
        let mut requirements = functions.iter().map(|(_, requirements, _)| requirements);
        let table = TableShape {
            connections: table.connections || requirements.any(|of| of.tracks_connections),
            ..table
        };
        let reads_only = functions.iter().map(|(_, requirements, _)| requirements.reads_only);
        let reads_only = reads_only.collect();
        let functions = functions
            .iter()
            .map(|function| FlowsOf::create(function, table, origin.is_some()));
        Ok(Flows {
            functions: functions.collect::<io::Result<_>>().map_err(IsolationError::Memory)?,
            reads_only,
            capacity: table.capacity,
            connections: table.connections,
            origin,
        })
    }
}

/// Shared memory of a group; see [`layout`](crate::layout).
#[derive(Debug)]
pub(super) struct Area {
    pub(super) request_area: RequestArea,
    pub(super) packets: Memory,
    pub(super) response_areas: Vec<ResponseArea>,
    pub(super) buffer_bytes: usize,
    pub(super) capacity: usize,
    pub(super) connections: bool,
    pub(super) origin: Option<Nanos>,
    request_file: File,
    packets_file: File,
    /// The same, for reading only.
    packets_to_read: File,
    /// `true` for each function that gets the latter.
    reads_only: Vec<bool>,
    response_files: Vec<[File; 2]>,
    flows: Vec<FlowsOf>,
}

impl Area {
    pub(super) fn create(functions: usize, buffer_bytes: usize, flows: &Flows) -> Result<Area, IsolationError> {
        Area::try_create(functions, buffer_bytes, flows).map_err(IsolationError::Memory)
    }

    fn try_create(functions: usize, buffer_bytes: usize, flows: &Flows) -> io::Result<Area> {
        let board_file = file("tailwater-board", REQUEST_AREA_BYTES)?;
        let packets_bytes = MAX_BATCH * buffer_bytes;
        let packets_file = file("tailwater-packets", packets_bytes)?;
        let mut slates = Vec::new();
        let mut slate_files = Vec::new();
        for _ in 0..functions {
            let slate = file("tailwater-slate", RESPONSE_AREA_BYTES)?;
            slates.push(ResponseArea(Memory::map(&slate, RESPONSE_AREA_BYTES, true)?));
            slate_files.push([read_only(&slate)?, slate]);
        }
        Ok(Area {
            request_area: RequestArea(Memory::map(&board_file, REQUEST_AREA_BYTES, true)?),
            packets: Memory::map(&packets_file, packets_bytes, true)?,
            response_areas: slates,
            buffer_bytes,
            capacity: flows.capacity,
            connections: flows.connections,
            origin: flows.origin,
            request_file: read_only(&board_file)?,
            packets_to_read: read_only(&packets_file)?,
            packets_file,
            reads_only: flows.reads_only.clone(),
            response_files: slate_files,
            flows: flows.functions.clone(),
        })
    }

    /// Returns the files that the process of function `k` may map, in protocol order.
    pub(super) fn files(&self, k: usize) -> Vec<&File> {
        let packets = match self.reads_only[k] {
            true => &self.packets_to_read,
            false => &self.packets_file,
        };
        let mut files = vec![&self.request_file, packets, &self.response_files[k][1]];
        files.extend(k.checked_sub(1).map(|front| &self.response_files[front][0]));
        let FlowsOf {
            flows,
            snapshots: images,
            ..
        } = &self.flows[k];
        files.extend(flows.as_deref());
        files.extend(images.as_ref().map(|(file, _)| &**file));
        files
    }

    /// Returns `true` if no function can change a frame.
    pub(super) fn is_read_only(&self) -> bool {
        self.reads_only.iter().all(|reads_only| *reads_only)
    }

    /// Returns the flow lifetimes of the first function that determines them.
    pub(super) fn lifetimes(&self) -> Option<&Arc<RemoteLifetimes>> {
        self.flows.iter().find_map(|flows| flows.lifetimes.as_ref())
    }

    /// Returns function `k`'s flow state, if it can pass to another process of the server.
    pub(super) fn transfer(&self, k: usize) -> Option<&Arc<FlowTransfer>> {
        self.flows[k].transfer.as_ref()
    }

    /// Returns the snapshots of function `k`'s flow state, if it is stored externally.
    pub(super) fn snapshots(&self, k: usize) -> Option<&Arc<FlowSnapshots>> {
        self.flows[k].snapshots.as_ref().map(|(_, images)| images)
    }
}
