//! Rust side: configurations, packets, and the runtime's calls.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::Arc;
use tailwater_sdk::testing::{Harness, Outcome, frame};
use tailwater_sdk::{Batch, Config, ConfigError, DropReason, FlowKey, Function, Name, abi, describe, state};

state! {
    struct Seen {
        packets: u64,
        last: u64,
    }
}

thread_local! {
    /// Number of live instances and configurations of a test.
    static LIVING: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug)]
struct Living;

impl Living {
    fn new() -> Living {
        LIVING.set(LIVING.get() + 1);
        Living
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        LIVING.set(LIVING.get() - 1);
    }
}

/// Limits the packets of each flow, and adds a byte at both ends of a frame.
#[derive(Debug)]
struct Limit {
    limit: u64,
    _living: Living,
}

impl Function for Limit {
    const NAME: &'static CStr = c"limit";
    const DROP_REASONS: &'static [DropReason] = &[DropReason::dropped(c"spent"), DropReason::lost(c"no-room")];
    const COUNTERS: &'static [Name] = &[Name::new(c"flows"), Name::new(c"ended")];
    const WANTS_FLOW_ENDS: bool = true;
    const STATE_VERSION: u32 = 3;
    type State = Seen;
    type Shared = (u64, Living);

    fn configure(config: &Config) -> Result<Self::Shared, ConfigError> {
        config.only(&["packets", "panic"])?;
        assert!(config.get("panic").is_none(), "as it was told");
        let packets = config.require("packets", "a number")?.u64()?;
        Ok((packets, Living::new()))
    }

    fn start(shared: Arc<Self::Shared>) -> Limit {
        Limit {
            limit: shared.0,
            _living: Living::new(),
        }
    }

    fn process(&mut self, batch: &mut Batch<'_, Seen>) {
        batch.for_each(|packet, counters| {
            counters[0] += u64::from(packet.is_new_flow());
            let now = packet.arrival_ns();
            let before = packet.read().packets;
            packet.update(|seen| (seen.packets, seen.last) = (before + 1, now));
            if before >= self.limit {
                packet.drop(0);
            } else if packet.resize(1, 1) {
                let frame = packet.rewrite();
                frame[0] = b'<';
                frame[frame.len() - 1] = b'>';
            } else {
                packet.drop(1);
            }
        });
        assert!(self.limit != 13, "thirteen");
    }

    fn flow_ended(&mut self, _: &FlowKey, state: &Seen, counters: &mut [u64]) {
        counters[1] += state.packets;
    }
}

fn key(port: u16) -> FlowKey {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    FlowKey::new(ip("10.0.0.1"), ip("10.0.0.2"), 17, port, 53)
}

#[test]
fn what_flow_state_means_has_a_version() {
    assert_eq!(describe::<Limit>().state_version, 3);
}

