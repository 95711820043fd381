//! Calls of the C ABI into a [`Function`].
//!
//! One of the few modules with `unsafe` code: the functions that the runtime calls.

use crate::abi;
use crate::{Batch, Config, ConfigError, Explanation, FlowKey, Function, Packet};
use std::mem::{align_of, size_of};
use std::os::raw::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::slice;
use std::sync::Arc;

/// Builds the `struct tw_function` of `tailwater_nf.h` from a Rust type.
pub const fn describe<F: Function>() -> abi::Function {
    assert!(align_of::<F::State>() <= 8, "flow state is aligned to 8");
    assert!(size_of::<F::State>() <= abi::MAX_STATE_BYTES);
    assert!(F::DROP_REASONS.len() <= abi::MAX_DROP_REASONS);
    assert!(F::COUNTERS.len() <= abi::MAX_COUNTERS);
    assert!(
        !F::WANTS_FLOW_ENDS || size_of::<F::State>() > 0,
        "flow ends are reported only for functions with flow state"
    );
    let mut flags = 0;
    if F::HEADERS_ONLY {
        flags |= abi::HEADERS_ONLY;
    }
    if F::REWRITES_FLOWS {
        flags |= abi::REWRITES_FLOWS;
    }
    abi::Function {
        abi_version: abi::ABI_VERSION,
        size: size_of::<abi::Function>() as u32,
        name: F::NAME.as_ptr(),
        flags,
        state_bytes: size_of::<F::State>() as u32,
        // Both types are transparent, so the casts are sound.
        drop_reasons: F::DROP_REASONS.as_ptr().cast(),
        counters: F::COUNTERS.as_ptr().cast(),
        drop_reason_count: F::DROP_REASONS.len() as u32,
        counter_count: F::COUNTERS.len() as u32,
        configure: Some(configure::<F>),
        release: Some(release::<F>),
        start: Some(start::<F>),
        stop: Some(stop::<F>),
        process: Some(process::<F>),
        flows_ended: match F::WANTS_FLOW_ENDS {
            true => Some(flows_ended::<F>),
            false => None,
        },
        state_version: F::STATE_VERSION,
        reserved: 0,
        explain: Some(explain::<F>),
    }
}

/// `configure` of the C ABI.
///
/// # Safety
/// As `configure` in `tailwater_nf.h`.
unsafe extern "C" fn configure<F: Function>(
    config: *const c_char,
    bytes: usize,
    shared: *mut *mut c_void,
    error: *mut abi::Error,
) -> c_int {
    // SAFETY: the runtime's text of `bytes` bytes, and its two pointers to write to, valid for the call.
    let (text, shared, error) = unsafe {
        let text = slice::from_raw_parts(config.cast::<u8>(), bytes);
        (text, &mut *shared, &mut *error)
    };
    let configured = catch_unwind(|| {
        let text = std::str::from_utf8(text).map_err(|_| ConfigError::new("", "expected UTF-8"))?;
        F::configure(&Config::parse(text)?)
    });
    match configured {
        Ok(Ok(made)) => {
            *shared = (Arc::into_raw(Arc::new(made)) as *mut F::Shared).cast();
            return 0;
        }
        Ok(Err(refused)) => {
            put(&mut error.field, &refused.field);
            put(&mut error.message, &refused.message);
        }
        Err(_) => put(
            &mut error.message,
            "the function panicked while reading its configuration",
        ),
    }
    1
}

/// Copies a text and a terminating zero byte, cut between characters to fit.
fn put(room: &mut [c_char], text: &str) {
    let mut end = text.len().min(room.len() - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = text.as_bytes()[..end].iter().chain(&[0]);
    room.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte as c_char);
}

/// `release` of the C ABI.
///
/// # Safety
/// As `release` in `tailwater_nf.h`: `shared` comes from `configure`, and is released once.
unsafe extern "C" fn release<F: Function>(shared: *mut c_void) {
    let shared: *const c_void = shared;
    // SAFETY: created by `Arc::into_raw` in `configure`.
    drop(unsafe { Arc::from_raw(shared.cast::<F::Shared>()) });
}

