//! Any bytes as a file of routes: reading never panics, an error names a line of the text, and the resulting table
//! agrees with a linear scan.
//!
//! ```text
//! cargo +nightly fuzz run routes
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;
use tailwater_functions::ip_forward::{NextHop, RouteTable, linear, routes_file};

fuzz_target!(|bytes: &[u8]| {
    let hop = |i: u8| NextHop {
        name: format!("n{i}"),
        mac: [2, 0, 0, 0, 0, i],
        source_mac: None,
        address: Some(IpAddr::from([10, 0, 0, i])),
    };
    let hops: Vec<NextHop> = (0..4).map(hop).collect();
    let routes = match routes_file::parse(bytes, &hops) {
        Ok(routes) => routes,
        Err(error) => {
            let lines = bytes.split(|byte| *byte == b'\n').count();
            assert!((1..=lines).contains(&error.line), "{error:?}");
            let shown = error.to_string();
            assert!(!shown.contains(['\n', '\r']), "{shown:?}");
            return;
        }
    };
    let Ok(table) = RouteTable::new(&routes, None, &hops, [2; 6]) else {
        return;
    };
    for route in routes.iter().take(64) {
        for address in [route.prefix.network(), route.prefix.broadcast()] {
            assert_eq!(table.find(address), linear::find(&routes, address));
        }
    }
});
