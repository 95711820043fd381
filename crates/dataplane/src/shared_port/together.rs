//! Chains of a port, and changes of several whose matches take effect together.
//!
//! Chains of a generation start one by one, which may take seconds. Without a common time, a chain with a wide match
//! would get the packets of a narrow one that is still being built. Until the end of such a change, each packet goes to
//! the chain that had it before the change, to one that took this chain's place with the same match, or to none.

use super::rules::{ChainRules, MAX_CHAINS};
use std::collections::BTreeMap;
use tailwater_api::chain::Match;

/// Chains of a shared port.
#[derive(Debug, Default)]
pub(super) struct Chains {
    /// Match of each connected chain, by slot.
    pub(super) matches: Vec<Option<Match>>,
    /// Slots whose chains get packets.
    pub(super) live: u64,
    /// Buffers and senders reserved for chains.
    pub(super) reserved: Reserved,
    /// Change of several chains that is under way.
    joint: Option<JointChange>,
}

impl Chains {
    pub(super) fn empty() -> Chains {
        Chains {
            matches: vec![None; MAX_CHAINS],
            ..Chains::default()
        }
    }
}

/// Buffers and senders of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    pub(super) buffers: u32,
    pub(super) senders: u16,
}

/// Change of several chains that is under way.
#[derive(Debug, Default)]
struct JointChange {
    /// Slots of chains that have started, and get packets from the end of the change on.
    started: u64,
    /// Slots of chains that have ended, or taken the place of one with another match. Packets of the match before count
    /// as unmatched until the end of the change.
    ended: u64,
    /// Matches of before the change, by the slots of chains that have ended or taken the place of others.
    before: BTreeMap<usize, Match>,
    /// Whether packets that no chain matches are dropped, although the port forwards such packets otherwise.
    drops_unmatched: bool,
}

impl Chains {
    /// Free slot. Those of chains that have ended in the change under way come last.
    pub(super) fn free_slot(&mut self) -> Option<usize> {
        let ended = self.joint.as_ref().map_or(0, |joint| joint.ended);
        let is_free = |slot: &usize| self.matches[*slot].is_none();
        let unused = (0..MAX_CHAINS).find(|slot| is_free(slot) && ended >> slot & 1 == 0);
        let slot = unused.or_else(|| (0..MAX_CHAINS).find(is_free))?;
        if let Some(joint) = &mut self.joint {
            joint.ended &= !(1 << slot);
            joint.before.remove(&slot);
        }
        Some(slot)
    }

    /// Lets chains get packets, or none any more: at once, or as the change under way permits. Returns `true` if the
    /// rules differ.
    pub(super) fn set_live(&mut self, changes: &[(usize, bool)]) -> bool {
        let slots = |live: bool| {
            let chosen = changes.iter().filter(|(_, of)| *of == live);
            chosen.fold(0u64, |set, (slot, _)| set | 1 << slot)
        };
        let (on, off) = (slots(true), slots(false));
        let (before, gone) = (self.live, off & self.live);
        let Some(joint) = &mut self.joint else {
            self.live = before & !off | on;
            return self.live != before;
        };
        joint.started &= !off;
        if on != 0 && gone == 0 {
            joint.started |= on;
            return false;
        }
        for (slot, _) in changes.iter().filter(|(slot, _)| gone >> slot & 1 == 1) {
            let earlier = joint.before.remove(slot).or_else(|| self.matches[*slot].clone());
            joint.ended &= !(1 << slot);
            let heir = if on != 0 { on.trailing_zeros() as usize } else { *slot };
            // A successor with the same match goes on; with another one it gets packets later.
            let goes_on = on != 0 && self.matches[heir] == earlier;
            joint.ended |= if goes_on { 0 } else { 1 << heir };
            joint.before.extend(earlier.map(|earlier| (heir, earlier)));
        }
        self.live = before & !off | on;
        self.live != before
    }

    /// Begins a change of several chains, if none is under way.
    pub(super) fn begin_joint_change(&mut self, drops_unmatched: bool) {
        self.joint.get_or_insert_default().drops_unmatched |= drops_unmatched;
    }

    /// Ends the change under way. Returns `false` if there is none.
    pub(super) fn end_joint_change(&mut self) -> bool {
        let Some(joint) = self.joint.take() else {
            return false;
        };
        self.live |= joint.started;
        true
    }

