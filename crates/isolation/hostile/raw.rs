//! Entirely hostile program. It implements the protocol itself, reads the shared memory whenever it runs, and writes
//! arbitrary responses. Its configuration is the name of the attack, or `behaviours` and a script.

mod tricks;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::{CpuSet, sched_setaffinity, sched_yield};
use tailwater_sdk::protocol::layout::{
    CHAIN_ENDED, MASKS, MAX_BATCH, PacketMasks, PacketResponse, REQUEST_AREA_BYTES, RESPONSE_AREA_BYTES, RequestArea,
    ResponseArea, VERSION, all_of, slots,
};
use tailwater_sdk::protocol::memory::Memory;
use tailwater_sdk::protocol::message::{Description, FromProgram, FromServer};
use tailwater_sdk::protocol::socket::Socket;

/// Offset of the loot in a frame; eight bytes.
const LOOT: usize = 42;
/// Offset in a frame of the mark that the function in front sets, and the value before.
pub(crate) const MARK: usize = 50;
pub(crate) const UNSEEN: &[u8; 8] = b"unseen!!";
pub(crate) const SEEN: &[u8; 8] = b"was seen";

/// Number of times that it spies on others during its turn.
const STALLS: u32 = 40;

pub(crate) struct Raw {
    attack: String,
    pub(crate) board: RequestArea,
    board_file: File,
    pub(crate) packets: Arc<Memory>,
    pub(crate) slate: ResponseArea,
    pub(crate) in_front: Option<(File, ResponseArea)>,
    pub(crate) buffer_bytes: usize,
    pub(crate) last: u64,
    /// Eight bytes of loot, sent with a packet.
    loot: Arc<AtomicU64>,
    began: bool,
    /// State of the pseudo-random choices of some attacks.
    random: u64,
    /// Stays open: once it is attached, a function may not close it.
    socket: Socket,
}

pub(crate) fn masks(left: u64, moved: u64) -> PacketMasks {
    PacketMasks { left, moved }
}

fn unexpected() -> io::Error {
    io::Error::other("unexpected message")
}

/// Starts a hostile function, up to its first turn. The server's configuration names the attack.
pub(crate) fn attach() -> io::Result<Raw> {
    let socket = Socket(io::stdin().as_fd().try_clone_to_owned()?);
    socket.send(&FromProgram::Hello { version: VERSION }.encode(), &[])?;
    let configure = FromServer::decode(&socket.receive()?.0);
    let Ok(FromServer::Configure { config, .. }) = configure else {
        return Err(unexpected());
    };
    let description = Description {
        name: "raw".to_owned(),
        ..Description::default()
    };
    socket.send(&FromProgram::Describe(description).encode(), &[])?;
    let (message, files) = socket.receive()?;
    let Ok(FromServer::Attach {
        buffer_bytes, round, ..
    }) = FromServer::decode(&message)
    else {
        return Err(unexpected());
    };
    let mut files = files.into_iter();
    let mut next = || files.next().ok_or_else(unexpected);
    let buffer_bytes = buffer_bytes as usize;
    let board_file = next()?;
    let raw = Raw {
        attack: config.trim_matches('"').to_owned(),
        board: RequestArea(Memory::map(&board_file, REQUEST_AREA_BYTES, false)?),
        board_file,
        packets: Arc::new(Memory::map(&next()?, MAX_BATCH * buffer_bytes, true)?),
        slate: ResponseArea(Memory::map(&next()?, RESPONSE_AREA_BYTES, true)?),
        in_front: match next() {
            Ok(file) => {
                let memory = Memory::map(&file, RESPONSE_AREA_BYTES, false)?;
                Some((file, ResponseArea(memory)))
            }
            Err(_) => None,
        },
        buffer_bytes,
        last: round,
        loot: Arc::default(),
        began: false,
        random: 1,
        socket,
    };
    raw.socket.send(&FromProgram::Ready.encode(), &[])?;
    Ok(raw)
}

/// Returns the number of frames in memory that the function in front has not marked.
fn unseen(packets: &Memory, bytes: usize) -> u64 {
    marks(packets, bytes, UNSEEN)
}

