use super::cells::{Assembler, CELL, Copied};
use super::*;
use crate::bpf_filter::parse_program;
use proptest::prelude::*;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, pcap, protocol};

const BUFFER: usize = 64 << 10;
const SECOND: Nanos = Nanos::from_secs(1);
const EVERYTHING: usize = pcap::MAX_FRAME as usize;

/// Temporary folder of one test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-mirror-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("copies.pcap")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn to(path: &Path, max_bytes: u64, files: u32) -> Option<Outlet> {
    Some(Outlet::File {
        path: path.to_owned(),
        max_bytes,
        files,
    })
}

fn all() -> MirrorRules {
    MirrorRules::new(None, Sampling::All, EVERYTHING).unwrap()
}

fn table(to: Option<Outlet>, rules: MirrorRules) -> Arc<MirrorTable> {
    let options = Options { to, buffer: BUFFER };
    Arc::new(MirrorTable::new(options, rules).unwrap())
}

fn rig(table: &Arc<MirrorTable>) -> ChainRig {
    ChainRig::new(vec![Box::new(Mirror::new(Arc::clone(table)))], INPUT)
}

/// Source port, and bytes of payload.
type Sent = (u16, usize);

fn frame((port, bytes): Sent, number: usize) -> Vec<u8> {
    let key = FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 1].into(), protocol::UDP, port, 53);
    let payload: Vec<u8> = (0..bytes).map(|at| (at + number) as u8).collect();
    FrameBuilder::new(&key).payload(&payload).to_vec().unwrap()
}

/// Sends packets through the chain, and asserts that they leave unchanged.
fn pass(rig: &mut ChainRig, frames: &[Vec<u8>]) {
    for batch in frames.chunks(32) {
        assert_eq!(rig.run(batch, SECOND), batch);
    }
}

/// Returns the function's final counts: copied, no room, file full, not written.
fn finished(rig: ChainRig) -> [u64; 4] {
    let names = rig.chain.reasons();
    let before: Vec<u64> = rig.chain.reason_counts().collect();
    let last = rig.chain.drain();
    ["copied", "no-room", "file-full", "not-written"].map(|name| {
        let place = names.iter().position(|reason| reason.name == format!("mirror/{name}"));
        before[place.unwrap()] + last[place.unwrap()]
    })
}

/// Reads a capture with a minimal parser: each packet's bytes and original length.
fn read(bytes: &[u8]) -> Vec<(Vec<u8>, u32)> {
    assert_eq!(bytes[..4], 0xa1b2_3c4d_u32.to_le_bytes());
    assert_eq!(bytes[20..24], 1u32.to_le_bytes());
    let mut rest = &bytes[24..];
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let end = 16 + number(8) as usize;
        packets.push((rest[16..end].to_vec(), number(12)));
        rest = &rest[end..];
    }
    packets
}

