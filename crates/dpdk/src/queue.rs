//! Port queues: zero-copy receive and transmit bursts.
//!
//! One of the few modules with `unsafe` code. DPDK requires that one thread at a time uses a queue. Each queue is one
//! value whose methods that access the device take `&mut self`. If a device has fewer transmit queues than senders,
//! several values share one queue and take turns, one burst each.

use crate::eal::enter_thread;
use crate::ffi;
use crate::gate::{Burst, Pass};
use crate::mbuf::{MBUF, Mbuf, Stamp};
use crate::mempool::Mempool;
use crate::open_port::OpenPort;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_chain::batch::{Arrived, Batch, MAX_BATCH};
use tailwater_chain::buffer::{BufferPool, Claims, HEADROOM};
use tailwater_chain::region::prefetch;

/// Properties of a port's receive queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxOptions {
    /// Number of descriptors.
    pub(crate) ring: usize,
    /// `true` if packets with a checksum that the device found wrong are refused.
    pub(crate) checksums: bool,
    /// Location of the device's timestamps, if it has any.
    pub(crate) stamp: Option<Stamp>,
}

/// Receive queue.
#[derive(Debug)]
pub struct RxQueue {
    port: Arc<OpenPort>,
    queue: u16,
    ring: usize,
    mempool: Mempool,
    mbufs: Box<[*mut Mbuf; MAX_BATCH]>,
    /// Number of received mbufs in `mbufs` that have not been taken yet.
    there: Option<(usize, Claims)>,
    returned: Vec<u32>,
    refused: ffi::Refused,
    /// Location of the device's timestamps, if it has any.
    stamp: Option<Stamp>,
    stamps: Vec<Option<u64>>,
    /// Index of the chain's port (0: entry, 1: exit), set on each packet.
    entry: u8,
    /// Required for bursts of some drivers only.
    pass: Option<Pass>,
    /// Set once the thread is registered with DPDK.
    entered: bool,
}

// SAFETY: the pointers are to mbufs that only this queue owns.
unsafe impl Send for RxQueue {}
// SAFETY: nothing behind the pointers is read or written through a shared reference.
unsafe impl Sync for RxQueue {}

impl RxQueue {
    pub(crate) fn new(
        port: Arc<OpenPort>,
        queue: u16,
        RxOptions { ring, checksums, stamp }: RxOptions,
        mempool: Mempool,
        pass: Option<Pass>,
    ) -> RxQueue {
        RxQueue {
            port,
            queue,
            pass,
            ring,
            returned: Vec::with_capacity(mempool.capacity() as usize),
            mempool,
            mbufs: Box::new([std::ptr::null_mut(); MAX_BATCH]),
            there: None,
            refused: ffi::Refused {
                damage_counts: u64::from(checksums),
                ..ffi::Refused::default()
            },
            stamps: Vec::with_capacity(stamp.map_or(0, |_| MAX_BATCH)),
            stamp,
            entry: 0,
            entered: false,
        }
    }

    /// Marks the queue's packets as received on a chain's entry port (0) or exit port (1).
    #[must_use]
    pub fn of_entry(self, entry: u8) -> RxQueue {
        RxQueue { entry, ..self }
    }

