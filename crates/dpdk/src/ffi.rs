//! Functions and structs of the C shim, matching `csrc/shim.h`.

use crate::mbuf::Mbuf;
use std::ffi::{c_char, c_int, c_void};

/// Mempool whose buffers share one memory zone.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) mempool: *mut c_void,
    pub(crate) zone: *const c_void,
    pub(crate) base: *mut u8,
    pub(crate) stride: u64,
    pub(crate) bytes: u64,
    pub(crate) reciprocal: u64,
    pub(crate) count: u32,
}

#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Info {
    pub(crate) driver: [u8; 32],
    pub(crate) rss_types: u64,
    pub(crate) max_rx_queues: u16,
    pub(crate) max_tx_queues: u16,
    pub(crate) reta_size: u16,
    pub(crate) hash_key_bytes: u16,
    pub(crate) mtu: u16,
    pub(crate) socket: i16,
    pub(crate) gives_hash: u8,
    pub(crate) mac: [u8; 6],
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) rx_queues: u16,
    pub(crate) tx_queues: u16,
    pub(crate) rx_ring: u16,
    pub(crate) tx_ring: u16,
    pub(crate) hash_key_bytes: u16,
    pub(crate) checksums: u16,
    pub(crate) timestamps: u16,
    pub(crate) timestamp_offset: u16,
    pub(crate) hash_key: *const u8,
    pub(crate) timestamp_flag: u64,
}

#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) mbps: u32,
    pub(crate) up: u8,
}

#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) missed: u64,
    pub(crate) receive_errors: u64,
    pub(crate) no_buffer: u64,
    pub(crate) send_errors: u64,
}

/// Counts of received packets that are not passed to a chain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refused {
    pub(crate) in_pieces: u64,
    pub(crate) damaged: u64,
    pub(crate) damage_counts: u64,
}

/// Packet to be copied into an mbuf.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub(crate) frame: *const u8,
    pub(crate) length: u32,
    pub(crate) hash: u32,
}

/// Frame in an array of frames that start at multiples of a cache line, with the metadata a NIC would add.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) line: u32,
    pub(crate) lines: u32,
    pub(crate) unused: u64,
    pub(crate) packet_type: u32,
    pub(crate) packet_length: u32,
    pub(crate) length: u16,
    pub(crate) vlan: u16,
    pub(crate) hash: u32,
}

/// Queue of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub(crate) port: u16,
    pub(crate) queue: u16,
}

// Sizes must match the shim's.
const _: () = {
    assert!(size_of::<Pool>() == 56 && size_of::<Info>() == 64);
    assert!(size_of::<Config>() == 32 && size_of::<Link>() == 8);
    assert!(size_of::<Stats>() == 48);
    assert!(size_of::<Copied>() == 16 && size_of::<Frame>() == 32);
    assert!(size_of::<Queue>() == 4 && size_of::<Refused>() == 24);
};

unsafe extern "C" {
    pub(crate) fn tw_eal_start(argc: c_int, argv: *mut *mut c_char) -> c_int;
    pub(crate) fn tw_log(into: *mut c_char, size: usize) -> usize;
    pub(crate) fn tw_version() -> *const c_char;
    pub(crate) fn tw_thread_enter() -> c_int;
    pub(crate) fn tw_thread_leave();
    pub(crate) fn tw_interrupts_gate(turn: extern "C" fn(*mut c_void)) -> c_int;
    pub(crate) fn tw_await_control();

    pub(crate) fn tw_pool_create(
        name: *const c_char,
        count: u32,
        bytes: u32,
        cache: u32,
        socket: c_int,
        pool: *mut Pool,
    ) -> c_int;
    pub(crate) fn tw_pool_free(pool: *mut Pool);
    pub(crate) fn tw_pool_available(pool: *const Pool) -> u32;

    pub(crate) fn tw_probe(device: *const c_char, port: *mut u16) -> c_int;
    pub(crate) fn tw_port_info(port: u16, info: *mut Info) -> c_int;
    pub(crate) fn tw_port_configure(port: u16, config: *mut Config, mtu: u16, pool: *const Pool) -> c_int;
    pub(crate) fn tw_port_start(port: u16) -> c_int;
    pub(crate) fn tw_port_close(port: u16);
    pub(crate) fn tw_port_watch(port: u16, removed: *mut u8) -> c_int;
    pub(crate) fn tw_port_unwatch(port: u16, removed: *mut u8);
    pub(crate) fn tw_port_promiscuous(port: u16, on: c_int) -> c_int;
    pub(crate) fn tw_port_link(port: u16, link: *mut Link) -> c_int;
    pub(crate) fn tw_port_stats(port: u16, stats: *mut Stats) -> c_int;
    pub(crate) fn tw_port_xstat(port: u16, name: *const c_char, value: *mut u64) -> c_int;
    pub(crate) fn tw_port_read_clock(port: u16, ticks: *mut u64) -> c_int;
    pub(crate) fn tw_port_set_reta(port: u16, queues: *const u16, size: u16) -> c_int;
    pub(crate) fn tw_port_reta(port: u16, queues: *mut u16, size: u16) -> c_int;

    pub(crate) fn tw_receive(port: u16, queue: u16, mbufs: *mut *mut Mbuf, most: u16) -> u16;
    pub(crate) fn tw_make_usable(pool: *const Pool, mbuf: *mut Mbuf, refused: *mut Refused) -> c_int;
    pub(crate) fn tw_send(port: u16, queue: u16, mbufs: *mut *mut Mbuf, count: u16) -> u16;
    pub(crate) fn tw_inject(pool: *const Pool, port: u16, queue: u16, copies: *const Copied, count: u16) -> u16;
    pub(crate) fn tw_refill(
        pool: *const Pool,
        from: Queue,
        to: Queue,
        lines: *const u8,
        frames: *const Frame,
        count: u16,
    ) -> u16;
    pub(crate) fn tw_forward(from: Queue, to: Queue, most: u16) -> u16;
    pub(crate) fn tw_inject_in_pieces(
        pool: *const Pool,
        port: u16,
        queue: u16,
        frame: *const u8,
        length: u16,
        first: u16,
    ) -> c_int;
    pub(crate) fn tw_give_up(mbufs: *mut *mut Mbuf, count: u16);
    pub(crate) fn tw_give_back(pool: *const Pool, indexes: *const u32, count: u32);
    pub(crate) fn tw_take(pool: *const Pool, indexes: *mut u32, count: u32) -> c_int;
}

/// DPDK's log since the last call, newest lines only. DPDK reports causes nowhere else.
pub(crate) fn said() -> String {
    let mut text = [0u8; 2048];
    // SAFETY: the shim writes at most `text.len()` bytes and returns the number written.
    let bytes = unsafe { tw_log(text.as_mut_ptr().cast(), text.len()) };
    String::from_utf8_lossy(&text[..bytes.min(text.len())]).into_owned()
}
