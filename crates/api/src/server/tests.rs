//! Server specs, right and wrong.

use super::*;
use crate::ports::PortSetup;
use crate::values::Throughput;
use tailwater_net::Nanos;

fn parse(spec: &str) -> Result<ServerSpec, SpecError> {
    let head = "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {name: edge-1}\nspec:\n";
    let document = Document::parse(&format!("{head}{spec}"), "s.yaml", DESCRIPTION)?;
    ServerSpec::new(&document, Path::new("/etc/tw"))
}

fn error(spec: &str) -> String {
    parse(spec).unwrap_err().to_string()
}

const REST: &str = "  cores: 1\n  ports: [{name: a, traffic: bursty}]\n";

#[test]
fn all_fields() {
    let server = parse(
        "
  cores: 1,4-6
  auxiliary: 0, 2-3
  ports:
  - name: north
    port: {entry: 0000:3b:00.0, exit: 0000:3b:00.1, bothWays: true, mtu: 9000}
  - {name: east, traffic: campus.pcap, rate: 2Mpps, repeat: true, renumberBits: 4, duration: 90s}
  packetBuffers: 64MiB
  unmatched: forward
  chains: [a.yaml, /srv/chains]
  watch: true
  control: {socket: /run/tw.sock, readers: operators}
  metrics: 9100
  telemetry: {otlp: 'https://collector:4318/x', tracedPackets: 5}
  policy: tailwater
  stateDirectory: state
  keepPackets: kept
  admission: {profiles: curves, profile: optional, headroom: 0.25, cap: promise, consolidate: 2}
  cache: {others: 3, onDemand: 4}
",
    )
    .unwrap();
    assert_eq!((server.cores, server.auxiliary), (vec![1, 4, 5, 6], vec![0, 2, 3]));
    let PortSource::Devices(north) = &server.ports[0].source else {
        panic!("expected devices");
    };
    assert_eq!((north.set_up.both_ways, north.set_up.mtu), (true, Some(9000)));
    let expected = TrafficSpec {
        name: "campus.pcap".to_owned(),
        file: "/etc/tw/campus.pcap".into(),
        rate: Some(Throughput::PacketsPerSecond(2_000_000)),
        repeat: true,
        renumber_bits: 4,
        duration: Some(Nanos::from_secs(90)),
    };
    assert_eq!(server.ports[1].source, PortSource::Traffic(expected));
    assert_eq!(server.packet_buffers, Some(64 << 20));
    assert_eq!((server.unmatched, server.watch), (Unmatched::Forward, true));
    assert_eq!(server.chains, [Path::new("/etc/tw/a.yaml"), Path::new("/srv/chains")]);
    assert_eq!(server.control.socket.as_deref(), Some(Path::new("/run/tw.sock")));
    assert_eq!(server.control.readers.as_deref(), Some("operators"));
    assert_eq!(server.metrics, Some("127.0.0.1:9100".parse().unwrap()));
    let telemetry = TelemetrySpec {
        otlp: Some("https://collector:4318/x".to_owned()),
        traced_packets: 5,
    };
    assert_eq!(server.telemetry, telemetry);
    assert_eq!(server.policy.as_deref(), Some("tailwater"));
    assert_eq!(server.state_directory.as_deref(), Some(Path::new("/etc/tw/state")));
    assert_eq!(server.keep_packets.as_deref(), Some(Path::new("/etc/tw/kept")));
    let admission = AdmissionSpec {
        profiles: "/etc/tw/curves".into(),
        profile: Unprofiled::Optional,
        headroom: 0.25,
        measure: MeasureSpec::default(),
        caps: true,
        consolidate: Some(2),
    };
    assert_eq!(server.admission, Some(admission));
    let cache = CacheSpec {
        others: 3,
        on_demand: 4,
    };
    assert_eq!(server.cache, Some(cache));
}

