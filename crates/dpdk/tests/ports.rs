//! Ports without privileges: virtual devices that need neither root nor huge pages.
#![cfg(feature = "dpdk")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_dpdk::{
    Device, DpdkError, Eal, EalConfig, Frames, HugePages, Mempool, Peer, Port, PortConfig, RxQueue, TxQueue, forward,
};
use tailwater_net::Nanos;
use tailwater_traffic::{CaptureReader, Packet, PacketSource, PcapWriter, ReadOptions};

/// Serialises the tests: a program probes and starts devices one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn eal() -> Eal {
    let config = EalConfig {
        huge_pages: HugePages::No,
        memory: 128 << 20,
        ..EalConfig::default()
    };
    Eal::start(&config).unwrap()
}

fn find(name: &str) -> Result<Device, DpdkError> {
    Device::find(eal(), &name.parse().unwrap())
}

/// Port with `queues` receive and transmit queues.
fn port(name: &str, queues: u16, pool: &Mempool) -> (Port, Vec<RxQueue>, Vec<TxQueue>) {
    let config = PortConfig {
        rx_queues: queues,
        tx_queues: queues,
        // No virtual device has timestamps.
        timestamps: true,
        ..PortConfig::default()
    };
    find(name).unwrap().start(&config, pool).unwrap()
}

/// Receives a burst into the batch, as a worker does.
fn receive(queue: &mut RxQueue, part: &mut BufferPool, batch: &mut Batch) -> usize {
    let count = queue.receive(part, batch.room());
    batch.receive_all(queue.packets().map(|packet| (packet, 0)), Nanos::ZERO);
    count
}

/// Fills the batch with `count` packets whose first byte is their number.
fn fill(pool: &Mempool, part: &mut BufferPool, batch: &mut Batch, count: usize) {
    assert_eq!(pool.fill(part, count), count);
    for i in 0..count {
        let frame = [i as u8; 100];
        assert!(batch.push(part, &frame[..60 + i % 40], Nanos::ZERO, 0));
    }
}

#[test]
fn versions_are_known() {
    assert!(tailwater_dpdk::version().starts_with("DPDK 2"));
    assert!(!eal().huge_pages());
    let pci = EalConfig {
        pci: vec!["0000:00:00.0".to_owned()],
        ..EalConfig::default()
    };
    let error = Eal::start(&pci).unwrap_err().to_string();
    assert!(error.contains("already running"), "{error}");
}

#[test]
fn frames_go_out_and_come_back_in_their_buffers() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 1024, 1518, -1).unwrap();
    let (ring, mut rx, mut tx) = port("net_ring0", 1, &pool);
    let mut part = pool.part(256);
    let (mut out, mut back) = (Batch::new(&part, 32), Batch::new(&part, 32));
    fill(&pool, &mut part, &mut out, 32);
    let before: Vec<*const u8> = (0..32).map(|i| out.frame(i).as_ptr()).collect();
    // One header more in front, and one less.
    assert!(out.grow_front(3, 14).is_some());
    out.packet_mut(3).1[..14].fill(99);
    assert_eq!(tx[0].transmit(&mut out), 0);
    assert_eq!((out.len(), part.available()), (32, 256 - 32));
    out.release(&mut part);
    assert_eq!(part.available(), 256);

    assert_eq!(receive(&mut rx[0], &mut part, &mut back), 32);
    for (i, before) in before.iter().enumerate() {
        let frame = back.frame(i);
        let pushed = if i == 3 { 14 } else { 0 };
        assert_eq!(frame.len(), 60 + i % 40 + pushed);
        assert_eq!(frame[pushed..][..10], [i as u8; 10]);
        assert_eq!(frame.as_ptr().wrapping_add(pushed), *before, "a copy");
    }
    assert_eq!(back.frame(3)[..14], [99; 14]);
    back.release(&mut part);
    let stats = ring.stats().unwrap();
    assert_eq!((stats.received, stats.sent), (32, 32));
    // Released buffers return to the pool with the next poll.
    assert_eq!(receive(&mut rx[0], &mut part, &mut back), 0);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn what_a_device_does_not_take_leaves_the_batch() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 4096, 1518, -1).unwrap();
    let (_ring, mut rx, mut tx) = port("net_ring1", 1, &pool);
    let mut part = pool.part(4096);
    let mut batch = Batch::new(&part, 256);
    let (mut sent, mut unsent) = (0, 0);
    for _ in 0..8 {
        fill(&pool, &mut part, &mut batch, 256);
        unsent += tx[0].transmit(&mut batch);
        sent += batch.len();
        batch.release(&mut part);
    }
    // The driver's ring holds 1,023.
    assert_eq!((sent, unsent), (1023, 2048 - 1023));
    let mut received = 0;
    while receive(&mut rx[0], &mut part, &mut batch) > 0 {
        received += batch.len();
        batch.release(&mut part);
    }
    assert_eq!(received, sent);
    assert_eq!(rx[0].receive(&mut part, 1), 0, "nothing is left");
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn a_worker_holds_no_more_than_its_part() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 1024, 1518, -1).unwrap();
    let (_null, mut rx, _) = port("net_null0", 1, &pool);
    let mut part = pool.part(40);
    let mut held = Vec::new();
    let mut receive = |part: &mut BufferPool| {
        let count = rx[0].receive(part, 32);
        held.extend(rx[0].packets().map(|packet| packet.buffer));
        count
    };
    assert_eq!([(); 3].map(|()| receive(&mut part)), [32, 8, 0]);
    part.give_all(held.drain(..10));
    assert_eq!(rx[0].receive(&mut part, 32), 10);
    let more: Vec<_> = rx[0].packets().map(|packet| packet.buffer).collect();
    part.give_all(held.into_iter().chain(more));
    assert_eq!(part.available(), 40);
}

