//! Hostile functions for tests: one attack per name.
//!
//! `tailwater-hostile ATTACK [ARGUMENT...]` reports over descriptor 3 that it has loaded, waits for a byte, attacks,
//! and reports the result: `done: LOOT` or `refused: ERROR NUMBER`. Most attacks kill it before that.

mod attacks;
mod calls;
mod victim;

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use calls::{Outcome, call};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, arguments)) = arguments.split_first() else {
        eprintln!("usage: tailwater-hostile ATTACK [ARGUMENT...]");
        return ExitCode::from(2);
    };
    match name.as_str() {
        "victim" => return victim::run(arguments),
        // Program executed by an attack: reports its user.
        "who-am-i" => {
            // SAFETY: the call has no arguments and only returns a number.
            let user = unsafe { libc::geteuid() };
            tell(&Ok(user.to_string()));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let Some(attack) = attacks::by_name(name) else {
        eprintln!("there is no attack `{name}`");
        return ExitCode::from(2);
    };
    // Some agents connect over standard input.
    if stdin_is_a_socket() {
        let copy = [0, libc::F_DUPFD_CLOEXEC as usize, 3, 0, 0, 0];
        if let Ok(copy) = call(libc::SYS_fcntl, copy) {
            AGENT.store(copy, Ordering::Relaxed);
        }
    }
    // From here on, the program makes only calls a function may make, until the attack itself.
    if write(b"r").is_err() || read_byte().is_err() {
        return ExitCode::FAILURE;
    }
    tell(&attack(arguments));
    ExitCode::SUCCESS
}

/// Descriptor of the socket to the agent.
static AGENT: AtomicUsize = AtomicUsize::new(3);

fn agent() -> usize {
    AGENT.load(Ordering::Relaxed)
}

fn stdin_is_a_socket() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;
    let copy = std::io::stdin().as_fd().try_clone_to_owned();
    let data = copy.and_then(|copy| std::fs::File::from(copy).metadata());
    data.is_ok_and(|data| data.file_type().is_socket())
}

fn tell(outcome: &Outcome) {
    let text = match outcome {
        Ok(loot) => format!("done: {loot}"),
        Err(errno) => format!("refused: {errno}"),
    };
    let _ = write(text.as_bytes());
}

fn write(bytes: &[u8]) -> Result<usize, i32> {
    let given = [agent(), bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
    call(libc::SYS_write, given)
}

fn read_byte() -> Result<usize, i32> {
    let mut byte = 0u8;
    match call(libc::SYS_read, [agent(), &raw mut byte as usize, 1, 0, 0, 0]) {
        Ok(0) => Err(libc::EPIPE),
        other => other,
    }
}
