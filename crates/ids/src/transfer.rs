//! Connections that pass to an inspector in another process, with the bytes of their streams.

use crate::connection::{Connection, LOST};
use crate::slots::{Slots, split};
use tailwater_net::Nanos;

/// Appends the bytes of a connection's slot, if it has one.
pub fn detach(connection: &Connection, slots: &mut impl Slots, now: Nanos, out: &mut Vec<u8>) {
    if let Some(lease) = connection.lease()
        && slots.open(lease)
    {
        out.extend_from_slice(slots.bytes().unwrap_or_default());
        slots.close(now);
    }
}

/// Takes a connection of another inspector over, with the bytes of its slot, which are empty if it had none. Without a
/// free slot its streams are not followed any more. Unless that one `has_same_rules`, with the same numbers, flowbits
/// and partly matched rules are forgotten.
pub fn attach(connection: &mut Connection, bytes: &[u8], has_same_rules: bool, slots: &mut impl Slots, now: Nanos) {
    let had_slot = connection.lease().is_some();
    connection.set_lease(None);
    if !has_same_rules {
        connection.forget_rules();
    }
    if !had_slot {
        return;
    }
    let lease = slots.take(now);
    match (lease, slots.bytes()) {
        (Some(_), Some(own)) if own.len() == bytes.len() => {
            own.copy_from_slice(bytes);
            if !has_same_rules {
                let (sides, _) = split(own);
                // No rule set has this version.
                sides.iter_mut().for_each(|side| side.rules.renew(0));
            }
            slots.close(now);
            connection.set_lease(lease);
        }
        _ => {
            slots.release();
            connection.set(LOST, true);
        }
    }
}
