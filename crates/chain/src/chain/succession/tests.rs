use super::*;
use crate::chain::{Cuts, state_bytes_with_cuts};
use crate::flow_table::FlowTableConfig;
use crate::function::{FlowEnds, FlowStates, NetworkFunction, RunEnd};
use crate::rig::{ChainRig, INPUT, udp};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tailwater_api::{IdleTimeouts, WhenFull};
use tailwater_net::FlowKey;
use tailwater_net::parse::parse;

/// Packets of each flow, by source port, as a function has counted them when the flow ended.
type Ended = Arc<Mutex<BTreeMap<u16, u64>>>;

/// Counts the packets of flows.
struct Tally {
    kind: &'static str,
    /// Bytes of state behind the count.
    padding: usize,
    ended: Ended,
    packets: [u64; 1],
}

impl Tally {
    fn boxed(kind: &'static str, padding: usize, ended: &Ended) -> Box<dyn NetworkFunction> {
        Box::new(Tally {
            kind,
            padding,
            ended: Arc::clone(ended),
            packets: [0],
        })
    }
}

impl NetworkFunction for Tally {
    fn kind(&self) -> &'static str {
        self.kind
    }
    fn counters(&self) -> &'static [&'static str] {
        &["packets"]
    }
    fn counter_values(&self) -> &[u64] {
        &self.packets
    }
    fn state_bytes(&self) -> usize {
        8 + self.padding
    }
    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.packets[0] += batch.len() as u64;
        batch.iter_mut().for_each(|packet| *flows.state::<u64>(packet) += 1);
    }
    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        Some(self)
    }
    fn run_end(&mut self) -> Option<&mut dyn RunEnd> {
        Some(self)
    }
}

impl FlowEnds for Tally {
    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let packets = u64::from_ne_bytes(state[..8].try_into().unwrap());
        let before = self.ended.lock().unwrap().insert(key.source_port(), packets);
        assert_eq!(before, None, "a flow ends once");
    }
}

impl RunEnd for Tally {
    fn drain(&mut self) {}
}

fn succeed(old: ChainRig, new: &mut ChainRig, kept: &[&str]) {
    let kept: Vec<String> = kept.iter().map(|name| (*name).to_owned()).collect();
    assert!(new.chain.can_succeed(&old.chain));
    new.chain.succeed(old.chain, &kept);
}

/// A function in front, one behind, and one less: the one that stays counts on, the others begin and end.
#[test]
fn functions_that_stay_keep_their_flows() {
    let [first, kept, gone] = [(); 3].map(|()| Ended::default());
    let mut old = ChainRig::new(
        vec![Tally::boxed("gone", 0, &gone), Tally::boxed("kept", 24, &kept)],
        INPUT,
    );
    let now = Nanos::from_secs;
    for port in 1..=40u16 {
        for _ in 0..port {
            old.run(&[udp(port)], now(1));
        }
    }
    let mut new = ChainRig::new(
        vec![Tally::boxed("kept", 24, &kept), Tally::boxed("first", 8, &first)],
        INPUT,
    );
    succeed(old, &mut new, &["kept"]);
    assert_eq!(new.chain.flows(), 40);
    // Every other flow has a packet before flows move by themselves.
    for port in (1..=40u16).step_by(2) {
        new.run(&[udp(port)], now(2));
    }
    assert_eq!(
        new.count("kept/packets"),
        20,
        "those of the old chain are in its own report"
    );
    for _ in 0..600 {
        new.chain.expire(now(2));
    }
    assert!(new.chain.predecessor.is_none());
    assert_eq!(new.chain.flows(), 40);
    assert_eq!(new.chain.flow_counters().unwrap().opened, 0);
    assert_eq!(
        *gone.lock().unwrap(),
        (1..=40).map(|port| (port, u64::from(port))).collect()
    );
    assert_eq!(kept.lock().unwrap().len(), 0);
    new.chain.drain();
    let counted = (1..=40u16).map(|port| (port, u64::from(port) + u64::from(port % 2)));
    assert_eq!(*kept.lock().unwrap(), counted.collect());
    assert_eq!(
        *first.lock().unwrap(),
        (1..=40).step_by(2).map(|port| (port, 1)).collect()
    );
}

