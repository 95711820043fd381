//! Trace in memory, in arrival order, which the trace NIC replays.

use tailwater_net::Nanos;

use crate::{Notice, Packet, PacketSource, TrafficError};

/// Alignment of packets in bytes: an aligned header touches one cache line less.
pub const ALIGNMENT: usize = 64;

/// Options for loading a trace.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Maximum memory of the trace in bytes: packets, each rounded up to [`ALIGNMENT`], and a record of 16 bytes per
    /// packet. While loading, address space for all of it is reserved. If the system does not allow that, growing may
    /// take up to twice the trace's size for a moment.
    pub memory_limit_bytes: u64,
    /// Ignores the timestamps, and spaces the packets evenly at this rate in packets per second, in the order of the
    /// source.
    pub rate_pps: Option<f64>,
}

impl Default for LoadOptions {
    /// 4 GiB, with the timestamps of the source.
    fn default() -> Self {
        LoadOptions {
            memory_limit_bytes: 4 << 30,
            rate_pps: None,
        }
    }
}

/// Size in lines (64 MiB) below which traces give the reserved address space back.
const SMALL: usize = (64 << 20) / ALIGNMENT;

/// One cache line of packet bytes.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// Position of a packet in the trace: 16 bytes.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Time since the first packet; while loading, time of the source.
    arrival: Nanos,
    /// Index of the packet's first line.
    line: u32,
    /// Length in bytes, 1 to [`MAX_FRAME`](crate::MAX_FRAME).
    length: u16,
}

/// Whole trace in memory, in arrival order.
///
/// All packets are in one contiguous region, each at a multiple of [`ALIGNMENT`] bytes. Access takes two loads. Nothing
/// is allocated after loading.
#[derive(Clone)]
pub struct Trace {
    name: String,
    lines: Vec<Line>,
    records: Vec<Record>,
    notices: Vec<Notice>,
    bytes: u64,
    /// Interval between packets, if a rate is set.
    spacing: Option<Nanos>,
}

impl Trace {
    /// Loads a source to its end.
    ///
    /// Packets out of order are sorted by time, with a [notice](Trace::notices). Packets of equal time keep the
    /// source's order.
    ///
    /// # Errors
    /// Errors of the source; [`TrafficError::NoPackets`] if it is empty; [`TrafficError::NoTimestamps`] if it has more
    /// than one packet and all have the same time, unless [`LoadOptions::rate_pps`] is set;
    /// [`TrafficError::MemoryLimit`]; [`TrafficError::Setting`] if the rate is out of range.
    pub fn load<S: PacketSource + ?Sized>(source: &mut S, options: &LoadOptions) -> Result<Self, TrafficError> {
        if let Some(rate) = options.rate_pps {
            check_rate(rate)?;
        }
        let name = source.name().to_owned();
        let mut trace = Trace {
            name,
            lines: Vec::new(),
            records: Vec::new(),
            notices: Vec::new(),
            bytes: 0,
            spacing: None,
        };
        trace.reserve(options.memory_limit_bytes);
        while let Some(packet) = source.next_packet()? {
            if !trace.push(packet.timestamp, packet.data, options.memory_limit_bytes) {
                return Err(TrafficError::MemoryLimit {
                    file: trace.name,
                    limit_bytes: options.memory_limit_bytes,
                    packets: trace.records.len() as u64 + 1,
                });
            }
        }
        trace.notices = source.notices();
        match options.rate_pps {
            Some(rate) => trace.space_evenly(rate),
            None => trace.order()?,
        }
        if trace.is_empty() {
            return Err(TrafficError::NoPackets {
                file: trace.name,
                reason: "the source ended before its first packet".to_owned(),
            });
        }
        // A small trace gives the reservation back, because copying it costs little.
        if trace.lines.len() < SMALL {
            trace.lines.shrink_to_fit();
        }
        Ok(trace)
    }

    /// Reserves address space, not memory, up to the limit. The region then never moves while it grows, which would
    /// double loading time and memory. If the reservation fails, the region moves as it grows.
    fn reserve(&mut self, limit: u64) {
        let lines = limit / ALIGNMENT as u64;
        let lines = usize::try_from(lines).unwrap_or(usize::MAX);
        let _ = self.lines.try_reserve_exact(lines);
    }

