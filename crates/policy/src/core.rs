//! The vocabulary between a core that dispatches packets and the policy that tells it where to.
//!
//! A core has a queue of its own, and may hand whole flows to *helpers*: auxiliary cores, numbered
//! from 0 as that core sees them. All packets of a flow that are in the system go to one
//! [`Place`]; the place changes only when none of the flow's packets is beyond recall, that is, when
//! all that are in the system still wait in the core's own queue, or none is. What is with a helper is
//! beyond recall; but when a helper has too much, the core [relieves](Plan::relieve) it, and holds what
//! would follow until the flow may go elsewhere. So auxiliary cores shed flows to each other, by the
//! decisions of the core that knows all of them.

use std::sync::Arc;
use tailwater_net::Nanos;

/// The most helpers a core can have.
pub const MAX_HELPERS: usize = 62;

/// Where a flow's packets are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u8);

impl Place {
    /// On the deciding core itself.
    pub const HERE: Place = Place(0);

    /// On helper `helper`.
    ///
    /// # Panics
    /// If the number is [`MAX_HELPERS`] or more.
    #[inline]
    pub const fn helper(helper: usize) -> Place {
        assert!(helper < MAX_HELPERS, "there are at most MAX_HELPERS");
        Place(helper as u8 + 1)
    }

    /// The helper's number; `None` for [`Place::HERE`].
    #[inline]
    pub const fn as_helper(self) -> Option<usize> {
        match self.0 {
            0 => None,
            place => Some(place as usize - 1),
        }
    }

    /// A number for tables: 0 is [`Place::HERE`], helper `i` is `i + 1`.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Work that is somewhere: flows, and their packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Flows with at least one packet.
    pub flows: u32,
    /// Their packets.
    pub packets: u32,
}

/// What a core knows of a helper. It counts what it handed over and has not been told done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Helper {
    /// Whether the helper works for this core. One that does not may be recruited by placing a flow
    /// there, unless it is [`taken`](Helper::taken).
    pub recruited: bool,
    /// Whether another core has recruited the helper: nothing can be placed there.
    pub taken: bool,
    /// Handed over and not yet done; of flows that are split, what has passed the first functions.
    pub load: Load,
    /// When it last told of packets that are done: if the load is nothing, it has been since then.
    pub last_done: Nanos,
}

/// A flow with packets in the deciding core's own queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuedFlow {
    /// How many of its packets wait; at least 1.
    pub packets: u32,
    /// Whether it must stay as it is: it has to be opened by this core (its chain has functions that
    /// change the flow table), or it is [split](Split) and has packets with the helper.
    pub bound: bool,
}

/// A core's situation, when its mapper is asked.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Now.
    pub now: Nanos,
    /// When the first packet of the own queue arrived, which has waited longest there, but for those of
    /// flows that were [held](View::held) before; `now` if there is none.
    pub oldest: Nanos,
    /// The flows in the own queue, in the order of their first packets there.
    pub queued: &'a [QueuedFlow],
    /// All their packets.
    pub packets: u32,
    /// Held until their flows leave helpers that are [relieved](Plan::relieve): neither in the own
    /// queue nor with a helper.
    pub held: Load,
    /// The helpers. Their number does not change during a run.
    pub helpers: &'a [Helper],
}

/// A flow that may go anywhere: none of its packets is in the system but the one that just came, or
/// those that were [held](Plan::relieve).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flowlet {
    /// When the first of these packets arrived.
    pub arrival: Nanos,
    /// Whether the flow is new: its state has yet to be made, which costs more.
    pub new: bool,
    /// How many packets there are; at least 1, and more only if they were held.
    pub packets: u32,
    /// Whether they were held.
    pub held: bool,
}

/// Where packets are, when a [`Flowlet`] is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Loads<'a> {
    /// Now.
    pub now: Nanos,
    /// The core's own queue.
    pub here: Load,
    /// The helpers.
    pub helpers: &'a [Helper],
}

