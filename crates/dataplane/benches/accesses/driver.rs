//! Passes packets through a chain, with marks around what is recorded.

use crate::cases;
use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_functions::build::ChainBuilder;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;
use tailwater_traffic::Trace;

/// Argument that makes the program the one that is recorded.
pub const DRIVE: &str = "--drive";
/// Rounds over all flows. The second half is recorded.
const ROUNDS: u64 = 4;

/// Stores to these words begin and end a recorded part.
#[repr(align(4096))]
struct Marks([AtomicU64; 2]);

static MARKS: Marks = Marks([AtomicU64::new(0), AtomicU64::new(0)]);

/// Addresses that a recording refers to.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub begin: u64,
    pub end: u64,
    /// First byte of the first frame and of the last one, and bytes from one to the next.
    pub buffers: [u64; 3],
    /// Address of a function, to find where the program is loaded.
    pub code: u64,
}

impl Addresses {
    fn own() -> Addresses {
        let [begin, end] = [0, 1].map(|mark| std::ptr::from_ref(&MARKS.0[mark]) as u64);
        Addresses {
            begin,
            end,
            buffers: [u64::MAX, 0, 0],
            code: code(),
        }
    }

    /// Reads what [`drive`] prints.
    pub fn parse(line: &str) -> Option<Addresses> {
        let numbers: Option<Vec<u64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        let [begin, end, first, last, stride, code] = numbers?[..] else {
            return None;
        };
        Some(Addresses {
            begin,
            end,
            buffers: [first, last, stride],
            code,
        })
    }
}

/// Address of a function of this program.
pub fn code() -> u64 {
    (drive as fn(&str, &str, u32)) as usize as u64
}

struct Driver {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    trace: Trace,
    rss: RssHasher,
    now: Nanos,
}

impl Driver {
    fn new(chain: &str, size: &str, flows: u32) -> Driver {
        let spec = cases::spec(chain, flows);
        let rss = spec.rss();
        let mut builder = ChainBuilder::new(&spec, &rss, 1).unwrap_or_else(|error| panic!("{error}"));
        let trace = cases::traffic::trace(chain, size, flows, u64::from(flows) * ROUNDS);
        let longest = (0..trace.len()).map(|packet| trace.length(packet)).max().unwrap_or(0);
        let pool = BufferPool::new(512, longest).unwrap_or_else(|error| panic!("{error}"));
        let mut driver = Driver {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, cases::BATCH),
            pool,
            trace,
            rss,
            now: Nanos::from_micros(1),
        };
        if let Some(opening) = cases::traffic::opening(chain, size, flows) {
            let own = std::mem::replace(&mut driver.trace, opening);
            driver.pass(0, driver.trace.len(), |chain, batch, now| chain.process(batch, now));
            driver.trace = own;
        }
        driver
    }

    /// Passes packets `from` to `to` through the chain by `process`.
    fn pass(&mut self, from: usize, to: usize, mut process: impl FnMut(&mut Chain, &mut Batch, Nanos)) {
        for first in (from..to).step_by(cases::BATCH) {
            for packet in first..to.min(first + cases::BATCH) {
                let frame = self.trace.packet(packet);
                let hash = self.rss.hash_frame(frame);
                assert!(self.batch.push(&mut self.pool, frame, self.now, hash), "no buffer");
            }
            process(&mut self.chain, &mut self.batch, self.now);
            self.batch.release(&mut self.pool);
            self.now += Nanos::from_micros(5);
        }
    }

    fn half(&self) -> usize {
        (self.trace.len() / 2).next_multiple_of(cases::BATCH)
    }
}

/// Prints the [`Addresses`] after half of the packets, waits for a byte, and passes the other half with marks.
pub fn drive(chain: &str, size: &str, flows: u32) {
    let mut driver = Driver::new(chain, size, flows);
    let (half, end) = (driver.half(), driver.trace.len());
    let mut addresses = Addresses::own();
    let stride = driver.batch.buffer_bytes() as u64;
    driver.pass(0, half, |chain, batch, now| {
        for packet in 0..batch.len() {
            let frame = batch.frame(packet).as_ptr() as u64;
            addresses.buffers = [addresses.buffers[0].min(frame), addresses.buffers[1].max(frame), stride];
        }
        chain.process(batch, now);
    });
    let Addresses {
        begin,
        end: end_mark,
        buffers: [first, last, stride],
        code,
    } = addresses;
    println!("{begin} {end_mark} {first} {last} {stride} {code}");
    let _ = std::io::stdout().flush();
    let _ = std::io::stdin().read_exact(&mut [0]);
    driver.pass(half, end, |chain, batch, now| {
        MARKS.0[0].store(1, Ordering::Relaxed);
        chain.process(batch, now);
        MARKS.0[1].store(1, Ordering::Relaxed);
    });
}