#[test]
fn both_directions_share_a_pool_and_a_batch() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 2048, 1518, -1).unwrap();
    let (a, mut rx_a, mut tx_a) = port("net_ring2", 1, &pool);
    let (b, mut rx_b, mut tx_b) = port("net_ring3", 1, &pool);
    let mut part = pool.part(1024);
    let mut batch = Batch::new(&part, 64);
    fill(&pool, &mut part, &mut batch, 20);
    assert_eq!(tx_a[0].transmit(&mut batch), 0);
    batch.release(&mut part);
    fill(&pool, &mut part, &mut batch, 12);
    assert_eq!(tx_b[0].transmit(&mut batch), 0);
    batch.release(&mut part);
    // Packets from A go to B and vice versa, out of one batch.
    assert_eq!(receive(&mut rx_a[0], &mut part, &mut batch), 20);
    assert_eq!(receive(&mut rx_b[0], &mut part, &mut batch), 12);
    let mut both = tx_b.remove(0).join(&b, tx_a.remove(0));
    assert_eq!(both.transmit(&mut batch), 0);
    batch.release(&mut part);
    assert_eq!([&a, &b].map(|port| port.stats().unwrap().sent), [32, 32]);
    assert_eq!(receive(&mut rx_a[0], &mut part, &mut batch), 12);
    assert_eq!(receive(&mut rx_b[0], &mut part, &mut batch), 20);
    assert_eq!(batch.frame(12 + 19)[0], 19);
    batch.release(&mut part);
}

