use super::*;
use crate::batch::Batch;
use crate::buffer::BufferPool;
use proptest::prelude::*;
use std::collections::HashMap;
use std::net::Ipv4Addr;

const SECOND: Nanos = Nanos::from_secs(1);

fn config(capacity: usize, when_full: WhenFull) -> FlowTableConfig {
    FlowTableConfig {
        capacity,
        timeouts: IdleTimeouts {
            tcp: Nanos::from_secs(30),
            udp: Nanos::from_secs(10),
            other: SECOND,
        },
        when_full,
        state_bytes: 16,
        seed: 7,
    }
}

fn full_table(config: &FlowTableConfig) -> FlowTable {
    let (mut table, partitions) = FlowTable::create(config).unwrap();
    partitions.into_iter().for_each(|partition| table.adopt(partition));
    table
}

fn key(n: u32, protocol: u8) -> FlowKey {
    FlowKey::v4(
        Ipv4Addr::from_bits(n),
        Ipv4Addr::new(198, 18, 0, 1),
        protocol,
        n as u16,
        80,
    )
}

/// Flow table with everything needed to look flows up in it.
struct Rig {
    table: FlowTable,
    pool: BufferPool,
    batch: Batch,
    ends: EndedFlows,
}

impl Rig {
    fn new(config: &FlowTableConfig) -> Rig {
        let pool = BufferPool::new(MAX_BATCH as u32, 64).unwrap();
        let batch = Batch::new(&pool, MAX_BATCH);
        Rig {
            table: full_table(config),
            batch,
            pool,
            ends: EndedFlows::new(64, true),
        }
    }

    /// Looks up keys with their RSS hashes in one batch.
    fn lookup(&mut self, keys: &[(FlowKey, u32)], now: Nanos) -> Vec<Option<u32>> {
        for (key, rss_hash) in keys {
            assert!(self.batch.push(&mut self.pool, &[], now, *rss_hash));
            self.batch.slots_mut().last_mut().unwrap().packet.headers.key = *key;
        }
        self.table.lookup(self.batch.slots_mut(), now, &mut self.ends);
        let found = self.batch.iter().map(|packet| packet.flow()).collect();
        self.batch.release(&mut self.pool);
        found
    }

    fn ended(&mut self) -> Vec<FlowKey> {
        let mut keys = vec![];
        self.ends.drain(|key, _| keys.push(*key));
        keys
    }

