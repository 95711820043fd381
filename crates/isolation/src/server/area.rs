//! The memory of a group, and of its functions' flows.

use super::error::IsolationError;
use crate::layout::{BOARD_BYTES, Board, SLATE_BYTES, Slate};
use crate::memory::{Memory, file, read_only};
use crate::message::Description;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::sync::Arc;
use tailwater_nf::batch::MAX_BATCH;
use tailwater_nf::flow_table::MirrorConfig;

/// The flows of each function: all its processes have the same memory, so that a flow goes on where it
/// was when its process is replaced, or its RSS bucket goes to another worker.
#[derive(Debug)]
pub(super) struct Flows {
    /// Of those functions that keep state.
    files: Vec<Option<Arc<File>>>,
    pub(super) capacity: usize,
}

impl Flows {
    pub(super) fn create(
        functions: &[Description],
        capacity: usize,
    ) -> Result<Flows, IsolationError> {
        let files = functions.iter().map(|function| {
            if function.state_bytes == 0 {
                return Ok(None);
            }
            let config = MirrorConfig {
                capacity,
                state_bytes: function.state_bytes as usize,
            };
            let bytes = config.file_bytes();
            let file = file("tailwater-flows", bytes)?;
            // Now, rather than one by one as flows come.
            fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
            Ok(Some(Arc::new(file)))
        });
        Ok(Flows {
            files: files
                .collect::<io::Result<_>>()
                .map_err(IsolationError::Memory)?,
            capacity,
        })
    }
}

/// A group's memory: see [`layout`](crate::layout).
#[derive(Debug)]
pub(super) struct Area {
    pub(super) board: Board,
    pub(super) packets: Memory,
    pub(super) slates: Vec<Slate>,
    pub(super) buffer_bytes: usize,
    pub(super) capacity: usize,
    board_file: File,
    packets_file: File,
    slate_files: Vec<[File; 2]>,
    flow_files: Vec<Option<Arc<File>>>,
}

impl Area {
    pub(super) fn create(
        functions: usize,
        buffer_bytes: usize,
        flows: &Flows,
    ) -> Result<Area, IsolationError> {
        Area::try_create(functions, buffer_bytes, flows).map_err(IsolationError::Memory)
    }

    fn try_create(functions: usize, buffer_bytes: usize, flows: &Flows) -> io::Result<Area> {
        let board_file = file("tailwater-board", BOARD_BYTES)?;
        let packets_bytes = MAX_BATCH * buffer_bytes;
        let packets_file = file("tailwater-packets", packets_bytes)?;
        let mut slates = Vec::new();
        let mut slate_files = Vec::new();
        for _ in 0..functions {
            let slate = file("tailwater-slate", SLATE_BYTES)?;
            slates.push(Slate(Memory::map(&slate, SLATE_BYTES, true)?));
            slate_files.push([read_only(&slate)?, slate]);
        }
        Ok(Area {
            board: Board(Memory::map(&board_file, BOARD_BYTES, true)?),
            packets: Memory::map(&packets_file, packets_bytes, true)?,
            slates,
            buffer_bytes,
            capacity: flows.capacity,
            board_file: read_only(&board_file)?,
            packets_file,
            slate_files,
            flow_files: flows.files.clone(),
        })
    }

    /// What the process of function `k` may map, in the protocol's order.
    pub(super) fn files(&self, k: usize) -> Vec<&File> {
        let mut files = vec![
            &self.board_file,
            &self.packets_file,
            &self.slate_files[k][1],
        ];
        files.extend(k.checked_sub(1).map(|front| &self.slate_files[front][0]));
        files.extend(self.flow_files[k].as_deref());
        files
    }
}