#[test]
fn captures_go_through_pcap_devices() {
    let _alone = alone();
    let folder = std::env::temp_dir().join(format!("tailwater-dpdk-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [from, to]: [PathBuf; 2] = ["in.pcap", "out.pcap"].map(|name| folder.join(name));
    let frames: Vec<Vec<u8>> = (0..500u16)
        .map(|i| (0..60 + i).map(|byte| (byte ^ i) as u8).collect())
        .collect();
    let mut writer = PcapWriter::create(&from).unwrap();
    for (i, data) in frames.iter().enumerate() {
        let (timestamp, wire_length) = (Nanos::from_micros(i as u64), data.len() as u32);
        writer
            .write(&Packet {
                timestamp,
                data,
                wire_length,
            })
            .unwrap();
    }
    writer.finish().unwrap();
    let name = format!("net_pcap0,rx_pcap={},tx_pcap={}", from.display(), to.display());
    let pool = Mempool::new(eal(), 2048, 1518, -1).unwrap();
    {
        let (pcap, mut rx, mut tx) = port(&name, 1, &pool);
        let mut part = pool.part(256);
        let mut batch = Batch::new(&part, 32);
        // The driver writes the capture's times into the timestamp field, but no clock runs behind them.
        assert!(!pcap.info().timestamps && pcap.read_clock().is_none());
        assert_eq!(rx[0].stamps(), None);
        while receive(&mut rx[0], &mut part, &mut batch) > 0 {
            assert_eq!(tx[0].transmit(&mut batch), 0);
            batch.release(&mut part);
        }
        assert_eq!(pcap.stats().unwrap().sent, 500);
    }
    let mut reader = CaptureReader::open(&to, &ReadOptions::default()).unwrap();
    for frame in &frames {
        assert_eq!(reader.next_packet().unwrap().unwrap().data, frame);
    }
    assert!(reader.next_packet().unwrap().is_none());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_table_is_read_back_as_it_was_written() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 1024, 1518, -1).unwrap();
    let (null, _rx, _tx) = port("net_null1", 2, &pool);
    let size = null.info().reta_size;
    assert!(size > 0 && null.rx_queues() == 2);
    for shift in [0, 1] {
        let table: Vec<u16> = (0..size).map(|i| (i + shift) % 2).collect();
        null.set_reta(&table).unwrap();
        assert_eq!(null.reta().unwrap(), table);
    }
    assert!(null.set_reta(&[0; 3]).is_err());
    let (ring, ..) = port("net_ring4", 1, &pool);
    let error = ring.set_reta(&[]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
}

#[test]
fn ports_have_links_and_names_and_are_used_once() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 1024, 1518, -1).unwrap();
    let config = PortConfig {
        mtu: Some(1400),
        ..PortConfig::default()
    };
    let found = find("net_null2").unwrap();
    let (null, ..) = found.start(&config, &pool).unwrap();
    assert_eq!(null.info().mtu, 1400);
    assert!(null.link().unwrap().up && !null.has_gone());
    assert_eq!(null.name().to_string(), "net_null2");
    assert_eq!(null.info().driver, "net_null");
    let error = find("net_null2,size=100").unwrap_err().to_string();
    assert!(error.contains("the same device is in use as"), "{error}");
    drop(null);
    // Free again, once its queues are dropped.
    assert!(find("net_null2").is_ok());
}

