//! Thread that writes kept packets to a ring of pcapng files.

use super::keeper::PacketKeeper;
use super::observer::{KeptObserver, KeptRecord};
use super::ring::{RingKeeper, SharedSender};
use super::{KeptPacket, Why};
use crate::report::reasons::RING_FULL;
use std::fs;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tailwater_chain::batch::DroppedBy;
use tailwater_chain::chain::{Outcome, Reason};
use tailwater_functions::out_file::{OutFile, Pulse};
use tailwater_net::Nanos;
use tailwater_traffic::{PcapngWriter, TrafficError};

/// Largest size of a file, in bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;
/// Most files; the oldest one is removed.
pub const MAX_FILES: usize = 8;

/// Packets that wait for the thread; more are lost and counted.
const WAITING: usize = 4096;
/// Time between two looks for packets.
const PERIOD: Duration = Duration::from_millis(10);

const PREFIX: &str = "packets-";
const SUFFIX: &str = ".pcapng";

/// Where packets are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptConfig {
    /// Directory of the files. It is created if it does not exist.
    pub directory: PathBuf,
    /// Observer of those that were late, lost or dropped, without those before them.
    pub observer: Option<KeptObserver>,
}

/// Names and times that comments need.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// Chain.
    pub(crate) chain: String,
    /// Functions with the names of their reasons, in chain order.
    pub(crate) functions: Vec<(String, Vec<String>)>,
    /// Reasons of the chain, which say what is lost.
    pub(crate) reasons: Vec<Reason>,
    pub(crate) slo: Nanos,
    /// Wall-clock time at which the chain's clock was 0.
    pub(crate) origin: Nanos,
}

/// Writing thread, until the run ends.
#[derive(Debug)]
pub(crate) struct KeptFiles {
    writer: JoinHandle<io::Result<()>>,
    sender: SyncSender<KeptPacket>,
    /// For pollers, which may outlive the run.
    of_rings: SharedSender,
    directory: String,
    pulse: Pulse,
}

impl KeptFiles {
    /// Creates the directory and the first file, and starts the thread.
    ///
    /// # Errors
    /// The directory or the file cannot be written.
    pub(crate) fn create(config: &KeptConfig, names: Names) -> Result<KeptFiles, TrafficError> {
        let directory = config.directory.display().to_string();
        let error = |source| TrafficError::Write {
            file: directory.clone(),
            source,
        };
        fs::create_dir_all(&config.directory).map_err(error)?;
        let pulse = Pulse::default();
        let mut ring = FileRing::open(&config.directory, &names.chain, &pulse).map_err(error)?;
        let (sender, receiver) = sync_channel(WAITING);
        let observer = config.observer.clone();
        let writer = std::thread::Builder::new().name("kept-packets".to_owned());
        let writer = writer
            .spawn(move || ring.write_all(&receiver, &names, observer.as_ref()))
            .map_err(error)?;
        Ok(KeptFiles {
            writer,
            of_rings: SharedSender::new(Some(sender.clone()).into()),
            sender,
            directory,
            pulse,
        })
    }

    /// Keeper of a core's packets.
    pub(crate) fn keeper(&self, core: u32) -> PacketKeeper {
        PacketKeeper::new(core, self.sender.clone())
    }

    /// Keeper of packets that find the ring to this core's worker full.
    pub(crate) fn ring_keeper(&self, core: u32) -> RingKeeper {
        RingKeeper::new(core, &self.of_rings)
    }

    /// Waits until everything is written, after all keepers of cores have been dropped.
    ///
    /// # Errors
    /// The first write error, or a timeout if a file hangs.
    pub(crate) fn finish(self) -> Result<(), TrafficError> {
        let KeptFiles {
            writer,
            sender,
            of_rings,
            directory,
            pulse,
        } = self;
        drop(sender);
        of_rings.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ended = pulse.join(writer).and_then(std::convert::identity);
        ended.map_err(|source| TrafficError::Write {
            file: directory,
            source,
        })
    }
}

/// Files of a directory, of which one is written.
struct FileRing {
    directory: PathBuf,
    chain: String,
    file: PcapngWriter<BufWriter<OutFile>>,
    pulse: Pulse,
}

