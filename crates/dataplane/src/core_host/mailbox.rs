//! Orders to a core's thread, which it reads between two turns.
//!
//! Orders to a core with ports are an [`Order`], those to an auxiliary core an
//! [`AuxiliaryOrder`](super::auxiliary_core::AuxiliaryOrder).

use crate::shared_port::Poller;
use crate::worker::hosted::{Feeds, Hosted};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use tailwater_policy::turns::TurnShare;

/// Order to a core.
pub(super) enum Order {
    /// Poll a port from now on.
    Poll { port: usize, poller: Box<Poller> },
    /// Change the poller of a port.
    Change {
        port: usize,
        change: Box<dyn FnOnce(&mut Poller) + Send>,
    },
    /// Give a worker its turns.
    Run {
        worker: Box<dyn Hosted>,
        share: TurnShare,
        feeds: Feeds,
    },
    /// Run at the real-time priority of isolated functions, for one more of their chains or for one less.
    RealTime { raise: bool, done: Sender<()> },
    /// Leave the core to another process now and then, also at real-time priority, from now on or no more.
    Share(bool),
    /// End once all workers have ended. Ports are polled no more.
    Stop,
}

/// Sending end.
#[derive(Debug)]
pub(super) struct Mailbox<O> {
    orders: Sender<O>,
    pending: Arc<AtomicBool>,
}

impl<O> Clone for Mailbox<O> {
    fn clone(&self) -> Mailbox<O> {
        Mailbox {
            orders: self.orders.clone(),
            pending: Arc::clone(&self.pending),
        }
    }
}

/// Receiving end.
#[derive(Debug)]
pub(super) struct Orders<O> {
    orders: Receiver<O>,
    pending: Arc<AtomicBool>,
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Poll { .. } => "Poll",
            Order::Change { .. } => "Change",
            Order::Run { .. } => "Run",
            Order::RealTime { .. } => "RealTime",
            Order::Share(_) => "Share",
            Order::Stop => "Stop",
        })
    }
}

/// Creates a mailbox.
pub(super) fn mailbox<O>() -> (Mailbox<O>, Orders<O>) {
    let (sender, receiver) = channel();
    let pending = Arc::<AtomicBool>::default();
    let mailbox = Mailbox {
        orders: sender,
        pending: Arc::clone(&pending),
    };
    let orders = Orders {
        orders: receiver,
        pending,
    };
    (mailbox, orders)
}

impl<O> Mailbox<O> {
    /// Sends an order. Returns `false` if the core's thread has ended.
    pub(super) fn send(&self, order: O) -> bool {
        let sent = self.orders.send(order).is_ok();
        // Release: the order is in the channel before the flag is seen.
        self.pending.store(true, Ordering::Release);
        sent
    }
}

impl<O> Orders<O> {
    /// Next order, if there is one. Cheap without one: a flag is read.
    #[inline]
    pub(super) fn next(&self) -> Option<O> {
        if !self.is_pending() {
            return None;
        }
        self.read()
    }

    /// Returns `true` if there may be an order.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    #[cold]
    fn read(&self) -> Option<O> {
        // Acquire pairs with the sender's release. The flag falls first: an order that comes now raises it again.
        self.pending.swap(false, Ordering::Acquire);
        let order = self.orders.try_recv().ok();
        if order.is_some() {
            // There may be more.
            self.pending.store(true, Ordering::Relaxed);
        }
        order
    }
}