    /// Appends a packet. Returns `false` if it exceeds the memory limit (or the allocator's).
    fn push(&mut self, timestamp: Nanos, data: &[u8], limit: u64) -> bool {
        let lines = data.len().div_ceil(ALIGNMENT);
        let first = self.lines.len();
        let total =
            (first + lines) as u64 * ALIGNMENT as u64 + (self.records.len() as u64 + 1) * size_of::<Record>() as u64;
        let (Ok(line), Ok(length)) = (u32::try_from(first), u16::try_from(data.len())) else {
            return false;
        };
        let room = total <= limit && self.lines.try_reserve(lines).is_ok() && self.records.try_reserve(1).is_ok();
        if !room {
            return false;
        }
        let zero: Line = bytemuck::Zeroable::zeroed();
        self.lines.resize(first + lines, zero);
        bytemuck::cast_slice_mut(&mut self.lines[first..])[..data.len()].copy_from_slice(data);
        self.records.push(Record {
            arrival: timestamp,
            line,
            length,
        });
        self.bytes += data.len() as u64;
        true
    }

    /// Sorts by time if necessary, and makes times relative to the first packet.
    fn order(&mut self) -> Result<(), TrafficError> {
        let Some(first) = self.records.first() else {
            return Ok(());
        };
        let mut latest = first.arrival;
        let (mut packets, mut by_at_most) = (0, Nanos::ZERO);
        for record in &self.records {
            if record.arrival < latest {
                packets += 1;
                by_at_most = by_at_most.max(latest - record.arrival);
            }
            latest = latest.max(record.arrival);
        }
        if packets > 0 {
            self.records.sort_by_key(|record| record.arrival);
            self.notices.push(Notice::Sorted {
                file: self.name.clone(),
                packets,
                by_at_most,
            });
        }
        let start = self.records[0].arrival;
        if start == latest && self.records.len() > 1 {
            return Err(TrafficError::NoTimestamps {
                file: self.name.clone(),
                packets: self.records.len() as u64,
            });
        }
        for record in &mut self.records {
            record.arrival -= start;
        }
        Ok(())
    }

    /// Replaces all times: packet `i` arrives at `i / rate`.
    fn space_evenly(&mut self, rate_pps: f64) {
        self.spacing = Some(Nanos::from_secs_f64(1.0 / rate_pps));
        for (i, record) in self.records.iter_mut().enumerate() {
            record.arrival = Nanos((i as f64 * 1e9 / rate_pps).round() as u64);
        }
    }

    /// Returns the source's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of packets, at least one.
    #[inline]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns `true` if there are no packets, which never happens after loading.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the frame of packet `index`, in arrival order.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Trace::len).
    #[inline]
    pub fn packet(&self, index: usize) -> &[u8] {
        let record = &self.records[index];
        let start = record.line as usize * ALIGNMENT;
        &bytemuck::cast_slice(&self.lines)[start..start + record.length as usize]
    }

    /// Returns all packets' bytes in whole cache lines. Each packet starts a line, and zeros fill its last one.
    #[inline]
    pub fn lines(&self) -> &[[u8; ALIGNMENT]] {
        bytemuck::cast_slice(&self.lines)
    }

    /// Returns the index in [`lines`](Trace::lines) of the first line of packet `index`.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Trace::len).
    #[inline]
    pub fn line(&self, index: usize) -> u32 {
        self.records[index].line
    }

    /// Returns the length of packet `index` in bytes, without accessing the packet.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Trace::len).
    #[inline]
    pub fn length(&self, index: usize) -> usize {
        self.records[index].length as usize
    }

    /// Returns the arrival time of packet `index`, relative to the first packet.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Trace::len).
    #[inline]
    pub fn arrival(&self, index: usize) -> Nanos {
        self.records[index].arrival
    }

    /// Returns the time from the first packet to the last.
    #[inline]
    pub fn duration(&self) -> Nanos {
        self.records.last().map_or(Nanos::ZERO, |last| last.arrival)
    }