impl FileRing {
    /// Begins a file behind those that are there.
    fn open(directory: &Path, chain: &str, pulse: &Pulse) -> io::Result<FileRing> {
        Ok(FileRing {
            file: begin(directory, chain, pulse)?,
            directory: directory.to_owned(),
            chain: chain.to_owned(),
            pulse: pulse.clone(),
        })
    }

    /// Writes packets until all keepers are gone. After an error it drops them.
    fn write_all(
        &mut self,
        packets: &Receiver<KeptPacket>,
        names: &Names,
        observer: Option<&KeptObserver>,
    ) -> io::Result<()> {
        let mut result = Ok(());
        loop {
            match packets.try_recv() {
                Ok(packet) if result.is_ok() => {
                    result = self.write(&packet, names);
                    if let Some(observer) = observer {
                        tell(observer, &packet, names);
                    }
                }
                Ok(_) => {}
                // Files can be read at any time.
                Err(TryRecvError::Empty) => {
                    result = result.and_then(|()| self.file.flush());
                    std::thread::sleep(PERIOD);
                }
                Err(TryRecvError::Disconnected) => return result.and_then(|()| self.file.flush()),
            }
        }
    }

    fn write(&mut self, packet: &KeptPacket, names: &Names) -> io::Result<()> {
        if self.file.bytes() >= MAX_FILE_BYTES {
            self.file.flush()?;
            self.file = begin(&self.directory, &self.chain, &self.pulse)?;
        }
        let time = names.origin + packet.arrival;
        let comment = comment(packet, names);
        self.file
            .packet(time.0, packet.captured(), packet.length.into(), &comment)
    }
}

/// Passes a packet to an observer, unless it came before one that mattered.
fn tell(observer: &KeptObserver, packet: &KeptPacket, names: &Names) {
    let reason = reason(packet, names);
    if let (Some((verdict, reason)), false) = (reason.split_once(": "), matches!(packet.why, Why::Before { .. })) {
        let [began, ended] = packet.times;
        observer.observe(&KeptRecord {
            chain: &names.chain,
            core: packet.core,
            verdict,
            reason,
            times: [packet.arrival, began, ended].map(|time| names.origin + time),
            length: packet.length,
            frame: packet.captured(),
        });
    }
}

