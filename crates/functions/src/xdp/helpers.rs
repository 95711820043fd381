//! Helpers: the kernel functions that a program can call.

use super::maps::{MAX_KEY, errno};
use super::memory::{FRAME_BYTES, MAPS, Memory, PACKET, values_of};
use super::run::{Environment, Fault};

/// Helper that is provided, with its number in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Helper {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    KtimeGetNs = 5,
    TracePrintk = 6,
    GetPrandom = 7,
    GetSmpProcessorId = 8,
    CsumDiff = 28,
    AdjustHead = 44,
    AdjustTail = 65,
    KtimeGetBootNs = 125,
    KtimeGetCoarseNs = 160,
    GetBuffLen = 188,
    LoadBytes = 189,
    StoreBytes = 190,
}

const HELPERS: [(Helper, &str); 15] = [
    (Helper::MapLookup, "bpf_map_lookup_elem"),
    (Helper::MapUpdate, "bpf_map_update_elem"),
    (Helper::MapDelete, "bpf_map_delete_elem"),
    (Helper::KtimeGetNs, "bpf_ktime_get_ns"),
    (Helper::TracePrintk, "bpf_trace_printk"),
    (Helper::GetPrandom, "bpf_get_prandom_u32"),
    (Helper::GetSmpProcessorId, "bpf_get_smp_processor_id"),
    (Helper::CsumDiff, "bpf_csum_diff"),
    (Helper::AdjustHead, "bpf_xdp_adjust_head"),
    (Helper::AdjustTail, "bpf_xdp_adjust_tail"),
    (Helper::KtimeGetBootNs, "bpf_ktime_get_boot_ns"),
    (Helper::KtimeGetCoarseNs, "bpf_ktime_get_coarse_ns"),
    (Helper::GetBuffLen, "bpf_xdp_get_buff_len"),
    (Helper::LoadBytes, "bpf_xdp_load_bytes"),
    (Helper::StoreBytes, "bpf_xdp_store_bytes"),
];

/// Names of helpers that XDP programs often call and that are not provided.
const OTHERS: [(i32, &str); 9] = [
    (12, "bpf_tail_call"),
    (23, "bpf_redirect"),
    (25, "bpf_perf_event_output"),
    (51, "bpf_redirect_map"),
    (54, "bpf_xdp_adjust_meta"),
    (69, "bpf_fib_lookup"),
    (84, "bpf_sk_lookup_tcp"),
    (131, "bpf_ringbuf_reserve"),
    (181, "bpf_loop"),
];

/// Minimum length of a frame: an Ethernet header, as in the kernel.
const MIN_FRAME: usize = 14;

impl Helper {
    /// Helper of this number, if it is provided.
    pub(super) fn of(number: i32) -> Option<Helper> {
        HELPERS
            .iter()
            .map(|(helper, _)| *helper)
            .find(|helper| *helper as i32 == number)
    }

    /// Name in the kernel's interface.
    pub(super) fn name(self) -> &'static str {
        let found = HELPERS.iter().find(|(helper, _)| *helper == self);
        found.map_or("", |(_, name)| name)
    }

    /// Error of a program that calls a helper that is not provided.
    pub(super) fn refusal(number: i32) -> String {
        let name = OTHERS.iter().find(|(other, _)| *other == number);
        let name = name.map_or_else(
            || format!("number {number}"),
            |(_, name)| format!("{name} (number {number})"),
        );
        let provided: Vec<_> = HELPERS.iter().map(|(_, name)| *name).collect();
        format!(
            "it calls the helper {name}, which is not provided: expected one of {}",
            provided.join(", ")
        )
    }

    /// Returns `true` if it moves the ends of a frame.
    pub(super) fn resizes(self) -> bool {
        matches!(self, Helper::AdjustHead | Helper::AdjustTail)
    }

    /// Returns `true` if all that it does is changing a frame.
    pub(super) fn writes_frame(self) -> bool {
        self.resizes() || self == Helper::StoreBytes
    }

    /// Calls it with the arguments in `r1` to `r5`. Returns its result, and the number of instructions as which the
    /// call counts beyond one.
    ///
    /// # Errors
    /// An argument is not as its signature requires: the kernel refuses such programs when they are loaded.
    pub(super) fn call(
        self,
        memory: &mut Memory<'_>,
        environment: &mut Environment,
        [r1, r2, r3, r4, r5]: [u64; 5],
    ) -> Result<(u64, u32), Fault> {
        let wrong = Fault::Argument(self.name());
        let free = |value: u64| Ok((value, 0));
        match self {
            Helper::KtimeGetNs | Helper::KtimeGetBootNs | Helper::KtimeGetCoarseNs => free(environment.now.0),
            // There is no trace to print to.
            Helper::TracePrintk => free(0),
            Helper::GetPrandom => free(environment.random().into()),
            Helper::GetSmpProcessorId => free(environment.worker.into()),
            Helper::GetBuffLen => free((memory.end - memory.start) as u64),
            Helper::MapLookup => {
                let (map, key, size) = key(memory, r1, r2).ok_or(wrong)?;
                let found = memory.maps[map].find(&key[..size]);
                Ok((found.map_or(0, |address| values_of(map, address)), 8))
            }
            Helper::MapUpdate => {
                let (map, key, size) = key(memory, r1, r2).ok_or(wrong)?;
                let length = memory.maps[map].value_size;
                let value = memory.bytes(r3, length).ok_or(wrong)?;
                // The value may be in the map itself.
                let copy = &mut environment.value[..length];
                copy.copy_from_slice(value);
                let done = memory.maps[map].update(&key[..size], copy, r4);
                Ok((done as u64, 8 + (length / 8) as u32))
            }
            Helper::MapDelete => {
                let (map, key, size) = key(memory, r1, r2).ok_or(wrong)?;
                Ok((memory.maps[map].delete(&key[..size]) as u64, 8))
            }
            Helper::CsumDiff => csum_diff(memory, [r1, r2, r3, r4], r5).ok_or(wrong),
            Helper::AdjustHead => Ok((adjust_head(memory, r2 as i32) as u64, zeroed(r2 as i32))),
            Helper::AdjustTail => Ok((adjust_tail(memory, r2 as i32) as u64, zeroed(r2 as i32))),
            Helper::LoadBytes => {
                let length = r4 as u32 as usize;
                let Some(from) = within_frame(memory, r2 as u32, length) else {
                    return free(errno::INVALID as u64);
                };
                let copy = environment.value.get_mut(..length).ok_or(wrong)?;
                copy.copy_from_slice(memory.bytes(from, length).ok_or(wrong)?);
                memory.bytes_mut(r3, length).ok_or(wrong)?.copy_from_slice(copy);
                Ok((0, (length / 8) as u32))
            }
            Helper::StoreBytes => {
                let length = r4 as u32 as usize;
                let Some(to) = within_frame(memory, r2 as u32, length) else {
                    return free(errno::INVALID as u64);
                };
                let copy = environment.value.get_mut(..length).ok_or(wrong)?;
                copy.copy_from_slice(memory.bytes(r3, length).ok_or(wrong)?);
                memory.bytes_mut(to, length).ok_or(wrong)?.copy_from_slice(copy);
                Ok((0, (length / 8) as u32))
            }
        }
    }
}

