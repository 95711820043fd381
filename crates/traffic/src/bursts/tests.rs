use super::*;
use crate::Notice;
use crate::bursts::queues::core;
use tailwater_net::FlowKey;

/// Arrivals in memory: (nanoseconds, flow).
struct List {
    arrivals: Vec<(u64, u64)>,
    next: usize,
}

impl Arrivals for List {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        let arrival = self.arrivals.get(self.next);
        self.next += 1;
        Ok(arrival.map(|(time, flow)| Arrival {
            time: Nanos(*time),
            flow: Some(*flow),
            bytes: 100,
        }))
    }

    fn flow_key(&self) -> FlowKey {
        FlowKey::default()
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "list"
    }
}

fn study(arrivals: &[(u64, u64)], services_us: &[u64]) -> BurstStudy {
    let options = StudyOptions {
        services: services_us.iter().map(|us| Nanos::from_micros(*us)).collect(),
        memory_limit_bytes: 1 << 30,
    };
    let open = || {
        Ok(List {
            arrivals: arrivals.to_vec(),
            next: 0,
        })
    };
    BurstStudy::measure(open, &options).unwrap()
}

/// Pseudo-random bursty arrivals (xorshift), sorted.
fn bursty(count: usize, mut state: u64) -> Vec<(u64, u64)> {
    let mut random = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let mut arrivals = vec![];
    while arrivals.len() < count {
        let (start, flow) = (random(12_000_000), random(60));
        let (packets, apart) = (1 + random(40), 500 + random(9_000));
        arrivals.extend((0..packets).map(|k| (start + k * apart, flow)));
    }
    arrivals.sort_unstable();
    arrivals
}

/// Returns the percentile by nearest rank.
fn percentile(latencies: &[u64], share: f64) -> u64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    sorted[((sorted.len() as f64 * share).ceil() as usize).max(1) - 1]
}

/// Returns the latencies of a FIFO server by Lindley's recursion, over packets in order of time.
fn fifo(times: &[u64], service: u64) -> Vec<u64> {
    let (mut wait, mut last) = (0u64, times.first().copied().unwrap_or(0));
    let mut latencies = vec![];
    for (i, time) in times.iter().enumerate() {
        if i > 0 {
            wait = (wait + service).saturating_sub(time - last);
        }
        last = *time;
        latencies.push(wait + service);
    }
    latencies
}

/// Groups packets by flow.
fn by_flow(arrivals: &[(u64, u64)]) -> Vec<(u64, Vec<u64>)> {
    let mut flows: Vec<u64> = arrivals.iter().map(|(_, flow)| *flow).collect();
    flows.sort_unstable();
    flows.dedup();
    let times = |flow: u64| {
        let of_flow = arrivals.iter().filter(|(_, of)| *of == flow);
        of_flow.map(|(time, _)| *time).collect()
    };
    flows.into_iter().map(|flow| (flow, times(flow))).collect()
}

/// Simulates both tables naively: flow by flow, core by core, all in memory.
fn naive(arrivals: &[(u64, u64)], service: u64) -> (Vec<u64>, u32, Vec<u64>) {
    let flows = by_flow(arrivals);
    let mut whales = vec![];
    let mut shaped = vec![];
    for (flow, times) in &flows {
        let latencies = fifo(times, service);
        for (time, latency) in times.iter().zip(&latencies) {
            shaped.push((time + latency - service, *flow));
        }
        whales.extend(latencies);
    }
    shaped.sort_unstable();
    let span = arrivals.last().unwrap().0 - arrivals[0].0;
    let work = arrivals.len() as u64 * service;
    let fewest = (work as f64 / span as f64).ceil().max(1.0) as u32;
    for cores in fewest.. {
        let mut latencies = vec![];
        for at in 0..cores as usize {
            let here = |flow: u64| core((mix(flow) >> 32) as u32, cores as usize) == at;
            let times: Vec<u64> = shaped
                .iter()
                .filter(|(_, flow)| here(*flow))
                .map(|(time, _)| *time)
                .collect();
            latencies.extend(fifo(&times, service));
        }
        if percentile(&latencies, 0.5) < service * 10 {
            return (whales, cores, latencies);
        }
    }
    unreachable!("some number of cores suffices")
}

fn assert_near(seen: Nanos, exact: u64) {
    let ratio = seen.0 as f64 / exact as f64;
    assert!((ratio - 1.0).abs() < 0.009, "{seen} for {exact} ns");
}

#[test]
fn both_tables_are_those_of_a_naive_simulation() {
    for seed in [3, 77, 12_345] {
        let arrivals = bursty(6_000, seed);
        let services = [1, 2, 5, 30];
        let study = study(&arrivals, &services);
        for (i, service) in services.iter().enumerate() {
            let (whales, cores, minnows) = naive(&arrivals, service * 1000);
            let row = &study.whales[i].latency;
            assert_near(row.p50, percentile(&whales, 0.5));
            assert_near(row.p99, percentile(&whales, 0.99));
            assert_eq!(row.max.0, *whales.iter().max().unwrap());
            let found = study.minnows[i].cores.unwrap();
            // The median may differ from the bound by less than the histogram's error, and then fall on either side.
            assert_eq!(found, cores, "seed {seed}, {service} us");
            let row = study.minnows[i].latency.unwrap();
            assert_near(row.p99, percentile(&minnows, 0.99));
            assert_eq!(row.max.0, *minnows.iter().max().unwrap());
        }
    }
}

