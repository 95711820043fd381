//! Function written in Python, in the chain.

use crate::packet::Packet;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyString};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_chain::batch::{Batch, Verdict};
use tailwater_chain::buffer::{HEADROOM, MAX_FRAME};
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_net::parse::{Network, parse};

/// Reasons of every function: it returned `False`, raised an exception, or made a frame that is no IP packet.
pub const OWN_REASONS: [&str; 3] = ["dropped", "exception", "not-ip"];
const DROPPED: u8 = 0;
const EXCEPTION: u8 = 1;
const NOT_IP: u8 = 2;

/// First exception of the chain's functions in a call of the chain.
pub type Failure = Arc<Mutex<Option<PyErr>>>;

/// Function that calls a Python callable for each packet.
pub struct PythonFunction {
    callable: Py<PyAny>,
    reasons: &'static [&'static str],
    failure: Failure,
}

/// Decision of a callable on a packet.
enum Decision {
    Forward,
    Drop(u8),
    Replace(Vec<u8>),
}

impl PythonFunction {
    /// Wraps a callable that may drop packets for [its own](OWN_REASONS) and these reasons.
    pub fn new(callable: Py<PyAny>, reasons: &[String], failure: Failure) -> PythonFunction {
        PythonFunction {
            callable,
            reasons: interned(reasons),
            failure,
        }
    }

    fn decide(&self, py: Python<'_>, packet: Packet) -> PyResult<Decision> {
        let returned = self.callable.bind(py).call1((packet,))?;
        if returned.is_none() {
            return Ok(Decision::Forward);
        }
        if let Ok(passes) = returned.cast::<PyBool>() {
            return Ok(match passes.is_true() {
                true => Decision::Forward,
                false => Decision::Drop(DROPPED),
            });
        }
        if let Ok(reason) = returned.cast::<PyString>() {
            let reason = reason.to_string();
            let found = self.reasons.iter().position(|known| *known == reason);
            let Some(found) = found else {
                let known = self.reasons.join(", ");
                let message = format!("expected a declared drop reason ({known}), found {reason:?}");
                return Err(PyValueError::new_err(message));
            };
            return Ok(Decision::Drop(found as u8));
        }
        if let Ok(frame) = returned.cast::<PyBytes>() {
            let frame = frame.as_bytes();
            if frame.is_empty() || frame.len() > MAX_FRAME {
                let message = format!("expected a frame of 1 to {MAX_FRAME} bytes, found {}", frame.len());
                return Err(PyValueError::new_err(message));
            }
            return Ok(Decision::Replace(frame.to_vec()));
        }
        let kind = returned.get_type().name()?;
        Err(PyTypeError::new_err(format!(
            "expected None or True (forward), False or a reason (drop), or bytes (the new frame), found {kind}"
        )))
    }
}

/// Names with the function's own in front. Equal lists are kept once for the process's life: the trait's names live as
/// long.
fn interned(reasons: &[String]) -> &'static [&'static str] {
    static KNOWN: Mutex<Option<HashMap<Vec<String>, &'static [&'static str]>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(found) = known.get(reasons) {
        return found;
    }
    let added = reasons
        .iter()
        .map(|reason| &*Box::leak(reason.clone().into_boxed_str()));
    let all: Vec<&'static str> = OWN_REASONS.into_iter().chain(added).collect();
    let all: &'static [&'static str] = Box::leak(all.into_boxed_slice());
    known.insert(reasons.to_vec(), all);
    all
}

impl NetworkFunction for PythonFunction {
    fn kind(&self) -> &'static str {
        "python"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        self.reasons
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        Python::attach(|py| {
            for i in 0..batch.len() {
                let (packet, frame) = batch.packet_mut(i);
                let copy = Packet::copy(py, packet, frame);
                let verdict = match self.decide(py, copy) {
                    Ok(Decision::Forward) => continue,
                    Ok(Decision::Drop(reason)) => Verdict::Drop(reason),
                    Ok(Decision::Replace(frame)) => {
                        batch.replace_frame(i, [HEADROOM, frame.len()], |room| room.copy_from_slice(&frame));
                        match parse(&frame) {
                            Ok(headers) if headers.network != Network::NotIp => {
                                batch.packet_mut(i).0.headers = headers;
                                continue;
                            }
                            _ => Verdict::Drop(NOT_IP),
                        }
                    }
                    Err(error) => {
                        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                        failure.get_or_insert(error);
                        Verdict::Drop(EXCEPTION)
                    }
                };
                batch.packet_mut(i).0.verdict = verdict;
            }
        });
    }
}
