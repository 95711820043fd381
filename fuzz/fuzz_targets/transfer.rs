//! Any bytes as flows of another process, and as a message of a take-over: reading never panics, takes no more flows
//! than the table has, and packets pass the chain afterwards.
//!
//! ```text
//! cargo +nightly fuzz run transfer
//! ```
//!
//! Put a failing input into a test of `crates/chain/src/chain/transfer/tests.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_fuzz::FuzzedChain;
use tailwater_net::Nanos;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, protocol};
use tailwater_server::take_over::Message;

const SPEC: &str = "
  functions:
    - nat: {external: [203.0.113.0/30], internal: [10.0.0.0/8]}
    - loadBalancer:
        services: [{address: 198.18.0.0/15, port: any, protocol: udp, backends: [{address: 192.0.2.1, port: 80}]}]
    - accounting:
  slo: {latency: 200us}
  flows: {capacity: 512}
";

/// Bytes of a row of these functions: a mark and the state of each.
const ROW: u32 = 3 + 12 + 8 + 24;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode().unwrap()[4..]).unwrap(), message);
    }
    let now = Nanos::from_secs(1);
    let mut chain = FuzzedChain::new(SPEC, 8);
    chain.import_flows(bytes, now);
    // Behind a valid header for any number of groups.
    let header = [&b"TWFLOWS1"[..], &ROW.to_le_bytes(), &[0; 4], &u64::MAX.to_le_bytes()].concat();
    chain.import_flows(&[&header[..], bytes].concat(), now);
    for port in 1..=8 {
        let key = FlowKey::v4([10, 0, 0, 1].into(), [198, 18, 0, 1].into(), protocol::UDP, port, 53);
        chain.add(&FrameBuilder::new(&key).to_vec().unwrap(), now);
    }
    chain.process(Nanos::from_secs(100), |_, _| {});
    chain.check_counts();
});
