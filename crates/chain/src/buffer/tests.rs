use super::*;

#[test]
fn buffers_are_distinct_and_come_back() {
    let mut pool = BufferPool::new(4, 100).unwrap();
    let mut held: Vec<Buffer> = (0..4).map(|_| pool.take().unwrap()).collect();
    assert!(pool.take().is_none());
    assert_eq!(pool.exhausted(), 1);
    let memory = pool.memory().clone();
    for (i, buffer) in held.iter_mut().enumerate() {
        memory.bytes_mut(buffer).fill(i as u8 + 1);
    }
    for (i, buffer) in held.iter().enumerate() {
        assert!(memory.bytes(buffer).iter().all(|&b| b == i as u8 + 1));
    }
    held.drain(..).for_each(|buffer| pool.give(buffer));
    assert_eq!(pool.available(), 4);
}

#[test]
fn pools_that_share_memory_exchange_buffers() {
    let mut pools = BufferPool::sharing(2, 6, 100).unwrap();
    let memory = pools[0].memory().clone();
    assert!(memory.is(pools[1].memory()));
    let mut all: Vec<Buffer> = pools
        .iter_mut()
        .flat_map(|pool| pool.take_many(9).collect::<Vec<_>>())
        .collect();
    let mut indexes: Vec<u32> = all.iter().map(Buffer::index).collect();
    indexes.sort_unstable();
    assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
    all.drain(..).for_each(|buffer| pools[1].give(buffer));
    assert_eq!((pools[0].available(), pools[1].available()), (0, 6));
}

#[test]
fn strides_are_odd_numbers_of_lines() {
    for frame in [1, 64, 1518, 2048, 9000, MAX_FRAME] {
        let pool = BufferPool::new(1, frame).unwrap();
        let stride = pool.memory().buffer_bytes();
        assert_eq!(stride / CACHE_LINE % 2, 1);
        assert!(stride >= HEADROOM + frame);
    }
}

/// Memory of four buffers, each after 64 bytes that belong to the device.
fn of_a_device() -> BufferMemory {
    let region = Region::zeroed(4 * 512).unwrap();
    let base = region.base().wrapping_add(64);
    // SAFETY: four times 512 bytes, to which nothing else refers.
    unsafe { BufferMemory::lent(base, 4, [512, 448], Arc::new(region)) }.unwrap()
}

#[test]
fn buffers_that_are_lent_go_back_or_are_sent() {
    let memory = of_a_device();
    let (mut pool, mut other) = (BufferPool::lent(memory.clone(), 2), BufferPool::lent(memory.clone(), 2));
    assert_eq!((pool.available(), pool.capacity()), (2, 4));
    assert!(pool.take().is_none());
    // SAFETY: there is no device, and these are the only handles.
    let [mut kept, mut sent] = unsafe { [pool.claim(3), pool.claim(1)] };
    assert_eq!(memory.bytes(&kept).len(), 448);
    memory.bytes_mut(&mut kept).fill(7);
    assert_eq!(pool.available(), 0);
    assert_eq!(sent.lend().index(), 1);
    pool.give_all([sent].into_iter());
    // One buffer moves to another worker, and returns to the device from there.
    pool.dismiss(&kept);
    other.admit(&kept);
    other.give(kept);
    assert_eq!([pool.available(), other.available()], [2, 2]);
    assert_eq!(other.returned().collect::<Vec<_>>(), [3]);
    assert_eq!(pool.returned().len(), 0);
}

#[test]
#[should_panic(expected = "another pool")]
fn nobody_reads_what_was_sent() {
    let memory = of_a_device();
    let mut pool = BufferPool::lent(memory.clone(), 1);
    // SAFETY: there is no device, and this is the only handle.
    let mut buffer = unsafe { pool.claim(0) };
    let _ = buffer.lend();
    memory.bytes(&buffer);
}

#[test]
#[should_panic(expected = "buffers of 600 bytes, 512 apart")]
fn buffers_do_not_overlap() {
    let region = Region::zeroed(4 * 512).unwrap();
    // SAFETY: the call is refused.
    let _ = unsafe { BufferMemory::lent(region.base(), 2, [512, 600], Arc::new(region)) };
}

#[test]
#[should_panic(expected = "another pool")]
fn a_buffer_of_another_pool_is_refused() {
    let (mut a, mut b) = (BufferPool::new(1, 64).unwrap(), BufferPool::new(1, 64).unwrap());
    b.give(a.take().unwrap());
}
