//! File of frames that the device copies from: header, places, lines. Layout in `device.c`.

use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;
use tailwater_traffic::Trace;

/// Bytes of a line. Frames begin at one.
const LINE: usize = 64;

/// Writes the trace's frames to a file.
pub fn write(trace: &Trace, path: &Path) -> Result<()> {
    let frames = || (0..trace.len()).map(|index| trace.packet(index));
    let (header, place) = (16, 8);
    let lines_at = (header + place * trace.len()).next_multiple_of(LINE);
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(trace.len() as u64).to_ne_bytes())?;
    file.write_all(&(lines_at as u64).to_ne_bytes())?;
    let mut line = 0u32;
    for frame in frames() {
        file.write_all(&line.to_ne_bytes())?;
        file.write_all(&(frame.len() as u32).to_ne_bytes())?;
        line += frame.len().div_ceil(LINE) as u32;
    }
    file.write_all(&vec![0; lines_at - header - place * trace.len()])?;
    for frame in frames() {
        file.write_all(frame)?;
        file.write_all(&[0; LINE][..frame.len().next_multiple_of(LINE) - frame.len()])?;
    }
    file.flush()
}
