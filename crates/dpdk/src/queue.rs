//! Queues of ports: bursts in and out, without a copy.
//!
//! One of the few modules with `unsafe` code. Each queue is used by one thread at a time, which is what DPDK
//! asks for: there is one value for it, whose methods that touch the device take `&mut self`. Of a device with fewer
//! transmit queues than senders, several values stand for one queue, and take turns, a burst each.

use crate::eal::enter_thread;
use crate::ffi;
use crate::gate::{Burst, Pass};
use crate::mbuf::{MBUF, Mbuf, Stamp};
use crate::mempool::Mempool;
use crate::port::{Port, Shared};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_chain::batch::{Arrived, Batch, MAX_BATCH};
use tailwater_chain::buffer::{BufferPool, Claims, HEADROOM};
use tailwater_chain::region::prefetch;

/// A receive queue.
#[derive(Debug)]
pub struct RxQueue {
    port: Arc<Shared>,
    queue: u16,
    ring: usize,
    mempool: Mempool,
    mbufs: Box<[*mut Mbuf; MAX_BATCH]>,
    /// How many of these came and nobody has taken yet.
    there: Option<(usize, Claims)>,
    returned: Vec<u32>,
    refused: ffi::Refused,
    /// Where the device puts times, if it does.
    stamp: Option<Stamp>,
    stamps: Vec<Option<u64>>,
    /// Which of a chain's two ports it is of, as packets tell it.
    entry: u8,
    /// Without it bursts need none.
    pass: Option<Pass>,
    /// Whether DPDK knows the thread.
    entered: bool,
}

// SAFETY: the pointers are to mbufs that are this queue's alone.
unsafe impl Send for RxQueue {}
// SAFETY: nothing of them is read or written through a shared reference.
unsafe impl Sync for RxQueue {}

impl RxQueue {
    pub(crate) fn new(
        port: Arc<Shared>,
        queue: u16,
        (ring, checksums, stamp): (usize, bool, Option<Stamp>),
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

    /// The queue of a chain's entry port (0) or exit port (1): its packets tell so.
    #[must_use]
    pub fn of_entry(self, entry: u8) -> RxQueue {
        RxQueue { entry, ..self }
    }

    /// Receives up to `most` packets (of [`MAX_BATCH`]), and no more than `part` may hold, which
    /// [`packets`](RxQueue::packets) then gives. Returns how many, those that were refused among them. What was given
    /// back to `part` goes back to the device first.
    ///
    /// # Panics
    /// If `part` is of another pool, or what was received last has not been taken.
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
        // SAFETY: the port runs and has this queue, of which this is the only user; there is room for
        // `MAX_BATCH`, and `most` is no more.
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
            // SAFETY: the device has handed it over.
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

    /// The packets received last, in order, once. What is not taken of them now is lost, with its buffer.
    #[inline]
    pub fn packets(&mut self) -> impl ExactSizeIterator<Item = Arrived> + use<'_> {
        let (count, claims) = self.there.take().unzip();
        let claims = claims.unwrap_or_default();
        let (view, port, entry) = (self.mempool.view(), self.port.id(), self.entry);
        self.mbufs[..count.unwrap_or(0)].iter().map(move |&mbuf| {
            // SAFETY: the device has handed the mbuf over, with nobody else using it: `receive` has looked
            // at its count of users, and at whose it is. Each packet is given once, for `there` says so once; what
            // is behind the mbuf is the buffer of the number.
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

    /// When the packets came that [`packets`](RxQueue::packets) is to give, in the device's ticks, in order: `None` for
    /// one that the device gave no time. `None` for all if the port gives none
    /// ([`timestamps`](crate::PortInfo::timestamps)). To be called before they are taken.
    #[inline]
    pub fn stamps(&mut self) -> Option<&[Option<u64>]> {
        let stamp = self.stamp?;
        let count = self.there.as_ref().map_or(0, |(count, _)| *count);
        self.stamps.clear();
        let mbufs = &self.mbufs[..count];
        // SAFETY: the device has handed these over, whole, and nobody has taken them from here: they are this queue's
        // alone.
        let ticks = mbufs.iter().map(|&mbuf| unsafe { Mbuf::ticks(mbuf, stamp) });
        self.stamps.extend(ticks);
        Some(&self.stamps)
    }

    /// Where its buffers are.
    pub(crate) fn mempool(&self) -> &Mempool {
        &self.mempool
    }

    /// The queue, for the shim.
    #[inline]
    pub(crate) fn queue(&self) -> ffi::Queue {
        ffi::Queue {
            port: self.port.id(),
            queue: self.queue,
        }
    }

    /// Begins a burst, if it needs that.
    #[inline]
    pub(crate) fn burst(&self) -> Option<Burst<'_>> {
        self.pass.as_ref().map(Pass::burst)
    }

    /// How many descriptors it has.
    pub fn ring(&self) -> usize {
        self.ring
    }

    /// Packets since the last call that were received and not told: in several buffers and too long for one;
    /// with a checksum that the device found wrong.
    #[inline]
    pub fn take_refused(&mut self) -> [u64; 2] {
        let ffi::Refused { in_pieces, damaged, .. } = &mut self.refused;
        [in_pieces, damaged].map(std::mem::take)
    }
}

/// Who uses a transmit queue that several share: one at a time, a burst each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Option<Arc<Taken>>);

/// Whether somebody uses the queue. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Taken(AtomicBool);

/// A turn, until it is dropped.
struct Turn<'t>(Option<&'t Taken>);

/// How often a worker looks whether a queue is free before it lets others have its core, on which the queue's user
/// may be waiting.
const LOOKS: u32 = 1000;

impl Turns {
    /// For one of so many queues, over which senders are dealt out in turn.
    pub(crate) fn of_queue(senders: u16, queues: u16, queue: u16) -> Turns {
        let shared = u32::from(queue) + u32::from(queues) < u32::from(senders);
        Turns(shared.then(Arc::default))
    }