/// Something that the operator should know. Counted, and told now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// One flow alone exceeds what a core can do, and no split of the chain suffices.
    WhaleBeyondSplit {
        /// Its packets that wait.
        packets: u32,
    },
    /// There is more work than all cores that may be used can do in time.
    OutOfCores {
        /// Packets that wait beyond what can be done.
        packets: u32,
    },
}

/// A whale whose chain is to be split: the flow's packets pass the first functions here, the
/// others on a helper.
///
/// Those that wait in the own queue and those to come, until none of the flow's is in the system or a
/// plan moves or splits the flow anew. Its helper is not let go meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The flow, as its place in [`View::queued`].
    pub flow: usize,
    /// How many functions, counted from the chain's end, move to the helper.
    pub last_functions: usize,
    /// The helper.
    pub helper: usize,
}

/// What is to be done. Reused: [`clear`](Plan::clear) it first; its vectors grow to what is needed and
/// are never given back, so no plan allocates in steady state.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// For each flow of [`View::queued`], where it goes with all its packets.
    pub places: Vec<Place>,
    /// Helpers to let go, as a bit map: those without work that are not placed on.
    pub release: u64,
    /// Helpers that have too much, as a bit map, until the next plan. No packet follows those that its flow
    /// has there: it is held, with all that come later, until the helper is done with these, and then the
    /// flow is [placed](CoreMapper::place) anew. Flows that are split stay.
    pub relieve: u64,
    /// Flows to split. Their place is [`Place::HERE`].
    pub splits: Vec<Split>,
    /// From now on the core itself processes nothing and only hands over (*boost mode*).
    pub boost: bool,
    /// What the operator should know.
    pub notice: Option<Notice>,
}

impl Plan {
    /// Everything stays: the plan for `flows` queued flows that changes nothing.
    #[inline]
    pub fn clear(&mut self, flows: usize) {
        self.places.clear();
        self.places.resize(flows, Place::HERE);
        self.release = 0;
        self.relieve = 0;
        self.splits.clear();
        self.boost = false;
        self.notice = None;
    }
}

/// Decides, for one core, which flows it keeps and which go to which helper.
///
/// Called on the data path: no implementation allocates in steady state.
pub trait CoreMapper: Send {
    /// In front of which functions it may [split](Plan::splits) the chain, as a bit map: bit `i` for the
    /// last `i` functions. Asked once, before the first packet, for flow state is laid out so; other
    /// splits are ignored.
    fn split_points(&self) -> u64 {
        0
    }

    /// The most packets that a core, this one or a helper, is to process in one go; asked once, before the
    /// first packet. What comes meanwhile waits for all of them, and none of them leaves before the last.
    fn batch(&self) -> usize {
        usize::MAX
    }

    /// Whether [`decide`](CoreMapper::decide) is to be called now, with `packets` in the own queue: at
    /// an epoch's end, or when the queue demands it. Asked in every turn of the core's loop.
    fn due(&self, now: Nanos, packets: u32) -> bool;

    /// What to do with the queue. `plan` has been [cleared](Plan::clear) for `view.queued`.
    fn decide(&mut self, view: &View<'_>, plan: &mut Plan);

    /// Where the packets of a flow go that has none in the system, or whose packets were all
    /// [held](Plan::relieve). Helpers that are [taken](Helper::taken) are not for use.
    #[inline]
    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Place {
        let _ = (flowlet, loads);
        Place::HERE
    }

    /// The core has itself processed a batch of `packets` packets, `new` of which opened a flow. In
    /// `took`: the whole turn of its loop, with what receiving, handing over and deciding took of it,
    /// for packets wait for that, too.
    #[inline]
    fn completed(&mut self, packets: u32, new: u32, took: Nanos) {
        let _ = (packets, new, took);
    }
}

/// Makes a core mapper for each core that dispatches.
pub type MakeMapper = Arc<dyn Fn() -> Box<dyn CoreMapper> + Send + Sync>;
