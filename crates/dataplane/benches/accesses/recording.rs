//! Runs the driver under valgrind's lackey and keeps, for each batch, the first touch of every cache line.

use crate::driver::{self, Addresses, DRIVE};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// First touch of a line by a batch.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    pub batch: u32,
    pub line: u64,
    /// Address of the instruction.
    pub code: u64,
    /// Number of the instruction within the batch.
    pub at: u64,
    /// The batch wrote the line, at that time or later.
    pub is_written: bool,
}

/// Recorded part of a run.
pub struct Recording {
    pub addresses: Addresses,
    pub batches: u32,
    pub instructions: u64,
    pub prefetches: u64,
    pub touches: Vec<Touch>,
}

impl Recording {
    pub fn per_packet(&self, count: u64) -> f64 {
        count as f64 / (f64::from(self.batches) * crate::cases::BATCH as f64)
    }
}

/// Code of this program, to find its prefetch instructions.
struct Code {
    program: Vec<u8>,
    /// Mapped parts: first and last address, offset in the file.
    maps: Vec<(u64, u64, u64)>,
    /// Address in the recorded process minus that in this one.
    shift: u64,
    known: HashMap<u64, bool>,
}

impl Code {
    fn new(recorded: u64) -> Code {
        let path = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_else(|error| panic!("{error}"));
        let name = path.to_string_lossy().into_owned();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let map = |line: &str| {
            let mut words = line.split_whitespace();
            let (first, last) = words.next()?.split_once('-')?;
            Some((hex(first)?, hex(last)?, hex(words.nth(1)?)?))
        };
        Code {
            program: std::fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}")),
            maps: maps
                .lines()
                .filter(|line| line.ends_with(&name))
                .filter_map(map)
                .collect(),
            shift: recorded.wrapping_sub(driver::code()),
            known: HashMap::new(),
        }
    }

    /// `true` for 0F 18, with or without a prefix.
    fn is_prefetch(&mut self, address: u64) -> bool {
        *self.known.entry(address).or_insert_with(|| {
            let own = address.wrapping_sub(self.shift);
            let map = self.maps.iter().find(|map| (map.0..map.1).contains(&own));
            let bytes = map.and_then(|map| self.program.get((own - map.0 + map.2) as usize..)?.get(..3));
            matches!(bytes, Some([0x40..=0x4f, 0x0f, 0x18] | [0x0f, 0x18, _]))
        })
    }
}

/// File for what lackey prints, in memory.
fn events_file(chain: &str) -> (File, PathBuf) {
    let path = PathBuf::from(format!("/dev/shm/tailwater-accesses-{}-{chain}", std::process::id()));
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path);
    (file.unwrap_or_else(|error| panic!("{}: {error}", path.display())), path)
}

/// Records packets of a chain. Lackey prints gigabytes while the chain is built: they go to a file in memory that is
/// emptied again and again until the driver waits for its recorded part.
pub fn record(chain: &str, size: &str, flows: u32) -> Recording {
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
    let (mut file, path) = events_file(chain);
    let shared = file.try_clone().unwrap_or_else(|error| panic!("{error}"));
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--basic-counts=no", "--trace-mem=yes"])
        .arg(program)
        .args([DRIVE, chain, size, &flows.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(shared)
        .spawn()
        .unwrap_or_else(|error| panic!("valgrind: {error}"));
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        unreachable!("both are pipes");
    };
    let (found, addresses) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines
            .filter_map(|line| Addresses::parse(&line))
            .for_each(|addresses| found.send(addresses).unwrap_or_default());
    });
    let addresses = loop {
        match addresses.recv_timeout(Duration::from_millis(50)) {
            Ok(addresses) => break addresses,
            Err(mpsc::RecvTimeoutError::Timeout) => drop(file.set_len(0)),
            Err(error) => panic!("{chain}: the recorded program ended early: {error}"),
        }
    };
    // Both processes write and seek by one offset.
    let begin = file.stream_position().unwrap_or_else(|error| panic!("{error}"));
    let _ = stdin.write_all(b"g");
    drop(stdin);
    let status = child.wait().unwrap_or_else(|error| panic!("{error}"));
    let _ = reader.join();
    let _ = file.seek(SeekFrom::Start(begin));
    let mut events = BufReader::with_capacity(1 << 20, file);
    let mut recorder = Recorder::new(addresses);
    let mut line = Vec::new();
    while events.read_until(b'\n', &mut line).unwrap_or(0) > 0 {
        recorder.event(&line);
        line.clear();
    }
    let _ = std::fs::remove_file(path);
    assert!(
        status.success() && recorder.recording.batches > 0,
        "{chain}: the recorded program ended early: {status}"
    );
    recorder.recording
}

struct Recorder {
    recording: Recording,
    code: Code,
    is_within: bool,
    /// Instruction in progress, and its number within the batch.
    instruction: u64,
    at: u64,
    /// Touches of the current batch by line.
    lines: HashMap<u64, usize>,
}

impl Recorder {
    fn new(addresses: Addresses) -> Recorder {
        Recorder {
            recording: Recording {
                addresses,
                batches: 0,
                instructions: 0,
                prefetches: 0,
                touches: Vec::new(),
            },
            code: Code::new(addresses.code),
            is_within: false,
            instruction: 0,
            at: 0,
            lines: HashMap::new(),
        }
    }

    /// Takes a line such as `I  0401af30,3` or ` S 1ffeffe7e8,8`. Others are messages of valgrind.
    fn event(&mut self, line: &[u8]) {
        let (kind, rest) = match line {
            [b'I', b' ', b' ', rest @ ..] => (b'I', rest),
            [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => (*kind, rest),
            _ => return,
        };
        let Some((address, size)) = numbers(rest) else {
            return;
        };
        if kind == b'I' {
            if self.is_within {
                (self.instruction, self.at) = (address, self.at + 1);
                self.recording.instructions += 1;
                self.recording.prefetches += u64::from(self.code.is_prefetch(address));
            }
        } else if kind != b'L' && address == self.recording.addresses.begin {
            self.is_within = true;
            self.at = 0;
            self.lines.clear();
        } else if kind != b'L' && address == self.recording.addresses.end {
            self.recording.batches += u32::from(self.is_within);
            self.is_within = false;
        } else if self.is_within {
            for line in address / 64..=(address + size.max(1) - 1) / 64 {
                self.touch(line, kind != b'L');
            }
        }
    }

    fn touch(&mut self, line: u64, is_write: bool) {
        let touches = &mut self.recording.touches;
        let index = *self.lines.entry(line).or_insert_with(|| {
            let (batch, code, at) = (self.recording.batches, self.instruction, self.at);
            touches.push(Touch {
                batch,
                line,
                code,
                at,
                is_written: false,
            });
            touches.len() - 1
        });
        touches[index].is_written |= is_write;
    }
}

/// A hexadecimal address and a decimal size.
fn numbers(text: &[u8]) -> Option<(u64, u64)> {
    let mut address = 0_u64;
    let mut bytes = text.iter();
    for byte in bytes.by_ref() {
        match (*byte as char).to_digit(16) {
            Some(digit) => address = address << 4 | u64::from(digit),
            None if *byte == b',' => break,
            None => return None,
        }
    }
    let mut size = 0;
    for byte in bytes {
        match byte {
            b'0'..=b'9' => size = size * 10 + u64::from(byte - b'0'),
            _ => break,
        }
    }
    Some((address, size))
}