    /// Waits for a turn, if the queue is shared.
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

/// Makes a packet one that a chain can work on, or gives it back and counts it. Returns whether it did.
#[cold]
fn mended(mempool: &Mempool, mbuf: *mut Mbuf, refused: &mut ffi::Refused) -> bool {
    // SAFETY: the device has handed the packet over, and nobody else of this program has it.
    unsafe { ffi::tw_mend(mempool.as_ptr(), mbuf, refused) != 0 }
}

/// Where packets go that came from a port.
#[derive(Debug)]
struct Way {
    /// The port they came from; `None` for all others.
    from: Option<u16>,
    to: Arc<Shared>,
    queue: u16,
    pass: Option<Pass>,
    turns: Turns,
    places: Vec<u16>,
    mbufs: Vec<*mut Mbuf>,
}

/// Transmit queues, one a port: packets go where the port that they came from says.
#[derive(Debug)]
pub struct TxQueue {
    mempool: Mempool,
    ways: Vec<Way>,
    mbufs: Box<[*mut Mbuf; MAX_BATCH]>,
    unsent: Vec<u16>,
    /// Whether DPDK knows the thread.
    entered: bool,
}

// SAFETY: the pointers are to mbufs of a burst, and are left over from the last one: none is used before it is
// written anew.
unsafe impl Send for TxQueue {}
// SAFETY: nothing of it is read or written through a shared reference.
unsafe impl Sync for TxQueue {}

/// How often in a row a device may take nothing before what is left is lost.
const TRIES: u32 = 256;

impl TxQueue {
    pub(crate) fn new(mempool: Mempool, to: Arc<Shared>, queue: u16, exit: (Option<Pass>, Turns)) -> TxQueue {
        TxQueue {
            mempool,
            ways: vec![Way::new(None, to, queue, exit)],
            mbufs: Box::new([std::ptr::null_mut(); MAX_BATCH]),
            unsent: Vec::with_capacity(MAX_BATCH),
            entered: false,
        }
    }

    /// Where its buffers are.
    pub(crate) fn mempool(&self) -> &Mempool {
        &self.mempool
    }

    /// The queue for packets of all ports that have none of their own, for the shim.
    #[inline]
    pub(crate) fn queue(&self) -> ffi::Queue {
        let Some(Way { to, queue, .. }) = self.ways.last() else {
            unreachable!("there is a way for all packets");
        };
        ffi::Queue {
            port: to.id(),
            queue: *queue,
        }
    }

    /// Begins a burst by that queue, if it needs that.
    #[inline]
    pub(crate) fn burst(&self) -> Option<Burst<'_>> {
        self.ways.last()?.pass.as_ref().map(Pass::burst)
    }

    /// Has packets that came from the port `from` sent where `other` sends, and all others where this one
    /// does.
    ///
    /// # Panics
    /// If the two are of different pools.
    pub fn join(mut self, from: &Port, other: TxQueue) -> TxQueue {
        assert!(
            self.mempool.memory().is(other.mempool.memory()),
            "queues of different pools"
        );
        for way in other.ways {
            self.ways.insert(
                0,
                Way {
                    from: Some(from.id()),
                    ..way
                },
            );
        }
        self
    }

    /// Sends the packets of the batch, whose buffers go to the device. What it does not take, being full, leaves
    /// the batch, and is lost. Returns how many.
    ///
    /// # Panics
    /// If the batch is of another pool.
    #[inline]
    pub fn transmit(&mut self, batch: &mut Batch) -> usize {
        self.send_all(batch, false)
    }

    /// As [`transmit`](TxQueue::transmit), but all packets go where those go that came from the port that was
    /// [joined](TxQueue::join) last.
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
        for (place, (buffer, start, length)) in self.mbufs.iter_mut().zip(batch.hand_over()) {
            *place = view.mbuf(buffer.index());
            // SAFETY: the buffer is of this pool, and its handle is gone, so that its mbuf is ours alone; the
            // frame lies in it, as the batch says.
            unsafe { (**place).prepare(start, length) };
        }
        self.unsent.clear();
        if let ([way], _) | ([way, ..], true) = (&*self.ways, back) {
            let by = (way.queue, &way.pass, &way.turns);
            let sent = way.to.send(by, &mut self.mbufs[..count]);
            self.unsent.extend(sent as u16..count as u16);
        } else {
            self.divide(batch);
        }
        if !self.unsent.is_empty() {
            batch.take_out(&self.unsent);
        }
        self.unsent.len()
    }