    /// Returns the mean time between packets, at least 1 ns: the pause before a repeated trace starts over. A single
    /// packet without a rate gives 1 ms.
    pub fn mean_gap(&self) -> Nanos {
        let gap = match (self.spacing, self.records.len() as u64) {
            (Some(spacing), _) => spacing,
            (None, 0 | 1) => Nanos::from_millis(1),
            (None, packets) => Nanos(self.duration().0 / (packets - 1)),
        };
        gap.max(Nanos(1))
    }

    /// Returns the bytes of all frames, without alignment.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the source's warnings, and one about sorting.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// Returns the packets as a source, for writing or measuring. Times are relative to the first packet.
    pub fn source(&self) -> TraceSource<'_> {
        TraceSource { trace: self, next: 0 }
    }

    /// Replays `factor` times as fast: all times are divided by it.
    ///
    /// # Errors
    /// [`TrafficError::Setting`] if the factor is not a positive number; the trace is unchanged.
    pub fn scale_rate(&mut self, factor: f64) -> Result<(), TrafficError> {
        if !(factor.is_finite() && factor > 0.0) {
            return Err(TrafficError::setting("rate factor", factor, "a number above zero"));
        }
        self.spacing = self.spacing.map(|spacing| Nanos((spacing.0 as f64 / factor) as u64));
        for record in &mut self.records {
            // A float represents instants below 104 days exactly, and monotonically beyond.
            record.arrival = Nanos((record.arrival.0 as f64 / factor).round() as u64);
        }
        Ok(())
    }
}

/// Source of the packets of a [`Trace`], in order.
#[derive(Clone, Debug)]
pub struct TraceSource<'a> {
    trace: &'a Trace,
    next: usize,
}