    /// Runs the timers of every partition, and returns the ended flows.
    fn expire(&mut self, now: Nanos) -> Vec<FlowKey> {
        (0..BUCKETS).for_each(|_| self.table.expire(now, 1000, &mut self.ends));
        self.ended()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Compares with a hash map: a key has the same index as long as its flow lives, different keys never share one,
    /// and exactly the idle flows expire.
    #[test]
    fn behaves_as_a_map(
        steps in prop::collection::vec(
            (prop::collection::vec((0u32..400, any::<bool>()), 1..64), 0u64..12_000),
            1..20,
        ),
    ) {
        let mut rig = Rig::new(&config(65_536, WhenFull::Evict));
        let mut model: HashMap<FlowKey, (u32, Nanos)> = HashMap::new();
        let mut now = SECOND;
        for (flows, pause_ms) in steps {
            // Few buckets, so that neighbourhoods fill up.
            let keys: Vec<_> = flows
                .iter()
                .map(|&(n, tcp)| (key(n, if tcp { 6 } else { 17 }), n % 3))
                .collect();
            for ((key, _), index) in keys.iter().zip(rig.lookup(&keys, now)) {
                let index = index.expect("there is room");
                let known = model.entry(*key).or_insert((index, now));
                prop_assert_eq!(known.0, index);
                known.1 = now;
            }
            let mut places: Vec<u32> = model.values().map(|known| known.0).collect();
            places.sort_unstable();
            places.dedup();
            prop_assert_eq!(places.len(), model.len());
            prop_assert_eq!(rig.table.flows(), model.len());
            now += Nanos::from_millis(pause_ms);
            for key in rig.expire(now) {
                let (_, seen) = model.remove(&key).expect("it was there");
                let timeout = if key.protocol() == 6 { 30 } else { 10 };
                prop_assert!((now - seen).as_secs_f64() > timeout as f64 - 0.001);
            }
        }
        // A timer fires one slot after its time at the latest.
        rig.expire(now + Nanos::from_secs(31));
        prop_assert_eq!(rig.table.flows(), 0);
    }
}

#[test]
fn state_is_zero_when_a_flow_opens_and_stays_its_own() {
    let mut rig = Rig::new(&config(512, WhenFull::Evict));
    let keys: Vec<_> = (0..100).map(|n| (key(n, 17), n % 7)).collect();
    let places = rig.lookup(&keys, SECOND);
    for (n, place) in places.iter().enumerate() {
        let state = rig.table.whole_state(FlowIndex(place.unwrap()));
        assert!(state.iter().all(|&b| b == 0));
        state.fill(n as u8 + 1);
    }
    for (n, place) in rig.lookup(&keys, SECOND).into_iter().enumerate() {
        assert!(
            rig.table
                .whole_state(FlowIndex(place.unwrap()))
                .iter()
                .all(|&b| b == n as u8 + 1)
        );
    }
    rig.expire(Nanos::from_secs(100));
    for place in rig.lookup(&keys, Nanos::from_secs(101)) {
        assert!(rig.table.whole_state(FlowIndex(place.unwrap())).iter().all(|&b| b == 0));
    }
}

#[test]
fn the_nominal_capacity_fits() {
    // As many evenly hashed flows as the capacity: none is refused.
    let mut rig = Rig::new(&config(100_000, WhenFull::Refuse));
    for chunk in (0..100_000u32).collect::<Vec<_>>().chunks(MAX_BATCH) {
        let keys: Vec<_> = chunk.iter().map(|&n| (key(n, 6), key(n, 6).hash(1) as u32)).collect();
        assert!(rig.lookup(&keys, SECOND).iter().all(Option::is_some));
    }
    assert_eq!(rig.table.flows(), 100_000);
    assert_eq!(rig.table.counters().refused, 0);
}

/// The table's size, as it is computed, is that of its memory.
#[test]
fn memory_is_twice_the_flows_whatever_their_number() {
    for (capacity, most) in [(65_536, 205), (1_000_000, 200), (10_000_000, 198)] {
        let memory = FlowTableMemory::new(capacity, 20);
        let each = memory.bytes / capacity;
        assert!((192..=most).contains(&each), "{memory:?}: {each}");
    }
    let table = full_table(&config(10_000, WhenFull::Evict));
    let (regions, all) = (table.memory.bytes(), table.memory().bytes);
    assert!(all > regions && all < regions + BUCKETS * 2_048, "{regions} {all}");
}

#[test]
fn a_full_partition_refuses_or_evicts_the_longest_idle() {
    for when_full in [WhenFull::Refuse, WhenFull::Evict] {
        let mut rig = Rig::new(&config(512, when_full));
        let mut refused = 0;
        for n in 0..500 {
            let now = SECOND + Nanos::from_millis(u64::from(n));
            refused += rig
                .lookup(&[(key(n, 6), 3)], now)
                .iter()
                .filter(|f| f.is_none())
                .count();
        }
        let counters = rig.table.counters();
        assert_eq!(counters.refused, refused as u64);
        assert_eq!(counters.opened - counters.evicted, rig.table.flows() as u64);
        assert!(rig.table.flows() <= 64);
        let ended = rig.ended();
        assert_eq!(ended.len() as u64, counters.evicted);
        if when_full == WhenFull::Evict {
            assert_eq!(counters.refused, 0);
            // Every evicted flow was older than the remaining ones of its neighbourhood. With one flow per millisecond,
            // the early ones are gone.
            assert!(ended.contains(&key(0, 6)) && !ended.contains(&key(499, 6)));
        } else {
            assert_eq!(counters.evicted, 0);
            assert!(refused >= 500 - 64);
        }
    }
}

#[test]
fn eviction_never_takes_a_flow_of_the_batch_under_way() {
    let mut rig = Rig::new(&config(512, WhenFull::Evict));
    let keys: Vec<_> = (0..MAX_BATCH as u32).map(|n| (key(n, 6), 0)).collect();
    let places: Vec<u32> = rig.lookup(&keys, SECOND).into_iter().flatten().collect();
    let mut distinct = places.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), places.len(), "two flows of one batch share a place");
    assert_eq!(rig.table.counters().evicted, 0);
    assert!(rig.table.counters().refused > 0);
}

