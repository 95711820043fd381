//! Server on which server mappers are tested.

use tailwater_net::Nanos;
use tailwater_policy::server::{BucketLoad, CoreLoad, CoreNumber, Move, ServerMapper, ServerView};

/// Server that applies moves at once.
pub struct Server {
    pub now: Nanos,
    pub buckets: Vec<BucketLoad>,
    pub cores: Vec<CoreLoad>,
    pub moves: Vec<Move>,
    /// Share of late packets.
    pub late: f64,
}

impl Server {
    /// Creates a server with `cores` cores and buckets of (core, flows, rate).
    pub fn new(cores: usize, buckets: &[(CoreNumber, f64, f64)]) -> Server {
        let load = |&(core, flows, rate)| BucketLoad { flows, rate, core };
        let mut server = Server {
            now: Nanos::ZERO,
            buckets: buckets.iter().map(load).collect(),
            cores: vec![CoreLoad::default(); cores],
            moves: Vec::new(),
            late: 0.0,
        };
        server.dedicate();
        server
    }

    fn dedicate(&mut self) {
        for (number, core) in self.cores.iter_mut().enumerate() {
            core.dedicated = self.buckets.iter().any(|b| usize::from(b.core) == number);
        }
    }

    /// Runs one period: checks that the mapper's plan is valid, and applies it.
    pub fn period(&mut self, mapper: &mut dyn ServerMapper) -> &[Move] {
        self.now += mapper.period();
        self.moves.clear();
        let (now, buckets, cores) = (self.now, &self.buckets[..], &self.cores[..]);
        mapper.remap(
            &ServerView {
                now,
                buckets,
                cores,
                late: self.late,
            },
            &mut self.moves,
        );
        let mut seen = vec![false; self.buckets.len()];
        for Move { bucket, to } in &self.moves {
            let bucket = usize::from(*bucket);
            assert!(!seen[bucket], "a bucket is moved once");
            seen[bucket] = true;
            assert!(usize::from(*to) < self.cores.len());
            assert_ne!(self.buckets[bucket].core, *to, "a move changes something");
            self.buckets[bucket].core = *to;
        }
        self.dedicate();
        &self.moves
    }

    pub fn dedicated(&self) -> usize {
        self.cores.iter().filter(|core| core.dedicated).count()
    }

    /// Returns flows and rate of a core.
    pub fn on(&self, core: usize) -> (f64, f64) {
        let mine = self.buckets.iter().filter(|b| usize::from(b.core) == core);
        mine.fold((0.0, 0.0), |(f, r), b| (f + b.flows, r + b.rate))
    }
}

/// Varies the load of each bucket, and the cores' load with it.
fn vary(server: &mut Server, turn: u64) {
    for (number, bucket) in server.buckets.iter_mut().enumerate() {
        let mix = (number as u64 + 1)
            .wrapping_mul(turn + 7)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bucket.rate = (mix >> 58) as f64 * if turn % 5 < 2 { 0.2 } else { 0.6 };
        bucket.flows = (mix >> 50 & 7) as f64;
    }
    for core in 0..server.cores.len() {
        let busy = server.on(core).1 / 200.0;
        server.cores[core].busy = busy.min(1.0);
        server.cores[core].lost = u64::from(busy > 1.0);
        server.cores[core].worst_delay = Nanos((busy * 150_000.0) as u64);
    }
}

/// Counts a mapper's allocations over 80 periods, after 20 periods of warm-up. 512 buckets are on 64 cores.
pub fn allocations(mapper: &mut dyn ServerMapper) -> u64 {
    let buckets: Vec<_> = (0..512).map(|b| (b % 64, 0.0, 0.0)).collect();
    let mut server = Server::new(64, &buckets);
    let mut moved = 0;
    let mut count = 0;
    for turn in 0..100 {
        vary(&mut server, turn);
        let now = server.now;
        server.now += mapper.period();
        let view = ServerView {
            now,
            buckets: &server.buckets,
            cores: &server.cores,
            late: 0.0,
        };
        server.moves.clear();
        let moves = &mut server.moves;
        moves.reserve(512);
        let info = allocation_counter::measure(|| mapper.remap(&view, moves));
        if turn >= 20 {
            count += info.count_total;
            moved += moves.len();
        }
        for Move { bucket, to } in std::mem::take(&mut server.moves) {
            server.buckets[usize::from(bucket)].core = to;
        }
        server.dedicate();
    }
    assert!(moved > 100, "the test moves only {moved} buckets");
    count
}