#[test]
fn a_whale_waits_alone_and_is_shaped_away() {
    // 100 packets of a flow 1 us apart, and packets of other flows far apart.
    let whale = (0..100).map(|k| (5_000_000 + k * 1_000, 1));
    let others = (0..1_000).map(|k| (k * 100_000, 2 + k));
    let mut arrivals: Vec<(u64, u64)> = whale.chain(others).collect();
    arrivals.sort_unstable();
    let study = study(&arrivals, &[10]);
    let row = &study.whales[0].latency;
    assert_near(row.p50, 10_000);
    // The last packet: 100 services, less the 99 us during which packets arrived.
    assert_eq!(row.max, Nanos(1_000_000 - 99_000));
    let minnows = study.minnows[0];
    assert_eq!(minnows.cores, Some(1));
    // While the shaped whale fills the core, ten other packets arrive, and one waits for another.
    assert!(minnows.latency.unwrap().max <= Nanos(12 * 10_000));
    assert_near(minnows.latency.unwrap().p50, 10_000);
    assert_eq!(study.worst_millisecond.flow_packets, 100);
}

#[test]
fn minnows_need_no_whale() {
    // 500 flows of one packet at once, every 100 ms, and steady flows.
    let burst = (0..20u64).flat_map(|b| (0..500).map(move |k| (b * 100_000_000 + k, 10_000 * (b + 1) + k)));
    let steady = (0..100_000u64).map(|k| (k * 20_000 + 7, 1_000_000 + k));
    let mut arrivals: Vec<(u64, u64)> = burst.chain(steady).collect();
    arrivals.sort_unstable();
    let study = study(&arrivals, &[10]);
    assert_eq!(study.whales[0].latency.max, Nanos(10_000));
    let minnows = study.minnows[0];
    assert!(minnows.latency.unwrap().p99 > Nanos::from_millis(2), "{minnows:?}");
    assert!(minnows.latency.unwrap().p50 < Nanos(100_000));
}

#[test]
fn counts_are_those_of_the_packets() {
    let arrivals = [
        (5_000_000_000, 1),
        (5_000_500_000, 2),
        (5_000_400_000, 2),
        (6_200_000_000, 3),
        (7_900_000_000, 1),
    ];
    let study = study(&arrivals, &[5]);
    assert_eq!((study.packets, study.flows, study.bytes), (5, 3, 500));
    assert_eq!(study.packets_out_of_order, 1);
    assert_eq!(study.duration, Nanos(2_900_000_000));
    assert_eq!(study.new_flows_per_second.max, 2);
    assert!((study.new_flows_per_second.mean.unwrap() - 3.0 / 2.9).abs() < 1e-9);
    assert_eq!(study.flow_bytes, FlowBytes { min: 100, max: 200 });
    assert_eq!(study.longest_flow, Nanos(2_900_000_000));
    let worst = study.worst_millisecond;
    assert_eq!((worst.packets, worst.flow_packets, worst.new_flows), (3, 2, 2));
    let text = study.to_string();
    assert!(text.contains("new flows per second    mean 1, max 2\n"), "{text}");
}

#[test]
fn one_packet_is_enough_and_none_is_an_error() {
    let one = study(&[(7, 1)], &[5, 10]);
    assert_eq!(one.minnows[1].cores, Some(1));
    assert_eq!(one.whales[0].latency.p99, Nanos(5_000));
    assert!(one.svg().ends_with("</svg>\n"));
    let empty = || {
        Ok(List {
            arrivals: vec![],
            next: 0,
        })
    };
    let options = |services: Vec<Nanos>, memory_limit_bytes| StudyOptions {
        services,
        memory_limit_bytes,
    };
    let error = BurstStudy::measure(empty, &options(vec![], 1 << 30)).unwrap_err();
    assert!(matches!(error, TrafficError::NoPackets { .. }));
    let error = BurstStudy::measure(empty, &options(vec![Nanos::ZERO], 1 << 30)).unwrap_err();
    assert!(matches!(error, TrafficError::Setting { field: "service", .. }));
    let many = || {
        Ok(List {
            arrivals: (0..5_000).map(|k| (k, k)).collect(),
            next: 0,
        })
    };
    let error = BurstStudy::measure(many, &options(vec![], 100_000)).unwrap_err();
    assert!(matches!(error, TrafficError::MemoryLimit { .. }), "{error}");
}

#[test]
fn the_picture_is_one_document_whatever_the_name() {
    let mut study = study(&bursty(5_000, 9), &[5, 10]);
    study.name = "<script>&\u{1b}[0m".to_owned();
    let svg = study.svg();
    assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("&lt;script&gt;&amp;[0m"));
    assert!(!svg.contains("<script") && !svg.contains("href"));
    assert_eq!(svg.matches("<path fill=").count(), 3);
    assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    let worst = study.worst_millisecond.flow_packets;
    assert!(svg.contains(&format!(">{worst}</text>")));
}