    /// Receives up to `most` packets (at most [`MAX_BATCH`]), limited by the room in `part`. Buffers released to `part`
    /// return to the device first. Returns the number received, refused packets included. [`packets`](RxQueue::packets)
    /// yields the packets.
    ///
    /// # Panics
    /// If `part` is of another pool, or the previous packets have not been taken.
    #[inline]
    pub fn receive(&mut self, part: &mut BufferPool, most: usize) -> usize {
        if !self.entered {
            self.entered = enter_thread();
        }
        assert!(self.there.is_none(), "packets that nobody took");
        self.mempool.settle(part, &mut self.returned);
        let most = most.min(part.available()).min(MAX_BATCH);
        if most == 0 {
            return 0;
        }
        let burst = self.pass.as_ref().map(Pass::burst);
        // SAFETY: the port runs and has this queue, of which this is the only user; there is room for `MAX_BATCH`, and
        // `most` is no more.
        let count = unsafe {
            let mbufs = self.mbufs.as_mut_ptr();
            ffi::tw_receive(self.port.id(), self.queue, mbufs, most as u16)
        };
        drop(burst);
        let count = usize::from(count).min(MAX_BATCH);
        let (view, mut usable) = (self.mempool.view(), 0);
        let mbufs = &mut self.mbufs[..count];
        for place in 0..count {
            let mbuf = mbufs[place];
            // SAFETY: the device has passed ownership to us.
            let ordinary = unsafe { Mbuf::is_ordinary(mbuf) } && view.owns(mbuf);
            if ordinary || mended(&self.mempool, mbuf, &mut self.refused) {
                mbufs[usable] = mbuf;
                usable += 1;
                // SAFETY: as above, and it has no other user.
                let start = usize::from(unsafe { (*mbuf).start() });
                prefetch(mbuf.cast::<u8>().wrapping_add(MBUF + start));
            }
        }
        if usable > 0 {
            self.there = Some((usable, part.claims(usable)));
        }
        count
    }

    /// Yields the packets received last, in order, once. Packets that are not taken from the iterator are lost with
    /// their buffers.
    #[inline]
    pub fn packets(&mut self) -> impl ExactSizeIterator<Item = Arrived> + use<'_> {
        let (count, claims) = self.there.take().unzip();
        let claims = claims.unwrap_or_default();
        let (view, port, entry) = (self.mempool.view(), self.port.id(), self.entry);
        self.mbufs[..count.unwrap_or(0)].iter().map(move |&mbuf| {
            // SAFETY: the device has passed ownership of the mbuf, and it has no other user: `receive` has checked its
            // reference count and its pool. Each packet is yielded once, since `there` is taken. The buffer with this
            // index is behind the mbuf.
            let (mbuf, buffer) = unsafe {
                let index = view.index(mbuf);
                (&mut *mbuf, claims.buffer(index))
            };
            mbuf.set_port(port);
            Arrived {
                buffer,
                start: mbuf.start(),
                length: mbuf.length(),
                hash: mbuf.hash(),
                entry,
            }
        })
    }

    /// Timestamps of the packets that [`packets`](RxQueue::packets) will yield, in device ticks and in order. An entry
    /// is `None` if the device set no timestamp. The result is `None` if the port has no
    /// [`timestamps`](crate::PortInfo::timestamps). Call it before `packets`.
    #[inline]
    pub fn stamps(&mut self) -> Option<&[Option<u64>]> {
        let stamp = self.stamp?;
        let count = self.there.as_ref().map_or(0, |(count, _)| *count);
        self.stamps.clear();
        let mbufs = &self.mbufs[..count];
        // SAFETY: the device has passed ownership of these whole mbufs, and none has been taken since: only this queue
        // accesses them.
        let ticks = mbufs.iter().map(|&mbuf| unsafe { Mbuf::ticks(mbuf, stamp) });
        self.stamps.extend(ticks);
        Some(&self.stamps)
    }

    /// Pool of the queue's buffers.
    pub(crate) fn mempool(&self) -> &Mempool {
        &self.mempool
    }

    /// Queue descriptor for the shim.
    #[inline]
    pub(crate) fn queue(&self) -> ffi::Queue {
        ffi::Queue {
            port: self.port.id(),
            queue: self.queue,
        }
    }

    /// Begins a burst, if the driver requires a guard.
    #[inline]
    pub(crate) fn burst(&self) -> Option<Burst<'_>> {
        self.pass.as_ref().map(Pass::burst)
    }

    /// Number of descriptors.
    pub fn ring(&self) -> usize {
        self.ring
    }

    /// Packets refused since the last call: those in several buffers and too long for one, and those with a checksum
    /// that the device found wrong.
    #[inline]
    pub fn take_refused(&mut self) -> [u64; 2] {
        let ffi::Refused { in_pieces, damaged, .. } = &mut self.refused;
        [in_pieces, damaged].map(std::mem::take)
    }
}

