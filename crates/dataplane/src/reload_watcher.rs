//! Watching a chain's files for reload during the run, off the data path.

use crate::report::ReloadOutcome;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tailwater_files::regular_only;
use tailwater_functions::reload::Reload;
use tailwater_functions::spec::ChainSpec;

/// Polling interval. A changed file is read once it has not changed again until the next poll, since it may still be
/// written to.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum lag of the kernel's file times.
const BEHIND: Duration = Duration::from_millis(100);

/// Flag that requests a reload of all files, changed or not. Set by a signal handler, for example. The runs of the
/// process clear it.
pub fn reload_requested() -> &'static Arc<AtomicBool> {
    static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    ASKED.get_or_init(Arc::default)
}

/// File metadata that reveals a replacement or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    written: (i64, i64),
}

impl Stamp {
    /// Stamp of a file, or `None` if there is no such file.
    fn of(path: &Path) -> Option<Stamp> {
        let file = fs::metadata(path).ok()?;
        Some(Stamp {
            inode: file.ino(),
            size: file.size(),
            written: (file.mtime(), file.mtime_nsec()),
        })
    }
}

/// Returns `true` if a file, or its name, may have changed since this time.
fn is_newer(path: &Path, than: SystemTime) -> bool {
    let than = than.checked_sub(BEHIND).unwrap_or(UNIX_EPOCH);
    let than = than.duration_since(UNIX_EPOCH).unwrap_or_default();
    let than = (than.as_secs() as i64, i64::from(than.subsec_nanos()));
    // The ctime also changes when an older file gets this name.
    fs::metadata(path).is_ok_and(|file| (file.ctime(), file.ctime_nsec()) >= than)
}

/// Files with their stamps.
type Stamps = Vec<(PathBuf, Option<Stamp>)>;

/// Watcher of a run's files.
pub(crate) struct ReloadWatcher {
    files: Box<dyn Reload>,
    /// Stamps when the files were read.
    read: Stamps,
    /// Stamps at the last poll, if a file has changed.
    changed: Stamps,
}

/// A reload, with lines for the user: the configuration in force, or mistakes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reloaded {
    pub(crate) outcome: ReloadOutcome,
    pub(crate) lines: Vec<String>,
}

impl Reloaded {
    /// Messages for the user.
    pub(crate) fn notices(&self) -> impl Iterator<Item = String> {
        let first = match self.outcome {
            ReloadOutcome::Rejected => Some("reload rejected, keeping the current configuration:".to_owned()),
            ReloadOutcome::Applied | ReloadOutcome::Unchanged => None,
        };
        first.into_iter().chain(self.lines.iter().cloned())
    }
}

/// Reloads by the watching thread since they were taken last.
pub(crate) type News = Mutex<Vec<Reloaded>>;

/// Chain that cannot be reloaded. A change or a reload request is answered with the cause.
pub(crate) struct NotReloadable {
    files: Vec<PathBuf>,
    why: &'static str,
}

impl NotReloadable {
    /// For this spec, with `isolated` if its functions run in processes of their own.
    pub(crate) fn of(spec: &ChainSpec, isolated: bool) -> NotReloadable {
        let named = spec.functions.iter().flat_map(|function| &function.files);
        let read = spec.source.file().map(Path::to_owned);
        NotReloadable {
            files: read.into_iter().chain(named.cloned()).collect(),
            why: match isolated {
                true => {
                    "isolated functions read their files only once, before confinement: restart the run to change them"
                }
                false => "neither the spec nor its parts are in regular files",
            },
        }
    }
}

impl Reload for NotReloadable {
    fn files(&self) -> Vec<PathBuf> {
        self.files.clone()
    }

    fn reload(&self) -> Result<Vec<String>, Vec<String>> {
        Err(vec![self.why.to_owned()])
    }
}

/// Current stamps of files.
fn stamps(files: Vec<PathBuf>) -> Stamps {
    let stamped = files.into_iter().map(|path| {
        let stamp = Stamp::of(&path);
        (path, stamp)
    });
    stamped.collect()
}

