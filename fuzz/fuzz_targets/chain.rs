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
use tailwater_fuzz::FuzzedChain;
use tailwater_net::Nanos;

const SPEC: &str = "
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
    chain: FuzzedChain,
    now: Nanos,
}

impl Rig {
    fn new(fields: &str) -> Rig {
        Rig {
            chain: FuzzedChain::new(fields, 32),
            now: Nanos::from_secs(1),
        }
    }

    fn run(&mut self, mut bytes: &[u8]) {
        while let Some((length, rest)) = bytes.split_first() {
            let (frame, rest) = rest.split_at(rest.len().min(usize::from(*length) * 8));
            bytes = rest;
            if self.chain.add(frame, self.now) || bytes.is_empty() {
                self.now += Nanos::from_millis(100);
                self.chain.process(self.now, |_, _| {});
            }
        }
        self.chain.check_counts();
    }
}

thread_local! {
    static RIGS: RefCell<[Rig; 3]> = RefCell::new([SPEC, FIREWALL, BRANCHES].map(Rig::new));
}

fuzz_target!(|bytes: &[u8]| RIGS.with_borrow_mut(|rigs| rigs.iter_mut().for_each(|rig| rig.run(bytes))));