/// Access to a transmit queue that several senders may share, one burst at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Option<Arc<Taken>>);

/// Spinlock of a shared queue. Padded to its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Taken(AtomicBool);

/// Guard of the lock.
struct Turn<'t>(Option<&'t Taken>);

/// Polls of the lock before a worker yields its core, which the lock's holder may be waiting for.
const LOOKS: u32 = 1000;

impl Turns {
    /// Access for one of `queues` queues, over which the senders are distributed round-robin.
    pub(crate) fn of_queue(senders: u16, queues: u16, queue: u16) -> Turns {
        let shared = u32::from(queue) + u32::from(queues) < u32::from(senders);
        Turns(shared.then(Arc::default))
    }

    /// Acquires the lock, if the queue is shared.
    #[inline]
    fn take(&self) -> Turn<'_> {
        if let Some(taken) = &self.0 {
            let mut looks = 0;
            while taken.0.swap(true, Ordering::Acquire) {
                while taken.0.load(Ordering::Relaxed) {
                    looks += 1;
                    match looks % LOOKS {
                        0 => std::thread::yield_now(),
                        _ => std::hint::spin_loop(),
                    }
                }
            }
        }
        Turn(self.0.as_deref())
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(taken) = self.0 {
            taken.0.store(false, Ordering::Release);
        }
    }
}

/// Linearises a packet for the chain and returns `true`, or frees and counts it and returns `false`.
#[cold]
fn mended(mempool: &Mempool, mbuf: *mut Mbuf, refused: &mut ffi::Refused) -> bool {
    // SAFETY: the device has passed ownership of the packet, which has no other user in this process.
    unsafe { ffi::tw_make_usable(mempool.as_ptr(), mbuf, refused) != 0 }
}

/// Transmit queue of a device.
#[derive(Debug)]
pub(crate) struct DeviceQueue {
    pub(crate) port: Arc<OpenPort>,
    pub(crate) queue: u16,
    /// Required for bursts of some drivers only.
    pub(crate) pass: Option<Pass>,
    pub(crate) turns: Turns,
}

/// Route from an input port to a transmit queue.
#[derive(Debug)]
struct TxRoute {
    /// Input port of the packets, or `None` for all others.
    from: Option<u16>,
    to: DeviceQueue,
    places: Vec<u16>,
    mbufs: Vec<*mut Mbuf>,
}

/// Transmit queues, one per port. A packet's input port selects the queue.
#[derive(Debug)]
pub struct TxQueue {
    mempool: Mempool,
    ways: Vec<TxRoute>,
    mbufs: Box<[*mut Mbuf; MAX_BATCH]>,
    unsent: Vec<u16>,
    /// Set once the thread is registered with DPDK.
    entered: bool,
}

// SAFETY: the pointers are to mbufs of the last burst. None is used before it is overwritten.
unsafe impl Send for TxQueue {}
// SAFETY: nothing behind the pointers is read or written through a shared reference.
unsafe impl Sync for TxQueue {}

/// Consecutive attempts in which the device accepts nothing, before the rest of the burst is dropped.
const TRIES: u32 = 256;

impl TxQueue {
    pub(crate) fn new(mempool: Mempool, to: DeviceQueue) -> TxQueue {
        TxQueue {
            mempool,
            ways: vec![TxRoute::new(to)],
            mbufs: Box::new([std::ptr::null_mut(); MAX_BATCH]),
            unsent: Vec::with_capacity(MAX_BATCH),
            entered: false,
        }
    }

    /// Pool of the queue's buffers.
    pub(crate) fn mempool(&self) -> &Mempool {
        &self.mempool
    }

    /// Descriptor, for the shim, of the queue for packets whose input port has no queue of its own.
    #[inline]
    pub(crate) fn queue(&self) -> ffi::Queue {
        let Some(TxRoute { to, .. }) = self.ways.last() else {
            unreachable!("there is a way for all packets");
        };
        ffi::Queue {
            port: to.port.id(),
            queue: to.queue,
        }
    }

