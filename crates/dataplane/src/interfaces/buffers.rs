//! Buffers of receive queues.
//!
//! A queue whose packets stay with its worker takes buffers of the worker's pool. Queues that forward packets to other
//! workers share one stock, since buffers are freed where the packets end: each has a cache, which exchanges many
//! buffers at a time with the stock.

use std::sync::{Arc, Mutex, PoisonError};
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::buffer::{Buffer, BufferPool};

/// Buffers that a cache and the stock exchange at a time. Only then is the stock's lock taken.
const EXCHANGE: usize = 256;
const _: () = assert!(EXCHANGE >= MAX_BATCH, "an exchange suffices for a batch");

/// Most buffers that a cache keeps.
pub(super) const CACHED: usize = 2 * EXCHANGE;

/// Free buffers of all queues.
#[derive(Debug)]
pub(super) struct BufferStock(Mutex<Vec<Buffer>>);

impl BufferStock {
    /// Stock of all buffers of a pool.
    pub(super) fn new(pool: &mut BufferPool) -> Arc<BufferStock> {
        let count = pool.capacity();
        Arc::new(BufferStock(Mutex::new(pool.take_many(count).collect())))
    }
}

/// Source of a queue's buffers.
#[derive(Debug)]
pub(super) enum QueueBuffers {
    /// The worker's pool.
    Own,
    /// The stock, by way of the cache.
    Shared {
        /// Free buffers.
        cache: Vec<Buffer>,
        /// Free buffers of all queues.
        stock: Arc<BufferStock>,
    },
}

impl QueueBuffers {
    /// Shares the stock of a memory of `count` buffers.
    pub(super) fn sharing(stock: &Arc<BufferStock>, count: usize) -> QueueBuffers {
        QueueBuffers::Shared {
            cache: Vec::with_capacity(count),
            stock: Arc::clone(stock),
        }
    }

    /// Takes back the buffers that were freed to a worker's pool. Returns the number of buffers that can be taken now,
    /// at least a batch unless all are in use.
    #[inline]
    pub(super) fn settle(&mut self, pool: &mut BufferPool) -> usize {
        match self {
            QueueBuffers::Own => pool.available(),
            QueueBuffers::Shared { cache, stock } => {
                cache.extend(pool.take_all_returned());
                if cache.len() > CACHED || cache.len() < MAX_BATCH {
                    exchange(cache, stock);
                }
                cache.len().min(pool.available())
            }
        }
    }

    /// Takes a buffer, which the pool then holds.
    #[inline]
    pub(super) fn take(&mut self, pool: &mut BufferPool) -> Option<Buffer> {
        match self {
            QueueBuffers::Own => pool.take(),
            QueueBuffers::Shared { cache, .. } => {
                let buffer = cache.pop()?;
                pool.admit(&buffer);
                Some(buffer)
            }
        }
    }
}

/// Brings a cache to `EXCHANGE` buffers, if there are so many.
#[cold]
fn exchange(cache: &mut Vec<Buffer>, stock: &BufferStock) {
    let mut free = stock.0.lock().unwrap_or_else(PoisonError::into_inner);
    if cache.len() > EXCHANGE {
        free.extend(cache.drain(EXCHANGE..));
    } else {
        let rest = free.len().saturating_sub(EXCHANGE - cache.len());
        cache.extend(free.drain(rest..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(stock: &BufferStock) -> usize {
        stock.0.lock().unwrap().len()
    }

    #[test]
    fn buffers_go_round_between_two_queues() {
        let mut whole = BufferPool::new(2000, 64).unwrap();
        let memory = whole.memory().clone();
        let stock = BufferStock::new(&mut whole);
        let mut pools = [0, 1].map(|_| BufferPool::lent(memory.clone(), 1000));
        let mut queues = [0, 1].map(|_| QueueBuffers::sharing(&stock, 2000));
        assert_eq!(queues[0].settle(&mut pools[0]), EXCHANGE);
        // One receives all, the other one frees all.
        for _ in 0..50 {
            assert!(queues[0].settle(&mut pools[0]) >= 100);
            for _ in 0..100 {
                let buffer = queues[0].take(&mut pools[0]).unwrap();
                pools[0].dismiss(&buffer);
                pools[1].admit(&buffer);
                pools[1].give(buffer);
            }
            queues[1].settle(&mut pools[1]);
        }
        let [
            QueueBuffers::Shared { cache: a, .. },
            QueueBuffers::Shared { cache: b, .. },
        ] = &queues
        else {
            panic!("{queues:?}");
        };
        assert!(a.len() <= CACHED && b.len() <= CACHED);
        assert_eq!(a.len() + b.len() + free(&stock), 2000);
        // A worker gets no more than it may hold.
        let mut held = Vec::new();
        while queues[0].settle(&mut pools[0]) > 0 {
            held.push(queues[0].take(&mut pools[0]).unwrap());
        }
        assert_eq!(held.len(), 1000);
    }

    #[test]
    fn a_queue_of_its_own_takes_from_its_pool() {
        let mut pool = BufferPool::new(3, 64).unwrap();
        let mut queue = QueueBuffers::Own;
        assert_eq!(queue.settle(&mut pool), 3);
        let buffer = queue.take(&mut pool).unwrap();
        assert_eq!(queue.settle(&mut pool), 2);
        pool.give(buffer);
        assert_eq!(queue.settle(&mut pool), 3);
    }
}