#[test]
fn senders_share_queues_where_there_are_too_few() {
    let _alone = alone();
    let folder = std::env::temp_dir().join(format!("tailwater-shared-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let out = folder.join("out.pcap");
    let pool = Mempool::new(eal(), 8192, 1518, -1).unwrap();
    const SENDERS: usize = 4;
    const EACH: usize = 2000;
    {
        // Two senders at a time would corrupt a file, so the device has one queue.
        let name = format!("net_pcap1,tx_pcap={}", out.display());
        let config = PortConfig {
            tx_queues: SENDERS as u16,
            senders: SENDERS as u16,
            ..PortConfig::default()
        };
        let device = find(&name).unwrap();
        let (port, _, tx) = device.start(&config, &pool).unwrap();
        assert_eq!((port.tx_queues(), tx.len()), (1, SENDERS));
        std::thread::scope(|scope| {
            for (sender, mut tx) in tx.into_iter().enumerate() {
                scope.spawn(move || {
                    let mut sent = 0u32;
                    while (sent as usize) < EACH {
                        let mut frames = Vec::new();
                        for number in sent..(sent + 7).min(EACH as u32) {
                            let mut frame = [sender as u8; 64];
                            frame[1..5].copy_from_slice(&number.to_be_bytes());
                            frames.push(frame);
                        }
                        let mut next = frames.iter();
                        let before = sent;
                        sent += tx.inject(frames.len(), || (&next.next().unwrap()[..], 0)) as u32;
                        assert!(sent > before, "buffers ran out");
                    }
                });
            }
        });
        assert_eq!(port.stats().unwrap().sent, (SENDERS * EACH) as u64);
    }
    let mut reader = CaptureReader::open(&out, &ReadOptions::default()).unwrap();
    let mut next = [0u32; SENDERS];
    while let Some(packet) = reader.next_packet().unwrap() {
        let sender = usize::from(packet.data[0]);
        assert!(packet.data[5..].iter().all(|byte| *byte == sender as u8));
        assert_eq!(packet.data[1..5], next[sender].to_be_bytes());
        next[sender] += 1;
    }
    assert_eq!(next, [EACH as u32; SENDERS]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn packets_in_pieces_are_made_whole_or_counted() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 512, 1518, -1).unwrap();
    let (_ring, mut rx, mut tx) = port("net_ring7", 1, &pool);
    let mut part = pool.part(256);
    let frame: Vec<u8> = (0..3000u32).map(|i| (i % 251) as u8).collect();
    // The second one is longer than a buffer.
    for length in [900, 3000, 60] {
        assert!(tx[0].inject_in_pieces(&frame[..length], length / 2));
    }
    let mut lengths = Vec::new();
    assert_eq!(rx[0].receive(&mut part, 32), 3);
    for packet in rx[0].packets() {
        let received = packet.frame(part.memory());
        assert_eq!(received, &frame[..received.len()]);
        lengths.push(received.len());
        part.give(packet.buffer);
    }
    assert_eq!(lengths, [900, 60]);
    assert_eq!(rx[0].take_refused(), [1, 0]);
    assert_eq!(rx[0].take_refused(), [0, 0]);
    assert_eq!(rx[0].receive(&mut part, 32), 0);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn queues_are_counted_by_themselves() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 1024, 1518, -1).unwrap();
    let (ring, mut rx, mut tx) = port("net_ring8", 2, &pool);
    for (queue, packets) in [(0, 5), (1, 9)] {
        assert_eq!(tx[queue].inject(packets, || (&[0; 60], 0)), packets);
    }
    let mut part = pool.part(256);
    assert_eq!(rx[1].receive(&mut part, 32), 9);
    part.give_all(rx[1].packets().map(|packet| packet.buffer));
    let counted = [0, 1].map(|queue| ring.queue_stats(queue));
    assert_eq!(counted.map(|queue| queue.sent), [Some(5), Some(9)]);
    assert_eq!(counted.map(|queue| queue.received), [Some(0), Some(9)]);
    assert_eq!(ring.queue_stats(2), Default::default());
}

/// The driver unmaps the shared memory while a worker sends, most likely in the middle of one of its long bursts.
#[test]
fn a_peer_may_go_in_the_middle_of_a_burst() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 2048, 1518, -1).unwrap();
    let folder = std::env::temp_dir().join(format!("tailwater-memif-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for turn in 0..5 {
        let socket = folder.join(format!("socket{turn}"));
        // Enough descriptors to last for a while with nobody at the other end.
        let name = |number, role: &str| {
            let socket = socket.display();
            format!("net_memif{number},role={role},socket={socket},socket-abstract=no,rsize=14")
        };
        let (server, server_rx, server_tx) = port(&name(2 * turn, "server"), 1, &pool);
        let (client, mut rx, mut tx) = port(&name(2 * turn + 1, "client"), 1, &pool);
        let mut part = pool.part(1024);
        let is = |up: bool| {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while client.link().unwrap().up != up {
                assert!(std::time::Instant::now() < deadline, "the link is not {up}");
                std::thread::yield_now();
            }
        };
        is(true);
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let frame = [7; 1500];
                let mut last = 0;
                // Keeps sending after the peer's end, too.
                while last < 10 {
                    last += usize::from(over.load(std::sync::atomic::Ordering::Relaxed));
                    tx[0].inject(256, || (&frame, 0));
                    rx[0].receive(&mut part, 32);
                    rx[0].packets().for_each(|packet| part.give(packet.buffer));
                }
            });
            while client.stats().unwrap().sent == 0 {
                std::thread::yield_now();
            }
            drop((server, server_rx, server_tx));
            is(false);
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn errors_say_what_to_do() {
    let _alone = alone();
    let error = |name: &str| find(name).unwrap_err().to_string();
    for (name, what) in [
        ("net_nul0", "DPDK has no driver \"net_nul\""),
        ("net_af_packet0,iface=nowhere0", "no interface \"nowhere0\""),
        ("ffff:ff:1f.7", "no such PCI device"),
        ("net_pcap9,rx_pcap=/nowhere.pcap", "DPDK cannot use it"),
        ("net_ring9,nodeaction=wrong", "DPDK cannot use it"),
    ] {
        let error = error(name);
        assert!(error.contains(what) && error.contains(name), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let error = Mempool::new(eal(), 1 << 20, 9000, -1).unwrap_err().to_string();
    assert!(error.contains("no memory for 1048576 buffers"), "{error}");
}

#[test]
fn copies_are_injected_with_their_hashes() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 256, 1518, -1).unwrap();
    let (_ring, mut rx, mut tx) = port("net_ring6", 1, &pool);
    let mut part = pool.part(256);
    let mut number = 0u32;
    let sent = tx[0].inject(20, || {
        number += 1;
        (&[7; 80][..60 + number as usize], 1000 + number)
    });
    assert_eq!((sent, number), (20, 20));
    let mut received = 0;
    assert_eq!(rx[0].receive(&mut part, 32), 20);
    for packet in rx[0].packets() {
        received += 1;
        assert_eq!(packet.hash, Some(1000 + received));
        assert_eq!(packet.frame(part.memory()), &[7; 80][..60 + received as usize]);
        part.give(packet.buffer);
    }
    assert_eq!(received, 20);
    // Never more than the pool has buffers.
    let sent = (0..10).map(|_| tx[0].inject(64, || (&[0; 60], 0))).sum::<usize>();
    assert!((64..=256).contains(&sent), "{sent}");
}