    /// Begins a burst on that queue, if its driver requires a guard.
    #[inline]
    pub(crate) fn burst(&self) -> Option<Burst<'_>> {
        self.ways.last()?.to.pass.as_ref().map(Pass::burst)
    }

    /// Routes packets received on the port with the number `from` through `other`, and all others through this queue.
    ///
    /// # Panics
    /// If the two use different pools.
    pub(crate) fn join_from(mut self, from: u16, other: TxQueue) -> TxQueue {
        assert!(
            self.mempool.memory().is(other.mempool.memory()),
            "queues of different pools"
        );
        for way in other.ways {
            self.ways.insert(
                0,
                TxRoute {
                    from: Some(from),
                    ..way
                },
            );
        }
        self
    }

    /// Sends the packets of the batch and passes their buffers to the device. Packets that a full device does not
    /// accept leave the batch and are lost. Returns the number of lost packets.
    ///
    /// # Panics
    /// If the batch is of another pool.
    #[inline]
    pub fn transmit(&mut self, batch: &mut Batch) -> usize {
        self.send_all(batch, false)
    }

    /// Like [`transmit`](TxQueue::transmit), but sends all packets through the queue that was [joined](TxQueue::join)
    /// last.
    ///
    /// # Panics
    /// If the batch is of another pool.
    pub fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        self.send_all(batch, true)
    }

    #[inline(always)]
    fn send_all(&mut self, batch: &mut Batch, back: bool) -> usize {
        if batch.is_empty() {
            return 0;
        }
        if !self.entered {
            self.entered = enter_thread();
        }
        assert!(batch.memory().is(self.mempool.memory()), "a batch of another pool");
        let count = batch.len();
        let view = self.mempool.view();
        for (place, (buffer, start, length)) in self.mbufs.iter_mut().zip(batch.take_buffers()) {
            *place = view.mbuf(buffer.index());
            // SAFETY: the buffer is of this pool, and its handle is gone, so only we own its mbuf; the frame lies in
            // it, as the batch guarantees.
            unsafe { (**place).prepare(start, length) };
        }
        self.unsent.clear();
        if let ([way], _) | ([way, ..], true) = (&*self.ways, back) {
            let sent = way.to.send(&mut self.mbufs[..count]);
            self.unsent.extend(sent as u16..count as u16);
        } else {
            self.divide(batch);
        }
        if !self.unsent.is_empty() {
            batch.remove_unsent(&self.unsent);
        }
        self.unsent.len()
    }

    /// Sends copies of up to `count` frames (at most [`MAX_BATCH`]) from other memory, with their RSS hashes as a NIC
    /// would report them. Returns the number sent, which is less if buffers run out or the device is full.
    ///
    /// # Panics
    /// If a frame is longer than a buffer.
    #[inline]
    pub fn inject<'f>(&mut self, count: usize, mut next: impl FnMut() -> (&'f [u8], u32)) -> usize {
        let longest = self.mempool.memory().buffer_bytes() - HEADROOM;
        let count = count.min(MAX_BATCH);
        let mut copies = [const { MaybeUninit::<ffi::Copied>::uninit() }; MAX_BATCH];
        for copy in &mut copies[..count] {
            let (frame, hash) = next();
            assert!(frame.len() <= longest, "a frame of {} bytes", frame.len());
            copy.write(ffi::Copied {
                frame: frame.as_ptr(),
                length: frame.len() as u32,
                hash,
            });
        }
        let Some(way) = self.ways.last() else {
            unreachable!("there is a way for all packets");
        };
        let _turn = way.to.turns.take();
        let _burst = way.to.pass.as_ref().map(Pass::burst);
        // SAFETY: `count` copies have been written; their frames are borrowed for longer than this call, and no longer
        // than the room in buffers. The port runs and has the queue, whose only user this is.
        let sent = unsafe {
            let copies = copies.as_ptr().cast();
            let pool = self.mempool.as_ptr();
            ffi::tw_inject(pool, way.to.port.id(), way.to.queue, copies, count as u16)
        };
        usize::from(sent)
    }

    /// Sends a frame as a chain of two buffers, the first with `first` bytes, as some drivers deliver them: a source of
    /// packets for tests. Returns `true` if it was sent.
    ///
    /// # Panics
    /// If a segment is empty, or longer than a buffer.
    pub fn inject_in_pieces(&mut self, frame: &[u8], first: usize) -> bool {
        let longest = self.mempool.memory().buffer_bytes() - HEADROOM;
        let rest = frame.len().saturating_sub(first);
        assert!((1..=longest).contains(&first) && (1..=longest).contains(&rest));
        let Some(way) = self.ways.last() else {
            unreachable!("there is a way for all packets");
        };
        let (length, first) = (frame.len() as u16, first as u16);
        let _turn = way.to.turns.take();
        let _burst = way.to.pass.as_ref().map(Pass::burst);
        // SAFETY: both segments fit in buffers; the port runs and has the queue, which we hold the lock of.
        let code = unsafe {
            let (pool, frame) = (self.mempool.as_ptr(), frame.as_ptr());
            ffi::tw_inject_in_pieces(pool, way.to.port.id(), way.to.queue, frame, length, first)
        };
        code == 0
    }

    /// Assigns each packet of the batch to its route.
    fn divide(&mut self, batch: &Batch) {
        for (place, packet) in batch.iter().enumerate() {
            let mbuf = self.mbufs[place];
            // SAFETY: we own the mbuf until it is sent.
            let from = unsafe { (*mbuf).port() };
            // Back to the input port, if there is a queue for it.
            let back = self.ways.iter().position(|way| way.to.port.id() == from);
            let back = back.filter(|_| packet.turns_back());
            let on = |way: &TxRoute| way.from.is_none_or(|f| f == from);
            let way = back.or_else(|| self.ways.iter().position(on));
            let Some(way) = way.and_then(|way| self.ways.get_mut(way)) else {
                unreachable!("the last way is for all others");
            };
            way.places.push(place as u16);
            way.mbufs.push(mbuf);
        }
        for way in &mut self.ways {
            let sent = way.to.send(&mut way.mbufs);
            self.unsent.extend(&way.places[sent..]);
            way.places.clear();
            way.mbufs.clear();
        }
        self.unsent.sort_unstable();
    }
}

