use super::*;
use crate::upf::UpfTable;
use std::path::Path;
use tailwater_chain::rig::unlinked_file;
use tailwater_chain::shared_counters::SharedCounters;

fn spec(functions: &str) -> ChainSpec {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\n\
         spec:\n  slo: {{latency: 200us}}\n  functions: {functions}\n"
    );
    ChainSpec::parse(&text, "test", Path::new(".")).unwrap()
}

fn builder(functions: &str) -> ChainBuilder {
    ChainBuilder::new(&spec(functions), &RssHasher::default(), 1).unwrap()
}

#[test]
fn chains_without_state_look_no_flow_up() {
    let mut builder = builder("[{forward: {}}]");
    assert_eq!(builder.flow_memory(), None);
    assert!(!builder.instance(|_| true).has_flows());
}

#[test]
fn chains_that_keep_no_flows_and_sample_none_read_no_hashes() {
    let acl = "acl: {rules: [{action: allow}]";
    for (functions, reads) in [
        ("[{forward: {}}]".to_owned(), false),
        (format!("[{{{acl}, cache: none}}}}]"), false),
        (format!("[{{{acl}}}}}]"), true),
        ("[{nat: {external: [203.0.113.1]}}]".to_owned(), true),
        (
            "[{mirror: {to: {file: /dev/null}, sample: {every: 10, by: flow}}}]".to_owned(),
            true,
        ),
    ] {
        assert_eq!(
            builder(&functions).instance(|_| true).reads_hashes(),
            reads,
            "{functions}"
        );
    }
}

/// Packets that leave a tunnel do not belong to the tunnel's flow.
#[test]
fn no_function_with_state_is_behind_a_tunnels_end() {
    let key = "cipher: aes-128-gcm, key: '000102030405060708090a0b0c0d0e0f10111213'";
    let inbound = format!("{{ipsec: {{inbound: [{{name: a, spi: 256, {key}, destination: 192.0.2.1}}]}}}}");
    let outbound = format!(
        "{{ipsec: {{outbound: [{{name: a, spi: 256, {key}, source: 192.0.2.2, destination: 192.0.2.1}}], \
         policies: [{{protect: a}}]}}}}"
    );
    let (nat, acl) = ("{nat: {external: [203.0.113.1]}}", "{acl: {rules: [{action: deny}]}}");
    let uncached = acl.replace("{acl: {", "{acl: {cache: none, ");
    for functions in [
        format!("[{nat}, {inbound}]"),
        format!("[{inbound}, {uncached}, {{forward: {{}}}}]"),
        format!("[{nat}, {outbound}, {acl}]"),
    ] {
        builder(&functions);
    }
    for (functions, expected) in [
        (format!("[{inbound}, {{forward: {{}}}}]"), [true, false]),
        (format!("[{outbound}, {{forward: {{}}}}]"), [false; 2]),
    ] {
        let spec = spec(&functions);
        let mixes = spec.functions.iter();
        let mixes = mixes.map(|function| function.config.requirements(1).mixes_flows);
        assert!(mixes.eq(expected), "{functions}");
    }
    for (functions, wrong) in [
        (format!("[{inbound}, {{forward: {{}}}}, {nat}]"), "nat"),
        (format!("[{inbound}, {acl}]"), "acl"),
    ] {
        let error = ChainBuilder::new(&spec(&functions), &RssHasher::default(), 1)
            .err()
            .unwrap();
        let expected = format!("function {wrong} keeps state per flow and cannot follow ipsec");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

#[test]
fn user_planes_are_tunnels_ends_and_share_their_sessions() {
    let upf = "{upf: {addresses: [192.0.2.1], profiles: {all: {}}, \
               sessions: [1 ue 10.60.0.1 teid 1 profile all]}}";
    let built = builder(&format!("[{upf}, {{forward: {{}}}}]"));
    assert_eq!(built.table::<UpfTable>("upf").unwrap().sessions(), 1);
    assert!(built.finish_exports(&[]).unwrap().is_empty());
    let error = ChainBuilder::new(
        &spec(&format!("[{upf}, {{accounting: {{}}}}]")),
        &RssHasher::default(),
        1,
    );
    let error = error.err().unwrap().to_string();
    let expected = "function accounting keeps state per flow and cannot follow upf";
    assert!(error.starts_with(expected), "{error}");
    // In processes of their own they share the sessions that the host sets.
    let isolated = spec(&format!("[{upf}]"));
    let requirements = isolated.functions[0].config.requirements(1);
    let file = unlinked_file(requirements.shared_bytes);
    let shared_counters = || SharedCounters::in_file(&file).unwrap();
    let host = requirements.host.unwrap().start(&shared_counters(), 2).unwrap();
    let own = |shared_counters| IsolationContext {
        rss: RssHasher::default(),
        part: [0, 2],
        shared_counters,
        capacity: 1,
    };
    for shared_counters in [shared_counters(), SharedCounters::of_this_process()] {
        assert!(build_isolated(&isolated.functions[0], own(shared_counters)).is_ok());
    }
    assert!(host.finish().unwrap().is_empty());
}

#[test]
fn what_a_guard_counts_is_not_cut_into_processes() {
    let guard = spec("[{dnsGuard: {limits: {responses: 5}}}]");
    let alone = |of| {
        let surroundings = IsolationContext {
            rss: RssHasher::default(),
            part: [0, of],
            shared_counters: SharedCounters::of_this_process(),
            capacity: 0,
        };
        build_isolated(&guard.functions[0], surroundings)
    };
    assert!(alone(1).is_ok());
    assert!(matches!(alone(2), Err(BuildError::Shares { .. })));
}

#[test]
fn every_bucket_goes_to_one_worker() {
    let mut builder = builder("[{nat: {external: [203.0.113.1]}}]");
    let even = builder.instance(|bucket| bucket % 2 == 0);
    let rest = builder.instance(|_| true);
    let none = builder.instance(|_| true);
    assert_eq!([&even, &rest, &none].map(Chain::buckets), [256, 256, 0]);
}
