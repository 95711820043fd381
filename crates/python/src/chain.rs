//! Chain as a Python class.

use crate::errors::{TailwaterError, wrong};
use crate::packet::{FlowFields, fields};
use crate::runner::{Inserted, Processed, Runner};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use tailwater_chain::buffer::MAX_FRAME;
use tailwater_chain::chain::{Outcome, Reason};
use tailwater_functions::spec::ChainSpec;

/// Function given to [`Chain::new`]: name, callable, drop reasons, and `None` or `(is_before, neighbour)`.
type GivenFunction = (String, Py<PyAny>, Vec<String>, Option<(bool, String)>);
/// Function, reason and outcome of a count, and the packets.
type Count = (Option<String>, String, &'static str, u64);

/// Chain of functions in this process, through which packets go one after another. Used by one thread at a time.
#[pyclass(frozen, module = "tailwater")]
pub struct Chain {
    name: String,
    functions: Vec<String>,
    /// Function and reason of each of the chain's counts.
    labels: Vec<(Option<Py<PyString>>, Py<PyString>)>,
    has_python: bool,
    state: Mutex<State>,
}

enum State {
    Running(Box<Runner>),
    Finished(Vec<Reason>, Vec<u64>),
}

#[pymethods]
impl Chain {
    /// Reads the spec at `path`, or from `text`, whose file names are relative to `base_dir`, and builds the chain.
    #[new]
    #[pyo3(signature = (
        *, path = None, text = None, name = "chain", base_dir = PathBuf::new(), functions = Vec::new(), seed = 1
    ))]
    fn new(
        py: Python<'_>,
        path: Option<PathBuf>,
        text: Option<String>,
        name: &str,
        base_dir: PathBuf,
        functions: Vec<GivenFunction>,
        seed: u64,
    ) -> PyResult<Chain> {
        let spec = match (path, text) {
            (Some(path), None) => py.detach(|| ChainSpec::read(&path)),
            (None, Some(text)) => ChainSpec::parse(&text, name, &base_dir),
            _ => return Err(wrong("expected either the path or the text of a chain spec")),
        };
        let spec = spec.map_err(wrong)?;
        let name = spec.name.clone();
        let has_python = !functions.is_empty();
        let inserted = functions.into_iter();
        let inserted = inserted.map(|(name, callable, reasons, position)| Inserted {
            name,
            callable,
            reasons,
            position,
        });
        let runner = Runner::new(spec, inserted.collect(), seed).map_err(|error| wrong(format!("{name}: {error}")))?;
        let labels = runner.reasons().iter().map(|reason| {
            let function = reason.function.as_ref();
            let function = function.map(|function| PyString::new(py, function).unbind());
            (function, PyString::new(py, reason.short_name()).unbind())
        });
        Ok(Chain {
            name,
            functions: runner.function_names(),
            labels: labels.collect(),
            has_python,
            state: Mutex::new(State::Running(Box::new(runner))),
        })
    }

    /// Name in the spec.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Names of the functions, in the chain's order.
    #[getter]
    fn functions(&self) -> Vec<String> {
        self.functions.clone()
    }

    /// Number of flows in the flow table.
    #[getter]
    fn flows(&self) -> PyResult<usize> {
        Ok(match &*self.lock()? {
            State::Running(runner) => runner.flows(),
            State::Finished(..) => 0,
        })
    }

    /// Runs packets, each with its time in nanoseconds, and returns a tuple for each: its time since the first one,
    /// length, flow, verdict, function, reason, events, the frame that left (only a changed one without `keep`), and
    /// whether it has changed.
    #[pyo3(signature = (packets, *, keep = false))]
    fn process<'py>(
        &self,
        py: Python<'py>,
        packets: Vec<(u64, PyBackedBytes)>,
        keep: bool,
    ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let wrong_length = |frame: &PyBackedBytes| frame.is_empty() || frame.len() > MAX_FRAME;
        if let Some(at) = packets.iter().position(|(_, frame)| wrong_length(frame)) {
            let found = packets[at].1.len();
            return Err(wrong(format!(
                "packets[{at}]: expected a frame of 1 to {MAX_FRAME} bytes, found {found}"
            )));
        }
        let mut state = self.lock()?;
        let State::Running(runner) = &mut *state else {
            return Err(wrong(format!("{}: the chain is closed", self.name)));
        };
        let mut all = Vec::with_capacity(packets.len());
        if self.has_python {
            for (at, frame) in &packets {
                all.push(runner.process(*at, frame, keep));
                let failure = runner.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(error) = failure {
                    return Err(error);
                }
            }
        } else {
            py.detach(|| all.extend(packets.iter().map(|(at, frame)| runner.process(*at, frame, keep))));
        }
        drop(state);
        all.iter().map(|processed| self.row(py, processed)).collect()
    }

    /// Counts so far, but zeros: function (`None`: the chain itself), reason, outcome and packets.
    fn counts(&self) -> PyResult<Vec<Count>> {
        Ok(match &*self.lock()? {
            State::Running(runner) => listed(runner.reasons(), runner.counts()),
            State::Finished(reasons, counts) => listed(reasons, counts),
        })
    }

    /// Ends all flows, and waits until the functions' files are written. Later calls do nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.lock()?;
        let before = std::mem::replace(&mut *state, State::Finished(Vec::new(), Vec::new()));
        let (after, finished) = match before {
            State::Running(runner) => {
                let (reasons, counts, finished) = py.detach(|| runner.finish());
                (State::Finished(reasons, counts), finished)
            }
            finished => (finished, Ok(())),
        };
        *state = after;
        drop(state);
        finished.map_err(TailwaterError::new_err)
    }
}

