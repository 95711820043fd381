//! Updates of flows in the store.

use super::Keeper;
use crate::link;
use crate::request::{Entry, Operation};
use tailwater_chain::chain::{Chain, DurableFlow};
use tailwater_net::Nanos;

/// Incarnation of flows whose last update found no room in a request.
const MISSED: u32 = u32::MAX;

impl Keeper {
    /// Functions whose state must be written although it has not changed. The store has another incarnation, lacks the
    /// state or is about to expire it, or the state was read from the store.
    #[inline]
    pub(super) fn stale(&mut self, chain: &mut Chain, flow: DurableFlow, now: Nanos) -> u16 {
        let standing = *chain.persist_state(flow);
        if standing.took_up == 0 && standing.incarnation == 0 {
            return 0;
        }
        let age = millis(now).saturating_sub(standing.written);
        let fresh =
            standing.incarnation == self.incarnation && u64::from(age) < millis_of(chain.durable_timeout(flow)) / 2;
        match fresh {
            true => 0,
            false => chain.seen_pieces(flow),
        }
    }

    pub(super) fn write(&mut self, chain: &mut Chain, flow: DurableFlow, pieces: u16, now: Nanos) {
        let (standing, open) = (*chain.persist_state(flow), self.link.open());
        let bucket = chain.durable_bucket(flow);
        let (number, place) = if standing.updated_in == open {
            (open, standing.entry as usize)
        } else if self.link.room() > 0 {
            let timeout = millis_of(chain.durable_timeout(flow));
            let key = chain.durable_key(flow);
            // For a flow that was written before, no deletion can be pending: it would have ended since.
            if matches!(standing.incarnation, 0 | MISSED) {
                chain.remove_ended(&key);
            }
            self.link.push(Entry {
                operation: Operation::Update,
                key,
                asker: key,
                flow: flow.index(),
                // A refresh is due after half the idle timeout. A whole one must remain then.
                life: u32::try_from(timeout + timeout / 2 + 1).unwrap_or(u32::MAX),
                ..Entry::default()
            })
        } else {
            let standing = chain.persist_state(flow);
            // If the flow ends in this state, its bucket stays until the store has been updated.
            (standing.incarnation, standing.bucket) = (MISSED, bucket);
            self.missed = true;
            self.counters.missed += 1;
            return;
        };
        self.counters.updates += 1;
        if let Some(buckets) = &mut self.buckets {
            buckets.note(bucket, number);
        }
        let companion = chain
            .durable_companion(flow)
            .map(|companion| chain.durable_key(companion));
        // Its companion has opened it, even if its own first packet waits for its state meanwhile.
        let joins = standing.asked <= link::NONE || !self.commits.is_open(standing.asked);
        let wall = self.origin.0.wrapping_add(now.0);
        self.stamp = wall.max(self.stamp.max(standing.base) + 1);
        let (entry, row) = self.link.entry(place);
        entry.pieces |= pieces;
        (entry.stamp, entry.base) = (self.stamp, standing.base);
        entry.joins = joins;
        if let Some(companion) = companion {
            (entry.companion, entry.paired) = (companion, chain.paired_pieces());
        }
        chain.durable_row(flow, row);
        let standing = chain.persist_state(flow);
        standing.bucket = bucket;
        standing.updated_in = number;
        standing.entry = place as u32;
        standing.gate = number;
        standing.incarnation = self.incarnation;
        standing.written = millis(now);
    }

    /// Writes a flow's companion with it. The flow's packets open the companion, which may have no packets for long.
    pub(super) fn write_companion(&mut self, chain: &mut Chain, flow: DurableFlow, now: Nanos) {
        let Some(companion) = chain.durable_companion(flow) else {
            return;
        };
        let (own, other) = (*chain.persist_state(flow), *chain.persist_state(companion));
        let late = other.incarnation != self.incarnation
            || millis(now).saturating_sub(other.written) > millis_of(chain.durable_timeout(flow)) as u32 / 2;
        let seen = chain.seen_pieces(companion);
        if !late || seen == 0 {
            return;
        }
        if other.asked == 0 && own.took_up == 0 {
            // The companion is as new as the flow.
            chain.persist_state(companion).asked = link::NONE;
        }
        self.write(chain, companion, seen, now);
        // The store has both directions before a packet of either leaves. The companion's update may be in the next
        // request.
        let gate = chain.persist_state(companion).gate;
        let own = chain.persist_state(flow);
        own.gate = own.gate.max(gate);
    }
}

fn millis(time: Nanos) -> u32 {
    millis_of(time) as u32
}

fn millis_of(span: Nanos) -> u64 {
    span.0 / 1_000_000
}