impl ReloadWatcher {
    /// Watches these files, which were read at some time from `began` on. Files that may have changed since then are
    /// reloaded once: before packets arrive, captures are loaded and ports awaited. Without a time, the files were read
    /// just now.
    pub(crate) fn new(files: impl Reload + 'static, began: Option<SystemTime>) -> ReloadWatcher {
        let now = stamps(files.files());
        let missed = began.is_some_and(|began| now.iter().any(|(path, _)| is_newer(path, began)));
        ReloadWatcher {
            read: if missed { Stamps::new() } else { now },
            changed: Stamps::new(),
            files: Box::new(files),
        }
    }

    /// Polls until the run is over.
    pub(crate) fn run(mut self, news: &News, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let all = reload_requested().swap(false, Ordering::Relaxed);
            if let Some(reloaded) = self.poll(all) {
                news.lock().unwrap_or_else(PoisonError::into_inner).push(reloaded);
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    /// Reloads the files if one has changed, or if `requested`.
    fn poll(&mut self, requested: bool) -> Option<Reloaded> {
        let now = stamps(self.files.files());
        let before = std::mem::replace(&mut self.changed, now.clone());
        // A missing file may be in the middle of a replacement. One that stays missing may no longer be named by the
        // spec, or its absence is an error.
        let settled = now != self.read && now == before;
        if !settled && !requested {
            return None;
        }
        self.read = now;
        // A pipe in place of a file would keep this thread, and the run, until somebody writes to it.
        let (outcome, lines) = match regular_only(|| self.files.reload()) {
            Ok(news) if news.is_empty() => {
                let answer = requested.then(|| "reload: no change".to_owned());
                (ReloadOutcome::Unchanged, answer.into_iter().collect())
            }
            Ok(news) => (ReloadOutcome::Applied, news),
            Err(errors) => (ReloadOutcome::Rejected, errors),
        };
        Some(Reloaded { outcome, lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    struct Counted(PathBuf, Arc<AtomicUsize>);

    impl Reload for Counted {
        fn files(&self) -> Vec<PathBuf> {
            // A file may name another.
            let named = fs::read_to_string(&self.0).unwrap_or_default();
            let other = named.strip_prefix("see ").map(PathBuf::from);
            std::iter::once(self.0.clone()).chain(other).collect()
        }
        fn reload(&self) -> Result<Vec<String>, Vec<String>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            match fs::read_to_string(&self.0) {
                Ok(text) if text.contains("wrong") => Err(vec!["wrong".to_owned()]),
                Ok(text) if text.contains("same") => Ok(Vec::new()),
                Ok(text) => Ok(vec![text]),
                Err(_) => Err(vec!["gone".to_owned()]),
            }
        }
    }

    /// Returns the messages of a poll.
    fn told(watch: &mut ReloadWatcher, requested: bool) -> Vec<String> {
        watch.poll(requested).iter().flat_map(Reloaded::notices).collect()
    }

    #[test]
    fn files_are_read_once_they_stay_as_they_are() {
        let folder = std::env::temp_dir();
        let [path, other] =
            ["watch", "watch-other"].map(|name| folder.join(format!("tailwater-{name}-{}", std::process::id())));
        fs::write(&path, "first").unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let mut watch = ReloadWatcher::new(Counted(path.clone(), Arc::clone(&count)), None);
        assert_eq!(told(&mut watch, false), [""; 0]);
        fs::write(&path, "second").unwrap();
        assert_eq!(told(&mut watch, false), [""; 0]);
        // Still being written.
        fs::write(&path, "second, longer").unwrap();
        assert_eq!(told(&mut watch, false), [""; 0]);
        assert_eq!(told(&mut watch, false), ["second, longer"]);
        assert_eq!(told(&mut watch, false), [""; 0]);
        // Replaced by another file of the same size.
        fs::remove_file(&path).unwrap();
        assert_eq!(told(&mut watch, false), [""; 0]);
        fs::write(&path, "wrong!, longer").unwrap();
        assert_eq!(told(&mut watch, false), [""; 0]);
        assert_eq!(
            told(&mut watch, false),
            ["reload rejected, keeping the current configuration:", "wrong"]
        );
        assert_eq!(told(&mut watch, false), [""; 0]);
        assert_eq!(told(&mut watch, true).len(), 2);
        assert_eq!(count.load(Ordering::Relaxed), 3);
        // A file that is named now is watched, too.
        let see = format!("see {}", other.display());
        fs::write(&other, "1").unwrap();
        fs::write(&path, &see).unwrap();
        assert_eq!(told(&mut watch, false), [""; 0]);
        assert_eq!(told(&mut watch, false), [&*see]);
        assert_eq!(told(&mut watch, false), [""; 0]);
        fs::write(&other, "12").unwrap();
        assert_eq!(told(&mut watch, false), [""; 0]);
        assert_eq!(told(&mut watch, false), [&*see]);
        // A missing file is reported once, and the next version need not name it.
        fs::remove_file(&other).unwrap();
        assert_eq!(told(&mut watch, false), [""; 0]);
        assert_eq!(told(&mut watch, false), [&*see]);
        assert_eq!(told(&mut watch, false), [""; 0]);
        fs::write(&path, "third").unwrap();
        assert_eq!(told(&mut watch, false), [""; 0]);
        assert_eq!(told(&mut watch, false), ["third"]);
        // A touched file without a change is no news, but a reload.
        fs::write(&path, "same").unwrap();
        assert_eq!(watch.poll(false), None);
        let unchanged = Reloaded {
            outcome: ReloadOutcome::Unchanged,
            lines: Vec::new(),
        };
        assert_eq!(watch.poll(false), Some(unchanged));
        // An explicit request without a change is answered.
        assert_eq!(told(&mut watch, true), ["reload: no change"]);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_changed_after_it_was_read_is_read_again() {
        let name = format!("tailwater-watch-began-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, "first").unwrap();
        let now = SystemTime::now();
        let minute = Duration::from_secs(60);
        for (began, expected) in [(now - minute, vec!["first"]), (now + minute, Vec::new())] {
            let count = Arc::new(AtomicUsize::new(0));
            let files = Counted(path.clone(), Arc::clone(&count));
            let mut watch = ReloadWatcher::new(files, Some(began));
            assert_eq!(told(&mut watch, false), [""; 0]);
            assert_eq!(told(&mut watch, false), expected);
            assert_eq!(told(&mut watch, false), [""; 0]);
            assert_eq!(count.load(Ordering::Relaxed), expected.len());
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn who_asks_for_what_cannot_be_read_again_is_told_why() {
        let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: fixed}\n\
                    spec: {functions: [{forward: {}}], slo: {latency: 1ms, percentile: 99}}\n";
        let spec = ChainSpec::parse(text, "-", Path::new("/")).unwrap();
        for (isolated, why) in [(false, "in regular files"), (true, "isolated functions")] {
            let mut watch = ReloadWatcher::new(NotReloadable::of(&spec, isolated), None);
            assert_eq!(told(&mut watch, false), [""; 0]);
            let found = told(&mut watch, true);
            assert!(found.len() == 2 && found[1].contains(why), "{found:?}");
        }
        let path = std::env::temp_dir().join(format!("tailwater-fixed-{}", std::process::id()));
        fs::write(&path, text).unwrap();
        let spec = ChainSpec::read(&path).unwrap();
        let mut watch = ReloadWatcher::new(NotReloadable::of(&spec, true), None);
        fs::write(&path, format!("{text}# changed\n")).unwrap();
        assert_eq!(told(&mut watch, false), [""; 0]);
        assert_eq!(told(&mut watch, false).len(), 2);
        assert_eq!(told(&mut watch, false), [""; 0]);
        fs::remove_file(&path).unwrap();
    }
}