    /// Sends copies of up to `count` frames (of [`MAX_BATCH`]), with their RSS hashes as a NIC would give them:
    /// for packets that are in other memory. Returns how many were sent: fewer if buffers run out, or
    /// the device is full.
    ///
    /// # Panics
    /// If a frame is longer than buffers hold.
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
        let _turn = way.turns.take();
        let _burst = way.pass.as_ref().map(Pass::burst);
        // SAFETY: so many copies have been written; their frames are borrowed for longer than this call, and
        // no longer than the room in buffers. The port runs and has the queue, whose only user this is.
        let sent = unsafe {
            let copies = copies.as_ptr().cast();
            let pool = self.mempool.as_ptr();
            ffi::tw_inject(pool, way.to.id(), way.queue, copies, count as u16)
        };
        usize::from(sent)
    }

    /// Sends a frame in two buffers, the first of which has `first` bytes, as some drivers give them: a source of packets
    /// for tests. Returns whether it was sent.
    ///
    /// # Panics
    /// If a piece is empty, or longer than buffers hold.
    pub fn inject_in_pieces(&mut self, frame: &[u8], first: usize) -> bool {
        let longest = self.mempool.memory().buffer_bytes() - HEADROOM;
        let rest = frame.len().saturating_sub(first);
        assert!((1..=longest).contains(&first) && (1..=longest).contains(&rest));
        let Some(way) = self.ways.last() else {
            unreachable!("there is a way for all packets");
        };
        let (length, first) = (frame.len() as u16, first as u16);
        let _turn = way.turns.take();
        let _burst = way.pass.as_ref().map(Pass::burst);
        // SAFETY: both pieces of the frame fit in buffers; the port runs and has the queue, which is ours now.
        let code = unsafe {
            let (pool, frame) = (self.mempool.as_ptr(), frame.as_ptr());
            ffi::tw_inject_in_pieces(pool, way.to.id(), way.queue, frame, length, first)
        };
        code == 0
    }

    /// Sends each packet of the batch its way.
    fn divide(&mut self, batch: &Batch) {
        for (place, packet) in batch.iter().enumerate() {
            let mbuf = self.mbufs[place];
            // SAFETY: it is ours until it is sent.
            let from = unsafe { (*mbuf).port() };
            // To where it came from, if that can be sent to.
            let back = self.ways.iter().position(|way| way.to.id() == from);
            let back = back.filter(|_| packet.turns_back());
            let on = |way: &Way| way.from.is_none_or(|f| f == from);
            let way = back.or_else(|| self.ways.iter().position(on));
            let Some(way) = way.and_then(|way| self.ways.get_mut(way)) else {
                unreachable!("the last way is for all others");
            };
            way.places.push(place as u16);
            way.mbufs.push(mbuf);
        }
        for way in &mut self.ways {
            let by = (way.queue, &way.pass, &way.turns);
            let sent = way.to.send(by, &mut way.mbufs);
            self.unsent.extend(&way.places[sent..]);
            way.places.clear();
            way.mbufs.clear();
        }
        self.unsent.sort_unstable();
    }
}

impl Way {
    fn new(from: Option<u16>, to: Arc<Shared>, queue: u16, (pass, turns): (Option<Pass>, Turns)) -> Way {
        Way {
            from,
            to,
            queue,
            pass,
            turns,
            places: Vec::with_capacity(MAX_BATCH),
            mbufs: Vec::with_capacity(MAX_BATCH),
        }
    }
}

impl Shared {
    /// Sends mbufs that are the caller's by a queue; frees those that the device does not take. Returns how many it took.
    #[inline]
    fn send(&self, (queue, pass, turns): (u16, &Option<Pass>, &Turns), mbufs: &mut [*mut Mbuf]) -> usize {
        let (mut sent, mut tries) = (0, 0);
        while sent < mbufs.len() && tries < TRIES {
            let rest = &mut mbufs[sent..];
            let _turn = turns.take();
            let _burst = pass.as_ref().map(Pass::burst);
            // SAFETY: the port runs and has this queue; its only user calls, or who has the turn of several; the
            // mbufs have been prepared, and are nobody else's.
            let taken = unsafe { ffi::tw_send(self.id(), queue, rest.as_mut_ptr(), rest.len() as u16) };
            sent += usize::from(taken);
            tries = if taken == 0 { tries + 1 } else { 0 };
        }
        let rest = &mut mbufs[sent..];
        if !rest.is_empty() {
            // SAFETY: the device did not take these: they are still the caller's, and go back to the pool.
            unsafe { ffi::tw_give_up(rest.as_mut_ptr(), rest.len() as u16) };
        }
        sent
    }
}
