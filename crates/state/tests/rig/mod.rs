//! Instances of a chain with their flow state in one shared store, a map that tests control.

#![allow(dead_code, reason = "not every test uses everything")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, DurableFunction};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos};
use tailwater_state::commits::LeaveReason;
use tailwater_state::counters::{Counters, Shared};
use tailwater_state::keeper::{Keeper, StateSize, entries};
use tailwater_state::keys::Version;
use tailwater_state::link::{Failure, Health, Store, link};
use tailwater_state::request::{Operation, Request};

/// Key of a function's state of a flow.
type Key = (String, FlowKey);

/// Store shared by many instances.
#[derive(Default)]
pub struct Map {
    pub values: Mutex<HashMap<Key, Vec<u8>>>,
    versions: Mutex<HashMap<Key, Version>>,
    writers: AtomicU64,
    /// The store does not answer.
    pub away: AtomicBool,
    pub incarnation: AtomicU32,
    /// Replaces every value, whoever wrote it.
    pub always: AtomicBool,
}

impl Map {
    /// Loses all data, and is available again.
    pub fn forget(&self) {
        self.values.lock().unwrap().clear();
        self.versions.lock().unwrap().clear();
        self.incarnation.fetch_add(1, Ordering::Relaxed);
    }

    pub fn len(&self) -> usize {
        self.values.lock().unwrap().len()
    }

    /// Client of an instance with these functions.
    pub fn client(map: &Arc<Map>, functions: &[DurableFunction]) -> Box<dyn Store> {
        map.writers.fetch_add(1, Ordering::Relaxed);
        Map::client_of_last(map, functions)
    }

    /// Another client of the instance that got the last one.
    pub fn client_of_last(map: &Arc<Map>, functions: &[DurableFunction]) -> Box<dyn Store> {
        let functions = functions.iter().map(|f| (f.name.clone(), f.row.clone()));
        Box::new(Way {
            writer: map.writers.load(Ordering::Relaxed),
            map: Arc::clone(map),
            functions: functions.collect(),
        })
    }
}

/// One instance's client of the store.
struct Way {
    map: Arc<Map>,
    functions: Vec<(String, std::ops::Range<usize>)>,
    writer: u64,
}

impl Store for Way {
    fn serve(&mut self, requests: &mut [Request]) -> Result<u32, Failure> {
        if self.map.away.load(Ordering::Relaxed) {
            return Err(Failure {
                message: "away".to_owned(),
                ..Failure::default()
            });
        }
        let mut values = self.map.values.lock().unwrap();
        let mut versions = self.map.versions.lock().unwrap();
        for request in requests {
            for e in 0..request.entries.len() {
                let entry = request.entries[e];
                let (mut found, mut refused) = (0, 0);
                for (f, (name, piece)) in self.functions.iter().enumerate() {
                    let key = (name.clone(), entry.key);
                    if entry.pieces >> f & 1 == 0 {
                        continue;
                    }
                    match entry.operation {
                        Operation::Read | Operation::Probe => {
                            if let Some(value) = values.get(&key) {
                                found |= 1 << f;
                                let stamp = versions.get(&key).map_or(0, |version| version.stamp);
                                if entry.operation == Operation::Read {
                                    request.entries[e].stamp = request.entries[e].stamp.max(stamp);
                                }
                                request.row_mut(e)[piece.clone()].copy_from_slice(value);
                            }
                        }
                        Operation::Update => {
                            let mut new = Version {
                                stamp: entry.stamp,
                                writer: self.writer,
                                companion: (entry.paired >> f & 1 != 0).then_some(entry.companion),
                            };
                            let old = versions.get(&key).copied().unwrap_or_default();
                            let always = self.map.always.load(Ordering::Relaxed).then_some(entry.stamp);
                            match always.or(old.is_replaced(&new, entry.base, entry.joins)) {
                                Some(stamp) => {
                                    new.stamp = stamp;
                                    versions.insert(key.clone(), new);
                                    values.insert(key, request.row(e)[piece.clone()].to_vec());
                                }
                                None => refused |= 1 << f,
                            }
                        }
                        Operation::Forget => {
                            if versions.get(&key).is_some_and(|version| version.writer == self.writer) {
                                versions.remove(&key);
                                values.remove(&key);
                            }
                        }
                    }
                }
                (request.entries[e].found, request.entries[e].refused) = (found, refused);
            }
        }
        Ok(1 + self.map.incarnation.load(Ordering::Relaxed))
    }
}

