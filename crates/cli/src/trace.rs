//! `tailwater trace`: analysis, conversion and generation of traffic.

mod args;

pub use args::TraceCommand;

use crate::error::CliError;
use crate::files::{check_writable, write_result};
use crate::input::{DEFAULT_DURATION, Traffic};
use crate::matching::Matching;
use crate::output::{complain, json, print};
use crate::progress::Loading;
use crate::signals::stop_on_signals;
use crate::text::{one_line, thousands};
use crate::timed::{Timed, divided};
use crate::values::LONGEST;
use args::{ConvertArgs, InfoArgs, InfoOutput, SynthArgs};
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_files::AtomicFile;
use tailwater_functions::spec::Match;
use tailwater_net::Nanos;
use tailwater_traffic::bursts::{BurstStudy, StudyOptions};
use tailwater_traffic::convert::{Conversion, Part};
use tailwater_traffic::generate::preset;
use tailwater_traffic::{
    CaptureReader, LoadOptions, Packet, PacketSource, PcapWriter, ReadOptions, Statistics, Trace, TrafficError,
};

/// Prints the statistics of traffic.
///
/// # Errors
/// The traffic cannot be read, a flag does not apply to it, or the result cannot be written.
pub fn info(args: &InfoArgs) -> Result<ExitCode, CliError> {
    let load = &args.load;
    let traffic = scaled(Traffic::named(&args.traffic)?, args.flows_scale)?;
    let generated = traffic.generated(load, args.duration.unwrap_or(DEFAULT_DURATION));
    if matches!(traffic, Traffic::File(_)) && args.duration.is_some() {
        let message = "--duration applies to presets only, not to captures";
        return Err(CliError::Input(message.to_owned()));
    }
    if !args.service_us.is_empty() || args.svg.is_some() {
        return study(args, &traffic, generated);
    }
    // Used for its progress line; matches all packets.
    let everything = Match::default();
    let mut source = Matching::new(traffic.open(load, generated)?, &everything);
    let statistics = match (load.rate, load.rate_scale) {
        (None, None) => Statistics::measure(&mut source, load.memory_limit)?,
        // Changed times require the packets in memory.
        (rate_pps, scale) => {
            let options = LoadOptions {
                memory_limit_bytes: load.memory_limit,
                rate_pps,
            };
            let mut trace = Trace::load(&mut source, &options)?;
            trace.scale_rate(scale.unwrap_or(1.0))?;
            Statistics::measure(&mut trace.source(), load.memory_limit)?
        }
    };
    drop(source);
    for notice in &statistics.notices {
        complain("notice", &notice.to_string());
    }
    print(&match args.output {
        InfoOutput::Text => format!("{}\n\n{statistics}", one_line(&statistics.name)),
        InfoOutput::Json => json(&statistics)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Scales the number of a preset's flows.
fn scaled(traffic: Traffic, factor: f64) -> Result<Traffic, CliError> {
    match traffic {
        Traffic::Preset(preset) => Ok(Traffic::Preset(Box::new(preset.scaled(factor)))),
        Traffic::File(_) if factor != 1.0 => Err(CliError::Input(
            "--flows-scale applies to presets only; for captures, use tailwater trace convert --copies".to_owned(),
        )),
        file => Ok(file),
    }
}

/// Prints the effect of bursts on latency, and draws them.
fn study(args: &InfoArgs, traffic: &Traffic, generated: Nanos) -> Result<ExitCode, CliError> {
    let load = &args.load;
    let options = StudyOptions {
        services: args.service_us.clone(),
        memory_limit_bytes: load.memory_limit,
    };
    if let Some(path) = &args.svg {
        let input = match traffic {
            Traffic::File(file) => Some(file.as_path()),
            Traffic::Preset(_) => None,
        };
        check_writable("--svg", path, input.into_iter())?;
    }
    let open = || -> Result<Timed, TrafficError> {
        let source = traffic.arrivals((load.seed, generated), load.skip_bad_packets)?;
        Ok(Timed::new(source, load.rate_scale.unwrap_or(1.0)))
    };
    let study = BurstStudy::measure(open, &options)?;
    for notice in &study.notices {
        complain("notice", &notice.to_string());
    }
    if let Some(path) = &args.svg {
        write_result(path, &study.svg())?;
    }
    print(&match args.output {
        InfoOutput::Text => format!("{}\n\n{study}", one_line(&study.name)),
        InfoOutput::Json => json(&study)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Cuts, merges, superposes or speeds up captures.
///
/// # Errors
/// The part is empty, an input is the output, a capture cannot be read, or the output cannot be written.
pub fn convert(args: &ConvertArgs) -> Result<ExitCode, CliError> {
    let (from, to) = (args.from.unwrap_or(Nanos::ZERO), args.to.unwrap_or(Nanos::MAX));
    if from >= to {
        let message = format!("--from: expected a time before --to {to}, found {from}");
        return Err(CliError::Input(message));
    }
    for input in &args.inputs {
        if same_file(input, &args.output) {
            let message = format!("{}: would overwrite an input", input.display());
            return Err(CliError::Input(message));
        }
    }
    let conversion = Conversion {
        part: Part {
            from,
            to,
            packets: args.packets.unwrap_or(u64::MAX),
        },
        copies: args.copies,
        shift: args.shift.unwrap_or(Nanos::ZERO),
        speed: args.speed,
    };
    let options = ReadOptions {
        skip_bad_packets: args.skip_bad_packets,
    };
    let open = || {
        let readers = args.inputs.iter();
        readers.map(|path| CaptureReader::open(path, &options)).collect()
    };
    let mut source = conversion.open(open)?;
    write(&mut source, 1.0, &args.output, "no packets between --from and --to")
}

/// Returns `true` if both files exist and are the same.
fn same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Writes a preset's packets to a file.
///
/// # Errors
/// The preset is unknown, the duration has no packet, or the file cannot be written.
pub fn synth(args: &SynthArgs) -> Result<ExitCode, CliError> {
    // Generated at the preset's own rate for a longer time, then sped up.
    let generated = args.duration.as_secs_f64() * args.rate_scale;
    let generated = Nanos::from_secs_f64(generated).min(LONGEST);
    let preset = preset(&args.preset)?.scaled(args.flows_scale);
    let mut source = preset.with(args.seed, generated).open()?;
    let reason = "the duration ended before the first packet";
    write(&mut source, args.rate_scale, &args.output, reason)
}

/// Writes packets to a file, or to standard output if that is `-`, and prints their number. The file appears once it is
/// whole.
fn write<S: PacketSource>(source: &mut S, speed: f64, output: &Path, none: &str) -> Result<ExitCode, CliError> {
    let to_stdout = output.as_os_str() == "-";
    let name = match to_stdout {
        true => "standard output".to_owned(),
        false => output.display().to_string(),
    };
    let stop = stop_on_signals()?;
    let file = match to_stdout {
        true => AtomicFile::stdout(),
        false => AtomicFile::create(output),
    };
    let file = file.map_err(|source| TrafficError::Write {
        file: name.clone(),
        source,
    })?;
    let packets = match copy(source, speed, file, &name, &stop) {
        // Its reader has enough, such as `head`.
        Err(CliError::Traffic(TrafficError::Write { source, .. }))
            if to_stdout && source.kind() == ErrorKind::BrokenPipe =>
        {
            return Ok(ExitCode::SUCCESS);
        }
        copied => copied?,
    };
    if packets == 0 {
        let reason = none.to_owned();
        return Err(TrafficError::NoPackets { file: name, reason }.into());
    }
    for notice in source.notices() {
        complain("notice", &notice.to_string());
    }
    if !to_stdout {
        print(&format!("{name}: {} packets\n", thousands(packets)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes packets to a file, and returns their number. A file without packets is not put in its place.
fn copy<S: PacketSource>(
    source: &mut S,
    speed: f64,
    file: AtomicFile,
    name: &str,
    stop: &AtomicBool,
) -> Result<u64, CliError> {
    let mut writer = PcapWriter::new(file, name)?;
    let mut loading = Loading::new(source.name());
    while let Some(packet) = source.next_packet()? {
        if stop.load(Ordering::Relaxed) {
            let packets = thousands(writer.packets());
            return Err(CliError::Stopped(format!(
                "{name}: interrupted after {packets} packets, and not written"
            )));
        }
        writer.write(&Packet {
            timestamp: divided(packet.timestamp, speed),
            ..packet
        })?;
        loading.tell(writer.packets());
    }
    let packets = writer.packets();
    let file = writer.finish()?;
    if packets > 0 {
        file.finish().map_err(|source| TrafficError::Write {
            file: name.to_owned(),
            source,
        })?;
    }
    Ok(packets)
}
