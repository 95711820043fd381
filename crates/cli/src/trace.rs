//! `tailwater trace`: looking at traffic, and making some.

use crate::args::{InfoArgs, InfoOutput, SynthArgs};
use crate::error::CliError;
use crate::input::{DEFAULT_DURATION, Traffic};
use crate::matching::Matching;
use crate::progress::Loading;
use crate::run::json;
use crate::text::{one_line, thousands};
use crate::values::LONGEST;
use crate::{complain, print};
use std::process::ExitCode;
use tailwater_net::Nanos;
use tailwater_nf::spec::Match;
use tailwater_traffic::generate::preset;
use tailwater_traffic::{
    LoadOptions, Packet, PacketSource, PcapWriter, Statistics, Trace, TrafficError,
};

/// Prints the statistics of traffic.
pub fn info(args: &InfoArgs) -> Result<ExitCode, CliError> {
    let load = &args.load;
    let traffic = Traffic::named(&args.traffic)?;
    let generated = traffic.generated(load, args.duration.unwrap_or(DEFAULT_DURATION));
    if matches!(traffic, Traffic::File(_)) && args.duration.is_some() {
        let message = "--duration is for presets; a capture is as long as it is";
        return Err(CliError::Input(message.to_owned()));
    }
    // For its line of progress: nothing is left out.
    let everything = Match::default();
    let mut source = Matching::new(traffic.open(load, generated)?, &everything);
    let statistics = match (load.rate, load.rate_scale) {
        (None, None) => Statistics::measure(&mut source, load.memory_limit)?,
        // Other times than the source's own: they are made in memory.
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

/// Writes a preset's packets to a file.
pub fn synth(args: &SynthArgs) -> Result<ExitCode, CliError> {
    // Made slower and longer, then sped up.
    let generated = args.duration.as_secs_f64() * args.rate_scale;
    let generated = Nanos::from_secs_f64(generated).min(LONGEST);
    let mut source = preset(&args.preset)?.with(args.seed, generated).open()?;
    let mut writer = PcapWriter::create(&args.output)?;
    let mut loading = Loading::new(&args.preset);
    while let Some(packet) = source.next_packet()? {
        let timestamp = Nanos((packet.timestamp.0 as f64 / args.rate_scale).round() as u64);
        writer.write(&Packet {
            timestamp,
            ..packet
        })?;
        loading.tell(writer.packets());
    }
    drop(loading);
    let packets = writer.packets();
    writer.finish()?;
    if packets == 0 {
        return Err(TrafficError::NoPackets {
            file: args.output.display().to_string(),
            reason: "the duration ended before the first packet".to_owned(),
        }
        .into());
    }
    for notice in source.notices() {
        complain("notice", &notice.to_string());
    }
    let text = format!(
        "{}: {} packets\n",
        args.output.display(),
        thousands(packets)
    );
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