#[test]
fn companions_live_and_end_together() {
    let mut rig = Rig::new(&config(512, WhenFull::Evict));
    let (one, two) = (key(1, 17), key(2, 17));
    let flow = FlowIndex(rig.lookup(&[(one, 5)], SECOND)[0].unwrap());
    let open = |rig: &mut Rig, bucket| rig.table.open_companion(flow, &two, bucket, SECOND, &mut rig.ends);
    assert_eq!(open(&mut rig, 6), Err(NoCompanion::OtherBucket));
    let companion = open(&mut rig, 5).unwrap();
    let third = FlowIndex(rig.lookup(&[(key(3, 17), 5)], SECOND)[0].unwrap());
    let taken = rig.table.open_companion(third, &two, 5, SECOND, &mut rig.ends);
    assert_eq!(taken, Err(NoCompanion::Taken));
    // Packets of the companion alone keep both alive.
    for second in 2..40 {
        let now = Nanos::from_secs(second);
        assert_eq!(rig.lookup(&[(two, 5)], now), [Some(companion.0)]);
        let ended = rig.expire(now);
        assert!(!ended.contains(&one) && !ended.contains(&two));
    }
    let mut ended = rig.expire(Nanos::from_secs(60));
    ended.sort_by_key(|key| key.source_port());
    assert_eq!(ended, [one, two]);
    assert_eq!(rig.table.flows(), 0);
}

/// A second companion used to leave the first one pointing at the flow, whose slot was then freed twice.
#[test]
fn a_second_companion_is_refused() {
    let mut rig = Rig::new(&config(512, WhenFull::Evict));
    let flow = FlowIndex(rig.lookup(&[(key(1, 17), 5)], SECOND)[0].unwrap());
    let mut open = |of: FlowIndex, n| rig.table.open_companion(of, &key(n, 17), 5, SECOND, &mut rig.ends);
    let companion = open(flow, 2).unwrap();
    assert_eq!(open(flow, 3), Err(NoCompanion::HasOne));
    assert_eq!(open(companion, 3), Err(NoCompanion::HasOne));
    assert_eq!(rig.expire(Nanos::from_secs(100)).len(), 2);
    assert_eq!(rig.table.flows(), 0);
}

/// A companion that found no slot used to take that of its own flow, which looked older than the flows around it: both
/// were then freed twice.
#[test]
fn flows_that_move_into_a_full_table_do_not_end_each_other() {
    let mut rig = Rig::new(&config(512, WhenFull::Evict));
    for n in 0..500 {
        rig.lookup(&[(key(n, 6), 3)], SECOND + Nanos::from_millis(n.into()));
    }
    let long_ago = 0;
    for n in 0..200 {
        let flows = [(key(1000 + n, 17), long_ago), (key(2000 + n, 17), long_ago)];
        let now = Nanos::from_secs(u64::from(2 + n));
        rig.table.receive_flows(3, &flows, &[0; 32], now, &mut rig.ends);
        rig.ended();
    }
    let flows = rig.table.flows();
    assert!(flows > 32, "{flows}");
    let mut keys = Vec::new();
    while let Some(flow) = rig.table.first_flow(3) {
        let companion = rig.table.companion(flow);
        assert!(companion.is_none_or(|it| it != flow && rig.table.companion(it) == Some(flow)));
        rig.table.take_flow(flow, |key, _, _| keys.push(*key));
    }
    assert_eq!((keys.len(), rig.table.flows()), (flows, 0));
    let distinct: std::collections::HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
}

/// A packet looked up in another table used to keep its old index, which gave access to state that another worker was
/// using.
#[test]
fn a_stale_index_is_forgotten_or_refused() {
    let mut rig = Rig::new(&config(512, WhenFull::Evict));
    assert!(rig.batch.push(&mut rig.pool, &[], SECOND, 5));
    rig.table.lookup(rig.batch.slots_mut(), SECOND, &mut rig.ends);
    assert!(rig.batch.iter().all(|packet| packet.flow().is_some()));
    let mut other = rig.table.sharing();
    let stale = rig.batch.iter().next().unwrap().flow;
    let access = std::panic::AssertUnwindSafe(|| other.whole_state(stale).len());
    assert!(
        std::panic::catch_unwind(access).is_err(),
        "state of a partition that is not held"
    );
    other.lookup(rig.batch.slots_mut(), SECOND, &mut rig.ends);
    assert!(rig.batch.iter().all(|packet| packet.flow().is_none()));
    rig.batch.release(&mut rig.pool);
}

/// A flow whose last packet another worker saw slightly after this worker's current time used to count as idle for 39
/// hours.
#[test]
fn a_flow_seen_after_now_is_not_idle() {
    let mut rig = Rig::new(&config(512, WhenFull::Evict));
    let flow = rig.lookup(&[(key(1, 17), 5)], Nanos::from_secs(20))[0].unwrap();
    assert_eq!(rig.table.idle_ticks(FlowIndex(flow), 7), 0);
}

