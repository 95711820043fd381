//! Decisions of a server mapper: recorded, read, explained and replayed.

use super::super::server::MOST_SERVER_WORDS;
use super::*;
use tailwater_policy::server::{BucketLoad, CoreLoad, MakeServerMapper};

const CORES: u64 = 5;

/// Mapper that moves buckets at random.
struct Anywhere(Random);

impl ServerMapper for Anywhere {
    fn period(&self) -> Nanos {
        Nanos::from_secs(1)
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        for (bucket, load) in view.buckets.iter().enumerate() {
            let to = self.0.below(view.cores.len() as u64) as u16;
            if self.0.below(9) == 0 && to != load.core {
                let bucket = bucket as u16;
                moves.push(Move { bucket, to });
            }
        }
    }
}

fn anywhere() -> MakeServerMapper {
    Arc::new(|| Box::new(Anywhere(Random(77))))
}

/// Views of a mapper with its plans, and the file.
fn recorded(views: u64) -> (Vec<ServerDecision>, Vec<u8>) {
    let file = TestFile::new();
    let recorder = Recorder::create(&file.0, &header("")).unwrap();
    let mut mapper = recorder.recording_server(anywhere())();
    let mut random = Random(12345);
    let seen = (0..views).map(|sequence| {
        let share = |random: &mut Random| random.below(1 << 20) as f64 / 3e6;
        let bucket = |random: &mut Random| BucketLoad {
            flows: share(random),
            rate: share(random) * 1e6,
            core: random.below(CORES) as u16,
        };
        let core = |random: &mut Random| CoreLoad {
            dedicated: random.below(2) == 0,
            busy: share(random),
            lost: random.below(1000),
            batch_p99: Nanos(random.below(100_000)),
            longest_queue: random.below(1024) as u32,
            worst_delay: Nanos(random.below(1_000_000)),
        };
        let mut decision = ServerDecision {
            sequence,
            now: Nanos::from_secs(sequence + 1),
            took: Nanos::ZERO,
            buckets: (0..512).map(|_| bucket(&mut random)).collect(),
            cores: (0..CORES).map(|_| core(&mut random)).collect(),
            late: share(&mut random),
            moves: Vec::new(),
        };
        let mut moves = Vec::new();
        mapper.remap(&decision.view(), &mut moves);
        decision.moves = moves;
        decision
    });
    let seen = seen.collect();
    drop(mapper);
    assert_eq!(recorder.finish().unwrap().unwrap().decisions, views);
    (seen, file.bytes())
}

fn read(bytes: &[u8]) -> Result<Vec<ServerDecision>, ReadError> {
    let mut reader = Reader::new(bytes)?;
    let mut all = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        let Entry::Server(decision) = entry else {
            panic!("about a queue: {entry:?}");
        };
        all.push(decision.clone());
    }
    Ok(all)
}

#[test]
fn what_is_recorded_of_buckets_is_read() {
    let (seen, bytes) = recorded(20);
    let mut read = read(&bytes).unwrap();
    read.iter_mut().for_each(|read| read.took = Nanos::ZERO);
    assert_eq!(read, seen);
    let (mut explainer, mut replayer) = (ServerExplainer::new(3), ServerReplayer::new(&anywhere()));
    let moved: u64 = seen.iter().map(|seen| seen.moves.len() as u64).sum();
    for decision in &read {
        explainer.add(decision);
        replayer.add(decision);
    }
    let explanation = explainer.finish().unwrap();
    assert_eq!((explanation.decisions, explanation.moves), (20, 20));
    assert_eq!(explanation.buckets_moved, moved);
    // Those that moved most, in order.
    let mut most: Vec<u32> = seen.iter().map(|seen| seen.moves.len() as u32).collect();
    most.sort_unstable();
    let list = &explanation.list;
    assert!(list.is_sorted_by(|a, b| a.at_us < b.at_us) && list.len() == 3);
    assert!(list.iter().all(|told| told.buckets_moved >= most[17]));
    for told in list {
        let sum = |part: fn(&CoreChange) -> u32| told.cores.iter().map(part).sum::<u32>();
        assert_eq!(sum(|core| core.buckets), 512);
        assert_eq!(sum(|core| core.leaving), told.buckets_moved);
        assert_eq!(sum(|core| core.coming), told.buckets_moved);
    }
    let replay = replayer.finish();
    assert_eq!((replay.same, replay.different), (20, 0));
    assert_eq!(ServerExplainer::new(3).finish(), None);
}

#[test]
fn decisions_about_buckets_out_of_bounds_are_refused() {
    let is = |numbers: &[u64], expected: &str| {
        let mut bytes = header("").encoded();
        numbers.iter().for_each(|n| format::put(&mut bytes, *n));
        let error = read(&bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    is(
        &[1, 1024],
        "at least 7 numbers in a decision about RSS buckets, found 1",
    );
    is(&[7, 1024, 0, 0, 0, 513, 0, 0], "at most 512 dedicated cores, found 513");
    is(&[7, 1024, 0, 0, 0, 0, 513, 0], "at most 512 RSS buckets, found 513");
    is(
        &[7, 1024, 0, 0, 0, 1, 0, 0],
        "expected 13 numbers in a decision about RSS buckets, found 7",
    );
    // A core and a bucket.
    let fine = [17, 1024, 0, 1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (at, to, expected) in [
        (
            7,
            f64::NAN.to_bits(),
            "a finite number of at least 0 as a share of late packets",
        ),
        (8, 2, "at most 1 as a flag of a core"),
        (
            9,
            f64::NAN.to_bits(),
            "a finite number of at least 0 as the load of a core",
        ),
        (12, 1 << 40, "packets in a ring"),
        (14, 1, "at most 0 as a core, found 1"),
        (15, 1, "at most 0 as a core, found 1"),
        (16, (-1.0_f64).to_bits(), "packets per second of a bucket"),
        (17, f64::INFINITY.to_bits(), "flows of a bucket"),
        (0, MOST_SERVER_WORDS as u64, "numbers in a decision, found"),
    ] {
        let mut numbers = fine;
        numbers[at] = to;
        is(&numbers, expected);
    }
}