#[test]
fn a_peer_sends_frames_over_and_over_in_the_buffers_that_come_back() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 256, 1518, -1).unwrap();
    let ((_out, mut rx, to), (_back, from, mut tx)) = (port("net_ring7", 1, &pool), port("net_ring8", 1, &pool));
    let lengths = [60, 64, 65, 128, 1, 1500, 129];
    let frame = |i: usize| -> Vec<u8> { (0..lengths[i]).map(|byte| (byte ^ i) as u8).collect() };
    let all: Vec<Vec<u8>> = (0..lengths.len()).map(frame).collect();
    let frames = Frames::new(all.iter().map(|frame| (&frame[..], frame.len() as u32)));
    assert_eq!((frames.len(), frames.longest()), (7, 1500));
    let mut peer = Peer::new(Arc::new(frames), { from }.remove(0), { to }.remove(0));
    let mut part = pool.part(256);
    let mut batch = Batch::new(&part, 32);
    // A burst ends with the last frame.
    for (turn, expected) in [5, 2, 5, 2].into_iter().enumerate() {
        assert_eq!(peer.turn(5), expected);
        // No buffer stays in the caches of DPDK's own threads.
        assert!(pool.available() >= 256 - 7, "{}", pool.available());
        if turn < 2 {
            assert_eq!(rx[0].receive(&mut part, 32), expected);
            let hashed = rx[0].packets().map(|packet| {
                assert_eq!(packet.hash, Some(u32::from(packet.length)));
                (packet, 0)
            });
            batch.receive_all(hashed, Nanos::ZERO);
            for i in 0..expected {
                assert_eq!(batch.frame(i), &all[turn * 5 + i]);
            }
            // Shorter frames at other offsets: the peer handles both.
            for i in 0..expected {
                assert!(batch.grow_front(i, 20).is_some());
            }
            assert_eq!(tx[0].transmit(&mut batch), 0);
            batch.release(&mut part);
        } else {
            assert_eq!(forward(&mut rx[0], &mut tx[0], 32), expected);
        }
    }
    assert_eq!(forward(&mut rx[0], &mut tx[0], 32), 0);
}

#[test]
fn bursts_allocate_nothing() {
    let _alone = alone();
    let pool = Mempool::new(eal(), 1024, 1518, -1).unwrap();
    let (_ring, mut rx, mut tx) = port("net_ring5", 1, &pool);
    let (_null, mut null, _) = port("net_null4", 1, &pool);
    let mut part = pool.part(512);
    let mut batch = Batch::new(&part, 32);
    let mut packets = 0;
    let mut go = || {
        for _ in 0..100 {
            packets += receive(&mut null[0], &mut part, &mut batch);
            tx[0].transmit(&mut batch);
            batch.release(&mut part);
            packets += receive(&mut rx[0], &mut part, &mut batch);
            batch.release(&mut part);
        }
    };
    go();
    let allocations = allocation_counter::measure(go).count_total;
    assert_eq!((allocations, packets), (0, 2 * 2 * 100 * 32));
}
