//! Time series of values per millisecond, in bounded memory, for a diagram.

const MILLISECOND: u64 = 1_000_000;

/// Maximum number of points. Beyond it, pairs of points are merged.
const MOST: usize = 1 << 16;

/// Values of a millisecond, or the largest of several milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) packets: u32,
    pub(super) new_flows: u32,
    /// Maximum number of packets of one flow.
    pub(super) flow_packets: u32,
}

impl Point {
    pub(super) fn max(self, other: Point) -> Point {
        Point {
            packets: self.packets.max(other.packets),
            new_flows: self.new_flows.max(other.new_flows),
            flow_packets: self.flow_packets.max(other.flow_packets),
        }
    }
}

/// Points over time. A point holds the largest values of `1 << fold` milliseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    pub(super) points: Vec<Point>,
    pub(super) fold: u32,
    /// Current millisecond, and its values.
    at: u64,
    current: Point,
}

impl Series {
    /// Returns the millisecond of a time since the start.
    pub(super) fn millisecond(since_start: u64) -> u64 {
        since_start / MILLISECOND
    }

    /// Adds a packet. `of_flow` is the number of its flow's packets in this millisecond so far, itself included.
    pub(super) fn add(&mut self, since_start: u64, of_flow: u32, new: bool) {
        let millisecond = Series::millisecond(since_start);
        if millisecond != self.at {
            self.close();
            (self.at, self.current) = (millisecond, Point::default());
        }
        self.current.packets = self.current.packets.saturating_add(1);
        self.current.new_flows += u32::from(new);
        self.current.flow_packets = self.current.flow_packets.max(of_flow);
    }

    /// Stores the values of the current millisecond.
    pub(super) fn close(&mut self) {
        while (self.at >> self.fold) as usize >= MOST {
            self.fold += 1;
            let pairs = self.points.chunks(2);
            self.points = pairs
                .map(|pair| pair.iter().fold(Point::default(), |a, b| a.max(*b)))
                .collect();
        }
        let index = (self.at >> self.fold) as usize;
        if self.points.len() <= index {
            self.points.resize(index + 1, Point::default());
        }
        let point = &mut self.points[index];
        *point = point.max(self.current);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_keeps_the_largest() {
        let mut series = Series::default();
        for (ms, packets) in [(0, 3), (1, 5), (70_000, 2), (400_000, 4)] {
            for count in 1..=packets {
                series.add(ms * MILLISECOND, count, count == 1);
            }
        }
        series.close();
        assert_eq!(series.fold, 3);
        assert_eq!(series.points.len(), 50_001);
        let point = |packets| Point {
            packets,
            new_flows: 1,
            flow_packets: packets,
        };
        assert_eq!(series.points[0], point(5));
        assert_eq!(series.points[70_000 >> 3], point(2));
        assert_eq!(series.points[50_000], point(4));
        assert_eq!(series.points[1], Point::default());
    }

    #[test]
    fn absurd_times_take_no_memory() {
        let mut series = Series::default();
        series.add(0, 1, true);
        series.add(u64::MAX, 1, true);
        series.close();
        assert!(series.points.len() <= MOST);
    }
}
