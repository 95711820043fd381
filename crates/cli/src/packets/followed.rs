//! The request, and its results on standard output and in a file.

use super::args::{PacketsArgs, PacketsOutput};
use super::step::{Flow, JsonStep, flow_entry, paragraph, printable, role};
use crate::control::connect;
use crate::error::CliError;
use crate::files::check_writable;
use crate::output::{complain, not_json, print};
use crate::signals::stop_on_signals;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tailwater_files::AtomicFile;
use tailwater_net::Nanos;
use tailwater_server::control::generated as message;
use tailwater_traffic::PcapngWriter;

/// Time within which a request to stop is noticed.
const PERIOD: Duration = Duration::from_millis(100);

/// Runs `tailwater trace packets`.
///
/// # Errors
/// There is no such chain, the filter is wrong, or the file cannot be written.
pub fn packets(args: &PacketsArgs) -> Result<ExitCode, CliError> {
    if let Some(path) = &args.write {
        check_writable("--write", path, std::iter::empty())?;
    }
    let mut client = connect(&args.socket)?;
    let stop = stop_on_signals()?;
    let functions = client.get(&args.chain)?.functions.len();
    let request = message::TracePacketsRequest {
        chain: args.chain.clone(),
        filter: args.filter.clone(),
        packets: args.count,
        nanos: args.longest.0,
    };
    let mut printer = Printer {
        output: args.output,
        functions,
        open: BTreeMap::new(),
        all: Vec::new(),
        keeps: args.write.is_some(),
    };
    let mut result = Ok(());
    let mut end = None;
    client.trace_packets(request, PERIOD, |update| {
        match update.and_then(|update| update.update) {
            Some(message::trace_update::Update::Step(step)) => result = printer.step(step),
            Some(message::trace_update::Update::End(last)) => end = Some(last),
            None => {}
        }
        result.is_ok() && !stop.load(Ordering::Relaxed)
    })?;
    result?;
    printer.rest()?;
    if let Some(path) = &args.write {
        write(path, &args.chain, &printer.all).map_err(|source| CliError::Report {
            file: path.display().to_string(),
            source,
        })?;
    }
    let end = end.unwrap_or_default();
    if end.lost > 0 {
        complain(
            "warning",
            &format!("{} steps were lost: too many packets at a time", end.lost),
        );
    }
    if end.missing > 0 {
        let found = args.count - end.missing;
        complain(
            "notice",
            &format!("{found} of {} packets came in {}", args.count, args.longest),
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Steps, of which those of a packet are printed together.
struct Printer {
    output: PacketsOutput,
    /// Number of the chain's functions.
    functions: usize,
    /// Packets that have not left the chain, as far as is known.
    open: BTreeMap<u32, Vec<message::TracedStep>>,
    all: Vec<message::TracedStep>,
    /// All steps are kept, for a file.
    keeps: bool,
}

impl Printer {
    fn step(&mut self, step: message::TracedStep) -> Result<(), CliError> {
        if self.keeps {
            self.all.push(step.clone());
        }
        if self.output == PacketsOutput::Json {
            let line = serde_json::to_string(&JsonStep::from(&step)).map_err(not_json)?;
            return print(&format!("{line}\n"));
        }
        let number = step.packet;
        let steps = self.open.entry(number).or_default();
        let is_dropped = step.dropped.is_some();
        steps.push(step);
        // The step in front of the chain, and one for each function; fewer on a branch, which the end shows.
        if is_dropped || steps.len() > self.functions {
            let steps = self.open.remove(&number).unwrap_or_default();
            return print(&paragraph(&steps));
        }
        Ok(())
    }

    fn rest(&mut self) -> Result<(), CliError> {
        let open = std::mem::take(&mut self.open);
        print(&open.values().map(|steps| paragraph(steps)).collect::<String>())
    }
}

/// Writes steps in the order of their times.
fn write(path: &Path, chain: &str, steps: &[message::TracedStep]) -> io::Result<()> {
    let mut steps: Vec<_> = steps.iter().collect();
    steps.sort_by_key(|step| (step.ended_nanos, step.packet));
    let mut file = AtomicFile::create(path)?;
    let mut writer = PcapngWriter::new(&mut file, chain)?;
    for step in steps {
        let place = step
            .function
            .as_ref()
            .map_or_else(|| "in front of the chain".to_owned(), |name| format!("behind {name}"));
        let dropped = step
            .dropped
            .as_ref()
            .map_or_else(String::new, |reason| format!(", dropped: {reason}"));
        let explained = match step.explanation.is_empty() {
            true => String::new(),
            false => format!(" ({})", printable(&step.explanation)),
        };
        let took = Nanos(step.ended_nanos.saturating_sub(step.began_nanos));
        let took = if step.function.is_some() {
            format!("{took} for ")
        } else {
            String::new()
        };
        let comment = format!(
            "packet {}, {place}{dropped}{explained}; core {}{}, {took}a batch of {}, {} after its arrival; {}{}",
            step.packet,
            step.core,
            role(step),
            step.batch,
            Nanos(step.ended_nanos.saturating_sub(step.arrival_nanos)),
            Flow::from(step),
            flow_entry(step),
        );
        writer.packet(step.ended_nanos, &step.frame, step.length, &comment)?;
    }
    file.finish()
}
