//! Rings that pass to another number of cores. Socket `i` of an interface belongs to core `i` modulo the number
//! of cores.

use crate::port::QueuePosition;

/// Divides the rings of an interface's sockets among queues; `None` if it does not receive.
pub(super) fn divide<R>(rings: Vec<R>, queues: usize) -> Option<Vec<Vec<R>>> {
    if rings.is_empty() {
        return None;
    }
    let mut divided: Vec<Vec<R>> = (0..queues).map(|_| Vec::new()).collect();
    for (socket, ring) in rings.into_iter().enumerate() {
        divided[socket % queues].push(ring);
    }
    Some(divided)
}

/// Positions of `queues` queues that continue at these of another number of queues. `sockets` is the number of sockets
/// of each interface that receives. `None` if the positions are of other sockets.
pub(super) fn regroup(positions: &[QueuePosition], sockets: &[usize], queues: usize) -> Option<Vec<QueuePosition>> {
    let first = positions.first()?;
    let mut rings: Vec<_> = positions.iter().map(|position| position.rings.iter()).collect();
    let mut regrouped: Vec<QueuePosition> = (0..queues).map(|_| QueuePosition::default()).collect();
    for sockets in sockets {
        // Those of a queue follow each other, in the order of their numbers.
        for socket in 0..*sockets {
            let of_queue = socket % rings.len();
            let ring = rings[of_queue].next()?;
            regrouped[socket % queues].rings.push(*ring);
        }
    }
    let received_before = positions.iter().map(|position| position.received_before).min();
    for position in &mut regrouped {
        position.received_before = received_before.unwrap_or_default();
        position.ended = first.ended;
    }
    regrouped.first_mut()?.missed = positions.iter().map(|position| position.missed).sum();
    rings.iter().all(|rest| rest.len() == 0).then_some(regrouped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Positions of queues whose rings are at the numbers of their interface and socket.
    fn positions(sockets: &[usize], queues: usize) -> Vec<QueuePosition> {
        let mut positions: Vec<_> = (0..queues).map(|_| QueuePosition::default()).collect();
        for (interface, sockets) in sockets.iter().enumerate() {
            let rings: Vec<u64> = (0..*sockets).map(|socket| (100 * interface + socket) as u64).collect();
            let divided = divide(rings, queues).into_iter().flatten();
            divided
                .zip(&mut positions)
                .for_each(|(rings, position)| position.rings.extend(rings));
        }
        for (number, position) in positions.iter_mut().enumerate() {
            (position.received_before, position.missed) = (50 + number as u64, 1);
        }
        positions
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// However often the number of cores changes, each ring is read by one core, at its place.
        #[test]
        fn each_ring_goes_on_at_its_place(
            sockets in 1usize..9, both in any::<bool>(), queues in 1usize..9, then in 1usize..9,
        ) {
            let sockets = vec![sockets; 1 + usize::from(both)];
            let before = positions(&sockets, queues);
            let after = regroup(&before, &sockets, then).unwrap();
            let expected: Vec<_> = positions(&sockets, then).into_iter().map(|position| position.rings).collect();
            prop_assert_eq!(after.iter().map(|position| position.rings.clone()).collect::<Vec<_>>(), expected);
            prop_assert!(after.iter().all(|position| position.received_before == 50));
            prop_assert_eq!(after.iter().map(|position| position.missed).sum::<u64>(), queues as u64);
        }
    }

    #[test]
    fn positions_of_other_sockets_are_refused() {
        let before = positions(&[2, 2], 2);
        assert!(regroup(&before, &[2, 2], 1).is_some());
        for wrong in [&[3, 2][..], &[2], &[2, 1], &[]] {
            assert!(regroup(&before, wrong, 1).is_none(), "{wrong:?}");
        }
        assert!(regroup(&[], &[2, 2], 1).is_none());
    }
}