pub fn spec(functions: &str, state: &str) -> ChainSpec {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: 1ms}}\n  functions: [{{{functions}}}]\n  flows: {{capacity: 4096}}\n  \
         state: {{redis: {{socket: /nowhere}}{state}}}\n"
    );
    ChainSpec::parse(&text, "test", Path::new(".")).unwrap_or_else(|error| panic!("{error}"))
}

/// Instance of a chain.
pub struct Instance {
    /// `None` on an auxiliary core.
    builder: Option<ChainBuilder>,
    pub chain: Chain,
    pub keeper: Option<Keeper>,
    pool: BufferPool,
    received: Batch,
    leaving: Batch,
    rss: RssHasher,
    thread: Option<JoinHandle<()>>,
    /// Sent packets, in order.
    pub sent: Vec<Vec<u8>>,
    /// Do not record sent packets, which would allocate.
    pub discard: bool,
}

impl Instance {
    /// An instance whose run began at `origin`, in wall-clock time.
    pub fn new(spec: &ChainSpec, map: &Arc<Map>, origin: Nanos) -> Instance {
        Instance::on(spec, origin, |functions| Map::client(map, functions))
    }

    /// An instance with any store, created for the functions with external state.
    pub fn on(spec: &ChainSpec, origin: Nanos, store: impl FnOnce(&[DurableFunction]) -> Box<dyn Store>) -> Instance {
        let rss = RssHasher::default();
        let mut builder = ChainBuilder::new(spec, &rss, 1).unwrap();
        builder.set_origin(origin);
        let chain = builder.instance(|_| true);
        Instance::of_chain(spec, origin, (Some(builder), chain), store)
    }

    /// Part of this instance on an auxiliary core, to which it lends buckets.
    ///
    /// # Safety
    /// A bucket is [lent](Chain::lend) to it while it has packets of the bucket, or answers of the store about it are
    /// due.
    pub unsafe fn auxiliary(&self, spec: &ChainSpec, map: &Arc<Map>, origin: Nanos) -> Instance {
        let builder = self.builder.as_ref().unwrap();
        // SAFETY: guaranteed by the caller.
        let chain = unsafe { builder.auxiliary_instance(true) };
        Instance::of_chain(spec, origin, (None, chain), |functions| {
            Map::client_of_last(map, functions)
        })
    }

    fn of_chain(
        spec: &ChainSpec,
        origin: Nanos,
        (builder, chain): (Option<ChainBuilder>, Chain),
        store: impl FnOnce(&[DurableFunction]) -> Box<dyn Store>,
    ) -> Instance {
        let (functions, row_bytes) = chain.durable_functions().expect("functions with state");
        let state = spec.state.as_ref().unwrap();
        let (link, server) = link(entries(state), row_bytes, Arc::new(Health::new()));
        let size = StateSize {
            functions: functions.len(),
            row_bytes,
        };
        let keeper = Keeper::new(state, size, link, origin, Arc::new(Shared::default())).of_moving_buckets();
        let mut store = store(&functions);
        let pool = BufferPool::new(state.packets + 1024, 2048).unwrap();
        Instance {
            builder,
            chain,
            keeper: Some(keeper),
            received: Batch::new(&pool, 32),
            leaving: Batch::new(&pool, 32),
            pool,
            rss: RssHasher::default(),
            thread: Some(std::thread::spawn(move || server.run(&mut *store))),
            sent: Vec::new(),
            discard: false,
        }
    }