/// Returns the number of frames in memory, or remains of frames, that have this mark.
fn marks(packets: &Memory, bytes: usize, wanted: &[u8; 8]) -> u64 {
    let mut found = 0;
    let mut mark = [0; 8];
    // The words of frames that start at the end of the headroom.
    for buffer in (0..MAX_BATCH).map(|i| i * bytes) {
        for start in [0, 128] {
            packets.read(buffer + start + MARK, &mut mark);
            found += u64::from(mark == *wanted);
        }
    }
    found
}

impl Raw {
    /// Returns the name of the attack, and its argument.
    pub(crate) fn words(&self) -> (&str, &str) {
        self.attack.split_once(' ').unwrap_or((&self.attack, ""))
    }

    fn look(&self) {
        let found = unseen(&self.packets, self.buffer_bytes);
        self.loot.fetch_add(found, Ordering::Relaxed);
    }

    pub(crate) fn take_turns(&mut self) -> io::Result<()> {
        let spies = self.attack.starts_with("spy");
        let peeps = self.attack.starts_with("peep");
        loop {
            if spies {
                self.look();
            }
            if peeps {
                let found = marks(&self.packets, self.buffer_bytes, SEEN);
                self.loot.fetch_add(found, Ordering::Relaxed);
            }
            let round = self.board.round();
            let in_front = self.in_front.as_ref();
            if round != self.last && in_front.is_none_or(|(_, slate)| slate.done() == round) {
                let over = self.board.flags() & CHAIN_ENDED != 0;
                if !over && self.board.count() > 0 {
                    self.attack()?;
                }
                self.forward(round);
                if !over && self.board.count() > 0 {
                    self.say(round);
                }
                self.last = round;
                if over || self.board.count() == 0 {
                    self.slate.set_done(round);
                } else {
                    tricks::end_turn(self, round);
                }
                if over {
                    return Ok(());
                }
            } else if self.last > 1 && round == self.last {
                tricks::between_rounds(self, round);
            }
            sched_yield();
        }
    }

    /// Returns the packets that the function in front left, and those of them whose frame it moved.
    pub(crate) fn came(&self, word: usize) -> PacketMasks {
        match &self.in_front {
            Some((_, slate)) => slate.masks(word),
            None => masks(all_of(self.board.count(), word), 0),
        }
    }

    /// Forwards all packets from their current bounds, and puts the loot into the first.
    fn forward(&self, round: u64) {
        let mut first = true;
        for word in 0..MASKS {
            let PacketMasks { left, moved } = self.came(word);
            self.slate.set_masks(word, masks(left, moved));
            for i in slots(word, left) {
                let told = self.in_front.as_ref().map(|(_, slate)| slate.response_word(i));
                let told = told.filter(|_| moved >> (i % 64) & 1 != 0);
                let start = match told.map(|told| (told, PacketResponse::decode(told, round))) {
                    Some((told, Some(PacketResponse::Forwarded { start, .. }))) => {
                        self.slate.set_response_word(i, told);
                        start
                    }
                    _ => self.board.frame_range(i)[0],
                };
                if std::mem::take(&mut first) {
                    let at = i * self.buffer_bytes + usize::from(start) + LOOT;
                    let loot = self.loot.load(Ordering::Relaxed).to_ne_bytes();
                    self.packets.write(at, &loot);
                }
            }
        }
        self.slate.set_masks_round(round);
    }

