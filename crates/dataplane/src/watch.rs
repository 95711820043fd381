//! Watching the files that functions read again while they run, off the data path.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tailwater_nf::reload::{Reload, Reloads};

/// How often files are looked at. One that has changed is read when it has not changed again until the next look:
/// it may be being written.
const LOOK: Duration = Duration::from_millis(250);

/// Set by whoever wants all files read again (for a signal's handler), changed or not; the runs of the process
/// clear it.
pub fn asked() -> &'static Arc<AtomicBool> {
    static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    ASKED.get_or_init(Arc::default)
}

/// What tells that a file is another, or was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    written: (i64, i64),
}

impl Stamp {
    /// `None` if there is no such file.
    fn of(path: &Path) -> Option<Stamp> {
        let file = fs::metadata(path).ok()?;
        Some(Stamp {
            inode: file.ino(),
            size: file.size(),
            written: (file.mtime(), file.mtime_nsec()),
        })
    }
}

/// A file with what is known of it.
struct Watched {
    function: String,
    file: Arc<dyn Reload>,
    /// As it was when it was read.
    read: Option<Stamp>,
    /// As it was at the last look, if it has changed.
    changed: Option<Stamp>,
}

/// Watches the files of a run.
pub(crate) struct Watch {
    files: Vec<Watched>,
}

/// What there is to tell, on its way from the thread that watches.
pub(crate) type News = Mutex<Vec<String>>;

impl Watch {
    /// Of these files; `None` of none.
    pub(crate) fn new(files: Reloads) -> Option<Watch> {
        let watched = |(function, file): (String, Arc<dyn Reload>)| Watched {
            read: Stamp::of(file.file()),
            changed: None,
            function,
            file,
        };
        let files: Vec<_> = files.into_iter().map(watched).collect();
        (!files.is_empty()).then_some(Watch { files })
    }

    /// Watches until the run is over.
    pub(crate) fn run(mut self, news: &News, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let all = asked().swap(false, Ordering::Relaxed);
            let lines = self.look(all);
            if !lines.is_empty() {
                let mut news = news.lock().unwrap_or_else(PoisonError::into_inner);
                news.extend(lines);
            }
            std::thread::park_timeout(LOOK);
        }
    }

    /// Reads files that have changed, or all. Returns what there is to tell.
    fn look(&mut self, all: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for watched in &mut self.files {
            let now = Stamp::of(watched.file.file());
            let before = std::mem::replace(&mut watched.changed, now);
            // A file that is gone for a moment is being replaced.
            let settled = now.is_some() && now != watched.read && now == before;
            if !settled && !all {
                continue;
            }
            watched.read = now;
            let function = &watched.function;
            match watched.file.reload() {
                Ok(news) => lines.extend(news.into_iter().map(|l| format!("{function}: {l}"))),
                Err(errors) => {
                    lines.push(format!("{function}: what was in force stays, since:"));
                    lines.extend(errors);
                }
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicUsize;

    struct Counted(PathBuf, AtomicUsize);

    impl Reload for Counted {
        fn file(&self) -> &Path {
            &self.0
        }
        fn reload(&self) -> Result<Vec<String>, Vec<String>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            match fs::read_to_string(&self.0) {
                Ok(text) if text.contains("wrong") => Err(vec!["wrong".to_owned()]),
                Ok(text) => Ok(vec![text]),
                Err(_) => Err(vec!["gone".to_owned()]),
            }
        }
    }

    #[test]
    fn files_are_read_once_they_stay_as_they_are() {
        let path = std::env::temp_dir().join(format!("tailwater-watch-{}", std::process::id()));
        fs::write(&path, "first").unwrap();
        let file = Arc::new(Counted(path.clone(), AtomicUsize::new(0)));
        let mut watch =
            Watch::new(vec![("f".to_owned(), file.clone() as Arc<dyn Reload>)]).unwrap();
        assert_eq!(watch.look(false), [""; 0]);
        fs::write(&path, "second").unwrap();
        assert_eq!(watch.look(false), [""; 0]);
        // Still being written.
        fs::write(&path, "second, longer").unwrap();
        assert_eq!(watch.look(false), [""; 0]);
        assert_eq!(watch.look(false), ["f: second, longer"]);
        assert_eq!(watch.look(false), [""; 0]);
        // Replaced by another, of the same size.
        fs::remove_file(&path).unwrap();
        assert_eq!(watch.look(false), [""; 0]);
        fs::write(&path, "wrong!, longer").unwrap();
        assert_eq!(watch.look(false), [""; 0]);
        assert_eq!(
            watch.look(false),
            ["f: what was in force stays, since:", "wrong"]
        );
        assert_eq!(watch.look(false), [""; 0]);
        assert_eq!(watch.look(true).len(), 2);
        assert_eq!(file.1.load(Ordering::Relaxed), 3);
        assert!(Watch::new(Vec::new()).is_none());
        fs::remove_file(&path).unwrap();
    }
}
