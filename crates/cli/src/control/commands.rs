//! Requests to a server, and their results on standard output.

use super::args::{ApplyArgs, DeleteArgs, DescribeArgs, DrainArgs, EventsArgs, Format, GetArgs, GetKind, SocketArgs};
use super::ports::{self, print_ports};
use super::printed::{self, ChainPrinter, EventPrinter};
use super::{manifests, socket};
use crate::error::CliError;
use crate::output::{complain, has_reader, print, print_while_read};
use crate::signals::stop_on_signals;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater_net::Nanos;
use tailwater_server::control::generated as message;
use tailwater_server::control::{Client, ClientError};

/// Time within which a request to stop is noticed.
const PERIOD: Duration = Duration::from_millis(100);
/// Time between two looks at ports.
const SECOND: Duration = Duration::from_secs(1);

/// Runs `tailwater apply`.
///
/// # Errors
/// The chains are wrong or refused, or there is no server.
pub fn apply(args: &ApplyArgs) -> Result<ExitCode, CliError> {
    let manifests = manifests::read(&args.files)?;
    let request = message::ApplyRequest {
        manifests,
        dry_run: args.dry_run.is_dry(),
        force: args.force,
    };
    let response = connect(&args.socket)?.apply(request)?;
    let suffix = args.dry_run.suffix();
    let lines = response.applied.iter().map(|applied| {
        let outcome = match applied.outcome() {
            message::Outcome::Unchanged => "unchanged",
            message::Outcome::Created => "created",
            message::Outcome::Configured => "configured",
            message::Outcome::Replaced => "replaced",
            message::Outcome::Unspecified => "applied",
        };
        // Only a dry run is about the placement.
        let placement = applied.placement.as_ref().filter(|_| args.dry_run.is_dry());
        let placement = placement.map(|placement| format!(", {}", printed::placement(placement)));
        format!(
            "chain/{} {outcome}{suffix}{}\n",
            applied.name,
            placement.unwrap_or_default()
        )
    });
    print(&lines.collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `tailwater get`.
///
/// # Errors
/// There is no such chain or port, or no server.
pub fn get(args: &GetArgs) -> Result<ExitCode, CliError> {
    let mut client = connect(&args.socket)?;
    if args.kind == GetKind::Ports {
        return get_ports(&mut client, args);
    }
    let mut printer = ChainPrinter::new(args.output);
    if args.watch {
        let name = args.name.as_deref().unwrap_or_default();
        if !name.is_empty() {
            client.get(name)?;
        }
        return match args.interval {
            Some(interval) => poll(&mut client, (name, interval), &mut printer),
            None => watch(&mut client, name, &mut printer),
        };
    }
    let text = match &args.name {
        Some(name) => printer.one(&client.get(name)?)?,
        None => {
            let list = client.list()?;
            if matches!(args.output, Format::Table | Format::Wide) {
                if list.chains.is_empty() {
                    complain("notice", "no chains");
                }
                let losses = list.ports.iter().filter_map(ports::loss);
                losses.for_each(|loss| complain("notice", &loss));
            }
            printer.all(&list)?
        }
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the chains at an interval: all, or the one of this name while it is there. Ends by a signal or with the
/// reader.
fn poll(
    client: &mut Client,
    (name, interval): (&str, Nanos),
    printer: &mut ChainPrinter,
) -> Result<ExitCode, CliError> {
    let mut following = Following::start()?;
    while following.goes_on() {
        let chains = client.list()?.chains;
        for chain in chains.iter().filter(|chain| name.is_empty() || chain.name == name) {
            if !following.print(&printer.change(chain, false)?)? {
                return Ok(ExitCode::SUCCESS);
            }
        }
        following.wait(Duration::from_nanos(interval.0));
    }
    following.ended()
}

/// Prints the ports, once or at an interval: all, or the one of this name.
fn get_ports(client: &mut Client, args: &GetArgs) -> Result<ExitCode, CliError> {
    let mut ports = || -> Result<Vec<message::Port>, CliError> {
        let mut ports = client.list()?.ports;
        if let Some(name) = &args.name {
            ports.retain(|port| port.name == *name);
            if ports.is_empty() {
                return Err(ClientError::NotFound(format!("there is no port {name}")).into());
            }
        }
        Ok(ports)
    };
    if !args.watch {
        print(&print_ports(&ports()?, args.output, (true, false))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let interval = args
        .interval
        .map_or(SECOND, |interval| Duration::from_nanos(interval.0));
    let (mut following, mut is_first) = (Following::start()?, true);
    while following.goes_on() {
        let text = print_ports(&ports()?, args.output, (is_first, true))?;
        is_first = false;
        if !following.print(&text)? {
            return Ok(ExitCode::SUCCESS);
        }
        following.wait(interval);
    }
    following.ended()
}

/// Prints changes of chains until a signal comes or the reader ends.
fn watch(client: &mut Client, name: &str, printer: &mut ChainPrinter) -> Result<ExitCode, CliError> {
    let mut following = Following::start()?;
    let mut result = Ok(true);
    let on_change = |change: Option<message::ChainChange>| {
        if let Some(chain) = change.as_ref().and_then(|change| change.chain.as_ref()) {
            let is_gone = change.as_ref().is_some_and(|change| change.gone);
            result = printer.change(chain, is_gone).and_then(|text| following.print(&text));
        }
        matches!(result, Ok(true)) && following.goes_on()
    };
    client.watch(name, PERIOD, on_change)?;
    result?;
    following.ended()
}

/// Runs `tailwater describe`.
///
/// # Errors
/// There is no such chain, or no server.
pub fn describe(args: &DescribeArgs) -> Result<ExitCode, CliError> {
    let response = connect(&args.socket)?.describe(&args.name)?;
    print(&printed::description(&response))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `tailwater delete`.
///
/// # Errors
/// A chain does not exist, or there is no server.
pub fn delete(args: &DeleteArgs) -> Result<ExitCode, CliError> {
    let names = match args.files.is_empty() {
        true => args.names.clone(),
        false => manifests::names(&manifests::read(&args.files)?)?,
    };
    let request = message::DeleteRequest {
        names: names.clone(),
        dry_run: args.dry_run.is_dry(),
    };
    connect(&args.socket)?.delete(request)?;
    let suffix = args.dry_run.suffix();
    print(
        &names
            .iter()
            .map(|name| format!("chain/{name} deleted{suffix}\n"))
            .collect::<String>(),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `tailwater drain`.
///
/// # Errors
/// The chain does not exist, or there is no server.
pub fn drain(args: &DrainArgs) -> Result<ExitCode, CliError> {
    connect(&args.socket)?.drain(&args.name)?;
    print(&format!("chain/{} drained\n", args.name))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `tailwater events`.
///
/// # Errors
/// There is no server.
pub fn events(args: &EventsArgs) -> Result<ExitCode, CliError> {
    let mut client = connect(&args.socket)?;
    let mut following = Following::start()?;
    let mut printer = EventPrinter::new(args.output);
    let (mut result, mut any) = (Ok(true), false);
    let on_event = |event: Option<message::Event>| {
        if let Some(event) = &event {
            any = true;
            result = printer.event(event).and_then(|text| following.print(&text));
        }
        matches!(result, Ok(true)) && following.goes_on()
    };
    let request = message::EventsRequest {
        follow: args.watch,
        chain: args.chain.clone().unwrap_or_default(),
        after: 0,
    };
    client.events(request, PERIOD, on_event)?;
    result?;
    // One that is being measured has none yet, and is no error; a name that was mistyped has none either.
    if let (false, false, Some(chain)) = (any, args.watch, &args.chain) {
        complain("notice", &format!("no event of a chain {chain:?} is remembered"));
    }
    match args.watch {
        true => following.ended(),
        false => Ok(ExitCode::SUCCESS),
    }
}

/// Connects to the server that these arguments name.
///
/// # Errors
/// There is no server, or several.
pub fn connect(args: &SocketArgs) -> Result<Client, CliError> {
    Ok(Client::connect(&socket::find(args.socket.as_deref())?)?)
}

/// Output that follows a server until a signal comes or the reader of standard output ends.
struct Following {
    stop: Arc<AtomicBool>,
    /// `false` once a write found the pipe closed.
    is_read: bool,
}

impl Following {
    fn start() -> Result<Following, CliError> {
        Ok(Following {
            stop: stop_on_signals()?,
            is_read: true,
        })
    }

    /// Prints; returns `false` if the reader is gone.
    fn print(&mut self, text: &str) -> Result<bool, CliError> {
        self.is_read = print_while_read(text)?;
        Ok(self.is_read)
    }

    /// Returns `false` after a signal, and once nobody reads.
    fn goes_on(&mut self) -> bool {
        self.is_read = self.is_read && has_reader();
        self.is_read && !self.stop.load(Ordering::Relaxed)
    }

    /// Waits for this time, or until it goes on no more.
    fn wait(&mut self, time: Duration) {
        let next = Instant::now() + time;
        while self.goes_on() && Instant::now() < next {
            std::thread::sleep(PERIOD.min(next.saturating_duration_since(Instant::now())));
        }
    }

    /// Result of the command: an error if neither a signal nor the reader ended it, but the server.
    fn ended(&mut self) -> Result<ExitCode, CliError> {
        match self.goes_on() {
            false => Ok(ExitCode::SUCCESS),
            true => Err(ClientError::Connection("the server has ended".to_owned()).into()),
        }
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> CliError {
        CliError::Server {
            is_input: matches!(error, ClientError::Invalid(_)),
            message: error.to_string(),
        }
    }
}