#[test]
fn packets_of_a_flow_share_its_state() {
    let mut harness = Harness::<Limit>::new(r#"{"packets": 2}"#).unwrap();
    let packet = |port| (key(port), frame(&key(port), b"question"));
    let packets = [packet(1), packet(2), packet(1), packet(1)];
    let grown = [b"<", &packet(1).1[..], b">"].concat();
    let outcomes = harness.process(&packets);
    assert_eq!(outcomes[0], Outcome::Forwarded(grown.clone()));
    assert_eq!(outcomes[2], Outcome::Forwarded(grown));
    assert_eq!(outcomes[3], Outcome::Dropped(0));
    assert!(matches!(&outcomes[1], Outcome::Forwarded(frame) if frame[0] == b'<'));
    assert_eq!(harness.process(&packets[3..]), [Outcome::Dropped(0)]);
    assert_eq!(harness.counters(), [2, 0]);
}

#[test]
fn wrong_configurations_are_told() {
    for (config, expected) in [
        ("{}", "expected packets: a number, found none"),
        (r#"{"packets": null}"#, "expected packets: a number, found none"),
        (
            r#"{"packets": -1}"#,
            "packets: expected a whole number of at least 0, found -1",
        ),
        (
            r#"{"packets": "many"}"#,
            r#"packets: expected a whole number of at least 0, found "many""#,
        ),
        (r#"{"packts": 1}"#, "packts: expected one of the fields packets, panic"),
        ("[1]", "expected a map of packets, panic, found a list"),
        (r#"{"packets": 1"#, r#"expected JSON, found """#),
    ] {
        let error = Harness::<Limit>::new(config).unwrap_err();
        assert_eq!(error.to_string(), expected, "{config}");
    }
}

#[test]
fn json_is_read() {
    let config =
        Config::parse(r#" {"a": [1, 2.5, "x\n\u00e9\ud83d\ude00\"", {"b": [true]}], "c": {}, "": null} "#).unwrap();
    let items = config.get("a").unwrap().list().unwrap();
    assert_eq!((items[0].u64(), items[1].f64()), (Ok(1), Ok(2.5)));
    assert_eq!(items[2].text(), Ok("x\né😀\""));
    let deep = items[3].get("b").unwrap().list().unwrap()[0].clone();
    assert_eq!(deep.bool(), Ok(true));
    assert_eq!(deep.text().unwrap_err().field, "a[3].b[0]");
    assert!(config.get("").is_none());
    for wrong in ["", "{", "[1,]", "{\"a\"}", "tru", "1 2", "\"", "\"\\u12\"", "-", "\"\\"] {
        assert!(Config::parse(wrong).is_err(), "{wrong}");
    }
    assert!(Config::parse(&"[".repeat(100_000)).is_err());
}

#[test]
fn the_runtimes_calls() {
    let function = describe::<Limit>();
    let configure = |config: &str, shared: &mut *mut c_void| {
        let text = CString::new(config).unwrap();
        let mut error = abi::Error {
            message: [0; 512],
            field: [0; 128],
        };
        // SAFETY: the call obeys the header's rules.
        let code = unsafe { function.configure.unwrap()(text.as_ptr(), config.len(), shared, &raw mut error) };
        // SAFETY: the function terminates both with a zero byte.
        let [field, message] = unsafe {
            [error.field.as_ptr(), error.message.as_ptr()].map(|text| CStr::from_ptr(text).to_str().unwrap().to_owned())
        };
        (code, field, message)
    };
    let mut shared = null_mut();
    let (code, field, message) = configure(r#"{"packets": true}"#, &mut shared);
    assert_eq!((code, &*field), (1, "packets"));
    assert_eq!(message, "expected a whole number of at least 0, found true");
    let (code, _, message) = configure(r#"{"panic": 1, "packets": 1}"#, &mut shared);
    assert_eq!(code, 1);
    assert_eq!(message, "the function panicked while reading its configuration");
    assert!(shared.is_null());
    assert_eq!(configure(r#"{"packets": 13}"#, &mut shared).0, 0);
    // SAFETY: the calls obey the header's rules, in this order.
    unsafe {
        let [one, two] = [(); 2].map(|()| function.start.unwrap()(shared));
        function.release.unwrap()(shared);
        assert_eq!(LIVING.get(), 2, "neither kept what they share");
        let mut counters = [0, 0];
        let mut batch = abi::Batch {
            packets: null_mut(),
            counters: counters.as_mut_ptr(),
            count: 0,
            reserved: 0,
        };
        // A panic is reported as the function's failure.
        assert_eq!(function.process.unwrap()(one, &raw mut batch), 1);
        let (key, state) = (key(1), Seen { packets: 7, last: 9 });
        let ended = abi::EndedFlow {
            key: (&raw const key).cast(),
            state: (&raw const state).cast(),
        };
        function.flows_ended.unwrap()(two, &raw const ended, 1, counters.as_mut_ptr());
        assert_eq!(counters, [0, 7]);
        function.stop.unwrap()(one);
        function.stop.unwrap()(two);
    }
    assert_eq!(LIVING.get(), 0);
}