#[test]
fn flows_age_on() {
    let [kept, other] = [(); 2].map(|()| Ended::default());
    let now = Nanos::from_secs;
    let mut old = ChainRig::new(vec![Tally::boxed("kept", 0, &kept)], INPUT);
    old.run(&[udp(1)], now(1));
    old.run(&[udp(2)], now(40));
    let mut new = ChainRig::new(
        vec![Tally::boxed("other", 0, &other), Tally::boxed("kept", 0, &kept)],
        INPUT,
    );
    succeed(old, &mut new, &["kept"]);
    for _ in 0..1_200 {
        new.chain.expire(now(62));
    }
    for _ in 0..600 {
        // The timer of a flow that moved runs from then on; the time of its last packet is what counts.
        new.chain.expire(now(62 + 61));
    }
    assert_eq!(kept.lock().unwrap().len(), 2);
    assert_eq!(other.lock().unwrap().len(), 0, "no packet of theirs was seen");
}

#[test]
fn chains_with_other_keys_cannot_succeed() {
    struct Connections;
    impl NetworkFunction for Connections {
        fn kind(&self) -> &'static str {
            "Connections"
        }
        fn state_bytes(&self) -> usize {
            8
        }
        fn properties(&self) -> crate::function::FunctionProperties {
            crate::function::FunctionProperties {
                tracks_connections: true,
                ..Default::default()
            }
        }
        fn process(&mut self, _: &mut Batch, _: &mut FlowStates<'_>) {}
    }
    let ended = Ended::default();
    let old = ChainRig::new(vec![Tally::boxed("kept", 0, &ended)], INPUT);
    let new = ChainRig::new(vec![Box::new(Connections), Tally::boxed("kept", 0, &ended)], INPUT);
    assert!(!new.chain.can_succeed(&old.chain));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// With any lists, and at any time of a succession: each function has counted exactly the packets that
    /// came while it was in the chain since it entered.
    #[test]
    fn each_function_counts_what_came_while_it_was_there(
        lists in prop::collection::vec(prop::sample::subsequence(vec![0usize, 1, 2, 3], 1..=4).prop_shuffle(), 2..5),
        packets in prop::collection::vec((1u16..30, 0usize..8), 1..80),
    ) {
        const KINDS: [&str; 4] = ["one", "two", "three", "four"];
        // By function and time of entry.
        let mut logs: Vec<(usize, Ended, BTreeMap<u16, u64>)> = Vec::new();
        let mut current: BTreeMap<usize, usize> = BTreeMap::new();
        let mut rig: Option<ChainRig> = None;
        let mut packets = packets.chunks(packets.len().div_ceil(lists.len()));
        for list in &lists {
            let kept: Vec<usize> = list.iter().copied().filter(|kind| current.contains_key(kind)).collect();
            for kind in list.iter().filter(|kind| !kept.contains(kind)) {
                current.insert(*kind, logs.len());
                logs.push((*kind, Ended::default(), BTreeMap::new()));
            }
            current.retain(|kind, _| list.contains(kind));
            let functions = list.iter().map(|kind| Tally::boxed(KINDS[*kind], 8 * kind, &logs[current[kind]].1));
            let mut next = ChainRig::new(functions.collect(), INPUT);
            if let Some(old) = rig.take() {
                let kept: Vec<&str> = kept.iter().map(|kind| KINDS[*kind]).collect();
                // The one before may not be complete yet.
                succeed(old, &mut next, &kept);
            }
            for (port, expire) in packets.next().unwrap_or(&[]) {
                next.run(&[udp(*port)], Nanos::from_secs(1));
                for log in current.values() {
                    *logs[*log].2.entry(*port).or_default() += 1;
                }
                (0..*expire).for_each(|_| next.chain.expire(Nanos::from_secs(1)));
            }
            rig = Some(next);
        }
        if let Some(rig) = rig {
            rig.chain.drain();
        }
        for (kind, ended, expected) in logs {
            // Flows that it has only been given the keys of are none of its own.
            prop_assert_eq!(&*ended.lock().unwrap(), &expected, "{}", KINDS[kind]);
        }
    }
}

