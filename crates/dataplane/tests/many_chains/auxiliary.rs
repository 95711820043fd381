//! Auxiliary cores that chains share.

use crate::common::alone;
use crate::common::mappers::{random_flows, random_leases, random_splits};
use crate::redis_server::RedisServer;
use crate::rig::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::shared_port::Unmatched;
use tailwater_dataplane::{RunConfig, RunPlan, cores};
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;

/// Chains whose mappers move their flows at random, in three ways, share auxiliary cores: each packet passes once, in
/// the order of its flow, and the cores are lent to all of them.
#[test]
fn auxiliary_cores_are_lent_to_several_chains() {
    let _alone = alone();
    const PACKETS: u32 = 200_000;
    let available = cores::available();
    let auxiliary = available[..(available.len() - 1).min(2)].to_vec();
    if auxiliary.is_empty() {
        println!("skipped: this needs two cores");
        return;
    }
    let helpers = auxiliary.len();
    // More than the dedicated core can do by itself.
    let trace = trace(4, Nanos(5_000), PACKETS);
    let server = Server::with_auxiliary(trace, 1, auxiliary, (false, Unmatched::Drop));
    let wrong = Arc::<AtomicU64>::default();
    let run = |network, scaling| {
        let last = in_order(&wrong);
        let functions = "{accounting: }, {synthetic: {cycles: 6000}}";
        server.run_with(network, functions, 1, (Some(last), Some(scaling)))
    };
    let in_pool = |scaling: ScalingConfig| ScalingConfig {
        auxiliary: available[..helpers].to_vec(),
        buffers: 512,
        ..scaling
    };
    let chains = [
        run("10.0.0.0/16", in_pool(random_flows(1, helpers, Mode::Sleep))),
        run("10.1.0.0/16", in_pool(random_leases(2, helpers, Mode::Sleep, 0))),
        run("10.2.0.0/16", in_pool(random_splits(3, helpers, Mode::Sleep, 3))),
    ];
    server.await_received(u64::from(PACKETS));
    let reports = chains.map(|chain| chain.drain().unwrap());
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "packets out of order");
    for report in &reports {
        assert_books(report);
        assert_eq!(report.packets.dropped_by_nf, 0);
        let scaling = report.scaling.as_ref().unwrap();
        assert!(scaling.activated > 0, "{scaling:?}");
        assert!(scaling.packets_offloaded > 0, "{scaling:?}");
        assert_eq!(report.flows.as_ref().map(|flows| flows.opened), Some(50));
    }
    server.host.stop();
    let offered: u64 = reports.iter().map(|report| report.packets.offered).sum();
    let counts = server.port.counts();
    assert_eq!(counts.received, offered + counts.unmatched + counts.lost, "{counts:?}");
}

/// A chain with flow state in Redis borrows the auxiliary core that one in memory borrows, too.
#[test]
fn a_chain_with_state_in_redis_uses_shared_auxiliary_cores() {
    let _alone = alone();
    let available = cores::available();
    let Some(redis) = RedisServer::start(&[]).filter(|_| available.len() > 1) else {
        println!("skipped: this needs Redis, and two cores");
        return;
    };
    // For a third of a second from the server's start.
    const PACKETS: u32 = 66_000;
    let trace = trace(2, Nanos(5_000), PACKETS);
    let server = Server::with_auxiliary(trace, 1, available[..1].to_vec(), (false, Unmatched::Drop));
    let wrong = Arc::<AtomicU64>::default();
    let in_pool = |scaling: ScalingConfig| ScalingConfig {
        auxiliary: available[..1].to_vec(),
        buffers: 512,
        ..scaling
    };
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: stored}}\nspec:\n  \
         match: {{destinations: [10.0.0.0/16]}}\n  slo: {{latency: 1ms}}\n  flows: {{capacity: 4096}}\n  \
         functions: [{{nat: {{external: [203.0.113.0/28], internal: [192.0.2.0/24]}}}}, \
         {{synthetic: {{cycles: 6000}}}}]\n  \
         state: {{redis: {{socket: {}}}, wait: 10s, packets: 1024}}\n",
        redis.socket().display()
    );
    let mut spec = ChainSpec::parse(&text, "stored", Path::new(".")).unwrap_or_else(|error| panic!("{error}"));
    spec.functions.push(in_order(&wrong));
    let config = RunConfig {
        scaling: Some(in_pool(random_leases(2, 1, Mode::Sleep, 0))),
        ..RunConfig::new(server.cores.clone())
    };
    let stored = server.start_plan(RunPlan::new(spec, config).unwrap(), None);
    let scaling = Some(in_pool(random_flows(1, 1, Mode::Sleep)));
    let functions = "{accounting: }, {synthetic: {cycles: 6000}}";
    let other = server.run_with("10.1.0.0/16", functions, 1, (Some(in_order(&wrong)), scaling));
    server.await_received(u64::from(PACKETS));
    let reports = [stored, other].map(|chain| chain.drain().unwrap());
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "packets out of order");
    for report in &reports {
        assert_books(report);
        let scaling = report.scaling.as_ref().unwrap();
        // On a busy machine a chain may start when the traffic is over.
        assert!(
            report.packets.offered < 10_000 || scaling.packets_offloaded > 0,
            "{scaling:?}"
        );
    }
    let state = reports[0].state.as_ref().unwrap();
    assert_eq!((state.hits, state.dropped), (0, 0), "{state:?}");
    // Both directions of each flow.
    assert_eq!(redis.keys(), 2 * state.reads);
    server.host.stop();
}

#[test]
fn a_panic_on_an_auxiliary_core_ends_only_that_chain() {
    let _alone = alone();
    let available = cores::available();
    if available.len() < 2 {
        println!("skipped: this needs two cores");
        return;
    }
    let trace = trace(2, Nanos(4_000), 3_000);
    let server = Server::with_auxiliary(trace, 1, available[..1].to_vec(), (true, Unmatched::Drop));
    let in_pool = |seed| ScalingConfig {
        auxiliary: available[..1].to_vec(),
        buffers: 512,
        ..random_flows(seed, 1, Mode::Sleep)
    };
    let functions = "{synthetic: {cycles: 12000}}";
    let other = server.run_with("10.1.0.0/16", functions, 1, (None, Some(in_pool(1))));
    let dying = server.run_with("10.0.0.0/16", functions, 1, (Some(dies_after(100)), Some(in_pool(2))));
    let received = server.port.counts().received;
    server.await_received(received + 20_000);
    let error = dying.drain().unwrap_err();
    let report = error.report().unwrap();
    assert_books(report);
    let of_dead = report.packets.offered;
    let received = server.port.counts().received;
    server.await_received(received + 10_000);
    let other = other.drain().unwrap();
    assert_books(&other);
    assert!(
        other
            .scaling
            .as_ref()
            .is_some_and(|scaling| scaling.packets_offloaded > 0)
    );
    server.host.stop();
    let counts = server.port.counts();
    let offered = of_dead + other.packets.offered;
    assert_eq!(counts.received, offered + counts.unmatched + counts.lost, "{counts:?}");
}