/// Begins the next file of a directory, and removes the oldest ones beyond [`MAX_FILES`]. Other runs may write there,
/// too.
fn begin(directory: &Path, chain: &str, pulse: &Pulse) -> io::Result<PcapngWriter<BufWriter<OutFile>>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        numbers.extend(entry?.file_name().to_str().and_then(number_of));
    }
    numbers.sort_unstable();
    let next = numbers.last().map_or(1, |last| last.saturating_add(1));
    let old = (numbers.len() + 1).saturating_sub(MAX_FILES);
    for number in &numbers[..old] {
        match fs::remove_file(directory.join(name_of(*number))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    let file = OutFile::create(&directory.join(name_of(next)), pulse)?;
    PcapngWriter::new(BufWriter::new(file), chain)
}

fn name_of(number: u64) -> String {
    format!("{PREFIX}{number:06}{SUFFIX}")
}

/// Number of a file with such a name.
fn number_of(name: &str) -> Option<u64> {
    let number: u64 = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()?;
    (name_of(number) == name).then_some(number)
}

/// Reason and timing of a packet, in the names of reports.
fn comment(packet: &KeptPacket, names: &Names) -> String {
    let reason = reason(packet, names);
    let [began, ended] = packet.times.map(|time| time.saturating_sub(packet.arrival));
    let skipped = match packet.skipped {
        0 => String::new(),
        packets => format!("; {packets} others since the last one were not kept"),
    };
    let (core, event, slo) = (packet.core, packet.event, names.slo);
    if packet.why == Why::RingFull {
        return format!("{reason}; ring to core {core}, event {event}{skipped}");
    }
    format!(
        "{reason}; core {core}, event {event}; chain began {began} and ended {ended} after the arrival, objective \
         {slo}{skipped}"
    )
}

/// Verdict and reason of a packet.
fn reason(packet: &KeptPacket, names: &Names) -> String {
    match packet.why {
        Why::Late(cause) => format!("late: {}", cause.name()),
        Why::TooLate(cause) => format!("lost: too-late, {}", cause.name()),
        Why::Dropped(by, number) => dropped(by, number, names),
        Why::RingFull => format!("lost: {RING_FULL}"),
        Why::Before { same_flow: true } => "before it: same flow".to_owned(),
        Why::Before { same_flow: false } => "before it: same core".to_owned(),
    }
}

fn dropped(by: DroppedBy, number: u8, names: &Names) -> String {
    let function = match by {
        DroppedBy::Function(function) => names.functions.get(usize::from(function)),
        DroppedBy::FlowTable => return "lost: flow-table-full or bucket-not-held".to_owned(),
        DroppedBy::Input => return "dropped: malformed or non-ip".to_owned(),
        DroppedBy::Port => return "lost: not-sent".to_owned(),
    };
    let Some((function, reasons)) = function else {
        return "dropped: other".to_owned();
    };
    let reason = reasons.get(usize::from(number)).map_or("other", String::as_str);
    let name = format!("{function}/{reason}");
    let known = names.reasons.iter().find(|known| known.name == name);
    match known.map(|known| known.outcome) {
        Some(Outcome::Lost) => format!("lost: {name}"),
        _ => format!("dropped: {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::SNAPLEN;
    use super::*;
    use crate::attribution::Cause;

    fn names() -> Names {
        Names {
            chain: "edge".to_owned(),
            functions: vec![("acl".to_owned(), vec!["denied".to_owned()])],
            reasons: Vec::new(),
            slo: Nanos::from_micros(200),
            origin: Nanos::from_secs(1_700_000_000),
        }
    }

    fn packet(why: Why) -> KeptPacket {
        KeptPacket {
            core: 1,
            why,
            event: 3,
            skipped: 0,
            arrival: Nanos::from_millis(5),
            times: [Nanos::from_millis(6), Nanos::from_millis(7)],
            length: 60,
            frame: [0; SNAPLEN],
        }
    }

    #[test]
    fn comments_have_the_names_of_reports() {
        let late = packet(Why::Late(Cause::QueuedBehindOthers));
        assert_eq!(
            comment(&late, &names()),
            "late: queued-behind-others; core 1, event 3; chain began 1ms and ended 2ms after the arrival, objective \
             200us"
        );
        let denied = KeptPacket {
            skipped: 7,
            ..packet(Why::Dropped(DroppedBy::Function(0), 0))
        };
        let text = comment(&denied, &names());
        assert!(text.starts_with("dropped: acl/denied; core 1"), "{text}");
        assert!(text.ends_with("; 7 others since the last one were not kept"), "{text}");
        let lost = comment(&packet(Why::RingFull), &names());
        assert_eq!(lost, "lost: nic-ring-full; ring to core 1, event 3");
    }

    #[test]
    fn observers_get_packets_that_mattered() {
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let into = std::sync::Arc::clone(&seen);
        let observer = KeptObserver::new(move |record: &KeptRecord<'_>| {
            let times = record.times.map(|time| time.saturating_sub(names().origin));
            into.lock()
                .unwrap()
                .push((format!("{} {}", record.verdict, record.reason), times));
        });
        for why in [
            Why::Before { same_flow: true },
            Why::Late(Cause::Service),
            Why::Dropped(DroppedBy::Function(0), 0),
        ] {
            tell(&observer, &packet(why), &names());
        }
        let times = [5, 6, 7].map(Nanos::from_millis);
        let expected = ["late service", "dropped acl/denied"].map(|text| (text.to_owned(), times));
        assert_eq!(*seen.lock().unwrap(), expected);
    }

    #[test]
    fn old_files_are_removed_and_others_stay() {
        let directory = std::env::temp_dir().join(format!("tailwater-kept-{}", std::process::id()));
        let config = KeptConfig {
            directory,
            observer: None,
        };
        let sizes: Vec<usize> = (0..MAX_FILES + 2)
            .map(|_| {
                let files = KeptFiles::create(&config, names()).unwrap();
                std::fs::write(config.directory.join("packets-7.pcapng"), "of somebody else").unwrap();
                let keeper = files.keeper(1);
                drop(keeper);
                files.finish().unwrap();
                std::fs::read_dir(&config.directory).unwrap().count()
            })
            .collect();
        let has = |name| config.directory.join(name).exists();
        assert_eq!(sizes.iter().max(), Some(&(MAX_FILES + 1)));
        assert!(!has("packets-000002.pcapng") && has("packets-000003.pcapng") && has("packets-000010.pcapng"));
        assert!(has("packets-7.pcapng"));
        std::fs::remove_dir_all(&config.directory).unwrap();
    }
}