/// Chains on this number of workers that share a flow table: each holds the buckets that are its by remainder.
fn workers(number: usize, functions: &[(&'static str, Ended)]) -> Vec<ChainRig> {
    let make = || functions.iter().map(|(kind, ended)| Tally::boxed(kind, 8, ended));
    let named: Vec<_> = make().map(|function| (function.kind().to_owned(), function)).collect();
    let config = FlowTableConfig {
        capacity: 4096,
        timeouts: IdleTimeouts {
            tcp: Nanos::from_secs(60),
            udp: Nanos::from_secs(60),
            other: Nanos::from_secs(60),
        },
        when_full: WhenFull::Evict,
        state_bytes: state_bytes_with_cuts(&named, Cuts::NONE),
        seed: 2,
    };
    let (table, mut partitions) = FlowTable::create(&config).unwrap();
    let rig = |worker: usize| {
        let mut view = table.sharing();
        let own = partitions.extract_if(.., |partition| usize::from(partition.bucket()) % number == worker);
        own.for_each(|partition| view.adopt(partition));
        let named = make().map(|function| (function.kind().to_owned(), function)).collect();
        let mut rig = ChainRig::new(make().collect(), INPUT);
        rig.chain = Chain::with_cuts(named, Some(view), INPUT, Cuts::NONE);
        rig
    };
    (0..number).map(rig).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The number of workers changes at any time, with functions that come, go and stay: each has counted exactly the
    /// packets that came while it was there, whichever worker had the flow, and every flow ends once.
    #[test]
    fn flows_pass_to_other_numbers_of_workers(
        steps in prop::collection::vec((1usize..6, any::<bool>()), 2..6),
        packets in prop::collection::vec((1u16..60, 0usize..8), 1..120),
        taken in any::<bool>(),
    ) {
        let stays = Ended::default();
        let mut expected: BTreeMap<u16, u64> = BTreeMap::new();
        // Records of the function that comes and goes, with what they should be.
        let mut others: Vec<(Ended, BTreeMap<u16, u64>)> = Vec::new();
        let mut rigs: Vec<ChainRig> = Vec::new();
        let (mut had_other, mut opened) = (false, 0);
        let mut packets = packets.chunks(packets.len().div_ceil(steps.len()));
        for (number, has_other) in &steps {
            let mut functions = vec![("stays", Arc::clone(&stays))];
            if *has_other {
                if !had_other {
                    others.push((Ended::default(), BTreeMap::new()));
                }
                functions.insert(0, ("other", Arc::clone(&others.last().unwrap().0)));
            }
            let mut next = workers(*number, &functions);
            let flows: usize = rigs.iter().map(|rig| rig.chain.flows()).sum();
            let mut divided: Vec<_> = rigs.drain(..).map(|rig| rig.chain.divide()).collect();
            let mut kept = vec!["stays".to_owned()];
            if had_other && *has_other {
                kept.push("other".to_owned());
            }
            for (worker, rig) in next.iter_mut().enumerate() {
                let owns = |bucket: u16| usize::from(bucket) % number == worker;
                let shares = divided.iter_mut().map(|chain| chain.share(owns));
                let share = shares.reduce(|mut all, share| {
                    all.merge(share);
                    all
                });
                share.into_iter().for_each(|share| rig.chain.succeed_to(share, &kept));
            }
            drop(divided);
            prop_assert_eq!(next.iter().map(|rig| rig.chain.flows()).sum::<usize>(), flows);
            for (port, expire) in packets.next().unwrap_or(&[]) {
                let frame = udp(*port);
                let hash = next[0].rss.hash_headers(&parse(&frame).unwrap());
                let rig = &mut next[usize::from(bucket_of(hash)) % number];
                rig.run(&[frame], Nanos::from_secs(1));
                *expected.entry(*port).or_default() += 1;
                if *has_other {
                    *others.last_mut().unwrap().1.entry(*port).or_default() += 1;
                }
                (0..*expire).for_each(|_| rig.chain.expire(Nanos::from_secs(1)));
            }
            had_other = *has_other;
            rigs = next;
            opened += rigs.iter().map(|rig| rig.chain.flow_counters().unwrap().opened).sum::<u64>();
        }
        prop_assert_eq!(opened, expected.len() as u64, "each flow is opened once");
        match taken {
            true => rigs.into_iter().for_each(|rig| drop(rig.chain.drain())),
            // Nobody takes them.
            false => rigs.into_iter().for_each(|rig| drop(rig.chain.divide())),
        }
        prop_assert_eq!(&*stays.lock().unwrap(), &expected);
        for (ended, expected) in others {
            prop_assert_eq!(&*ended.lock().unwrap(), &expected);
        }
    }
}