#[test]
fn a_bucket_moves_with_its_flows() {
    let config = config(512, WhenFull::Evict);
    let mut rig = Rig::new(&config);
    let place = rig.lookup(&[(key(1, 6), 9)], SECOND)[0];
    rig.table.whole_state(FlowIndex(place.unwrap())).fill(42);
    let partition = rig.table.release(9).unwrap();
    // Without the partition, the bucket's packets find nothing.
    assert_eq!(rig.lookup(&[(key(1, 6), 9)], SECOND), [None]);
    let mut other = rig.table.sharing();
    other.adopt(partition);
    assert_eq!((rig.table.flows(), other.flows()), (0, 1));
    rig.table = other;
    assert_eq!(rig.lookup(&[(key(1, 6), 9)], SECOND), [place]);
    assert_eq!(rig.table.whole_state(FlowIndex(place.unwrap()))[0], 42);
}

/// A view for lent buckets on the same memory.
fn borrower(table: &FlowTable) -> FlowTable {
    // SAFETY: the tests use a bucket in one view at a time.
    unsafe { table.for_lent_buckets() }
}

#[test]
fn a_lent_bucket_is_used_by_the_other_view_only() {
    let config = config(512, WhenFull::Evict);
    let mut rig = Rig::new(&config);
    let place = rig.lookup(&[(key(1, 17), 9)], SECOND)[0];
    let mut other = Rig::new(&config);
    other.table = borrower(&rig.table);
    rig.table.lend(9);
    assert_eq!(rig.lookup(&[(key(1, 17), 9), (key(1, 17), 8)], SECOND)[0], None);
    assert_eq!((rig.table.flows(), rig.table.contains(&key(1, 17), 9)), (1, false));
    let companion = |table: &mut FlowTable, ends: &mut _, number| {
        table.open_companion(FlowIndex(place.unwrap()), &key(number, 17), 9, SECOND, ends)
    };
    let refused = companion(&mut rig.table, &mut rig.ends, 3);
    assert_eq!(refused.unwrap_err(), NoCompanion::OtherBucket);
    // The other view finds the flow, opens more, and ends those that are idle.
    let found = other.lookup(&[(key(1, 17), 9), (key(2, 17), 9)], Nanos::from_secs(2));
    assert_eq!(found[0], place);
    assert!(companion(&mut other.table, &mut other.ends, 4).is_ok());
    assert_eq!(other.table.flows(), 0, "it holds no bucket");
    assert_eq!(other.expire(Nanos::from_secs(60)), [], "nor sweeps those of others");
    assert_eq!(rig.expire(Nanos::from_secs(60)), [key(1, 17)], "that of bucket 8");
    rig.table.take_back(9);
    assert_eq!(rig.lookup(&[(key(2, 17), 9)], Nanos::from_secs(2)), [found[1]]);
    assert_eq!(rig.table.flows(), 3);
    rig.table.lend(9);
    other.table.expire_bucket(9, Nanos::from_secs(60), 100, &mut other.ends);
    assert_eq!(other.ended().len(), 3);
    // A bucket that is not held cannot be taken back.
    rig.table.take_back(9);
    let partition = rig.table.release(9).unwrap();
    rig.table.take_back(9);
    assert_eq!(rig.lookup(&[(key(1, 17), 9)], SECOND), [None]);
    rig.table.adopt(partition);
    assert!(rig.lookup(&[(key(1, 17), 9)], SECOND)[0].is_some());
}

/// A view with a bucket of its own borrows one for a batch.
#[test]
fn a_borrowed_bucket_is_used_until_it_is_returned() {
    let config = config(512, WhenFull::Evict);
    let mut rig = Rig::new(&config);
    let place = rig.lookup(&[(key(1, 17), 9)], SECOND)[0];
    let mut other = Rig::new(&config);
    other.table = rig.table.sharing();
    other.table.adopt(rig.table.release(8).unwrap());
    rig.table.lend(9);
    let both = [(key(1, 17), 9), (key(2, 17), 8)];
    other.table.borrow_buckets([9].into_iter());
    assert_eq!(other.lookup(&both, SECOND)[0], None, "it may not borrow");
    // SAFETY: the test uses a bucket in one view at a time.
    unsafe { other.table.enable_borrowing() };
    other.table.borrow_buckets([9, 8, 9].into_iter());
    let found = other.lookup(&[both[0], both[1], (key(3, 17), 9)], Nanos::from_secs(2));
    assert_eq!(found[0], place);
    assert!(found[1].is_some() && found[2].is_some());
    assert_eq!(
        other.expire(Nanos::from_secs(60)),
        [key(2, 17)],
        "only its own bucket is swept"
    );
    other.table.return_borrowed();
    let after = other.lookup(&both, Nanos::from_secs(3));
    assert!(after[0].is_none() && after[1].is_some(), "its own bucket stays");
    rig.table.take_back(9);
    assert_eq!(rig.lookup(&[(key(3, 17), 9)], Nanos::from_secs(3)), [found[2]]);
}

