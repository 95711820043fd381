//! Flow state that passes to another process: the functions there give the same answers.

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, TransferState};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::firewall::FirewallTable;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

const FUNCTIONS: &str = "
    - acl: {rules: [{action: deny, destinationPorts: 22, protocol: tcp}], default: allow}
    - nat: {external: [203.0.113.0/30], internal: [10.0.0.0/8], ports: 1024-3071}
    - loadBalancer:
        services:
          - address: 198.18.0.0/15
            port: any
            protocol: udp
            backends: [{address: 192.0.2.1, port: 80}, {address: 192.0.2.2, weight: 3}, {address: 192.0.2.3}]
    - accounting:
";

struct Rig {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    rss: RssHasher,
}

impl Rig {
    fn new(functions: &str) -> Rig {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  slo: {{latency: \
             200us}}\n  flows: {{capacity: 4096}}\n  functions: {functions}"
        );
        let spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
        let rss = spec.rss();
        let mut builder = ChainBuilder::new(&spec, &rss, 1).unwrap();
        let pool = BufferPool::new(64, 2048).unwrap();
        Rig {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, 32),
            pool,
            rss,
        }
    }

    /// Passes a packet. Returns it as it leaves, if it does.
    fn run(&mut self, frame: &[u8], now: Nanos) -> Option<Vec<u8>> {
        let hash = self.rss.hash_headers(&parse(frame).unwrap());
        assert!(self.batch.push(&mut self.pool, frame, now, hash));
        self.chain.process(&mut self.batch, now);
        let sent = (!self.batch.is_empty()).then(|| self.batch.frame(0).to_vec());
        self.batch.release(&mut self.pool);
        sent
    }

    /// Chain of another process, with these flows.
    fn pass_over(&mut self, functions: &str, now: Nanos) -> Rig {
        let origin = Nanos::from_secs(1_000_000);
        let (bytes, flows) = self.chain.export_flows(now, origin, 1 << 24).unwrap();
        let mut new = Rig::new(functions);
        let imported = new.chain.import_flows(&bytes, now, origin).unwrap();
        assert_eq!((imported.flows, imported.refused), (flows, 0));
        assert_eq!(new.chain.flows(), self.chain.flows());
        // Nothing has changed on the way, whatever the order of the flows in the tables.
        let again = new.chain.export_flows(now, origin, 1 << 24).unwrap().0;
        assert_eq!(again.len(), bytes.len());
        new
    }
}

fn frame((client, port, to, service): (u8, u16, u8, bool)) -> Vec<u8> {
    let protocol = if service { protocol::UDP } else { protocol::TCP };
    let source = Ipv4Addr::new(10, 0, 0, client);
    let key = FlowKey::v4(
        source,
        Ipv4Addr::new(198, 18, 0, to),
        protocol,
        port,
        if to == 0 { 22 } else { 443 },
    );
    FrameBuilder::new(&key).payload(b"question").to_vec().unwrap()
}

/// The other direction of a packet that has left.
fn answer(sent: &[u8]) -> Vec<u8> {
    let key = parse(sent).unwrap().key.reversed();
    FrameBuilder::new(&key).payload(b"answer").to_vec().unwrap()
}

fn flow() -> impl Strategy<Value = (u8, u16, u8, bool)> {
    (0..4u8, 5000..5008u16, 0..4u8, any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Known flows, new ones and answers leave the same, whether the state has passed over in between or not. New
    /// connections get no port that is taken.
    #[test]
    fn functions_give_the_same_answers_after_their_state_has_passed_over(
        before in prop::collection::vec(flow(), 1..60),
        after in prop::collection::vec(flow(), 1..60),
    ) {
        let mut old = Rig::new(FUNCTIONS);
        let mut answers = Vec::new();
        for (number, flow) in (0..).zip(&before) {
            let sent = old.run(&frame(*flow), Nanos::from_millis(number));
            answers.extend(sent.iter().filter(|_| !flow.3).map(|sent| answer(sent)));
        }
        let now = Nanos::from_secs(1);
        let mut new = old.pass_over(FUNCTIONS, now);
        for frame in after.iter().map(|flow| frame(*flow)).chain(answers) {
            prop_assert_eq!(old.run(&frame, now), new.run(&frame, now));
        }
        // Once more, as the next version does.
        let mut next = new.pass_over(FUNCTIONS, now);
        for frame in before.iter().map(|flow| frame(*flow)) {
            prop_assert_eq!(old.run(&frame, now), next.run(&frame, now));
        }
    }
}

/// A backend that is gone in the new version loses its flows, the others keep theirs.
#[test]
fn flows_of_a_backend_that_is_gone_get_another_one() {
    let mut old = Rig::new(FUNCTIONS);
    let now = Nanos::from_secs(1);
    let flows: Vec<_> = (5000..5064).map(|port| frame((1, port, 1, true))).collect();
    let target = |sent: Option<Vec<u8>>| parse(&sent.unwrap()).unwrap().key.destination();
    let before: Vec<_> = flows.iter().map(|frame| target(old.run(frame, now))).collect();
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 3);
    let fewer = FUNCTIONS.replace("{address: 192.0.2.1, port: 80}, ", "");
    let mut new = old.pass_over(&fewer, now);
    for (frame, before) in flows.iter().zip(before) {
        let after = target(new.run(frame, now));
        let is_gone = before == Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(after != before, is_gone, "{before} {after}");
    }
}

/// Functions whose state another process cannot take are known as such.
#[test]
fn each_function_says_what_passes_over() {
    let state = |functions: &str| -> Vec<TransferState> {
        let functions = Rig::new(functions).chain.transfer_functions();
        functions.into_iter().map(|function| function.state).collect()
    };
    let [none, local] = [TransferState::None, TransferState::Local];
    let portable = |version, bytes| TransferState::Portable { version, bytes };
    assert_eq!(
        state(FUNCTIONS),
        [none, portable(1, 12), portable(2, 8), portable(1, 24)]
    );
    for (functions, expected) in [
        ("[forward: {}]", none),
        (
            "[firewall: {zones: {all: {prefixes: any}}, rules: [allow tcp]}]",
            portable(1, FirewallTable::STATE_BYTES),
        ),
        ("[policer: {limits: [{per: flow, rate: 1Mbps, burst: 1600}]}]", local),
    ] {
        assert_eq!(state(functions), [expected], "{functions}");
    }
}
