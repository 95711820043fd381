//! `tailwater run`.

use crate::args::{ReportOutput, RunArgs};
use crate::error::{CliError, SLO_MISSED};
use crate::input::{self, Traffic};
use crate::metrics::{Chain, Endpoint};
use crate::progress::Live;
use crate::scaling::{Mappers, Placing};
use crate::{complain, explain, html, isolation, ports, print, table};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::AvoidCores;
use tailwater_dataplane::reload_watcher;
use tailwater_dataplane::run::Progress;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, run as run_chain, run_attached, run_on};
use tailwater_functions::spec::ChainSpec;

/// Default descriptors of a queue of the trace NIC.
pub const RING: u32 = 1024;

/// Runs a chain on traffic or ports and prints the report.
///
/// # Errors
/// The input is invalid, the run or the recording fails, or the report cannot be written.
pub fn run(args: &RunArgs) -> Result<ExitCode, CliError> {
    // Quick checks come before slow ones.
    let (spec, isolated) = isolation::read(args)?;
    spec.warnings().for_each(|warning| complain("warning", warning));
    let placing = Placing::new(args, &spec)?;
    let ports = ports::wanted(args, &spec)?;
    ports::check_external(args, &spec, ports.as_ref())?;
    let traffic = match (&ports, &args.traffic) {
        (Some(_), _) => None,
        (None, None) => Some(Traffic::named("bursty".as_ref())?),
        (None, Some(name)) => Some(Traffic::named(name)?),
    };
    let input = traffic.as_ref();
    if let Some(path) = &args.capture_out {
        check_output("--capture-out", path, &args.chain, input)?;
    }
    if let Some(path) = &args.report {
        check_output("--report", path, &args.chain, input)?;
        if let Some(capture) = args.capture_out.as_ref().filter(|o| same_place(o, path)) {
            return Err(CliError::Input(format!(
                "--report and --capture-out are both {}",
                capture.display()
            )));
        }
    }
    if let Some(path) = &args.record {
        check_output("--record", path, &args.chain, input)?;
        let others = [
            ("--report", &args.report),
            ("--capture-out", &args.capture_out),
            ("--profile", &args.profile),
        ];
        for (flag, other) in others {
            if other.as_ref().is_some_and(|other| same_place(other, path)) {
                return Err(CliError::Input(format!(
                    "--record and {flag} are both {}",
                    path.display()
                )));
            }
        }
    }
    let read = spec.functions.iter().flat_map(|function| &function.files);
    let read = read.chain(&args.profile).map(|file| file.as_path());
    for function in &spec.functions {
        for (field, file) in function.config.outputs() {
            let what = format!("{}: {field}", function.name);
            check_writable(&what, &file, read.clone())?;
            check_output(&what, &file, &args.chain, input)?;
        }
    }
    check_apart(args, &spec)?;
    let spec_text = args.report.as_ref().map(|_| spec_text(&args.chain));
    let endpoint = args.metrics.map(Endpoint::bind).transpose()?;
    let load = |traffic| {
        let (duration, saturate) = (args.duration, args.saturate);
        input::load(traffic, &args.load, duration, saturate, &spec.match_)
    };
    let loaded = traffic.map(load).transpose()?;
    let notices = loaded.iter().flat_map(|loaded| &loaded.notices);
    notices.for_each(|notice| complain("notice", notice));
    for function in &spec.functions {
        let notices = function.config.notices();
        notices.iter().for_each(|notice| complain("notice", notice));
    }
    reload_on_signal()?;
    let stop = stop_on_signals()?;
    let clock = Clock::start();
    // First of the slow steps, since a port may be missing.
    let port = ports
        .map(|ports| ports::find(ports, args, (&spec, &placing.dedicated), &clock))
        .transpose()?;
    let functions = match port {
        Some(_) => None,
        None => ports::find_external(&spec, &placing.dedicated)?,
    };
    let dedicated = placing.dedicated.clone();
    let Mappers {
        scaling,
        server,
        recorder,
    } = placing.mappers(args, &spec, loaded.as_ref().map(|l| &l.trace), &stop)?;
    let isolation = isolated
        .map(|isolated| isolation::on(isolated, &dedicated))
        .transpose()?;
    // On ports the seed is random, so that a sender cannot predict a flow's slot. On a trace it is fixed, so that runs
    // can be repeated.
    let seed = match &port {
        Some(_) => RandomState::new().hash_one(&spec.name),
        None => args.load.seed,
    };
    let config = RunConfig {
        cores: dedicated,
        nic: TraceNicConfig {
            pacing: if args.saturate {
                Pacing::Saturate
            } else {
                Pacing::Arrivals
            },
            ring: args.ring.unwrap_or(RING) as usize,
            duration: loaded.as_ref().and_then(|loaded| loaded.duration),
            ..TraceNicConfig::default()
        },
        window: args.window,
        capture_out: args.capture_out.clone(),
        not_matched: loaded.as_ref().map_or(0, |loaded| loaded.not_matched),
        seed,
        scaling,
        server,
        isolation,
    };
    let chain = Chain {
        name: spec.name.clone(),
        traffic: match (&loaded, &port) {
            (Some(loaded), _) => loaded.trace.name().to_owned(),
            (None, port) => port.as_ref().map_or_else(String::new, |p| p.traffic().to_owned()),
        },
        slo: spec.slo,
    };
    // Keeps the endpoint's thread off the workers' cores, if there are others.
    let elsewhere = AvoidCores::new(&config.cores);
    let endpoint = endpoint.map(|endpoint| endpoint.serve(chain)).transpose()?;
    drop(elsewhere);
    let mut live = Live::new();
    let mut show = |progress: &Progress| {
        for line in &progress.news {
            live.clear();
            complain("notice", line);
        }
        live.show(progress);
        if let Some(endpoint) = &endpoint {
            endpoint.update(progress);
        }
    };
    let report = match (port, loaded) {
        (Some(mut port), _) => run_on(&spec, &mut *port, clock, &config, &stop, &mut show),
        (None, Some(loaded)) => match functions {
            None => run_chain(&spec, loaded.trace, &config, &stop, &mut show),
            Some(functions) => run_attached(&spec, loaded.trace, functions, &config, &stop, &mut show),
        },
        (None, None) => unreachable!("packets come from ports or from traffic"),
    };
    drop(live);
    drop(endpoint);
    let decisions = recorder.map_or(Ok(()), |recorder| explain::finish(&recorder));
    // The report is printed even if recording failed or a worker panicked.
    let (report, failure) = match report {
        Ok(report) => (report, None),
        Err(error) => match error.report().cloned() {
            Some(report) => (report, Some(error)),
            None => return Err(error.into()),
        },
    };
    print(&match args.output {
        ReportOutput::Table => table::report(&report),
        ReportOutput::Json => json(&report)?,
    })?;
    if let Some((path, spec)) = args.report.as_ref().zip(spec_text) {
        let page = html::page(&report, &spec, SystemTime::now())?;
        fs::write(path, page).map_err(|source| CliError::Report {
            file: path.display().to_string(),
            source,
        })?;
    }
    if let Some(error) = failure {
        return Err(error.into());
    }
    decisions?;
    Ok(match report.slo_met.filter(|_| args.check_slo) {
        Some(false) => ExitCode::from(SLO_MISSED),
        None if args.check_slo => {
            let text = format!("--check-slo: no verdict: {}", table::without_verdict(&report));
            complain("error", &text);
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    })
}

/// Formats a document as indented JSON.
///
/// # Errors
/// The document cannot be serialised.
pub fn json(document: &impl serde::Serialize) -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(document);
    text.map(|text| text + "\n").map_err(not_json)
}

