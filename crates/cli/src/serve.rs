//! `tailwater serve`: one machine, many chains.

mod args;
mod cache;
mod errors;
mod isolation;
mod offloading;
mod ports;
mod profiler;
mod profiles;
mod report;
mod take_over;

pub use args::{SERVE_EXAMPLES, ServeArgs};

use crate::error::CliError;
use crate::metrics::{Endpoint, ServerPage, ServerSources};
use crate::output::complain;
use crate::signals::stop_on_signals;
use crate::systemd::{self, Notifier};
use crate::telemetry::{Counts, ExportConfig, ExportSources, Exporter, Observed};
use crate::values::Cores;
use cache::divided;
use errors::not_served;
use isolation::isolating;
use offloading::{offloading, policy};
use ports::open;
use profiler::ChildProfiler;
use profiles::ServerProfiles;
use report::print_all;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tailwater_api::document::Document;
use tailwater_api::server::{AdmissionSpec, DESCRIPTION, ServerSpec, Unprofiled};
use tailwater_dataplane::core_host::{CoreHost, HostConfig};
use tailwater_dataplane::cores::{self, CoreError};
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::broker::{BrokerConfig, LeastSlackBroker};
use tailwater_server::Event;
use tailwater_server::live::LiveMachine;
use tailwater_server::{Paths, ServerConfig, Start, serve_observed as run_server};
use take_over::Beginning;

/// Interval at which the end of `--duration` is looked for.
const TICK: Duration = Duration::from_millis(10);

/// Serves until it is stopped, then prints all chains' reports.
///
/// # Errors
/// The spec is wrong, the server cannot start, or the report cannot be written.
pub fn serve(args: &ServeArgs) -> Result<ExitCode, CliError> {
    serve_with(args, |_| ())
}

/// Server that is ready for requests.
#[cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "companions are agents of a rack")
)]
pub struct Serving<'s> {
    /// Its spec.
    pub spec: &'s ServerSpec,
    /// Path of its control socket.
    pub socket: &'s Path,
    /// Dedicated and auxiliary cores.
    pub cores: [&'s [usize]; 2],
    /// Set when the server ends.
    pub stop: &'s AtomicBool,
}

