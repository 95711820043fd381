//! Files from outside: the one way in which specs, rules, captures, profiles, keys and reports are opened.
//!
//! A name that a user writes can be anything: a directory, a disk, a named pipe without another end, an endless device.
//! Opened without care, a named pipe blocks a command that then does not end on SIGTERM, and `/dev/zero` fills its
//! memory. Hence all reading goes through [`InputFile`] and [`read`], and all writing through [`create`] and
//! [`AtomicFile`]:
//!
//! - An input is a regular file, or a stream where that makes sense: a named pipe, a socket, a terminal. Directories
//!   and devices are refused, and [while files are read again](regular_only) streams are, too.
//! - Reading a stream ends when its writer is silent for [`SILENCE`], and soon after [`stop_requested`].
//! - Content is bounded in size by its reader.
//! - An output that accepts nothing for [`GRACE`] is given up. A report replaces its file as a whole or not at all.

mod atomic;
mod input;
mod output;
mod stop;
mod wait;

#[cfg(test)]
mod tests;

pub use atomic::{AtomicFile, write_whole};
pub use input::{InputFile, SILENCE, STDIN, is_stdin, read, regular_only};
pub use output::{GRACE, continuing, create};
pub use stop::stop_requested;