#[test]
fn defaults_and_short_forms() {
    let server = parse("  cores: 1\n  ports: [{name: a, port: net_null0}]\n  control: c.sock\n  chains: []\n").unwrap();
    let PortSource::Devices(ports) = &server.ports[0].source else {
        panic!("expected devices");
    };
    assert_eq!((ports.exit.as_ref(), ports.set_up), (None, PortSetup::default()));
    assert_eq!(server.control.socket.as_deref(), Some(Path::new("/etc/tw/c.sock")));
    assert_eq!(
        (server.unmatched, server.watch, server.packet_buffers),
        (Unmatched::Drop, false, None)
    );
    assert!(server.chains.is_empty() && server.auxiliary.is_empty());
    assert_eq!((server.admission, server.cache), (None, None));
    let cache = CacheSpec {
        others: 1,
        on_demand: 2,
    };
    assert_eq!(parse(&format!("{REST}  cache: {{}}\n")).unwrap().cache, Some(cache));
    let admission = parse(&format!("{REST}  admission: {{profiles: p}}\n"))
        .unwrap()
        .admission
        .unwrap();
    assert_eq!(
        (admission.profile, admission.headroom, admission.caps),
        (Unprofiled::Required, 0.1, false)
    );
    let measured = |measure: &str| {
        let line = format!("{REST}  admission: {{profiles: p, profile: auto{measure}}}\n");
        let admission = parse(&line).unwrap().admission.unwrap();
        assert_eq!(admission.profile, Unprofiled::Auto);
        (admission.measure.time, admission.measure.core)
    };
    assert_eq!(measured(""), (Nanos::from_secs(60), None));
    assert_eq!(
        measured(", measure: {time: 20s, core: 3}"),
        (Nanos::from_secs(20), Some(3))
    );
}

#[test]
fn chains_name_a_port_unless_there_is_one() {
    let one = parse(REST).unwrap();
    assert_eq!(one.port_of(None).unwrap().name, "a");
    assert_eq!(one.port_of(Some("a")).unwrap().name, "a");
    let error = one.port_of(Some("b")).unwrap_err();
    assert_eq!(error, "spec.port: expected one of the server's ports a, found \"b\"");
    let two = parse("  cores: 1\n  ports: [{name: a, traffic: x}, {name: b, traffic: y}]\n").unwrap();
    assert_eq!(two.port_of(Some("b")).unwrap().name, "b");
    let error = two.port_of(None).unwrap_err();
    assert_eq!(error, "spec.port: missing, expected one of the server's ports a, b");
}