impl Chain {
    /// Fails at once if the chain is in use. Its user may be a function of this chain, or may wait for Python's lock.
    fn lock(&self) -> PyResult<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::WouldBlock) => Err(TailwaterError::new_err(format!(
                "{}: another thread, or a function of the chain, uses it",
                self.name
            ))),
            Err(TryLockError::Poisoned(_)) => Err(TailwaterError::new_err(format!(
                "{}: a call has failed halfway; build the chain anew",
                self.name
            ))),
        }
    }

    fn row<'py>(&self, py: Python<'py>, processed: &Processed) -> PyResult<Bound<'py, PyTuple>> {
        let key: Option<FlowFields> = processed.key.as_ref().map(fields);
        let label = processed.reason.map(|reason| &self.labels[reason]);
        let function = label.and_then(|(function, _)| function.as_ref());
        let events = processed.events.iter().map(|event| {
            let (function, name) = &self.labels[*event];
            let name = name.bind(py);
            match function {
                Some(function) => format!("{}/{name}", function.bind(py)),
                None => name.to_string(),
            }
        });
        let frame = processed.frame.as_deref().map(|frame| PyBytes::new(py, frame));
        (
            processed.time.0,
            processed.length,
            key,
            processed.verdict.name(),
            function.map(|function| function.bind(py)),
            label.map(|(_, reason)| reason.bind(py)),
            events.collect::<Vec<String>>(),
            frame,
            processed.is_changed,
        )
            .into_pyobject(py)
    }
}

/// Completes the files of a chain that was not closed, and ends the threads that write them.
impl Drop for Chain {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(state, State::Finished(Vec::new(), Vec::new()));
        if let State::Running(runner) = before {
            // There is no caller to report an error to.
            let _ = runner.finish();
        }
    }
}

fn listed(reasons: &[Reason], counts: &[u64]) -> Vec<Count> {
    let counted = reasons.iter().zip(counts).filter(|(_, count)| **count > 0);
    let listed = counted.map(|(reason, count)| {
        let outcome = match reason.outcome {
            Outcome::Dropped => "dropped",
            Outcome::Lost => "lost",
            Outcome::Passed => "passed",
        };
        (reason.function.clone(), reason.short_name().to_owned(), outcome, *count)
    });
    listed.collect()
}
