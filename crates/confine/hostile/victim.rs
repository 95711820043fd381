//! Neighbour with secrets: in its memory, in a memfd, in System V shared memory.

use std::io::Read;
use std::process::ExitCode;

use crate::calls::{c, call};

/// `victim SECRET KEY`: prints the addresses of the secret and of a buffer to overwrite, and the number of the memfd.
/// Then waits for the end of its standard input.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let secret = arguments[0].clone().into_bytes();
    let key: usize = arguments[1].parse().expect("a number");
    let target = vec![b'.'; secret.len()];
    let name = c("secret");
    let memfd = call(libc::SYS_memfd_create, [name.as_ptr() as usize, 0, 0, 0, 0, 0]);
    let memfd = memfd.expect("a memfd");
    let written = [memfd, secret.as_ptr() as usize, secret.len(), 0, 0, 0];
    call(libc::SYS_write, written).expect("room in memory");
    let create = (libc::IPC_CREAT | libc::IPC_EXCL | 0o600) as usize;
    let segment = call(libc::SYS_shmget, [key, 4096, create, 0, 0, 0]).expect("a segment");
    let shared = call(libc::SYS_shmat, [segment, 0, 0, 0, 0, 0]).expect("room in memory");
    // SAFETY: the kernel has just mapped 4096 bytes there, and the secret is shorter.
    unsafe { std::ptr::copy_nonoverlapping(secret.as_ptr(), shared as *mut u8, secret.len()) };
    println!("{} {} {memfd}", secret.as_ptr() as usize, target.as_ptr() as usize);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    // Marked for removal: the segment disappears with this process.
    let remove = [segment, libc::IPC_RMID as usize, 0, 0, 0, 0];
    let _ = call(libc::SYS_shmctl, remove);
    std::hint::black_box((secret, target));
    ExitCode::SUCCESS
}
