//! Processes that checks start.

use std::io::{self, Read};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Reads a pipe to its end, and keeps its first bytes: the result of a check that writes more is lost.
pub fn read_in_thread(mut pipe: impl Read + Send + 'static, most: u64) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = (&mut pipe).take(most).read_to_end(&mut bytes);
        let _ = io::copy(&mut pipe, &mut io::sink());
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for the end of a process. Returns `None` if it had to be killed after `longest`.
pub fn ended(child: &mut Child, longest: Duration) -> io::Result<Option<std::process::ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > longest {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        sleep(Duration::from_millis(2));
    }
}
