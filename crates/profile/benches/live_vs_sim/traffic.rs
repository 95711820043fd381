//! Packets of a cell, for live runs and for the simulator.

use crate::{TRAINING, TRAINING_SEED};
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_sim::Recording;
use tailwater_traffic::bursts::{Arrivals, PacketArrivals};
use tailwater_traffic::generate::preset;
use tailwater_traffic::{CaptureReader, LoadOptions, ReadOptions, Trace};

/// Length of generated traffic; it is repeated with renumbered flows.
const GENERATED: Nanos = Nanos::from_millis(500);

fn options() -> LoadOptions {
    LoadOptions {
        memory_limit_bytes: 8 << 30,
        ..LoadOptions::default()
    }
}

/// Returns traffic at `rate` packets per second. Presets superpose more flows, whose bursts are preserved. A capture
/// ignores the seed and is played faster; `None` if the captures are missing.
pub fn trace(traffic: &str, seed: u64, rate: f64) -> Option<Trace> {
    if preset(traffic).is_ok() {
        return preset_trace(traffic, seed, rate);
    }
    let data = PathBuf::from(std::env::var_os("TAILWATER_TEST_DATA")?);
    let file = ["pcap.zst", "pcapng.zst"].map(|end| data.join(format!("traces/{traffic}.{end}")));
    let file = file.iter().find(|file| file.exists())?;
    let mut capture = CaptureReader::open(file, &ReadOptions::default()).expect("a capture");
    let mut trace = Trace::load(&mut capture, &options()).expect("traffic fits");
    let own = 1.0 / trace.mean_gap().as_secs_f64();
    trace.scale_rate(rate / own).expect("a rate above zero");
    Some(trace)
}

/// Like [`trace`], for presets only.
pub fn preset_trace(name: &str, seed: u64, rate: f64) -> Option<Trace> {
    let preset = preset(name).ok()?;
    let own = preset.mean_rate_pps();
    let preset = preset.scaled(rate / own).with(seed, GENERATED);
    let mut source = preset.open().expect("traffic");
    Some(Trace::load(&mut *source, &options()).expect("traffic fits"))
}

/// Returns the training traffic.
pub fn training() -> Trace {
    let own = preset(TRAINING).expect("a preset").mean_rate_pps();
    preset_trace(TRAINING, TRAINING_SEED, own.max(1e6)).expect("a preset")
}

/// Returns the packets that the trace NIC delivers in `length`: it repeats the trace with renumbered flows.
pub fn recording(trace: &Trace, length: Nanos) -> Arc<Recording> {
    let mut arrivals = PacketArrivals::new(trace.source());
    let (mut packets, mut numbers) = (Vec::new(), std::collections::HashMap::new());
    while let Some(arrival) = arrivals.next_arrival().expect("a trace in memory") {
        let flows = numbers.len() as u32;
        let flow = *numbers.entry(arrival.flow).or_insert(flows);
        packets.push((arrival.time, flow, arrival.bytes as u16));
    }
    let lap = trace.duration() + trace.mean_gap();
    let flows = numbers.len() as u32;
    let laps = (0..).flat_map(|number: u32| {
        let packets = packets.iter();
        packets.map(move |&(time, flow, bytes)| {
            let time = Nanos(u64::from(number) * lap.0 + time.0);
            (time, number * flows + flow, bytes)
        })
    });
    let within = laps.take_while(|(time, ..)| *time < length);
    Arc::new(Recording::of_packets(trace.name(), within, 64))
}
