//! Recent packets of classes of flows, from samples.

use super::plan::ClassLoad;
use super::row::{FlowClass, RowMatch};
use std::collections::BTreeMap;

/// Classes that are counted in a period; samples of others are left out.
const MOST_CLASSES: usize = 1 << 14;
/// Periods of which packets count.
const PERIODS: usize = 4;
/// Bits of destinations by which classes are told apart where there are too many of them, of IPv4 and IPv6.
const COARSER: [(u8, u8); 5] = [(32, 64), (24, 48), (16, 32), (8, 16), (0, 0)];

/// Packets of the last periods by class of flows, as servers report them to an [`IngressBalancer`].
///
/// [`IngressBalancer`]: super::IngressBalancer
#[derive(Clone, Debug, Default)]
pub struct FlowClassCounts {
    /// The current period, and the ones before.
    periods: [BTreeMap<FlowClass, u32>; PERIODS],
}

impl FlowClassCounts {
    /// Counts packets of a class in the current period.
    pub fn add(&mut self, class: FlowClass, packets: u32) {
        let current = &mut self.periods[0];
        if let Some(count) = current.get_mut(&class) {
            *count = count.saturating_add(packets);
        } else if current.len() < MOST_CLASSES {
            current.insert(class, packets);
        }
    }

    /// Begins a period. The packets of one that has been over for long enough are forgotten.
    pub fn begin_period(&mut self) {
        self.periods.rotate_right(1);
        self.periods[0].clear();
    }

    /// Returns the packets of all classes in the last periods. If there are more than `most` classes, those of
    /// neighbouring destinations are summed up.
    pub fn loads(&self, most: usize) -> Vec<ClassLoad> {
        let mut sums: BTreeMap<FlowClass, u32> = BTreeMap::new();
        for (class, packets) in self.periods.iter().flatten() {
            add(&mut sums, *class, *packets);
        }
        for (v4, v6) in COARSER {
            if sums.len() <= most {
                break;
            }
            for (class, packets) in std::mem::take(&mut sums) {
                let row = RowMatch::of(class, class.length_of(v4, v6));
                add(&mut sums, row.first_class(), packets);
            }
        }
        sums.into_iter()
            .map(|(class, packets)| ClassLoad { class, packets })
            .collect()
    }
}

fn add(sums: &mut BTreeMap<FlowClass, u32>, class: FlowClass, packets: u32) {
    let sum = sums.entry(class).or_default();
    *sum = sum.saturating_add(packets);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn class(destination: [u8; 4], bucket: u16) -> FlowClass {
        FlowClass::new(IpAddr::from(destination), bucket)
    }

    fn total(loads: &[ClassLoad]) -> u32 {
        loads.iter().map(|load| load.packets).sum()
    }

    #[test]
    fn packets_count_for_four_periods() {
        let mut counts = FlowClassCounts::default();
        counts.add(class([10, 0, 0, 1], 0), 5);
        counts.begin_period();
        counts.add(class([10, 0, 0, 1], 0), 2);
        counts.add(class([10, 0, 0, 1], 511), 1);
        let loads = counts.loads(10);
        assert_eq!(loads.len(), 2);
        assert_eq!((loads[0].class, loads[0].packets), (class([10, 0, 0, 1], 0), 7));
        counts.begin_period();
        counts.begin_period();
        assert_eq!(total(&counts.loads(10)), 8);
        counts.begin_period();
        assert_eq!(total(&counts.loads(10)), 3);
        counts.begin_period();
        assert_eq!(counts.loads(10), []);
    }

    #[test]
    fn many_classes_are_summed_up_and_no_packet_is_forgotten() {
        let mut counts = FlowClassCounts::default();
        for third in 0..10 {
            for last in 0..100 {
                counts.add(class([10, 0, third, last], 0), 1);
                counts.add(class([10, 0, third, last], 511), 1);
            }
        }
        assert_eq!(counts.loads(2_000).len(), 2_000);
        // By destination, by 24 bits, by 16.
        for (most, classes) in [(1_999, 1_000), (1_000, 1_000), (999, 10), (9, 1), (0, 1)] {
            let loads = counts.loads(most);
            assert_eq!((loads.len(), total(&loads)), (classes, 2_000), "{most}");
        }
        assert_eq!(counts.loads(999)[3].class, class([10, 0, 3, 0], 0));
    }
}
