//! Any bytes as packets through ACL, NAT, load balancer, accounting and encryption, through a firewall, and through
//! branches. There is never a panic, all buffers return to the pool, and every packet is sent or counted.
//!
//! ```text
//! cargo +nightly fuzz run chain
//! ```
//!
//! The input is cut into packets: a byte for the length in units of 8 bytes, then that many bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::path::Path;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Outcome};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;

const SPEC: &str = "
apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata: {name: fuzz}
spec:
  functions:
    - acl: {rules: [{action: deny, destinationPorts: 22, protocol: tcp}], default: allow}
    - nat: {external: [203.0.113.0/30], internal: [0.0.0.0/1]}
    - loadBalancer:
        services:
          - address: 0.0.0.0/1
            port: any
            protocol: tcp
            backends: [{address: 192.0.2.1, port: 80}, {address: 192.0.2.2, weight: 3}]
          - {address: '::/0', port: any, protocol: udp, backends: [{address: '2001:db8::1'}]}
    - accounting:
    - encrypt:
        key: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
        midstream: encrypt
        otherProtocols: pass
  slo: {latency: 200us}
  flows: {capacity: 512}
";

const FIREWALL: &str = "
apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata: {name: fuzz}
spec:
  functions:
    - firewall:
        zones: {low: {prefixes: [0.0.0.0/1, '::/1']}, high: {prefixes: any}}
        rules: [allow from low, deny tcp from high ports 22, allow udp, allow tcp state invalid]
        halfOpen: {total: 50, perDestination: 10}
        tcp: {midstream: allow}
    - accounting:
  slo: {latency: 200us}
  flows: {capacity: 512}
";

const BRANCHES: &str = "
apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata: {name: fuzz}
spec:
  functions:
    - classifier:
        directions: each
        rules: [{to: low, source: 0.0.0.0/1}, {to: send, protocol: icmp}, {to: odd, sourcePorts: 1-32767}]
        branches:
          low:
            functions:
              - name: inner
                classifier:
                  rules: [{to: web, destinationPorts: 80-443}]
                  branches: {web: {functions: [urlFilter: {patterns: [example.net]}], then: send}}
              - acl: {rules: [{action: deny, destinationPorts: 22}], default: allow}
          odd:
            functions: [policer: {limits: [{per: flow, rate: 1Mbps, burst: 1600}]}]
    - nat: {external: [203.0.113.0/30], internal: [0.0.0.0/1]}
    - accounting:
  slo: {latency: 200us}
  flows: {capacity: 512}
";

struct Rig {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    rss: RssHasher,
    now: Nanos,
    offered: u64,
    sent: u64,
}

impl Rig {
    fn new(spec: &str) -> Rig {
        let spec = ChainSpec::parse(spec, "fuzz", Path::new(".")).expect("a right spec");
        let rss = spec.rss();
        let mut builder = ChainBuilder::new(&spec, &rss, 1).expect("enough memory");
        let pool = BufferPool::new(64, 2048).expect("enough memory");
        Rig {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, 32),
            pool,
            rss,
            now: Nanos::from_secs(1),
            offered: 0,
            sent: 0,
        }
    }

    fn run(&mut self, mut bytes: &[u8]) {
        while let Some((length, rest)) = bytes.split_first() {
            let (frame, rest) = rest.split_at(rest.len().min(usize::from(*length) * 8));
            bytes = rest;
            let hash = parse(frame).map_or(0, |headers| self.rss.hash_headers(&headers));
            self.offered += 1;
            assert!(self.batch.push(&mut self.pool, frame, self.now, hash));
            if self.batch.room() == 0 || bytes.is_empty() {
                self.now += Nanos::from_millis(100);
                self.chain.process(&mut self.batch, self.now);
                self.sent += self.batch.len() as u64;
                self.batch.release(&mut self.pool);
                self.chain.expire(self.now);
            }
        }
        assert_eq!(self.pool.available(), self.pool.capacity());
        let reasons = self.chain.reasons().into_iter().zip(self.chain.reason_counts());
        let gone: u64 = reasons
            .filter(|(reason, _)| reason.outcome != Outcome::Passed)
            .map(|(_, count)| count)
            .sum();
        assert_eq!(self.offered, self.sent + gone);
    }
}

thread_local! {
    static RIGS: RefCell<[Rig; 3]> = RefCell::new([SPEC, FIREWALL, BRANCHES].map(Rig::new));
}

fuzz_target!(|bytes: &[u8]| RIGS.with_borrow_mut(|rigs| rigs.iter_mut().for_each(|rig| rig.run(bytes))));