    /// Runs the part of the attack that precedes the response.
    fn attack(&mut self) -> io::Result<()> {
        let (name, arguments) = self.words();
        let (path, number) = arguments.split_once(' ').unwrap_or((arguments, "0"));
        let offset = || number.parse::<u64>().map_err(io::Error::other);
        match name {
            // Others run meanwhile, and this process again before they have all finished.
            "spy-stalls" => {
                for _ in 0..STALLS {
                    sched_yield();
                    self.look();
                }
            }
            "spy-thread" if !self.began => {
                let mut cores = CpuSet::new();
                cores.set(path.parse().map_err(io::Error::other)?);
                let (packets, bytes) = (Arc::clone(&self.packets), self.buffer_bytes);
                let loot = Arc::clone(&self.loot);
                std::thread::Builder::new().spawn(move || {
                    let _ = sched_setaffinity(None, &cores);
                    loop {
                        loot.fetch_add(unseen(&packets, bytes), Ordering::Relaxed);
                    }
                })?;
                self.began = true;
            }
            "read" => {
                let mut bytes = [0; 8];
                File::open(path)?.read_exact_at(&mut bytes, offset()?)?;
                self.loot.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            }
            "write" => {
                let file = OpenOptions::new().write(true).open(path)?;
                file.write_all_at(b"overwrit", offset()?)?;
            }
            // Reopens the response area of the function in front, or the request area, for writing.
            "reopen-front" | "reopen-board" => {
                let (file, memory) = match (name, &self.in_front) {
                    ("reopen-front", Some((file, slate))) => (file, &slate.0),
                    _ => (&self.board_file, &self.board.0),
                };
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let file = OpenOptions::new().write(true).open(path)?;
                let last = file.metadata()?.len() - 8;
                file.write_all_at(b"overwrit", last)?;
                let word = memory.load(last as usize / 8, Ordering::Relaxed);
                self.loot.store(word, Ordering::Relaxed);
            }
            // SAFETY: none: these writes and this read are the attack. They end the process.
            "write-board" => unsafe { self.board.0.base().write_volatile(1) },
            "write-front" => {
                let (_, slate) = self.in_front.as_ref().ok_or_else(unexpected)?;
                // SAFETY: as above.
                unsafe { slate.0.base().write_volatile(1) };
            }
            "read-beyond" => {
                // One gibibyte from the packets on: any other mapping in it is foreign, and the range ends somewhere.
                for page in (0..1usize << 30).step_by(4096) {
                    let address = self.packets.base().wrapping_add(page);
                    // SAFETY: as above.
                    std::hint::black_box(unsafe { address.read_volatile() });
                }
            }
            // Requests the right to write from the kernel.
            "protect-board" => {
                let board = self.board.0.base();
                let rights = libc::PROT_READ | libc::PROT_WRITE;
                // SAFETY: the mapping belongs to this process, and its rights only grow.
                let got = unsafe { libc::mprotect(board.cast(), 4096, rights) };
                self.loot.store(u64::from(got == 0), Ordering::Relaxed);
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes the invalid part of the response.
    fn say(&self, round: u64) {
        let here = |start, length| PacketResponse::Forwarded {
            start,
            length,
            rekeyed: false,
            turned: false,
        };
        let PacketMasks { left, moved } = self.came(0);
        let count = self.board.count();
        // Verdict on the first remaining packet.
        let first = |word| {
            self.slate.set_response_word(0, word);
            self.slate.set_masks(0, masks(left, moved | 1));
        };
        let all = |place: PacketResponse| {
            (0..count).for_each(|i| self.slate.set_response_word(i, place.encode(round)));
        };
        match self.words().0 {
            "long" => first(here(128, 65_000).encode(round)),
            "beyond-its-buffer" => first(here(u16::MAX, 1).encode(round)),
            "no-length" => first(here(128, 0).encode(round)),
            // As the last function: a frame that no port could send.
            "one-byte" => first(here(128, 1).encode(round)),
            "of-another-round" => first(here(128, 64).encode(round.wrapping_sub(1))),
            "no-word" => first(u64::MAX),
            "masks-of-another-round" => self.slate.set_masks_round(round.wrapping_sub(1)),
            "vanish" => {
                self.slate.set_response_word(0, 0);
                self.slate.set_masks(0, masks(left & !1, moved));
            }
            // Forwards the packets that the function in front dropped.
            "come-back" => {
                all(here(128, 64));
                let all = all_of(count, 0);
                self.slate.set_masks(0, masks(all, all));
            }
            "move-dropped" => {
                all(PacketResponse::Dropped(0));
                self.slate.set_masks(0, masks(0, all_of(count, 0)));
            }
            // Forwards a packet behind the last of the batch.
            "one-more" => {
                self.slate.set_response_word(count, here(128, 64).encode(round));
                self.slate.set_masks(0, masks(left | 1 << count, moved | 1 << count));
            }
            // Forwards a packet in a slot that is not read.
            "one-far-beyond" => {
                self.slate.set_response_word(64, here(128, 64).encode(round));
                self.slate.set_masks(1, masks(1, 1));
            }
            _ => {}
        }
    }
}
