//! Tests of the filter, without Tailwater.

use dns_filter::DnsFilter;
use std::net::IpAddr;
use tailwater_sdk::FlowKey;
use tailwater_sdk::testing::{Harness, Outcome, frame};

fn key(port: u16, to: u16) -> FlowKey {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    FlowKey::new(ip("10.0.0.1"), ip("198.51.100.7"), 17, port, to)
}

/// Builds a query for a name.
fn query(name: &str) -> Vec<u8> {
    let mut message = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

#[test]
fn listed_names_and_those_below_are_dropped() {
    let mut harness = Harness::<DnsFilter>::new(r#"{"names": ["example.com", "ads.test."]}"#).unwrap();
    let mut dropped = |port, payload: &[u8]| {
        let key = key(5000, port);
        let frame = frame(&key, payload);
        match &harness.process(&[(key, frame.clone())])[..] {
            [Outcome::Dropped(0)] => true,
            [Outcome::Forwarded(as_it_came)] if *as_it_came == frame => false,
            other => panic!("{other:?}"),
        }
    };
    assert!(dropped(53, &query("example.com")));
    assert!(dropped(53, &query("WWW.Example.COM")));
    assert!(dropped(53, &query("a.b.ads.test")));
    assert!(!dropped(53, &query("example.org")));
    assert!(!dropped(53, &query("notexample.com")));
    assert!(!dropped(53, &query("com")));
    assert!(!dropped(54, &query("example.com")));
    let mut answer = query("example.com");
    answer[2] |= 0x80;
    assert!(!dropped(53, &answer));
    for cut in 0..query("example.com").len() - 5 {
        assert!(!dropped(53, &query("example.com")[..cut]), "{cut} bytes");
    }
    assert_eq!(harness.counters(), [6, 25]);
}

#[test]
fn names_that_are_none_are_refused() {
    for (config, expected) in [
        (
            r#"{"names": ["a..b"]}"#,
            "names[0]: expected a name such as example.com",
        ),
        (r#"{"names": ["a.b", 7]}"#, "names[1]: expected a text, found 7"),
        ("{}", "expected names: a list of names, found none"),
    ] {
        let error = Harness::<DnsFilter>::new(config).err().unwrap();
        assert_eq!(error.to_string(), expected);
    }
}