impl TxRoute {
    /// Creates the route of all packets.
    fn new(to: DeviceQueue) -> TxRoute {
        TxRoute {
            from: None,
            to,
            places: Vec::with_capacity(MAX_BATCH),
            mbufs: Vec::with_capacity(MAX_BATCH),
        }
    }
}

impl DeviceQueue {
    /// Sends mbufs owned by the caller, and frees those the device does not accept. Returns the number accepted.
    #[inline]
    fn send(&self, mbufs: &mut [*mut Mbuf]) -> usize {
        let (mut sent, mut tries) = (0, 0);
        while sent < mbufs.len() && tries < TRIES {
            let rest = &mut mbufs[sent..];
            let _turn = self.turns.take();
            let _burst = self.pass.as_ref().map(Pass::burst);
            // SAFETY: the port runs and has this queue; the caller is its only user, or holds the lock of a shared
            // queue; the mbufs have been prepared, and have no other owner.
            let taken = unsafe { ffi::tw_send(self.port.id(), self.queue, rest.as_mut_ptr(), rest.len() as u16) };
            sent += usize::from(taken);
            tries = if taken == 0 { tries + 1 } else { 0 };
        }
        let rest = &mut mbufs[sent..];
        if !rest.is_empty() {
            // SAFETY: the device did not accept these: the caller still owns them, and they return to the pool.
            unsafe { ffi::tw_give_up(rest.as_mut_ptr(), rest.len() as u16) };
        }
        sent
    }
}
