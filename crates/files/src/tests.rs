use super::*;
use crate::wait::Patience;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Folder of a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tailwater-files-{}-{number}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn pipe(&self) -> PathBuf {
        let path = self.path("pipe");
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn why(path: &Path) -> String {
    read(path, 100).unwrap_err().to_string()
}

#[test]
fn inputs_are_regular_files_or_streams_and_bounded() {
    let folder = Folder::new();
    let file = folder.path("file");
    fs::write(&file, [7; 100]).unwrap();
    assert_eq!(read(&file, 100).unwrap(), [7; 100]);
    assert_eq!(read(&file, 99).unwrap_err().kind(), ErrorKind::FileTooLarge);
    assert_eq!(read(Path::new("/dev/null"), 1).unwrap(), b"");
    assert_eq!(why(&folder.0), "expected a file, found a directory");
    assert_eq!(why(Path::new("/dev/zero")), "expected a file, found a device");
    let socket = folder.path("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(why(&socket), "expected a file, found a socket");
    assert!(why(&folder.path("none")).contains("No such file"));
}

#[test]
fn a_pipe_is_read_to_its_end_and_its_writer_may_come_late() {
    let folder = Folder::new();
    let pipe = folder.pipe();
    std::thread::scope(|scope| {
        let input = InputFile::open(&pipe).unwrap();
        assert!(input.is_stream());
        let writer = scope.spawn(|| {
            let mut pipe = create(&pipe).unwrap();
            // More than a pipe holds.
            pipe.write_all(&[7; 200_000]).unwrap();
        });
        assert_eq!(input.read_up_to(1 << 20).unwrap(), [7; 200_000]);
        writer.join().unwrap();
    });
}

#[test]
fn a_pipe_without_a_writer_ends_after_a_time_or_a_signal() {
    let folder = Folder::new();
    let pipe = folder.pipe();
    for (longest, stop, expected) in [
        (Some(Duration::ZERO), false, "expected data, found none for 0 seconds"),
        (None, true, "interrupted by a signal"),
    ] {
        let stop = Arc::new(AtomicBool::new(stop));
        let input = InputFile::open(&pipe)
            .unwrap()
            .with_patience(Patience { longest, stop });
        assert_eq!(input.read_up_to(9).unwrap_err().to_string(), expected);
    }
}

#[test]
fn files_are_read_again_only_if_they_are_regular() {
    let folder = Folder::new();
    let pipe = folder.pipe();
    let error = regular_only(|| InputFile::open(&pipe).unwrap_err());
    assert_eq!(error.to_string(), "expected a regular file, found a named pipe");
    assert!(InputFile::open(&pipe).is_ok());
}

#[test]
fn an_atomic_file_appears_as_a_whole_or_not_at_all() {
    let folder = Folder::new();
    let path = folder.path("report");
    let mut file = AtomicFile::create(&path).unwrap();
    file.write_all(b"half").unwrap();
    assert!(!path.exists());
    drop(file);
    assert_eq!(folder.names(), [""; 0]);

    write_whole(&path, b"first").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"first");
    let mode = fs::Permissions::from_mode(0o640);
    fs::set_permissions(&path, mode).unwrap();
    let link = folder.path("link");
    symlink(&path, &link).unwrap();
    let mut file = AtomicFile::create(&link).unwrap();
    file.write_all(b"second").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"first");
    file.finish().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"second");
    assert!(link.is_symlink());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(folder.names().len(), 2);
}

#[test]
fn an_output_is_no_directory_and_a_device_is_written_as_it_comes() {
    let folder = Folder::new();
    for refused in [AtomicFile::create(&folder.0).map(drop), create(&folder.0).map(drop)] {
        assert_eq!(refused.unwrap_err().to_string(), "expected a file, found a directory");
    }
    write_whole(Path::new("/dev/null"), b"nothing").unwrap();
    let full = write_whole(Path::new("/dev/full"), b"nothing").unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert!(Path::new("/dev/full").exists());
}

#[test]
fn a_report_to_a_pipe_arrives_and_a_reader_that_goes_ends_it() {
    let folder = Folder::new();
    let pipe = folder.pipe();
    let mut reader = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    write_whole(&pipe, b"report").unwrap();
    let mut report = [0; 6];
    reader.read_exact(&mut report).unwrap();
    assert_eq!(&report, b"report");
    let mut file = AtomicFile::create(&pipe).unwrap();
    drop(reader);
    assert_eq!(file.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

/// Two processes may write one file at the end of one of them: nothing is truncated, and each writes at the end.
#[test]
fn files_are_continued_on_request_only() {
    let folder = Folder::new();
    let file = folder.path("file");
    fs::write(&file, "old").unwrap();
    let mut one = create(&file).unwrap();
    one.write_all(b"one ").unwrap();
    let mut two = continuing(|| create(&file)).unwrap();
    two.write_all(b"two ").unwrap();
    one.write_all(b"one").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"one two one");
    drop(create(&file).unwrap());
    assert_eq!(fs::read(&file).unwrap(), b"");
}
