//! The terminal: keys, samples, and the screen.

use super::args::TopArgs;
use super::recording;
use super::sample::Sample;
use super::screen::{Look, draw};
use super::server;
use super::state::{Key, State};
use crate::control::connect;
use crate::error::CliError;
use crate::output::print;
use crate::signals::stop_on_signals;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};
use tailwater_server::control::Client;

/// Longest report that is read, in bytes.
const LONGEST_REPORT: u64 = 256 << 20;
/// Time within which a key, a signal or a sample is noticed.
const PERIOD: Duration = Duration::from_millis(50);
/// Time between two steps of a recording that plays.
const STEP: Duration = Duration::from_millis(200);
/// Size of a screen that is printed as text, unless `COLUMNS` says another width.
const TEXT: (u16, u16) = (160, 40);

/// Runs `tailwater top`.
///
/// # Errors
/// There is no server, the report is wrong, or standard output is no terminal.
pub fn top(args: &TopArgs) -> Result<ExitCode, CliError> {
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !(args.once || is_terminal) {
        return Err(CliError::Input(
            "expected a terminal; --once prints one screen as text".to_owned(),
        ));
    }
    let interval = Duration::from_nanos(args.interval.0);
    match &args.report {
        Some(path) => {
            let samples = read(path)?;
            let first = State::opened(args.chain.as_deref(), &samples[0]).map_err(CliError::Input)?;
            if args.once {
                let last = samples.len() - 1;
                let mut state = first;
                go(&mut state, &samples, last);
                return print_once(&state, Some((last, samples.len())));
            }
            show(
                first,
                Source::Recording {
                    samples,
                    at: 0,
                    next: Instant::now(),
                },
            )
        }
        None => {
            let mut client = connect(&args.socket)?;
            let sample = server::sample(&mut client)?;
            let mut state = State::opened(args.chain.as_deref(), &sample).map_err(|message| CliError::Server {
                message,
                is_input: false,
            })?;
            if args.once {
                std::thread::sleep(interval);
                state.show(server::sample(&mut client)?);
                return print_once(&state, None);
            }
            show(
                state,
                Source::Server {
                    samples: follow(client, args, interval),
                },
            )
        }
    }
}

fn read(path: &Path) -> Result<Vec<Sample>, CliError> {
    let wrong = |message: String| CliError::Input(format!("{}: {message}", path.display()));
    let text = tailwater_files::read(path, LONGEST_REPORT).map_err(|error| wrong(error.to_string()))?;
    recording::samples(&text).map_err(wrong)
}

/// Takes samples on another thread, so that a slow server does not keep keys waiting. An error is followed by a new
/// connection.
fn follow(mut client: Client, args: &TopArgs, interval: Duration) -> Receiver<Result<Sample, String>> {
    let (send, receive) = sync_channel(1);
    let path = args.socket.socket.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(interval);
            let sample = server::sample(&mut client);
            let failed = sample.is_err();
            // The receiver ends with the program.
            if send.send(sample.map_err(|error| error.to_string())).is_err() {
                return;
            }
            if failed
                && let Ok(path) = crate::control::socket::find(path.as_deref())
                && let Ok(other) = Client::connect(&path)
            {
                client = other;
            }
        }
    });
    receive
}

/// Source of what is shown.
enum Source {
    Server {
        samples: Receiver<Result<Sample, String>>,
    },
    Recording {
        samples: Vec<Sample>,
        at: usize,
        /// Time of the next step while it plays.
        next: Instant,
    },
}

fn show(state: State, mut source: Source) -> Result<ExitCode, CliError> {
    let stop = stop_on_signals()?;
    let broken = |source: io::Error| CliError::System {
        what: "the terminal cannot be used",
        source,
    };
    let look = Look {
        has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    };
    let mut terminal = ratatui::try_init().map_err(broken)?;
    let shown = run(&mut terminal, (state, &mut source), &stop, look);
    let restored = ratatui::try_restore();
    shown.and(restored).map_err(broken)?;
    Ok(ExitCode::SUCCESS)
}

fn run(
    terminal: &mut ratatui::DefaultTerminal,
    (mut state, source): (State, &mut Source),
    stop: &AtomicBool,
    look: Look,
) -> io::Result<()> {
    // A recording stands still at first.
    state.is_paused = matches!(source, Source::Recording { .. });
    let mut is_new = true;
    while !stop.load(Ordering::Relaxed) {
        if is_new {
            let position = match source {
                Source::Server { .. } => None,
                Source::Recording { samples, at, .. } => Some((*at, samples.len())),
            };
            terminal.draw(|frame| draw(frame, &state, position, look))?;
        }
        is_new = false;
        if event::poll(PERIOD)? {
            is_new = true;
            let key = match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => meaning(key.code, key.modifiers),
                _ => None,
            };
            match (key, &mut *source) {
                (Some(Key::Left), Source::Recording { samples, at: now, .. }) => {
                    *now = now.saturating_sub(1);
                    go(&mut state, samples, *now);
                }
                (Some(Key::Right), Source::Recording { samples, at: now, .. }) if *now + 1 < samples.len() => {
                    *now += 1;
                    state.show(samples[*now].clone());
                }
                (Some(key), _) if !state.press(key) => return Ok(()),
                _ => {}
            }
        }
        is_new |= advance(&mut state, source);
    }
    Ok(())
}

/// Shows what is new. Returns `true` if something is.
fn advance(state: &mut State, source: &mut Source) -> bool {
    match source {
        Source::Server { samples, .. } => match samples.try_recv() {
            Ok(_) if state.is_paused => false,
            Ok(Ok(sample)) => {
                state.show(sample);
                true
            }
            Ok(Err(error)) => {
                state.error = Some(format!("no newer figures: {error}"));
                true
            }
            Err(_) => false,
        },
        Source::Recording { samples, at, next } => {
            let is_due = !state.is_paused && Instant::now() >= *next;
            if !is_due {
                return false;
            }
            *next = Instant::now() + STEP;
            match *at + 1 < samples.len() {
                true => {
                    *at += 1;
                    state.show(samples[*at].clone());
                }
                false => state.is_paused = true,
            }
            true
        }
    }
}

/// Goes to a step of a recording: rates and latencies are those of the steps before it.
fn go(state: &mut State, samples: &[Sample], step: usize) {
    state.forget();
    for sample in &samples[step.saturating_sub(State::HISTORY)..=step] {
        state.show(sample.clone());
    }
}

fn meaning(code: KeyCode, modifiers: KeyModifiers) -> Option<Key> {
    Some(match code {
        KeyCode::Char('c' | 'd') if modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(letter) => Key::Char(letter),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Tab => Key::Tab,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

fn print_once(state: &State, position: Option<(usize, usize)>) -> Result<ExitCode, CliError> {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let width = columns.unwrap_or(TEXT.0).clamp(40, 1000);
    let rows = state.sample.chains.len().min(usize::from(u16::MAX) / 2) as u16;
    print(&text(state, position, (width, TEXT.1.max(rows + 5))))?;
    Ok(ExitCode::SUCCESS)
}

/// The screen as lines, without the keys and without empty lines at the end.
pub(super) fn text(state: &State, position: Option<(usize, usize)>, (width, height): (u16, u16)) -> String {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| draw(frame, state, position, Look { has_colours: false }));
    let buffer = terminal.backend().buffer();
    let line = |y: u16| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    let lines: Vec<String> = (0..height - 1).map(line).collect();
    let end = lines
        .iter()
        .rposition(|line| !line.is_empty())
        .map_or(0, |last| last + 1);
    lines[..end].iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}