fn whole(frame: &[u8]) -> (Vec<u8>, u32) {
    (frame.to_vec(), frame.len() as u32)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Copies cut into cells are reassembled in order.
    #[test]
    fn cells_hold_copies(
        copies in prop::collection::vec((any::<u64>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..400)), 1..20),
    ) {
        let mut assembler = Assembler::default();
        for (arrival, length, frame) in &copies {
            let copied = Copied { arrival: Nanos(*arrival), length: *length, frame };
            let (mut seen, mut cells) = (0, copied.cells());
            let count = cells.len();
            prop_assert!(count * CELL < frame.len() + 16 + CELL);
            while let Some(cell) = cells.next() {
                assembler.take(&cell, |made| {
                    assert_eq!(made, copied);
                    seen += 1;
                });
                prop_assert_eq!(seen, usize::from(cells.len() == 0));
            }
        }
    }

    /// The file has exactly the packets and bytes that filter, sampling and snap length select, in order, also when
    /// these change during the run. The originals pass unchanged.
    #[test]
    fn the_file_has_what_was_asked_for(
        packets in prop::collection::vec((1000_u16..1020, 0_usize..1400), 1..120),
        bits in prop::option::of(1_u32..16),
        sample in prop::sample::select(vec![(1, false), (3, false), (10, false), (3, true)]),
        snap in prop::sample::select(vec![EVERYTHING, 96, 200]),
        next in prop::sample::select(vec![EVERYTHING, 96]),
    ) {
        let (every, by_flow) = sample;
        let rules = |snap| {
            // Matches packets with any of these bits in their source port.
            let program = bits.map(|bits| {
                let text = format!("5\n40 0 0 34\n84 0 0 {bits}\n21 1 0 0\n6 0 0 1\n6 0 0 0\n");
                parse_program(&text).unwrap()
            });
            let sampling = match (every, by_flow) {
                (1, _) => Sampling::All,
                (every, false) => Sampling::Packets(every),
                (every, true) => Sampling::Flows(every),
            };
            MirrorRules::new(program.as_deref(), sampling, snap).unwrap()
        };
        let folder = Folder::new();
        let table = table(to(&folder.file(), 1 << 30, 1), rules(snap));
        let mut rig = rig(&table);
        let frames: Vec<_> = packets.iter().enumerate().map(|(at, sent)| frame(*sent, at)).collect();
        let (first, second) = frames.split_at(frames.len() / 2);
        // Batches are small enough that every copy has room.
        for (part, in_force) in [(first, snap), (second, next)] {
            table.live().replace(rules(in_force));
            for frames in part.chunks(8) {
                pass(&mut rig, frames);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let [copied, no_room, full, failed] = finished(rig);
        prop_assert_eq!((full, failed), (0, 0));
        let exported = table.finish().unwrap().unwrap();
        prop_assert_eq!(exported.records, copied);
        let mut number = 0;
        let is_wanted = |frame: &[u8], number: &mut u32| {
            let key = parse(frame).unwrap().key;
            if bits.is_some_and(|bits| u32::from(key.source_port()) & bits == 0) {
                return false;
            }
            if by_flow {
                let hash = RssHasher::default().hash_headers(&parse(frame).unwrap());
                let spread = (u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as f64;
                return spread < (1u64 << 32) as f64 / f64::from(every);
            }
            *number += 1;
            (*number - 1).is_multiple_of(every)
        };
        let mut expected = Vec::new();
        for (part, snap) in [(first, snap), (second, next)] {
            for frame in part {
                if is_wanted(frame, &mut number) {
                    expected.push((frame[..frame.len().min(snap)].to_vec(), frame.len() as u32));
                }
            }
        }
        let found = read(&fs::read(folder.file()).unwrap());
        prop_assert_eq!(found.len() as u64, copied);
        prop_assert_eq!(copied + no_room, expected.len() as u64);
        if no_room == 0 {
            prop_assert_eq!(found, expected);
        } else {
            let mut rest = expected.iter();
            prop_assert!(found.iter().all(|copy| rest.any(|it| it == copy)), "not in order");
        }
    }
}

#[test]
fn a_full_file_has_the_first_packets_and_files_the_last() {
    const MOST: u64 = 128 << 10;
    let folder = Folder::new();
    let frames: Vec<_> = (0..600).map(|at| frame((at as u16, 900), at)).collect();
    for files in [1, 3] {
        let table = table(to(&folder.file(), MOST, files), all());
        let mut rig = rig(&table);
        // One batch at a time, so that the ring never fills.
        for batch in frames.chunks(32) {
            pass(&mut rig, batch);
            std::thread::sleep(Duration::from_millis(3));
        }
        let [copied, no_room, full, failed] = finished(rig);
        assert_eq!((copied + no_room, failed), (600, 0));
        let written = table.finish().unwrap().unwrap().records;
        assert_eq!(written + full, copied);
        let mut found = Vec::new();
        for name in ["copies.pcap.2", "copies.pcap.1", "copies.pcap"] {
            let Ok(bytes) = fs::read(folder.0.join(name)) else {
                continue;
            };
            assert!(bytes.len() as u64 <= MOST, "{name}: {}", bytes.len());
            found.extend(read(&bytes));
        }
        // On a busy machine some copies may find no room; the others are still correct.
        let expected: Vec<_> = frames.iter().map(|frame| whole(frame)).collect();
        let mut rest = expected.iter();
        assert!(found.iter().all(|copy| rest.any(|it| it == copy)));
        if no_room > 0 {
            eprintln!("{no_room} copies found no room");
            continue;
        }
        match files {
            1 => {
                assert!(full > 0);
                assert_eq!(found, expected[..found.len()]);
                assert!(!folder.0.join("copies.pcap.1").exists());
            }
            _ => {
                assert_eq!((full, written), (0, 600));
                assert!(found.len() > 250 && found.len() < 600, "{}", found.len());
                assert_eq!(found, expected[600 - found.len()..]);
                assert!(!folder.0.join("copies.pcap.3").exists());
            }
        }
    }
}

/// With a file that blocks while packets arrive, originals pass, and each copy is written or counted.
#[test]
fn copies_that_find_no_room_are_counted() {
    let folder = Folder::new();
    let made = std::process::Command::new("mkfifo").arg(folder.file()).status();
    assert!(made.unwrap().success());
    // Opened for reading and writing, so that neither end waits for the other.
    let mut reader = OpenOptions::new().read(true).write(true).open(folder.file()).unwrap();
    let table = table(to(&folder.file(), 1 << 30, 1), all());
    let mut rig = rig(&table);
    let frames: Vec<_> = (0..4000).map(|at| frame((at as u16, 900), at)).collect();
    pass(&mut rig, &frames);
    // Copies accepted so far are written once the pipe is read.
    let bytes = std::thread::scope(|scope| {
        let path = folder.file();
        let table = &table;
        let ends = scope.spawn(move || {
            let counts = finished(rig);
            let exported = table.finish().unwrap().unwrap();
            // End marker for the reader.
            let mut file = OpenOptions::new().write(true).open(path).unwrap();
            file.write_all(b"the end").unwrap();
            (counts, exported.records)
        });
        let (mut bytes, mut some) = (Vec::new(), vec![0; 1 << 16]);
        while !bytes.ends_with(b"the end") {
            let count = reader.read(&mut some).unwrap();
            bytes.extend_from_slice(&some[..count]);
        }
        bytes.truncate(bytes.len() - b"the end".len());
        let ([copied, no_room, full, failed], written) = ends.join().unwrap();
        assert_eq!((full, failed, written), (0, 0, copied));
        assert_eq!(copied + no_room, 4000);
        assert!(no_room > 1000, "{no_room}");
        assert_eq!(read(&bytes).len() as u64, copied);
        bytes
    });
    let expected: Vec<_> = frames.iter().map(|frame| whole(frame)).collect();
    let mut rest = expected.iter();
    assert!(read(&bytes).iter().all(|copy| rest.any(|it| it == copy)));
}

/// A file that blocks for good is given up, and copies not known to be written are counted.
#[test]
fn a_file_that_hangs_is_given_up() {
    let folder = Folder::new();
    let made = std::process::Command::new("mkfifo").arg(folder.file()).status();
    assert!(made.unwrap().success());
    let reader = OpenOptions::new().read(true).write(true).open(folder.file()).unwrap();
    let table = table(to(&folder.file(), 1 << 30, 1), all());
    let mut rig = rig(&table);
    let frames: Vec<_> = (0..4000).map(|at| frame((at as u16, 900), at)).collect();
    pass(&mut rig, &frames);
    let [copied, no_room, full, failed] = finished(rig);
    assert_eq!((copied + no_room, full), (4000, 0));
    // Capacity of a pipe.
    assert!(copied - failed <= (64 << 10) / 942, "{copied} {failed}");
    assert!(failed > 0);
    let error = table.finish().unwrap_err().to_string();
    assert!(error.contains("no data accepted for 5 seconds"), "{error}");
    // Everything has been settled, so dropping the table does not block.
    drop(table);
    drop(reader);
}

#[test]
fn what_cannot_be_opened_is_told() {
    let folder = Folder::new();
    for (to, expected) in [
        (to(&folder.0, 1 << 30, 1), "found a directory"),
        (to(Path::new("/dev/null"), 1 << 30, 2), "expected a regular file"),
        (to(Path::new("/dev/full"), 1 << 30, 1), "No space left"),
        (
            Some(Outlet::Interface("tw-no-such-if".to_owned())),
            "tw-no-such-if: cannot write copies of packets: No such device",
        ),
    ] {
        let options = Options { to, buffer: BUFFER };
        let error = MirrorTable::new(options, all()).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Opens a socket that receives packets leaving the loopback interface; prints a note and returns `None` without the
/// permission.
fn listen() -> Option<File> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let everything = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: the call passes no memory.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, everything.into()) };
    if socket < 0 {
        eprintln!("skipped: packet sockets: {}", std::io::Error::last_os_error());
        return None;
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    Some(unsafe { File::from_raw_fd(socket) })
}

/// The selected packets leave the interface, in order.
#[test]
fn an_interface_gets_copies() {
    let Some(mut socket) = listen() else {
        return;
    };
    let table = table(Some(Outlet::Interface("lo".to_owned())), all());
    let mut rig = rig(&table);
    let mark = std::process::id() as usize;
    let frames: Vec<_> = (0..100).map(|at| frame((at, 100), mark)).collect();
    pass(&mut rig, &frames);
    let counts = finished(rig);
    assert_eq!(counts, [100, 0, 0, 0]);
    assert_eq!(table.finish().unwrap().unwrap().records, 100);
    let (mut found, mut bytes) = (Vec::<Vec<u8>>::new(), vec![0; 1 << 16]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while found.len() < frames.len() {
        assert!(Instant::now() < deadline, "{} of 100", found.len());
        match socket.read(&mut bytes) {
            // Each frame is seen leaving and arriving; other programs' frames may be in between.
            Ok(count) => {
                let frame = &bytes[..count];
                if frames.iter().any(|it| it == frame) && !found.iter().any(|it| it == frame) {
                    found.push(frame.to_vec());
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(found, frames);
}

/// A process that takes over continues the file of the other one, which writes its last copies meanwhile: all are
/// there, behind one header.
#[test]
fn a_file_is_continued_by_another_process() {
    let folder = Folder::new();
    let path = folder.file();
    let frames: Vec<_> = (0..6).map(|number| frame((1000 + number, 100), 7)).collect();
    let old = table(to(&path, 1 << 20, 2), all());
    let mut first = rig(&old);
    pass(&mut first, &frames[..2]);
    let new = tailwater_files::continuing(|| table(to(&path, 1 << 20, 2), all()));
    let mut second = rig(&new);
    pass(&mut first, &frames[2..3]);
    finished(first);
    old.finish().unwrap();
    pass(&mut second, &frames[3..]);
    assert_eq!(finished(second), [3, 0, 0, 0]);
    new.finish().unwrap();
    let expected: Vec<_> = frames.iter().map(|frame| whole(frame)).collect();
    assert_eq!(read(&fs::read(&path).unwrap()), expected);
}