impl PacketSource for TraceSource<'_> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if self.next == self.trace.len() {
            return Ok(None);
        }
        let index = self.next;
        self.next += 1;
        Ok(Some(Packet {
            timestamp: self.trace.arrival(index),
            data: self.trace.packet(index),
            wire_length: self.trace.length(index) as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        self.trace.notices.clone()
    }

    fn name(&self) -> &str {
        self.trace.name()
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace")
            .field("name", &self.name)
            .field("packets", &self.records.len())
            .field("bytes", &self.bytes)
            .field("duration", &self.duration())
            .finish_non_exhaustive()
    }
}

/// Rejects rates that are not positive and finite.
pub(crate) fn check_rate(rate_pps: f64) -> Result<(), TrafficError> {
    // At lower rates, times overflow before traces end.
    if rate_pps.is_finite() && rate_pps >= 1e-6 {
        return Ok(());
    }
    Err(TrafficError::setting(
        "rate",
        rate_pps,
        "packets per second, above zero",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets from a list of (time, frame).
    struct List {
        packets: Vec<(u64, Vec<u8>)>,
        next: usize,
    }

    impl PacketSource for List {
        fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
            self.next += 1;
            Ok(self.packets.get(self.next - 1).map(|(time, data)| Packet {
                timestamp: Nanos(*time),
                data,
                wire_length: data.len() as u32,
            }))
        }

        fn notices(&self) -> Vec<Notice> {
            Vec::new()
        }

        fn name(&self) -> &str {
            "list"
        }
    }

    fn load(times: &[u64], options: &LoadOptions) -> Result<Trace, TrafficError> {
        let packets = times.iter().enumerate();
        let packets = packets.map(|(i, time)| (*time, vec![i as u8; 60 + i])).collect();
        Trace::load(&mut List { packets, next: 0 }, options)
    }

    #[test]
    fn keeps_bytes_lengths_and_relative_times() {
        let trace = load(&[1_000, 1_000, 1_500, 9_000], &LoadOptions::default()).unwrap();
        assert_eq!(trace.len(), 4);
        assert_eq!(trace.bytes(), 60 + 61 + 62 + 63);
        assert_eq!(trace.duration(), Nanos(8_000));
        for (i, arrival) in [0, 0, 500, 8_000].into_iter().enumerate() {
            assert_eq!(trace.packet(i), vec![i as u8; 60 + i]);
            assert_eq!(trace.length(i), 60 + i);
            assert_eq!(trace.arrival(i), Nanos(arrival));
            assert_eq!(trace.packet(i).as_ptr() as usize % ALIGNMENT, 0);
        }
        assert!(trace.notices().is_empty());
        assert_eq!(size_of::<Record>(), 16);
    }

    #[test]
    fn sorts_stably_and_says_so() {
        let trace = load(&[500, 100, 400, 100, 500, 600], &LoadOptions::default()).unwrap();
        let order: Vec<u8> = (0..6).map(|i| trace.packet(i)[0]).collect();
        assert_eq!(order, [1, 3, 2, 0, 4, 5]);
        assert_eq!(trace.duration(), Nanos(500));
        assert_eq!(
            trace.notices(),
            [Notice::Sorted {
                file: "list".to_owned(),
                packets: 3,
                by_at_most: Nanos(400)
            }]
        );
    }

    #[test]
    fn many_packets_of_equal_time_keep_their_order() {
        let times: Vec<u64> = (0..200).map(|i| (i * 7) % 5).collect();
        let trace = load(&times, &LoadOptions::default()).unwrap();
        for i in 1..trace.len() {
            let (before, after) = (trace.packet(i - 1)[0], trace.packet(i)[0]);
            assert!(trace.arrival(i - 1) < trace.arrival(i) || before < after);
        }
    }

    #[test]
    fn equal_times_need_a_rate() {
        let error = load(&[7, 7, 7], &LoadOptions::default()).unwrap_err();
        assert!(matches!(error, TrafficError::NoTimestamps { packets: 3, .. }));
        assert!(error.to_string().contains("--rate"), "{error}");
        assert_eq!(load(&[7], &LoadOptions::default()).unwrap().len(), 1);

        let rate = |rate_pps| LoadOptions {
            rate_pps: Some(rate_pps),
            ..LoadOptions::default()
        };
        let trace = load(&[7, 7, 7], &rate(2e6)).unwrap();
        let arrivals: Vec<u64> = (0..3).map(|i| trace.arrival(i).0).collect();
        assert_eq!(arrivals, [0, 500, 1_000]);
        // With a rate, the source's order is kept, whatever the times.
        let trace = load(&[9, 3], &rate(1e9)).unwrap();
        assert_eq!(trace.packet(0)[0], 0);
        assert!(trace.notices().is_empty());
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                load(&[1], &rate(wrong)),
                Err(TrafficError::Setting { field: "rate", .. })
            ));
        }
    }

    #[test]
    fn the_memory_limit_counts_lines_and_records() {
        let limit = |memory_limit_bytes| LoadOptions {
            memory_limit_bytes,
            rate_pps: None,
        };
        // Packets of 60 to 64 bytes fill one line each, the sixth two; a record has 16 bytes.
        assert_eq!(load(&[1, 2, 3, 4, 5], &limit(400)).unwrap().len(), 5);
        let error = load(&[1, 2, 3, 4, 5, 6], &limit(400 + 143)).unwrap_err();
        assert!(matches!(error, TrafficError::MemoryLimit { packets: 6, .. }), "{error}");
        assert_eq!(load(&[1, 2, 3, 4, 5, 6], &limit(400 + 144)).unwrap().len(), 6);
    }

    #[test]
    fn an_empty_source_is_no_trace() {
        assert!(matches!(
            load(&[], &LoadOptions::default()),
            Err(TrafficError::NoPackets { .. })
        ));
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let mut trace = load(&[u64::MAX, 0, 5], &LoadOptions::default()).unwrap();
        assert_eq!(trace.duration(), Nanos::MAX);
        trace.scale_rate(1e-300).unwrap();
        assert_eq!(trace.duration(), Nanos::MAX);
    }

    #[test]
    fn scaling_divides_times() {
        let mut trace = load(&[10, 20, 50], &LoadOptions::default()).unwrap();
        trace.scale_rate(4.0).unwrap();
        let arrivals: Vec<u64> = (0..3).map(|i| trace.arrival(i).0).collect();
        assert_eq!(arrivals, [0, 3, 10], "rounded to the nearest nanosecond");
        for wrong in [0.0, -2.0, f64::NAN, f64::INFINITY] {
            assert!(trace.scale_rate(wrong).is_err());
        }
        assert_eq!(trace.duration(), Nanos(10));
    }
}