#[test]
fn wrong_fields_are_reported_with_their_position() {
    let ports = |items: &str| format!("  cores: 1\n  ports: {items}\n");
    let with = |line: &str| format!("{REST}  {line}\n");
    let long = format!("control: /{}", "x".repeat(120));
    for (spec, expected) in [
        (
            ports("[]"),
            "s.yaml:6:10: spec.ports: expected a list of 1 to 64 ports, found 0",
        ),
        (
            "  cores: 1\n".into(),
            "s.yaml:5:3: spec.ports: missing, expected a list of ports",
        ),
        (
            "  cores: 1,x\n".into(),
            "s.yaml:5:10: spec.cores: expected a list of cores such as 1 or 0,2-3",
        ),
        ("  cores: 3-1\n".into(), "spec.cores: expected a list of cores"),
        ("  cores: 1-99999\n".into(), "spec.cores: expected a list of cores"),
        (
            "  cores: 1,0-2\n".into(),
            "spec.cores: expected each core once, found core 1 twice",
        ),
        (
            with("auxiliary: 0-1"),
            "s.yaml:7:14: spec.auxiliary: expected cores that are not in cores, found core 1",
        ),
        (ports("[{name: A, traffic: x}]"), "did you mean \"a\"?"),
        (
            ports("[{name: a, traffic: x}, {name: a, traffic: y}]"),
            "a name that no other port has",
        ),
        (
            ports("[{name: a}]"),
            "spec.ports[0]: expected either port, with devices, or traffic, a capture or preset",
        ),
        (ports("[{name: a, port: net_null0, traffic: x}]"), "found both"),
        (
            ports("[{name: a, port: net_null0, rate: 1pps}]"),
            "spec.ports[0].rate: expected only with traffic",
        ),
        (ports("[{name: a, port: eth0}]"), "write interface=eth0"),
        (
            ports("[{name: a, port: interface=eth%d}]"),
            "expected one interface, which all cores of a port share",
        ),
        (
            ports("[{name: a, port: {entry: interface=eth0, exit: net_null0}}]"),
            "expected two ports of one kind",
        ),
        (
            ports("[{name: a, port: interface=eth0}, {name: b, port: interface=eth0}]"),
            "which port \"a\" uses",
        ),
        (
            ports("[{name: a, port: net_null0}, {name: b, port: {entry: net_null0}}]"),
            "which port \"a\" uses",
        ),
        (
            ports("[{name: a, port: {entry: net_null0, exits: net_null1}}]"),
            "did you mean \"exit\"?",
        ),
        (ports("[{name: a, traffic: ''}]"), "expected a capture file or preset"),
        (
            ports("[{name: a, traffic: {source: bursty}}]"),
            "expected a capture file or preset; its fields such as rate are beside it, found a map",
        ),
        (
            ports("[{name: a, traffic: x, rate: fast}]"),
            "spec.ports[0].rate: expected a rate",
        ),
        (
            ports("[{name: a, traffic: x, duration: 2d}]"),
            "spec.ports[0].duration: expected a duration",
        ),
        (
            ports("[{name: a, traffic: x, renumberBits: 17}]"),
            "spec.ports[0].renumberBits: expected a whole number from 0 to 16",
        ),
        (
            format!("{}  unmatched: forward\n", ports("[{name: a, port: net_null0}]")),
            "port \"a\" has no exit",
        ),
        (
            with("unmatched: bridge"),
            "spec.unmatched: expected drop or forward, found \"bridge\"",
        ),
        (with("packetBuffers: 1KiB"), "expected a size from 1MiB to 64GiB"),
        (
            with("chains: [a, a]"),
            "spec.chains[1]: expected each file and folder once",
        ),
        (
            with("chains: ['']"),
            "spec.chains[0]: expected a path of 1 to 4096 bytes",
        ),
        (with("watch: yes"), "spec.watch: expected true or false, found \"yes\""),
        (
            with(&long),
            "spec.control: expected a path of 1 to 107 bytes, found 121",
        ),
        (
            with("control: {path: x}"),
            "spec.control.path: expected one of the fields socket, readers",
        ),
        (
            with("control: {readers: 'a:b'}"),
            "spec.control.readers: expected the name or number of a group",
        ),
        (with("metrics: localhost"), "spec.metrics: expected a port such as 9100"),
        (
            with("telemetry: {otlp: 'ftp://collector'}"),
            "spec.telemetry.otlp: expected a URL such as http://127.0.0.1:4318, found",
        ),
        (
            with("telemetry: {otlp: 'http://'}"),
            "spec.telemetry.otlp: expected a URL",
        ),
        (
            with("telemetry: {tracedPackets: 101}"),
            "spec.telemetry.tracedPackets: expected a whole number from 0 to 100",
        ),
        (
            with("admission: {headroom: 0.1}"),
            "s.yaml:7:14: spec.admission.profiles: missing, expected a file or folder of profiles",
        ),
        (
            with("admission: {profiles: p, headroom: 0.95}"),
            "s.yaml:7:38: spec.admission.headroom: expected a part of a core from 0 to 0.9, such as 0.1, found 0.95",
        ),
        (
            with("admission: {profiles: p, consolidate: 0}"),
            "spec.admission.consolidate: expected",
        ),
        (
            with("admission: {profiles: p, headroom: -0.1}"),
            "spec.admission.headroom: expected a part of a core",
        ),
        (
            with("admission: {profiles: p, profile: always}"),
            "spec.admission.profile: expected required or optional or auto, found \"always\"",
        ),
        (
            with("admission: {profiles: p, measure: {time: 20s}}"),
            "spec.admission.measure: expected only with profile: auto",
        ),
        (
            with("admission: {profiles: p, profile: auto, measure: {time: 1h}}"),
            "spec.admission.measure.time: expected a duration",
        ),
        (
            with("admission: {profiles: p, profile: auto, measure: {core: last}}"),
            "spec.admission.measure.core: expected a whole number",
        ),
        (with("admission: {profile: p}"), "spec.admission.profile"),
        (with("admission: {profil: p}"), "did you mean \"profiles\"?"),
        (
            with("cache: {others: 32}"),
            "s.yaml:7:19: spec.cache.others: expected a whole number from 1 to 31",
        ),
        (
            with("cache: {onDemand: 0}"),
            "spec.cache.onDemand: expected a whole number",
        ),
        (with("cache: {ondemand: 1}"), "did you mean \"onDemand\"?"),
        (with("kores: 1"), "did you mean \"cores\"?"),
    ] {
        let found = error(&spec);
        assert!(
            found.contains(expected) && found.lines().count() == 1,
            "{spec}\n{found}\n{expected}"
        );
    }
}

#[test]
fn the_documented_example_is_valid() {
    let page = include_str!("../../../../docs/reference/server-spec.md");
    let example = page
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let document = Document::parse(example, "server-spec.md", DESCRIPTION).unwrap();
    let server = ServerSpec::new(&document, Path::new("/")).unwrap();
    assert_eq!((server.ports.len(), server.watch), (2, true));
    for field in table::FIELDS.fields.iter().map(|field| field.name) {
        assert!(page.contains(&format!("`spec.{field}`")), "{field}");
    }
}
