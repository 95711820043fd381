//! Tests of @NAME@, without Tailwater: `cargo test`.

use @IDENT@_nf::Instance;
use std::net::IpAddr;
use tailwater_sdk::FlowKey;
use tailwater_sdk::testing::{Harness, Outcome, frame};

#[test]
fn each_flow_has_so_many_packets() {
    let [client, server] = ["10.0.0.1", "198.51.100.7"].map(|ip| ip.parse::<IpAddr>().unwrap());
    let packet = |port| {
        let key = FlowKey::new(client, server, 17, port, 53);
        (key, frame(&key, b"question"))
    };
    let mut harness = Harness::<Instance>::new(r#"{"packets": 2}"#).unwrap();
    let outcomes = harness.process(&[packet(1), packet(1), packet(2), packet(1)]);
    let sent = |port| Outcome::Forwarded(packet(port).1);
    assert_eq!(outcomes, [sent(1), sent(1), sent(2), Outcome::Dropped(0)]);
    assert_eq!(harness.counters(), [2]);
    // The flow's state is that after the batch.
    assert_eq!(harness.explanations()[3], "packets of the flow: 3, limit 2");
}

#[test]
fn a_wrong_configuration_is_refused() {
    let error = Harness::<Instance>::new(r#"{"packets": "many"}"#).err().unwrap();
    assert_eq!(error.field, "packets");
}
