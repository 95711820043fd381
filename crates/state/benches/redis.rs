//! Cost of flow state in Redis, with a real server on a Unix socket.
//!
//! `cargo bench -p tailwater-state --bench redis` prints one JSON line per figure: median, minimum and maximum of the
//! runs. Batches have 32 packets of 10,000 flows that are all known by then. The cases take turns:
//!
//! - `state/nat/ns-per-packet/none`, `.../redis`: worker time per packet for a chain that changes no state: the cost of
//!   checking for changes.
//! - `state/accounting/ns-per-packet/none`, `.../redis`: the same where every packet changes its flow's state.
//! - `state/accounting/kpps`: throughput in thousand packets per second, bounded by Redis' acknowledgements.
//! - `state/accounting/wait-us`: time a packet waits for the acknowledgement, with one batch in flight: median and
//!   `wait-p99-us`.
//! - `state/nat/new-flow-wait-us`: time the first packet of a connection waits, for the look-up and the
//!   acknowledgement.

#[path = "../tests/rig/mod.rs"]
mod rig;
#[path = "../tests/server/mod.rs"]
mod server;

use rig::{Instance, spec};
use server::RedisServer;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_state::redis::{Access, RedisStore};

const FLOWS: u32 = 10_000;
const BATCH: usize = 32;
const RUNS: usize = 7;
const NAT: &str = "nat: {external: [203.0.113.0/28]}";
const ACCOUNTING: &str = "accounting: {}";

fn chain(server: &RedisServer, functions: &str) -> ChainSpec {
    let mut spec = spec(functions, ", wait: 10s, packets: 32768");
    spec.flows.capacity = 65_536;
    if let Some(state) = &mut spec.state {
        state.redis.address = tailwater_api::RedisAddress::Socket(server.socket());
    }
    spec
}

fn instance(server: &RedisServer, functions: &str) -> Instance {
    let spec = chain(server, functions);
    let redis = spec.state.clone().expect("it keeps state").redis;
    Instance::on(&spec, Nanos::from_secs(1), |functions| {
        let access = Access::open(&redis, "bench", None, functions);
        let access = access.unwrap_or_else(|e| panic!("{e}"));
        Box::new(RedisStore::new(Arc::new(access)))
    })
}

/// Batches of packets of these flows.
fn batches(flows: std::ops::Range<u32>) -> Vec<Vec<Vec<u8>>> {
    let frame = |n: u32| {
        let [_, b, c, d] = n.to_be_bytes();
        let (host, port) = (Ipv4Addr::new(10, b, c, d), 1024 + (n % 50_000) as u16);
        let key = FlowKey::v4(
            host,
            Ipv4Addr::new(198, 51, 100, (n % 200) as u8),
            protocol::UDP,
            port,
            53,
        );
        FrameBuilder::new(&key).to_vec().expect("a frame")
    };
    let frames: Vec<Vec<u8>> = flows.map(frame).collect();
    frames.chunks_exact(BATCH).map(<[_]>::to_vec).collect()
}

#[derive(Default)]
struct Figures(BTreeMap<(&'static str, &'static str), Vec<f64>>);

impl Figures {
    fn add(&mut self, name: &'static str, unit: &'static str, value: f64) {
        self.0.entry((name, unit)).or_default().push(value);
    }

    fn print(mut self) {
        for ((name, unit), values) in &mut self.0 {
            values.sort_by(f64::total_cmp);
            let (median, least, most) = (values[values.len() / 2], values[0], values[values.len() - 1]);
            let runs = values.len();
            println!(
                "{{\"name\": \"{name}\", \"value\": {median:.2}, \"unit\": \"{unit}\", \"min\": {least:.2}, \
                 \"max\": {most:.2}, \"runs\": {runs}}}"
            );
        }
    }
}

fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) * percent / 100]
}

/// Worker time per packet in nanoseconds and throughput in kpps, with state in Redis.
fn kept(instance: &mut Instance, batches: &[Vec<Vec<u8>>], now: Nanos) -> (f64, f64) {
    let (mut worked, mut packets) = (0, 0);
    let start = Instant::now();
    for batch in batches {
        // Stays within the bounds: lost packets cost less.
        while instance.keeper.as_ref().is_some_and(|keeper| keeper.waiting() > 16_384) {
            instance.turn(&[], now);
        }
        let began = Instant::now();
        instance.turn(batch, now);
        worked += began.elapsed().as_nanos();
        packets += batch.len();
    }
    instance.settle(now);
    let took = start.elapsed().as_secs_f64();
    (worked as f64 / packets as f64, packets as f64 / took / 1e3)
}

/// Worker time per packet in nanoseconds, without external state.
fn alone(instance: &mut Instance, batches: &[Vec<Vec<u8>>], now: Nanos) -> f64 {
    let start = Instant::now();
    batches.iter().for_each(|batch| instance.pass(batch, now));
    start.elapsed().as_nanos() as f64 / (batches.len() * BATCH) as f64
}

/// Waiting times of batches with one in flight at a time, in microseconds.
fn waits(instance: &mut Instance, batches: &[Vec<Vec<u8>>], now: Nanos) -> Vec<f64> {
    let wait = |batch: &Vec<Vec<u8>>| {
        let began = Instant::now();
        instance.turn(batch, now);
        instance.settle(now);
        began.elapsed().as_nanos() as f64 / 1e3
    };
    batches.iter().map(wait).collect()
}

fn main() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let now = Nanos::from_secs(2);
    let known = batches(0..FLOWS);
    let mut figures = Figures::default();
    let mut instances = [NAT, ACCOUNTING].map(|functions| {
        let mut instance = instance(&server, functions);
        instance.discard = true;
        kept(&mut instance, &known, now);
        instance
    });
    let mut fresh = FLOWS;
    for run in 0..RUNS {
        eprintln!("run {} of {RUNS}", run + 1);
        let [nat, accounting] = &mut instances;
        figures.add("state/nat/ns-per-packet/none", "ns", alone(nat, &known, now));
        figures.add("state/nat/ns-per-packet/redis", "ns", kept(nat, &known, now).0);
        let cost = alone(accounting, &known, now);
        figures.add("state/accounting/ns-per-packet/none", "ns", cost);
        let (cost, kpps) = kept(accounting, &known, now);
        figures.add("state/accounting/ns-per-packet/redis", "ns", cost);
        figures.add("state/accounting/kpps", "kpps", kpps);
        let mut waited = waits(accounting, &known, now);
        figures.add("state/accounting/wait-us", "us", percentile(&mut waited, 50));
        figures.add("state/accounting/wait-p99-us", "us", percentile(&mut waited, 99));
        let new = batches(fresh..fresh + 100 * BATCH as u32);
        fresh += 100 * BATCH as u32;
        let mut waited = waits(nat, &new, now);
        figures.add("state/nat/new-flow-wait-us", "us", percentile(&mut waited, 50));
    }
    for instance in instances {
        let counters = instance.end(now);
        assert_eq!(counters.dropped, 0, "packets were lost: {counters:?}");
    }
    figures.print();
}
