//! Packets of a capture or a preset, and writing captures.

use crate::errors::{TailwaterError, of_traffic, wrong};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tailwater_net::Nanos;
use tailwater_traffic::generate::preset;
use tailwater_traffic::{CaptureReader, Packet, PacketSource, PcapWriter, ReadOptions, TrafficError};

/// Packets in a chunk.
const CHUNK: usize = 1024;
/// Most bytes in a chunk, but for its last packet.
const CHUNK_BYTES: usize = 1 << 20;
/// Time after which signals are looked for.
const PERIOD: Duration = Duration::from_millis(100);

/// Result of a read of the source.
enum Read {
    Packets(Vec<(u64, Vec<u8>)>),
    End(Vec<String>),
    Failed(TrafficError),
    /// The thread has ended without one of these.
    Lost,
}

/// Packets of a capture or a preset, read by a thread of their own, at most three chunks ahead.
#[pyclass(frozen, module = "tailwater")]
pub struct Packets {
    state: Mutex<State>,
}

struct State {
    chunks: Receiver<Read>,
    notices: Vec<String>,
    is_over: bool,
}

/// Where the packets come from.
enum Origin {
    Preset { name: String, seed: u64, duration: Nanos },
    File { path: PathBuf, skip_bad_packets: bool },
}

impl Origin {
    fn open(self) -> Result<Box<dyn PacketSource>, TrafficError> {
        Ok(match self {
            Origin::Preset { name, seed, duration } => preset(&name)?.with(seed, duration).open()?,
            Origin::File { path, skip_bad_packets } => {
                Box::new(CaptureReader::open(path, &ReadOptions { skip_bad_packets })?)
            }
        })
    }

    /// Sends all packets, until the receiver is gone.
    fn send(self, to: &SyncSender<Read>) {
        let mut source = match self.open() {
            Ok(source) => source,
            Err(error) => {
                let _ = to.send(Read::Failed(error));
                return;
            }
        };
        let mut goes_on = true;
        while goes_on {
            let (mut packets, mut bytes, mut failed) = (Vec::new(), 0, None);
            while packets.len() < CHUNK && bytes < CHUNK_BYTES {
                match source.next_packet() {
                    Ok(Some(packet)) => {
                        bytes += packet.data.len();
                        packets.push((packet.timestamp.0, packet.data.to_vec()));
                    }
                    Ok(None) => {
                        failed = Some(Read::End(source.notices().iter().map(ToString::to_string).collect()));
                        break;
                    }
                    Err(error) => {
                        failed = Some(Read::Failed(error));
                        break;
                    }
                }
            }
            goes_on = to.send(Read::Packets(packets)).is_ok();
            if let Some(end) = failed {
                let _ = to.send(end);
                return;
            }
        }
    }
}

#[pymethods]
impl Packets {
    /// Opens the preset of this name or, if there is none, the capture. `duration_ns` and `seed` are a preset's.
    #[new]
    #[pyo3(signature = (name, *, seed = 1, duration_ns = 1_000_000_000, skip_bad_packets = false))]
    fn new(name: PathBuf, seed: u64, duration_ns: u64, skip_bad_packets: bool) -> PyResult<Packets> {
        let text = name.to_string_lossy().into_owned();
        let origin = match preset(&text) {
            Ok(_) => Origin::Preset {
                name: text,
                seed,
                duration: Nanos(duration_ns),
            },
            Err(_) if !matches!(name.try_exists(), Ok(false)) => Origin::File {
                path: name,
                skip_bad_packets,
            },
            Err(TrafficError::UnknownPreset { suggestion, known, .. }) => {
                return Err(wrong(format!(
                    "\"{text}\" is neither a capture file nor a traffic preset; the presets are: {known}{suggestion}"
                )));
            }
            Err(error) => return Err(of_traffic(&error)),
        };
        let (to, chunks) = sync_channel(2);
        std::thread::Builder::new()
            .name("packets".to_owned())
            .spawn(move || origin.send(&to))?;
        let state = State {
            chunks,
            notices: Vec::new(),
            is_over: false,
        };
        Ok(Packets {
            state: Mutex::new(state),
        })
    }

    /// Returns the next packets, each with its time in nanoseconds; none at the end.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u64, Bound<'py, PyBytes>)>> {
        loop {
            py.check_signals()?;
            let read = py.detach(|| {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.is_over {
                    return Some(Read::End(Vec::new()));
                }
                let read = match state.chunks.recv_timeout(PERIOD) {
                    Ok(read) => read,
                    Err(RecvTimeoutError::Timeout) => return None,
                    Err(RecvTimeoutError::Disconnected) => Read::Lost,
                };
                if let Read::End(notices) = &read {
                    state.is_over = true;
                    state.notices.extend(notices.iter().cloned());
                }
                state.is_over |= matches!(read, Read::Failed(_) | Read::Lost);
                Some(read)
            });
            return match read {
                None => continue,
                Some(Read::Packets(packets)) if packets.is_empty() => continue,
                Some(Read::Packets(packets)) => {
                    let packets = packets.iter();
                    Ok(packets.map(|(time, frame)| (*time, PyBytes::new(py, frame))).collect())
                }
                Some(Read::End(_)) => Ok(Vec::new()),
                Some(Read::Failed(error)) => Err(of_traffic(&error)),
                Some(Read::Lost) => Err(TailwaterError::new_err(
                    "the thread that reads the packets has panicked",
                )),
            };
        }
    }

    /// Notices on the packets, such as where a damaged file ends; complete after the last packet.
    #[getter]
    fn notices(&self) -> Vec<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.notices.clone()
    }
}

/// Writes packets, each with its time in nanoseconds, to a pcap file. Returns their number.
#[pyfunction]
pub fn write_capture(path: PathBuf, packets: &Bound<'_, PyAny>) -> PyResult<u64> {
    let mut writer = PcapWriter::create(&path).map_err(|error| of_traffic(&error))?;
    let mut written = 0;
    for item in packets.try_iter()? {
        let (time, frame): (u64, PyBackedBytes) = item?.extract()?;
        let packet = Packet {
            timestamp: Nanos(time),
            data: &frame,
            wire_length: frame.len() as u32,
        };
        writer.write(&packet).map_err(|error| of_traffic(&error))?;
        written += 1;
    }
    writer.finish().map_err(|error| of_traffic(&error))?;
    Ok(written)
}