/// Map at an address, and a copy of the key at another: the map may hold the key itself.
#[inline]
fn key(memory: &Memory<'_>, map: u64, key: u64) -> Option<(usize, [u8; MAX_KEY], usize)> {
    let map = map.checked_sub(MAPS)? as usize;
    let size = memory.maps.get(map)?.key_size;
    let mut copy = [0; MAX_KEY];
    copy.get_mut(..size)?.copy_from_slice(memory.bytes(key, size)?);
    Some((map, copy, size))
}

/// Address of `length` bytes at an offset in the frame, if it has them.
fn within_frame(memory: &Memory<'_>, offset: u32, length: usize) -> Option<u64> {
    let is_inside = (offset as usize).checked_add(length)? <= memory.end - memory.start;
    is_inside.then(|| PACKET + memory.start as u64 + u64::from(offset))
}

/// Sum of 32-bit words in one's complement: those of the second buffer are added to the seed, those of the first
/// subtracted.
fn csum_diff(memory: &Memory<'_>, [from, from_size, to, to_size]: [u64; 4], seed: u64) -> Option<(u64, u32)> {
    let mut sum = u64::from(seed as u32);
    let sizes = [from_size as u32, to_size as u32];
    if sizes
        .iter()
        .any(|size| !size.is_multiple_of(4) || *size as usize > FRAME_BYTES)
    {
        return Some((errno::INVALID as u64, 0));
    }
    for (address, size, mask) in [(from, sizes[0], u32::MAX), (to, sizes[1], 0)] {
        let bytes = if size == 0 {
            &[][..]
        } else {
            memory.bytes(address, size as usize)?
        };
        let (words, _) = bytes.as_chunks::<4>();
        sum += words
            .iter()
            .map(|word| u64::from(u32::from_le_bytes(*word) ^ mask))
            .sum::<u64>();
    }
    while sum >> 32 != 0 {
        sum = (sum & u64::from(u32::MAX)) + (sum >> 32);
    }
    Some((sum, (sizes[0] + sizes[1]) / 8))
}

/// Cost of moving an end of a frame by so many bytes, which may have to be zeroed.
fn zeroed(by: i32) -> u32 {
    by.unsigned_abs().min(u16::MAX.into()) / 8
}

/// Moves the start of the frame. Bytes that this adds are zero.
fn adjust_head(memory: &mut Memory<'_>, by: i32) -> i64 {
    let start = usize::try_from(memory.start as i64 + i64::from(by)).ok();
    match start.filter(|start| start + MIN_FRAME <= memory.end) {
        Some(start) => {
            if start < memory.start {
                memory.packet[start..memory.start].fill(0);
            }
            memory.start = start;
            0
        }
        None => errno::INVALID,
    }
}

/// Moves the end of the frame. Bytes that this adds are zero.
fn adjust_tail(memory: &mut Memory<'_>, by: i32) -> i64 {
    let end = usize::try_from(memory.end as i64 + i64::from(by)).ok();
    match end.filter(|end| memory.start + MIN_FRAME <= *end && *end <= memory.packet.len()) {
        Some(end) => {
            if end > memory.end {
                memory.packet[memory.end..end].fill(0);
            }
            memory.end = end;
            0
        }
        None => errno::INVALID,
    }
}
