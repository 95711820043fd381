//! Memory that a program can access, by addresses of its own.
//!
//! Addresses are numbers that only this module gives a meaning: the upper bits select the context, the packet, the
//! stack, or the values of a map. So no program can reach other memory, and the 32-bit fields `data` and `data_end` of
//! the context hold whole addresses.

use super::maps::MapData;

/// Address of `struct xdp_md`.
pub(super) const CONTEXT: u64 = 1 << 28;
/// Address of the start of a packet's buffer.
pub(super) const PACKET: u64 = 2 << 28;
/// Address of the lowest byte of the stack.
pub(super) const STACK: u64 = 3 << 28;
/// Address of the first map as such, which programs only pass to helpers. The next ones follow.
pub(super) const MAPS: u64 = 4 << 28;
/// Distance between the values of two maps. Those of the first map are at this address.
const VALUES: u64 = 1 << 32;

/// Bytes of stack of a function of the program.
pub(super) const FRAME_BYTES: usize = 512;
/// Maximum depth of calls, as in the kernel.
pub(super) const MAX_DEPTH: usize = 8;
/// Size of `struct xdp_md`.
const CONTEXT_BYTES: u64 = 24;

/// Returns the address of values of a map.
pub(super) fn values_of(map: usize, address: u32) -> u64 {
    (map as u64 + 1) * VALUES + u64::from(address)
}

/// A packet's bytes, for one run of a program.
#[derive(Debug)]
pub struct Frame<'a> {
    /// Bytes from the lowest to which the frame can grow, to the highest.
    pub bytes: &'a mut [u8],
    /// Offset of the frame's first byte.
    pub start: usize,
    /// Offset behind the frame's last byte.
    pub end: usize,
    /// `true` if the program may not change it.
    pub read_only: bool,
    /// Fields of the context: `ingress_ifindex` and `rx_queue_index`.
    pub ingress: [u32; 2],
}

/// Memory during one run.
pub(super) struct Memory<'m> {
    /// Fields of the [`Frame`], beside each other: every access reads them.
    pub(super) packet: &'m mut [u8],
    pub(super) start: usize,
    pub(super) end: usize,
    read_only: bool,
    ingress: [u32; 2],
    pub(super) stack: &'m mut [u8; MAX_DEPTH * FRAME_BYTES],
    /// Bytes of the stack that the functions called so far have.
    pub(super) stack_bytes: usize,
    pub(super) maps: &'m mut [MapData],
}

impl<'m> Memory<'m> {
    /// Memory of a program that runs on `frame`, within whose bytes its ends are.
    pub(super) fn new(
        frame: &'m mut Frame<'_>,
        stack: &'m mut [u8; MAX_DEPTH * FRAME_BYTES],
        maps: &'m mut [MapData],
    ) -> Memory<'m> {
        Memory {
            start: frame.start,
            end: frame.end,
            read_only: frame.read_only,
            ingress: frame.ingress,
            packet: &mut *frame.bytes,
            stack,
            stack_bytes: 0,
            maps,
        }
    }

    /// Bytes at an address. `None` if the program has no such memory.
    #[inline(always)]
    pub(super) fn bytes(&self, address: u64, length: usize) -> Option<&[u8]> {
        let offset = (address & 0x0fff_ffff) as usize;
        match address >> 28 {
            2 if offset >= self.start && offset + length <= self.end => self.packet.get(offset..offset + length),
            3 if offset + length <= self.stack_bytes => self.stack.get(offset..offset + length),
            high if high >= 16 => self.maps.get((high >> 4) as usize - 1)?.bytes(address as u32, length),
            _ => None,
        }
    }

    /// Same as [`bytes`](Memory::bytes), for writing.
    #[inline(always)]
    pub(super) fn bytes_mut(&mut self, address: u64, length: usize) -> Option<&mut [u8]> {
        let offset = (address & 0x0fff_ffff) as usize;
        match address >> 28 {
            2 if offset >= self.start && offset + length <= self.end && !self.read_only => {
                self.packet.get_mut(offset..offset + length)
            }
            3 if offset + length <= self.stack_bytes => self.stack.get_mut(offset..offset + length),
            high if high >= 16 => self
                .maps
                .get_mut((high >> 4) as usize - 1)?
                .bytes_mut(address as u32, length),
            _ => None,
        }
    }

    /// Number at an address, or a field of the context.
    #[inline(always)]
    pub(super) fn load<const N: usize>(&self, address: u64) -> Option<u64> {
        match self.bytes(address, N).and_then(|bytes| bytes.first_chunk::<N>()) {
            Some(bytes) => {
                let mut wide = [0; 8];
                wide[..N].copy_from_slice(bytes);
                Some(u64::from_le_bytes(wide))
            }
            None => self.field(address).filter(|_| N == 4),
        }
    }

    /// Writes the lower `N` bytes of a number.
    #[inline(always)]
    pub(super) fn store<const N: usize>(&mut self, address: u64, value: u64) -> Option<()> {
        let bytes = self.bytes_mut(address, N)?.first_chunk_mut::<N>()?;
        bytes.copy_from_slice(&value.to_le_bytes()[..N]);
        Some(())
    }

    /// Field of `struct xdp_md` at an address.
    fn field(&self, address: u64) -> Option<u64> {
        let offset = address
            .checked_sub(CONTEXT)
            .filter(|offset| *offset < CONTEXT_BYTES && offset.is_multiple_of(4))?;
        let [interface, queue] = self.ingress;
        Some(match offset / 4 {
            // There is no metadata: `data_meta` is the start of the packet.
            0 | 2 => PACKET + self.start as u64,
            1 => PACKET + self.end as u64,
            3 => interface.into(),
            4 => queue.into(),
            // `egress_ifindex`, which only programs of device maps have.
            _ => 0,
        })
    }

    /// Gives a called function its part of the stack, zeroed.
    pub(super) fn push_frame(&mut self) {
        let below = self.stack_bytes;
        self.stack_bytes = below + FRAME_BYTES;
        self.stack[below..self.stack_bytes].fill(0);
    }

    /// Takes the part of a function that returns.
    pub(super) fn pop_frame(&mut self) {
        self.stack_bytes = self.stack_bytes.saturating_sub(FRAME_BYTES);
    }
}