    /// Runs one worker turn at time `now`.
    pub fn turn(&mut self, frames: &[Vec<u8>], now: Nanos) {
        for frame in frames {
            let hash = parse(frame).map_or(0, |headers| self.rss.hash_headers(&headers));
            assert!(self.received.push(&mut self.pool, frame, now, hash));
        }
        let keeper = self.keeper.as_mut().unwrap();
        let chain = &mut self.chain;
        keeper.collect(chain, now);
        while keeper.next_update(chain, &mut self.leaving, now).is_some() {
            send(&mut self.leaving, &mut self.sent, self.discard, &mut self.pool);
        }
        while let Some(leaving) = keeper.next_read(chain, &mut self.leaving, now) {
            if leaving.reason != LeaveReason::Drop {
                keeper.begin(chain, &mut self.leaving);
                chain.run(&mut self.leaving, now);
                keeper.update(chain, &mut self.leaving, true, now);
            }
            send(&mut self.leaving, &mut self.sent, self.discard, &mut self.pool);
        }
        if !frames.is_empty() {
            chain.look_up(&mut self.received, now);
            keeper.read(chain, &mut self.received, now);
            keeper.begin(chain, &mut self.received);
            chain.run(&mut self.received, now);
            keeper.update(chain, &mut self.received, false, now);
            send(&mut self.received, &mut self.sent, self.discard, &mut self.pool);
        }
        while keeper.next_update(chain, &mut self.leaving, now).is_some() {
            send(&mut self.leaving, &mut self.sent, self.discard, &mut self.pool);
        }
        chain.expire(now);
        keeper.finish_turn(chain, now);
    }

    /// Runs one turn of a worker without external state.
    pub fn pass(&mut self, frames: &[Vec<u8>], now: Nanos) {
        for frame in frames {
            let hash = parse(frame).map_or(0, |headers| self.rss.hash_headers(&headers));
            assert!(self.received.push(&mut self.pool, frame, now, hash));
        }
        self.chain.process(&mut self.received, now);
        self.received.release(&mut self.pool);
        self.chain.expire(now);
    }

    /// Runs turns at time `now` until no packet waits and every request is answered.
    pub fn settle(&mut self, now: Nanos) {
        let until = Instant::now() + Duration::from_secs(20);
        while !self.keeper.as_ref().unwrap().is_quiet() {
            assert!(Instant::now() < until, "it never settles");
            std::thread::yield_now();
            self.turn(&[], now);
        }
    }

    /// Packets sent since the last call.
    pub fn take_sent(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent)
    }

    /// The chain's counter for a reason.
    pub fn count(&self, reason: &str) -> u64 {
        let mut counts = self.chain.reasons().into_iter().zip(self.chain.reason_counts());
        counts
            .find(|(found, _)| found.name == reason)
            .map_or(0, |(_, count)| count)
    }

    /// Free buffers.
    pub fn free(&self) -> usize {
        self.pool.available()
    }

    /// Ends the instance as a crash would: nothing more is written or reported.
    pub fn end(mut self, now: Nanos) -> Counters {
        let (counters, _) = self.keeper.take().unwrap().finish(now);
        self.thread.take().unwrap().join().unwrap();
        counters
    }
}

impl Instance {
    /// Like [`end`](Instance::end), but orderly: functions report the remaining flows.
    pub fn finish(mut self, now: Nanos) -> Counters {
        let (counters, _) = self.keeper.take().unwrap().finish(now);
        self.thread.take().unwrap().join().unwrap();
        self.chain.drain();
        let builder = self.builder.unwrap();
        builder.finish_exports(&[]).unwrap();
        counters
    }

    /// Expected content of the store: the state of all flows here that functions have seen.
    pub fn durable(&mut self) -> HashMap<Key, Vec<u8>> {
        let (functions, row_bytes) = self.chain.durable_functions().unwrap();
        let (mut place, mut all, mut row) = (0, HashMap::new(), vec![0; row_bytes]);
        while let Some(flow) = self.chain.next_durable_flow(place) {
            place = flow.index() + 1;
            let (key, seen) = (self.chain.durable_key(flow), self.chain.seen_pieces(flow));
            self.chain.durable_row(flow, &mut row);
            for (f, function) in functions.iter().enumerate() {
                if seen >> f & 1 != 0 {
                    all.insert((function.name.clone(), key), row[function.row.clone()].to_vec());
                }
            }
        }
        all
    }
}

fn send(batch: &mut Batch, sent: &mut Vec<Vec<u8>>, discard: bool, pool: &mut BufferPool) {
    if !discard {
        sent.extend((0..batch.len()).map(|i| batch.frame(i).to_vec()));
    }
    batch.release(pool);
}