    /// Rules that apply now.
    pub(super) fn rules(&self) -> ChainRules {
        let joint = self.joint.as_ref();
        let ended = joint.map_or(0, |joint| joint.ended);
        let slots = (0..MAX_CHAINS).filter(|slot| (self.live | ended) >> slot & 1 == 1);
        let matches = slots.filter_map(|slot| {
            let before = joint.and_then(|joint| joint.before.get(&slot));
            Some((slot, before.or(self.matches[slot].as_ref())?))
        });
        ChainRules::new(matches).during_change(ended, joint.is_some_and(|joint| joint.drops_unmatched))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tailwater_net::builder::FrameBuilder;
    use tailwater_net::{FlowKey, protocol};

    fn to(prefix: &str) -> Match {
        Match {
            destinations: vec![prefix.parse().unwrap()],
            ..Match::default()
        }
    }

    impl Chains {
        fn connect(&mut self, wanted: &Match) -> usize {
            let slot = self.free_slot().unwrap();
            self.matches[slot] = Some(wanted.clone());
            slot
        }

        fn with(wanted: &[Match]) -> Chains {
            let mut chains = Chains::empty();
            for wanted in wanted {
                let slot = chains.connect(wanted);
                assert!(chains.set_live(&[(slot, true)]));
            }
            chains
        }

        /// Slot of the chain that gets packets to `10.1.0.1` and `10.2.0.1`; `None` if they get lost.
        fn slots(&self) -> [Option<u8>; 2] {
            let rules = self.rules();
            [1, 2].map(|network| {
                let destination = Ipv4Addr::new(10, network, 0, 1);
                let key = FlowKey::v4(Ipv4Addr::LOCALHOST, destination, protocol::UDP, 1, 2);
                let slot = rules.chain_of(&FrameBuilder::new(&key).to_vec().unwrap());
                slot.filter(|slot| rules.ended() >> slot & 1 == 0)
            })
        }
    }

    #[test]
    fn chains_that_start_in_a_change_get_packets_together() {
        let mut chains = Chains::with(&[]);
        chains.joint = Some(JointChange::default());
        let wide = chains.connect(&Match::default());
        assert!(!chains.set_live(&[(wide, true)]));
        assert_eq!(chains.slots(), [None, None]);
        let narrow = chains.connect(&to("10.2.0.0/16"));
        let failing = chains.connect(&to("10.1.0.0/16"));
        chains.set_live(&[(narrow, true)]);
        chains.set_live(&[(failing, true)]);
        chains.set_live(&[(failing, false)]);
        assert_eq!(chains.slots(), [None, None]);
        assert!(chains.end_joint_change() && !chains.end_joint_change());
        assert_eq!(chains.slots(), [Some(wide as u8), Some(narrow as u8)]);
    }

    #[test]
    fn packets_of_chains_that_end_in_a_change_go_to_no_other_chain() {
        let mut chains = Chains::with(&[Match::default(), to("10.1.0.0/16"), to("10.2.0.0/16")]);
        chains.joint = Some(JointChange::default());
        // The first narrow chain ends, and its slot is free before the change ends.
        assert!(chains.set_live(&[(1, false)]) && !chains.set_live(&[(1, false)]));
        chains.matches[1] = None;
        assert_eq!(chains.slots(), [None, Some(2)]);
        // The match of the second one becomes that of the first.
        let successor = chains.connect(&to("10.1.0.0/16"));
        assert_eq!(successor, 3);
        assert!(chains.set_live(&[(successor, true), (2, false)]));
        chains.matches[2] = None;
        assert_eq!(chains.slots(), [None, None]);
        // And back again, since a later step has failed.
        let back = chains.connect(&to("10.2.0.0/16"));
        assert!(chains.set_live(&[(back, true), (successor, false)]));
        chains.matches[successor] = None;
        assert_eq!(chains.slots(), [None, Some(back as u8)]);
        // One with the same match goes on.
        let same = chains.connect(&to("10.2.0.0/16"));
        assert!(chains.set_live(&[(same, true), (back, false)]));
        assert_eq!(chains.slots(), [None, Some(same as u8)]);
        let other = chains.connect(&to("10.1.0.0/16"));
        assert!(chains.set_live(&[(other, true), (same, false)]));
        assert!(chains.end_joint_change());
        assert_eq!(chains.slots(), [Some(other as u8), Some(0)]);
    }

    #[test]
    fn slots_of_chains_that_ended_are_used_if_no_other_is_left() {
        let mut chains = Chains::with(&vec![to("10.1.0.0/16"); MAX_CHAINS]);
        chains.joint = Some(JointChange::default());
        for slot in [5, 6] {
            chains.set_live(&[(slot, false)]);
            chains.matches[slot] = None;
        }
        assert_eq!(chains.connect(&to("10.2.0.0/16")), 5);
        assert!(chains.set_live(&[(6, false)]) || chains.rules().ended() == 1 << 6);
        chains.set_live(&[(5, true)]);
        assert_eq!(chains.slots()[1], None);
        chains.end_joint_change();
        assert_eq!(chains.slots()[1], Some(5));
    }
}
