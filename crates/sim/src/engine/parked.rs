//! Packets parked until their flows leave an auxiliary core: a list per flow, all in one array.

use super::waiting::Waiting;

/// Marks the end of a list. A core has fewer packet buffers than this.
const NONE: u16 = u16::MAX;

/// List: indices of its first and last packet, and its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    first: u16,
    last: u16,
    pub packets: u16,
}

impl List {
    pub const EMPTY: List = List {
        first: NONE,
        last: NONE,
        packets: 0,
    };
}

/// Packets of all lists, each with the index of the next in its list, or of the next free entry.
#[derive(Debug)]
pub(crate) struct ParkedPackets {
    places: Vec<(Waiting, u16)>,
    free: u16,
}

impl Default for ParkedPackets {
    fn default() -> ParkedPackets {
        ParkedPackets {
            places: Vec::new(),
            free: NONE,
        }
    }
}

impl ParkedPackets {
    /// Appends a packet to a list.
    pub fn push(&mut self, list: &mut List, waiting: Waiting) {
        let at = match self.free {
            NONE => {
                self.places.push((waiting, NONE));
                self.places.len() as u16 - 1
            }
            at => {
                let place = &mut self.places[usize::from(at)];
                self.free = std::mem::replace(place, (waiting, NONE)).1;
                at
            }
        };
        match list.packets {
            0 => list.first = at,
            _ => self.places[usize::from(list.last)].1 = at,
        }
        list.last = at;
        list.packets += 1;
    }

    /// Returns the first packet of a list that is not empty.
    pub fn first(&self, list: &List) -> Waiting {
        self.places[usize::from(list.first)].0
    }

    /// Removes and returns the first packet of a list.
    pub fn pop(&mut self, list: &mut List) -> Option<Waiting> {
        list.packets = list.packets.checked_sub(1)?;
        let at = list.first;
        let (waiting, next) = &mut self.places[usize::from(at)];
        list.first = std::mem::replace(next, self.free);
        self.free = at;
        Some(*waiting)
    }
}
