//! A hostile function, for tests: it speaks the protocol as it should, and attacks when it gets its first packets. Its
//! configuration is the name of the attack.

use std::fs::File;
use std::net::UdpSocket;
use std::process::ExitCode;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use tailwater_isolation::program::{Configured, run};
use tailwater_nf::batch::Batch;
use tailwater_nf::function::{FlowStates, NetworkFunction};

struct Hostile {
    attack: String,
}

impl NetworkFunction for Hostile {
    fn kind(&self) -> &'static str {
        "Hostile"
    }

    /// Every packet goes on: whether an attack succeeds shows by its process's still being there.
    fn process(&mut self, _: &mut Batch, _: &mut FlowStates<'_>) {
        let (name, argument) = self.attack.split_once(' ').unwrap_or((&self.attack, ""));
        let number = || argument.parse::<i32>().expect("a number");
        match name {
            "open" => drop(File::open("/program")),
            "thread" => drop(std::thread::Builder::new().spawn(|| ())),
            "socket" => drop(UdpSocket::bind("127.0.0.1:0")),
            "kill" => {
                if let Some(pid) = Pid::from_raw(number()) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            "leave-core" => {
                let mut cores = CpuSet::new();
                cores.set(number() as usize);
                let _ = sched_setaffinity(None, &cores);
            }
            "allocate" => {
                std::hint::black_box(vec![1u8; number() as usize]);
            }
            "spin" => loop {
                std::hint::spin_loop();
            },
            _ => {}
        }
    }
}

fn main() -> ExitCode {
    let ran = run(|configuration| {
        let attack = configuration.config.trim_matches('"').to_owned();
        Ok(Configured {
            function: Box::new(Hostile { attack }),
            at_end: Box::new(|| Ok(())),
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