/// Returns the error of a document that cannot be serialised.
pub fn not_json(error: serde_json::Error) -> CliError {
    CliError::System {
        what: "the report cannot be written as JSON",
        source: error.into(),
    }
}

/// Makes SIGHUP request a reload of files.
fn reload_on_signal() -> Result<(), CliError> {
    let registered = signal_hook::flag::register(SIGHUP, Arc::clone(reload_watcher::reload_requested()));
    registered.map(drop).map_err(|source| CliError::System {
        what: "signals cannot be handled",
        source,
    })
}

/// Returns a flag that SIGINT and SIGTERM set. A second signal kills the process.
///
/// # Errors
/// A signal handler cannot be registered.
pub fn stop_on_signals() -> Result<Arc<AtomicBool>, CliError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order, so that the first signal finds the flag unset.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|source| CliError::System {
                what: "signals cannot be handled",
                source,
            })?;
    }
    Ok(stop)
}

/// Returns the text of a spec, for the page.
pub fn spec_text(path: &Path) -> String {
    // A pipe has already been read, and another read would block.
    match fs::metadata(path) {
        Ok(file) if file.is_file() => String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned(),
        _ => "(the spec did not come from a file)".to_owned(),
    }
}

/// Checks early that an output file can be written and is not an input. Leaves no file behind.
///
/// # Errors
/// The file cannot be written, or is an input.
pub fn check_output(flag: &str, path: &Path, chain: &Path, traffic: Option<&Traffic>) -> Result<(), CliError> {
    let input = match traffic {
        Some(Traffic::File(file)) => Some(file.as_path()),
        Some(Traffic::Preset(_)) | None => None,
    };
    check_writable(flag, path, input.into_iter().chain([chain]))
}

