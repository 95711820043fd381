//! Parallel work on all cores, with results in the order of the jobs.

use crate::error::CliError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Interval between progress reports.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the number of threads that can run in parallel.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs jobs on `threads` threads, in `order`. Jobs that were not done when `stop` was set, or have no result, are
/// `None`. Calls `show` periodically with the number of completed jobs.
///
/// # Errors
/// The first error of a job. Meanwhile `stop` is set, which ends the others: their results would be discarded.
pub fn all<J: Sync, R: Send>(
    jobs: &[J],
    order: &[usize],
    threads: usize,
    stop: &AtomicBool,
    work: impl Fn(&J) -> Result<Option<R>, CliError> + Sync,
    mut show: impl FnMut(usize),
) -> Result<Vec<Option<R>>, CliError> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<R>> = jobs.iter().map(|_| None).collect();
    let mut failure = None;
    let was_stopped = stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let (sender, done) = channel();
        for _ in 0..threads.min(jobs.len()) {
            let sender = sender.clone();
            let (next, work) = (&next, &work);
            scope.spawn(move || {
                while let number = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(&job) = order.get(number)
                    && !stop.load(Ordering::Relaxed)
                {
                    let result = work(&jobs[job]);
                    stop.fetch_or(result.is_err(), Ordering::Relaxed);
                    if sender.send((job, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut count = 0;
        loop {
            match done.recv_timeout(PAUSE) {
                Ok((job, Ok(result))) => {
                    count += usize::from(result.is_some());
                    results[job] = result;
                }
                Ok((_, Err(error))) => drop(failure.get_or_insert(error)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            show(count);
        }
    });
    match failure {
        Some(error) => {
            // It was no request of the user's, by which the exit code would differ.
            stop.store(was_stopped, Ordering::Relaxed);
            Err(error)
        }
        None => Ok(results),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..100).collect();
        let order: Vec<usize> = (0..100).rev().collect();
        for threads in [1, 2, 7, 200] {
            let stop = AtomicBool::new(false);
            let mut most = 0;
            let work = |job: &u64| Ok((job % 10 != 3).then(|| job * 2));
            let results = all(&jobs, &order, threads, &stop, work, |done| most = done).unwrap();
            let wanted = jobs.iter().map(|job| (job % 10 != 3).then(|| job * 2));
            assert_eq!(results, wanted.collect::<Vec<_>>());
            assert_eq!(most, 90);
        }
    }

    #[test]
    fn an_error_ends_the_others() {
        let (jobs, order) = ([0, 1, 2], [0, 1, 2]);
        let stop = AtomicBool::new(false);
        let last = AtomicUsize::new(0);
        let work = |job: &usize| {
            last.store(*job, Ordering::Relaxed);
            match job {
                1 => Err(CliError::Input("wrong".to_owned())),
                job => Ok(Some(*job)),
            }
        };
        let error = all(&jobs, &order, 1, &stop, work, |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "wrong");
        assert_eq!(last.into_inner(), 1);
        // It is no request of the user's, by which the exit code would differ.
        assert!(!stop.into_inner());
    }
}
