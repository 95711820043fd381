//! Hostile function for tests. It follows the protocol, and attacks on its first packets or at its end. Its
//! configuration is the name of the attack. With `honest` in front of it, it is an honest function of a chain with a
//! hostile one.

mod behaviours;
mod calls;
mod honest;
mod raw;
mod script;

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{FlowStates, FunctionProperties, NetworkFunction, NewFlow};
use tailwater_functions::accounting::ExportError;
use tailwater_isolation::program::{Configured, run};

struct Hostile {
    attack: String,
}

impl NetworkFunction for Hostile {
    fn kind(&self) -> &'static str {
        "Hostile"
    }

    fn state_bytes(&self) -> usize {
        match self.attack == "ask" {
            true => 8,
            false => 0,
        }
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            opens_companions: self.attack == "ask",
            ..FunctionProperties::default()
        }
    }

    /// Requests a companion.
    fn new_flow(&mut self, packet: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let key = packet.headers.key.reversed();
        // Success depends on the bucket; the response takes equally long in any case.
        let _ = flow.open_companion::<u64>(&key, packet.rss_hash);
        Verdict::Forward
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["odd", "in-vain"]
    }

    /// Forwards packets if the attack succeeds. If it is refused and the process survives, drops them.
    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        let (name, argument) = self.attack.split_once(' ').unwrap_or((&self.attack, ""));
        if attempt(name, argument) == Some(false) {
            batch.for_each(|packet, _| packet.verdict = Verdict::Drop(IN_VAIN));
        }
        match name {
            "exit-once" => {
                File::create(argument).expect("a mark");
                std::process::exit(7);
            }
            "mark" | "ask" => batch.for_each(|_, frame| {
                if frame[raw::MARK..].starts_with(raw::UNSEEN) {
                    frame[raw::MARK..raw::MARK + raw::SEEN.len()].copy_from_slice(raw::SEEN);
                }
            }),
            "drop-odd" => batch.for_each(|packet, frame| {
                if frame[37] % 2 == 1 {
                    packet.verdict = Verdict::Drop(0);
                }
            }),
            // Waits until the file of that name exists; another file signals that it waits.
            "wait-for" => {
                let path = Path::new(argument);
                let _ = std::fs::write(path.with_extension("waits"), b"");
                while !path.exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            "spin" => loop {
                std::hint::spin_loop();
            },
            _ => {}
        }
    }
}

/// The second of its drop reasons.
const IN_VAIN: u8 = 1;

/// Makes the system calls of an attack. Returns `true` if they succeeded, `None` for an unknown name.
fn attempt(name: &str, argument: &str) -> Option<bool> {
    let number = || argument.parse::<i32>().expect("a number");
    let done = match name {
        "open" => std::fs::read(argument).is_ok_and(|secret| !secret.is_empty()),
        "fork" => Command::new(argument).spawn().is_ok(),
        "thread" => {
            let thread = std::thread::Builder::new().spawn(|| ());
            thread.is_ok_and(|thread| thread.join().is_ok())
        }
        "socket" => TcpStream::connect(argument).is_ok(),
        "kill" => Pid::from_raw(number()).is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok()),
        "leave-core" => {
            let mut cores = CpuSet::new();
            cores.set(number() as usize);
            sched_setaffinity(None, &cores).is_ok() && sched_getcpu() == number() as usize
        }
        "raise-priority" => {
            let priority = libc::sched_param {
                sched_priority: number(),
            };
            // SAFETY: the call reads the parameter, which is valid.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) == 0 }
        }
        "allocate" => {
            let bytes = std::hint::black_box(vec![1u8; number() as usize]);
            bytes.iter().all(|byte| *byte == 1)
        }
        _ => return None,
    };
    Some(done)
}

impl Drop for Hostile {
    /// Attacks in its last turn.
    fn drop(&mut self) {
        match &*self.attack {
            "exit-in-last-turn" => std::process::exit(7),
            "spin-in-last-turn" => loop {
                std::hint::spin_loop();
            },
            _ => {}
        }
    }
}

/// Runs the attack that the server's configuration names.
fn run_raw() -> io::Result<()> {
    let mut raw = raw::attach()?;
    match raw.words() {
        ("behaviours", script) => {
            let script = script.parse().map_err(io::Error::other)?;
            behaviours::Behaviours::new(raw, script).take_turns()
        }
        _ => raw.take_turns(),
    }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|way| way == "raw") {
        return match run_raw() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let ran = run(|configuration| {
        let attack = configuration.config.trim_matches('"').to_owned();
        if let Some(("honest", function)) = attack.split_once(' ') {
            let function = honest::Honest::parse(function);
            return Ok(Configured {
                function: Box::new(function.expect("an honest function")),
                at_end: Box::new(|| Ok(())),
            });
        }
        if let Some(("exit-once", mark)) = attack.split_once(' ')
            && Path::new(mark).exists()
        {
            std::process::exit(7);
        }
        let says = attack == "says-it-ended";
        Ok(Configured {
            function: Box::new(Hostile { attack }),
            at_end: Box::new(move || match says {
                true => Err(ExportError::Write {
                    file: "flows.csv".into(),
                    source: io::Error::other("it had its last turn"),
                }),
                false => Ok(()),
            }),
        })
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