/// Checks that no two functions, or a function and the command, write the same file.
fn check_apart(args: &RunArgs, spec: &ChainSpec) -> Result<(), CliError> {
    let given = [
        ("--capture-out", &args.capture_out),
        ("--report", &args.report),
        ("--record", &args.record),
    ];
    let given = given
        .into_iter()
        .filter_map(|(flag, file)| Some((flag.to_owned(), place(file.as_ref()?)?)));
    let mut written: HashMap<PathBuf, String> = given.map(|(flag, at)| (at, flag)).collect();
    for function in &spec.functions {
        let own = function.config.outputs().into_iter();
        let own = own.map(|(field, file)| (format!("{}: {field}", function.name), file));
        let own: Vec<_> = own
            .filter_map(|(what, file)| Some((place(&file)?, what, file)))
            .collect();
        for (at, what, file) in &own {
            if let Some(other) = written.get(at) {
                return Err(CliError::Input(format!(
                    "{what}: {} is also written by {other}",
                    file.display()
                )));
            }
        }
        written.extend(own.into_iter().map(|(at, what, _)| (at, what)));
    }
    Ok(())
}

/// Like [`check_output`], with arbitrary inputs.
///
/// # Errors
/// The file cannot be written, or is an input.
pub fn check_writable<'p>(flag: &str, path: &Path, inputs: impl Iterator<Item = &'p Path>) -> Result<(), CliError> {
    let refuse = |source: io::Error| CliError::Input(format!("{flag}: {}: cannot write: {source}", path.display()));
    for input in inputs {
        if same_file(path, input) {
            return Err(CliError::Input(format!(
                "{flag}: {} would overwrite the input {}",
                path.display(),
                input.display()
            )));
        }
    }
    match fs::metadata(path) {
        // Opening a pipe would block until it has a reader.
        Ok(file) if !file.is_file() && !file.is_dir() => {}
        Ok(_) => drop(OpenOptions::new().append(true).open(path).map_err(refuse)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
                .map_err(refuse)?;
            fs::remove_file(path).map_err(refuse)?;
        }
        Err(error) => return Err(refuse(error)),
    }
    Ok(())
}

/// Returns `true` if two paths, whose files may not exist yet, name the same file.
pub fn same_place(a: &Path, b: &Path) -> bool {
    same_file(a, b) || place(a).is_some_and(|a| Some(a) == place(b))
}

/// Returns the canonical path of a file that may not exist yet.
fn place(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    let folder = fs::canonicalize(absolute.parent()?).ok()?;
    Some(folder.join(absolute.file_name()?))
}

/// Returns `true` if two paths are the same file, also through links.
fn same_file(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