/// `start` of the C ABI.
///
/// # Safety
/// As `start` in `tailwater_nf.h`: `shared` comes from `configure`, and is not released.
unsafe extern "C" fn start<F: Function>(shared: *const c_void) -> *mut c_void {
    let shared = shared.cast::<F::Shared>();
    // SAFETY: created by `Arc::into_raw` in `configure`, and alive.
    let shared = unsafe {
        Arc::increment_strong_count(shared);
        Arc::from_raw(shared)
    };
    catch_unwind(AssertUnwindSafe(|| Box::new(F::start(shared))))
        .map_or(null_mut(), |instance| Box::into_raw(instance).cast())
}

/// `stop` of the C ABI.
///
/// # Safety
/// As `stop` in `tailwater_nf.h`: `instance` comes from `start`, and is stopped once.
unsafe extern "C" fn stop<F: Function>(instance: *mut c_void) {
    // SAFETY: created by `Box::into_raw` in `start`.
    drop(unsafe { Box::from_raw(instance.cast::<F>()) });
}

/// `process` of the C ABI.
///
/// # Safety
/// As `process` in `tailwater_nf.h`: `instance` comes from `start`, and only this thread uses it.
unsafe extern "C" fn process<F: Function>(instance: *mut c_void, batch: *mut abi::Batch) -> c_int {
    // SAFETY: guaranteed by the caller; the runtime's batch obeys the header's rules for the call.
    let (function, mut batch) = unsafe {
        let counters = F::COUNTERS.len();
        (&mut *instance.cast::<F>(), Batch::new(&mut *batch, counters))
    };
    // After a panic the runtime does not use the instance again.
    catch_unwind(AssertUnwindSafe(|| function.process(&mut batch))).map_or(1, |()| 0)
}

/// `flows_ended` of the C ABI.
///
/// # Safety
/// As `flows_ended` in `tailwater_nf.h`, with `instance` as in `process`.
unsafe extern "C" fn flows_ended<F: Function>(
    instance: *mut c_void,
    flows: *const abi::EndedFlow,
    count: u32,
    counters: *mut u64,
) {
    let mut none = [];
    // SAFETY: the caller guarantees this number of flows, and the function's counters, for the call.
    let (function, flows, counters) = unsafe {
        let flows = match count {
            0 => &[],
            _ => slice::from_raw_parts(flows, count as usize),
        };
        let counters = match F::COUNTERS.len() {
            0 => &mut none[..],
            counters_len => slice::from_raw_parts_mut(counters, counters_len),
        };
        (&mut *instance.cast::<F>(), flows, counters)
    };
    for flow in flows {
        // SAFETY: the runtime's pointers to a key (`FlowKey` is transparent) and to state of the declared size, aligned
        // to 8.
        let (key, state) = unsafe { (&*flow.key.cast::<FlowKey>(), &*flow.state.cast::<F::State>()) };
        function.flow_ended(key, state, counters);
    }
}

/// `explain` of the C ABI.
///
/// # Safety
/// As `explain` in `tailwater_nf.h`, with `instance` as in `process`.
unsafe extern "C" fn explain<F: Function>(
    instance: *const c_void,
    packet: *const abi::Packet,
    explanation: *mut abi::Explanation,
) {
    // SAFETY: guaranteed by the caller. The function gets a shared reference to its packet, so it changes nothing.
    let (function, mut raw, explanation) = unsafe { (&*instance.cast::<F>(), *packet, &mut *explanation) };
    let mut text = Explanation::new(explanation);
    // A panic ends the text; it has changed nothing that others rely on.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: as above.
        let packet = unsafe { Packet::new(&mut raw) };
        function.explain(&packet, &mut text);
    }));
}