/// Same as [`serve`], with a companion that runs in a thread of its own from when the server is ready until it ends.
///
/// # Errors
/// As [`serve`].
pub fn serve_with(args: &ServeArgs, companion: impl FnOnce(Serving<'_>) + Send) -> Result<ExitCode, CliError> {
    let spec = read(&args.server)?;
    let export = export_config(args, &spec)?;
    let exported = export.as_ref().map(|_| Arc::<Counts>::default());
    let paths = Paths::of(&spec, |name| std::env::var_os(name).map(PathBuf::from));
    let mut beginning = Beginning::new(args, &spec, &paths)?;
    if !args.take_over && rustix::process::geteuid().is_root() {
        // Remains of functions' processes that a killed server had. Every start of such a process removes them, too.
        let _ = tailwater_confine::sweep();
    }
    let stop = stop_on_signals()?;
    let bind = |address| Endpoint::bind("spec.metrics", address);
    // The address of a running server is free once it has ended.
    let endpoint = spec.metrics.filter(|_| !args.take_over).map(bind).transpose()?;
    let policy = policy(&spec)?;
    let cores = chosen(args.cores.as_ref(), ("cores", &spec.cores))?;
    let auxiliary = chosen(args.auxiliary.as_ref(), ("auxiliary", &spec.auxiliary))?;
    if let Some(both) = auxiliary.iter().find(|core| cores.contains(core)) {
        return Err(CliError::Input(format!(
            "core {both} is both dedicated and auxiliary: expected different cores (--cores, --auxiliary)"
        )));
    }
    let profiles = spec
        .admission
        .as_ref()
        .map(|admission| profiles_of(&spec, admission, &cores));
    let profiles = profiles.transpose()?;
    // The threads of this server, apart from those of its cores, get the other cores: auxiliary ones only if there are
    // no others.
    let all = [&cores[..], &auxiliary].concat();
    let is_left = cores::available().iter().any(|core| !all.contains(core));
    if !is_left && args.wait == Mode::Spin && !auxiliary.is_empty() {
        return Err(CliError::Input(
            "--wait spin: expected a core that is neither dedicated nor auxiliary, for the server's other threads"
                .into(),
        ));
    }
    let has_other_cores = cores::available().iter().any(|core| !cores.contains(core));
    let elsewhere = cores::AvoidCores::new(if is_left { &all } else { &cores });
    let clock = beginning.clock()?;
    let ports = open(&spec, &cores, &clock, |port| beginning.sockets(port))?;
    let host = HostConfig {
        cores: cores.clone(),
        nap: args.nap,
        auxiliary: auxiliary.clone(),
        park: args.wait,
        broker: Box::new(LeastSlackBroker::new(BrokerConfig::default())),
    };
    let host = CoreHost::start(host, clock.clone()).map_err(failed)?;
    let ended = Arc::<Mutex<Vec<_>>>::default();
    let reports = Arc::clone(&ended);
    let machine = beginning.machine(&host, ports, move |ended| {
        reports.lock().unwrap_or_else(PoisonError::into_inner).push(ended);
    });
    let machine = machine.map_err(|error| {
        host.stop();
        failed(error)
    })?;
    let machine = machine.isolating(isolating(paths.state.clone(), has_other_cores));
    let (observer, kept) = match export.as_ref().zip(exported.as_ref()) {
        Some((config, counts)) => config.observe_kept(counts),
        None => Default::default(),
    };
    let machine = machine.keeping_packets(spec.keep_packets.clone(), observer);
    let machine = with_profiles(machine.offloading(offloading(policy)), profiles);
    let ports = machine.ports();
    let figures = machine.figures();
    let machine = divided(machine, &host, &spec);
    let sources = ServerSources {
        figures,
        ports: ports.clone(),
        host,
        snapshot: Arc::default(),
        exported: exported.clone(),
    };
    let snapshot = Arc::clone(&sources.snapshot);
    let to_export = ExportSources {
        server: spec.metadata.name.clone(),
        observed: Observed::Server(Arc::clone(&snapshot)),
        clock,
        traced_packets: spec.telemetry.traced_packets,
        kept,
    };
    let export = export.zip(exported.as_ref());
    let exporter = export.map(|(config, counts)| Exporter::start(config, to_export, counts));
    let exporter = exporter.transpose()?;
    let mut notifier = Notifier::new();
    let page = ServerPage::new(sources);
    let (mut metrics, late_page) = match endpoint {
        Some(endpoint) => (Some(endpoint.serve(page)?), None),
        None => (None, Some(page)),
    };
    let config = ServerConfig {
        paths,
        spec,
        #[cfg(feature = "control")]
        limits: Default::default(),
    };
    let over = AtomicBool::new(false);
    let served = std::thread::scope(|scope| {
        let (stop, over) = (&*stop, &over);
        let (config, cores, auxiliary) = (&config, &cores[..], &auxiliary[..]);
        let timer = args
            .duration
            .map(|duration| scope.spawn(move || end_after(duration, stop, over)));
        let ready = || {
            announce(config, [cores, auxiliary]);
            let serving = Serving {
                spec: &config.spec,
                socket: &config.paths.socket,
                cores: [cores, auxiliary],
                stop,
            };
            scope.spawn(move || companion(serving));
            if let (Some(address), Some(page)) = (config.spec.metrics, late_page) {
                match bind(address).and_then(|endpoint| endpoint.serve(page)) {
                    Ok(endpoint) => metrics = Some(endpoint),
                    Err(error) => complain("warning", &error.to_string()),
                }
            }
        };
        let start: Start = beginning.into();
        let served = run_server(config, start, machine, stop, ready, warn, move |state| {
            notifier.is_alive();
            *snapshot.lock().unwrap_or_else(PoisonError::into_inner) = state.clone();
        });
        over.store(true, Ordering::Relaxed);
        drop(timer);
        served
    });
    systemd::is_stopping();
    drop(metrics);
    drop(elsewhere);
    let served = served.map_err(not_served)?;
    let ended = std::mem::take(&mut *ended.lock().unwrap_or_else(PoisonError::into_inner));
    take_over::tell(&served, &ended, &ports);
    // Waits for its last requests: a successor does not.
    if let Some(exporter) = exporter {
        exporter.stop();
    }
    print_all(&config.spec.metadata.name, &ended, &ports, args.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Export of telemetry, if an option, the spec or the environment names a collector.
fn export_config(args: &ServeArgs, spec: &ServerSpec) -> Result<Option<ExportConfig>, CliError> {
    let option = args.otlp.as_deref().map(|url| ("--otlp", url));
    let field = spec.telemetry.otlp.as_deref().map(|url| ("spec.telemetry.otlp", url));
    let warn = |line: &str| complain("warning", line);
    ExportConfig::find(option.or(field), |name| std::env::var(name).ok(), warn)
}

/// Profiles of a server, and its measurements of those that are missing.
type ProfileSources = (Arc<ServerProfiles>, Option<ChildProfiler>);

/// Finds the profiles of `spec.admission`.
fn profiles_of(spec: &ServerSpec, admission: &AdmissionSpec, cores: &[usize]) -> Result<ProfileSources, CliError> {
    let profiles = ServerProfiles::new(&admission.profiles, cores[0]);
    let measures = admission.profile == Unprofiled::Auto;
    let profiles = Arc::new(if measures { profiles.measured() } else { profiles });
    if let Some(created) = profiles.open().map_err(CliError::Input)? {
        complain("notice", &created);
    }
    if !measures {
        return Ok((profiles, None));
    }
    if let Some(core) = admission.measure.core {
        // One that the process may use, and on which nothing polls.
        cores::parse_list(&core.to_string())
            .map_err(|error| CliError::Input(format!("spec.admission.measure.core: {error}")))?;
        if cores.contains(&(core as usize)) {
            return Err(CliError::Input(format!(
                "spec.admission.measure.core: expected a core that is not dedicated, found core {core}, which polls \
                 the ports"
            )));
        }
    }
    let profiler = ChildProfiler::new(spec, admission, Arc::clone(&profiles)).map_err(CliError::Input)?;
    Ok((profiles, Some(profiler)))
}

/// The machine with the profiles of `spec.admission`.
fn with_profiles(machine: LiveMachine, profiles: Option<ProfileSources>) -> LiveMachine {
    let Some((profiles, profiler)) = profiles else {
        return machine;
    };
    let machine = machine.with_profiles(profiles.cache_bytes(), move |spec| profiles.curves(spec));
    match profiler {
        Some(profiler) => machine.profiling(Box::new(profiler)),
        None => machine,
    }
}

fn read(path: &Path) -> Result<ServerSpec, CliError> {
    let document = Document::read(path, DESCRIPTION)?;
    let base_dir = path.parent().unwrap_or(Path::new("."));
    Ok(ServerSpec::new(&document, base_dir)?)
}

fn failed(error: impl std::error::Error) -> CliError {
    CliError::Input(error.to_string())
}

/// Cores of an argument, or those of the spec, checked.
fn chosen(argument: Option<&Cores>, (field, spec): (&str, &[u32])) -> Result<Vec<usize>, CliError> {
    if let Some(cores) = argument {
        return Ok(cores.0.clone());
    }
    if spec.is_empty() {
        return Ok(Vec::new());
    }
    let listed: Vec<String> = spec.iter().map(u32::to_string).collect();
    cores::parse_list(&listed.join(",")).map_err(|error: CoreError| CliError::Input(format!("spec.{field}: {error}")))
}

fn announce(config: &ServerConfig, [dedicated, auxiliary]: [&[usize]; 2]) {
    let socket = match cfg!(feature = "control") {
        true => format!("control socket {}", config.paths.socket.display()),
        false => "without a control socket (built without the feature control)".to_owned(),
    };
    let text = format!(
        "server {} on cores {}{}, {socket}",
        config.spec.metadata.name,
        cores::format_list(dedicated),
        match auxiliary {
            [] => String::new(),
            cores => format!(", auxiliary {}", cores::format_list(cores)),
        },
    );
    complain("notice", &text);
    systemd::is_ready(&text);
}

/// Tells the user of something that failed while the server runs.
fn warn(event: &Event) {
    let of = event
        .chain
        .as_ref()
        .map_or(String::new(), |chain| format!("chain {chain}: "));
    complain("warning", &format!("{of}{}", event.message));
}

/// Sets `stop` after some time, unless the server is over before.
fn end_after(duration: Nanos, stop: &AtomicBool, over: &AtomicBool) {
    let end = Instant::now() + Duration::from_nanos(duration.0);
    while Instant::now() < end {
        if over.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(TICK);
    }
    stop.store(true, Ordering::Relaxed);
}