/// Packets that were looked up are on another core, which uses their flows' state.
#[test]
fn flows_that_are_kept_neither_expire_nor_make_room() {
    let config = config(1, WhenFull::Evict);
    let mut rig = Rig::new(&config);
    let keys: Vec<_> = (0..64).map(|n| (key(n, 17), 9)).collect();
    rig.lookup(&keys, SECOND);
    let flows = rig.table.flows();
    rig.table.keep_flows(9, true);
    assert_eq!(rig.expire(Nanos::from_secs(60)), []);
    let more: Vec<_> = (64..512).map(|n| (key(n, 17), 9)).collect();
    let mut found = Vec::new();
    for keys in more.chunks(MAX_BATCH) {
        found.extend(rig.lookup(keys, Nanos::from_secs(60)));
    }
    assert!(
        found.contains(&None) && rig.table.counters().evicted == 0,
        "{:?}",
        rig.table.counters()
    );
    assert!(rig.table.flows() >= flows);
    rig.table.keep_flows(9, false);
    while !rig.expire(Nanos::from_secs(200)).is_empty() {}
    assert_eq!(rig.table.flows(), 0);
}

/// Timeout in seconds, read from the state's first byte.
#[derive(Debug)]
struct AsStateSays;

impl Lifetimes for AsStateSays {
    fn idle_timeout(&self, _: &FlowKey, state: &[u8]) -> Nanos {
        Nanos::from_secs(state[0].into())
    }
}

impl Rig {
    fn keep_for(&mut self, flow: u32, seconds: u8) {
        self.table.state(FlowIndex(flow), &(8..9))[0] = seconds;
    }
}

#[test]
fn flows_are_kept_as_long_as_their_state_says() {
    let mut rig = Rig::new(&config(1024, WhenFull::Refuse));
    rig.table.set_lifetimes(Some((Arc::new(AsStateSays), 8..9)));
    let keys = [(key(1, 17), 7), (key(2, 17), 7), (key(3, 17), 8)];
    let flows = rig.lookup(&keys, SECOND);
    for (flow, seconds) in flows.into_iter().zip([3, 25, 100]) {
        rig.keep_for(flow.unwrap(), seconds);
    }
    assert_eq!(rig.expire(Nanos::from_secs(2)), []);
    assert_eq!(rig.expire(Nanos::from_secs(12)), [key(1, 17)]);
    assert_eq!(rig.expire(Nanos::from_secs(24)), []);
    // A new timeout in the state takes effect at once, even if the old one was long.
    let third = rig.table.find(FlowIndex(rig.table.home(&key(3, 17), 8)), &key(3, 17));
    rig.keep_for(third.unwrap().0, 5);
    let mut ended = rig.expire(Nanos::from_secs(36));
    ended.sort_by_key(|key| key.source_port());
    assert_eq!(ended, [key(2, 17), key(3, 17)]);
}

#[test]
fn the_flow_whose_time_is_up_first_makes_room() {
    let mut rig = Rig::new(&config(512, WhenFull::Evict));
    rig.table.set_lifetimes(Some((Arc::new(AsStateSays), 8..9)));
    // More flows of one bucket than fit. Every third has a long timeout, and these are the longest idle.
    let mut lasting = Vec::new();
    for n in 0..600u32 {
        let flow = rig.lookup(&[(key(n, 17), 7)], SECOND + Nanos::from_millis(n.into()));
        let flow = flow[0].expect("a place");
        let lasts = n % 3 == 0 && n < 60;
        rig.keep_for(flow, if lasts { 200 } else { 20 });
        if lasts {
            lasting.push(key(n, 17));
        }
    }
    let ended = rig.ended();
    assert!(ended.len() > 400, "{}", ended.len());
    assert!(lasting.iter().all(|key| !ended.contains(key)));
}
