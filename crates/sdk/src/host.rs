//! Host side of a function: its validated description, and the calls into it.
//!
//! One of the few modules with `unsafe` code: it follows the function's own pointers, by the rules of `tailwater_nf.h`.

use crate::abi;
pub use crate::printable::Printable;
use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::mem::{self, MaybeUninit};
use std::ptr::{self, null_mut};
use std::slice;
use tailwater_net::parse::{Fragment, Headers, MAX_FRAME, Network, parse, parse_ordinary};
use tailwater_net::{FlowKey, Nanos};

/// Drop reason for packets that a function left malformed.
const INVALID: &str = "invalid";

/// Symbol that a library exports.
pub const SYMBOL: &CStr = c"tailwater_function";

/// Least [`size`](abi::Function::size): functions built with an earlier header of this version have no `explain`.
const LEAST_FUNCTION_BYTES: usize = mem::offset_of!(abi::Function, explain);

/// Maximum length of a name.
const MOST_NAME: usize = 63;

/// Description of a function.
#[derive(Debug)]
pub struct FunctionDescription {
    /// Name of the function, a label.
    pub name: &'static str,
    /// Drop reasons; the last one is [`invalid`](FunctionDescription::invalid).
    pub drop_reasons: Vec<&'static str>,
    /// For each drop reason, `true` if it is a loss.
    pub losses: Vec<bool>,
    /// Additional counters.
    pub counters: Vec<&'static str>,
    /// The complete description. Its pointers refer to static data and code of the function.
    pub function: abi::Function,
    /// Entry point that processes a batch.
    pub process: abi::Process,
}

// SAFETY: it is not written after construction, nor is the function's data that it points to.
unsafe impl Sync for FunctionDescription {}
// SAFETY: as above.
unsafe impl Send for FunctionDescription {}

/// Errors in a function's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WrongFunction {
    /// The function was built for another version of the header.
    Version {
        /// Version of this header.
        expected: u32,
        /// Version of the function's header.
        found: u32,
    },
    /// The description is inconsistent.
    Description(String),
}

impl fmt::Display for WrongFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WrongFunction::Version { expected, found } => write!(
                f,
                "expected a function built with version {expected} of tailwater_nf.h, found version {found}: build \
                 it again with version {expected}"
            ),
            WrongFunction::Description(message) => write!(f, "tailwater_function: {message}"),
        }
    }
}

impl Error for WrongFunction {}

impl FunctionDescription {
    /// Reads a function's description.
    ///
    /// # Safety
    /// `function` is aligned and points to a `struct tw_function` of any version that does not change, nor does the
    /// data it points to. If it has this version, it obeys the header's rules: strings are zero-terminated, lists have
    /// the stated lengths.
    ///
    /// # Errors
    /// The function has another version, or its description is inconsistent.
    pub unsafe fn read(function: *const abi::Function) -> Result<FunctionDescription, WrongFunction> {
        // SAFETY: in any version, the object begins with its version and its size; the caller guarantees the rest.
        let [version, size] = unsafe { *function.cast::<[u32; 2]>() };
        if version != abi::ABI_VERSION {
            return Err(WrongFunction::Version {
                expected: abi::ABI_VERSION,
                found: version,
            });
        }
        let size = size as usize;
        if size < LEAST_FUNCTION_BYTES {
            return Err(wrong(format!(
                "expected a size of {LEAST_FUNCTION_BYTES} bytes or more, found {size}"
            )));
        }
        // Functions built with an earlier header of this version lack the fields appended since.
        let bytes = match size < size_of::<abi::Function>() {
            true => LEAST_FUNCTION_BYTES,
            false => size_of::<abi::Function>(),
        };
        let mut read = MaybeUninit::<abi::Function>::zeroed();
        // SAFETY: an object of this version, and at least this size. All fields may be zero: null pointers and numbers.
        let function = unsafe {
            ptr::copy_nonoverlapping(function.cast::<u8>(), read.as_mut_ptr().cast(), bytes);
            read.assume_init()
        };
        let name = text(function.name, "name")?;
        let [reasons, counters] = [function.drop_reason_count, function.counter_count].map(|count| count as usize);
        at_most(reasons, abi::MAX_DROP_REASONS, "drop_reason_count")?;
        at_most(counters, abi::MAX_COUNTERS, "counter_count")?;
        at_most(function.state_bytes as usize, abi::MAX_STATE_BYTES, "state_bytes")?;
        if function.state_bytes == 0 && function.flows_ended.is_some() {
            let message = "flows_ended: expected NULL with state_bytes 0";
            return Err(wrong(message.to_owned()));
        }
        if function.state_bytes == 0 && function.state_version != 0 {
            let message = "state_version: expected 0 with state_bytes 0";
            return Err(wrong(message.to_owned()));
        }
        let known = abi::HEADERS_ONLY | abi::REWRITES_FLOWS;
        if function.flags & !known != 0 {
            let found = function.flags;
            return Err(wrong(format!(
                "flags: expected only those of tailwater_nf.h, found {found:#x}"
            )));
        }
        // SAFETY: lists of these lengths, by the header's rules.
        let (reasons, counters) = unsafe {
            (
                list(function.drop_reasons, reasons, "drop_reasons")?,
                list(function.counters, counters, "counters")?,
            )
        };
        let mut drop_reasons = Vec::new();
        for (i, reason) in reasons.iter().enumerate() {
            drop_reasons.push(text(reason.name, &format!("drop_reasons[{i}].name"))?);
        }
        drop_reasons.push(INVALID);
        let mut names = Vec::new();
        for (i, counter) in counters.iter().enumerate() {
            names.push(text(*counter, &format!("counters[{i}]"))?);
        }
        let all: Vec<&str> = drop_reasons.iter().chain(&names).copied().collect();
        if let Some(twice) = (1..all.len()).find(|i| all[..*i].contains(&all[*i])) {
            return Err(wrong(format!(
                "expected a different name for each reason and counter, found {:?} twice",
                all[twice]
            )));
        }
        let process = function
            .process
            .ok_or_else(|| wrong("expected process, found NULL".to_owned()))?;
        let losses = reasons.iter().map(|reason| reason.is_loss != 0);
        Ok(FunctionDescription {
            name,
            losses: losses.chain([true]).collect(),
            drop_reasons,
            counters: names,
            function,
            process,
        })
    }

    /// Returns the version of its state's format, if the state can be stored externally.
    pub fn durable(&self) -> Option<u32> {
        let version = self.function.state_version;
        (version != 0).then_some(version)
    }

    /// Returns the index of the drop reason for packets that the function left malformed.
    pub fn invalid(&self) -> u8 {
        (self.drop_reasons.len() - 1) as u8
    }

    /// Returns `true` if it may move a frame's ends. A function with `HEADERS_ONLY` may not: its payload may be copied
    /// in later, to its original place.
    pub fn may_move(&self) -> bool {
        self.function.flags & abi::HEADERS_ONLY == 0
    }
}

/// Returns `true` for an RFC 1123 label: lower-case letters, digits and inner dashes, at most 63 characters.
pub fn is_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= MOST_NAME
        && text.bytes().all(|c| inner(c) || c == b'-')
        && ends.into_iter().all(|end| end.is_some_and(inner))
}

fn wrong(message: String) -> WrongFunction {
    WrongFunction::Description(message)
}

fn at_most(found: usize, most: usize, what: &str) -> Result<(), WrongFunction> {
    match found <= most {
        true => Ok(()),
        false => Err(wrong(format!("{what}: expected at most {most}, found {found}"))),
    }
}

/// Reads a name. It lives as long as the function, which is never unloaded.
///
/// The leak is bounded: a process describes each function once, and its names are at most
/// [`MAX_DROP_REASONS`](abi::MAX_DROP_REASONS), [`MAX_COUNTERS`](abi::MAX_COUNTERS) and one, of 63 bytes.
fn text(pointer: *const c_char, what: &str) -> Result<&'static str, WrongFunction> {
    let expected = |found: &str| {
        wrong(format!(
            "{what}: expected a name of 1 to 63 lower-case letters, digits and dashes, found {found}"
        ))
    };
    if pointer.is_null() {
        return Err(expected("NULL"));
    }
    // SAFETY: not null; by the header's rules a zero-terminated string.
    let found = unsafe { CStr::from_ptr(pointer) }.to_string_lossy();
    match is_label(&found) {
        true => Ok(found.into_owned().leak()),
        false => Err(expected(&format!("{found:?}"))),
    }
}

/// Returns `count` values as a slice.
///
/// # Safety
/// Unless it is null, `first` points to `count` values that are never written.
unsafe fn list<T>(first: *const T, count: usize, what: &str) -> Result<&'static [T], WrongFunction> {
    match (count, first.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(wrong(format!("{what}: expected {count}, found NULL"))),
        // SAFETY: guaranteed by the caller.
        _ => Ok(unsafe { slice::from_raw_parts(first, count) }),
    }
}

/// Configuration error reported by a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongConfig {
    /// Field, such as `limits[2].rate`; empty for the whole configuration.
    pub field: String,
    /// Description of the error.
    pub message: String,
}

/// Configured function. It outlives all its instances.
#[derive(Debug)]
pub struct Configured {
    /// Description of the function.
    pub what: &'static FunctionDescription,
    made: *mut c_void,
}

// SAFETY: by the header's rules `made` is read-only, any thread may call `start`, and the last owner calls `release`.
unsafe impl Sync for Configured {}
// SAFETY: as above.
unsafe impl Send for Configured {}

impl Configured {
    /// Passes a configuration, a JSON object, to a function.
    ///
    /// # Errors
    /// The function rejects it.
    pub fn new(what: &'static FunctionDescription, config: &str) -> Result<Configured, WrongConfig> {
        let of_all = |message: String| WrongConfig {
            field: String::new(),
            message,
        };
        let mut made = null_mut();
        let Some(configure) = what.function.configure else {
            return match config {
                "{}" => Ok(Configured { what, made }),
                _ => Err(of_all(format!("expected none, since {} takes none", what.name))),
            };
        };
        let text = CString::new(config).map_err(|_| of_all("expected no zero bytes".to_owned()))?;
        let mut error = abi::Error {
            message: [0; 512],
            field: [0; 128],
        };
        // SAFETY: as the header requires: a text of `config.len()` bytes with a zero byte behind it, and pointers for
        // the results, all of which outlive the call.
        let code = unsafe { configure(text.as_ptr(), config.len(), &raw mut made, &raw mut error) };
        if code == 0 {
            return Ok(Configured { what, made });
        }
        let message = match text_up_to_nul(&error.message) {
            message if message.is_empty() => {
                format!("{} rejected it (code {code}) without a message", what.name)
            }
            message => message,
        };
        Err(WrongConfig {
            field: text_up_to_nul(&error.field),
            message,
        })
    }

    /// Starts an instance; `None` if the function fails to.
    pub fn start(&self) -> Option<*mut c_void> {
        match self.what.function.start {
            // SAFETY: as the header requires: created by `configure`, and not released.
            Some(start) => Some(unsafe { start(self.made) }).filter(|made| !made.is_null()),
            None => Some(self.made),
        }
    }

    /// Stops an instance.
    ///
    /// # Safety
    /// It comes from [`start`](Self::start), and is not used afterwards.
    pub unsafe fn stop(&self, instance: *mut c_void) {
        if let Some(stop) = self.what.function.stop {
            // SAFETY: guaranteed by the caller.
            unsafe { stop(instance) }
        }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        if let Some(release) = self.what.function.release {
            // SAFETY: called once, after the last instance, because instances' owners keep this alive.
            unsafe { release(self.made) }
        }
    }
}

/// Returns a text of the function, up to its zero byte.
fn text_up_to_nul(text: &[c_char]) -> String {
    // SAFETY: a `c_char` is a byte, and the slice is not changed.
    let bytes = unsafe { slice::from_raw_parts(text.as_ptr().cast::<u8>(), text.len()) };
    let text = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
    String::from_utf8_lossy(text).into_owned()
}

/// Empty packet.
pub const NO_PACKET: abi::Packet = abi::Packet {
    frame: null_mut(),
    state: null_mut(),
    key: std::ptr::null(),
    arrival_ns: 0,
    length: 0,
    flow: abi::NO_FLOW,
    rss_hash: 0,
    network_offset: 0,
    transport_offset: 0,
    payload_offset: 0,
    end: 0,
    headroom: 0,
    tailroom: 0,
    ip_version: 0,
    fragment: 0,
    flags: 0,
    verdict: abi::FORWARD,
    reserved: 0,
};

/// Bytes behind an explanation that must not be written.
const GUARD: [u8; 64] = [0xa5; 64];

/// Explanation of a packet, with the bytes behind it, which a function that overruns it changes.
#[repr(C)]
struct GuardedExplanation {
    explanation: abi::Explanation,
    guard: [u8; GUARD.len()],
}

impl FunctionDescription {
    /// Passes the function's explanation of a packet to `show`, if the function explains its decisions.
    ///
    /// # Safety
    /// As `explain` in the header: `instance` comes from `start`, `process` has just processed the packet, nobody else
    /// uses the instance, and frame, key and state are valid for reading until the call returns.
    ///
    /// # Panics
    /// The function has written beyond the explanation.
    pub unsafe fn explain(&self, instance: *const c_void, packet: &abi::Packet, show: impl FnOnce(Printable<'_>)) {
        let Some(explain) = self.function.explain else {
            return;
        };
        let mut to = GuardedExplanation {
            explanation: abi::Explanation {
                text: [0; abi::MAX_EXPLANATION],
            },
            guard: GUARD,
        };
        // SAFETY: guaranteed by the caller; the explanation outlives the call. The pointer to the whole object lets
        // `guard` be read back after the function wrote beyond the explanation.
        unsafe { explain(instance, packet, (&raw mut to).cast()) };
        let name = self.name;
        assert!(to.guard == GUARD, "the function {name} wrote beyond its explanation");
        let text = to.explanation.text.map(|c| c as u8);
        show(Printable(&text));
    }
}

/// Location of a frame: its buffer, and the frame's bounds in it.
#[derive(Clone, Copy, Debug)]
pub struct FrameLocation {
    /// First byte of the buffer.
    pub buffer: *mut u8,
    /// Size of the buffer in bytes.
    pub buffer_bytes: usize,
    /// Offset of the frame.
    pub start: usize,
    /// Length of the frame in bytes. The frame lies within the buffer.
    pub length: usize,
}

/// Builds the C packet of a frame, without state. `flow` is its index in the flow table; its key is that of `headers`.
#[inline(always)]
pub fn packet(
    place: FrameLocation,
    headers: &Headers,
    arrival: Nanos,
    flow: Option<u32>,
    rss_hash: u32,
) -> abi::Packet {
    let FrameLocation {
        buffer,
        buffer_bytes,
        start,
        length,
    } = place;
    abi::Packet {
        frame: buffer.wrapping_add(start),
        key: (&raw const headers.key).cast(),
        arrival_ns: arrival.0,
        length: length as u32,
        flow: flow.unwrap_or(abi::NO_FLOW),
        rss_hash,
        network_offset: headers.network_offset,
        transport_offset: headers.transport_offset,
        payload_offset: headers.payload_offset,
        end: headers.end,
        headroom: start as u16,
        tailroom: (buffer_bytes - start - length).min(MAX_FRAME) as u16,
        ip_version: match headers.network {
            Network::V4 => 4,
            Network::V6 => 6,
            Network::NotIp => 0,
        },
        fragment: match headers.fragment {
            Fragment::Whole => 0,
            Fragment::First => 1,
            Fragment::Later => 2,
        },
        ..NO_PACKET
    }
}

/// Returns the bounds (offset, length) of a frame after the function rewrote it; it was at `place` before. `None` if
/// the new bounds are not allowed.
#[inline]
pub fn moved(what: &FunctionDescription, packet: &abi::Packet, place: FrameLocation) -> Option<[u16; 2]> {
    let start = (packet.frame as usize).wrapping_sub(place.buffer as usize);
    let length = packet.length as usize;
    let inside = start <= place.buffer_bytes && length <= place.buffer_bytes - start;
    // Payload may still be copied in behind the headers, to its original place.
    let may = (start, length) == (place.start, place.length) || what.may_move();
    (inside && may && start.max(length) <= MAX_FRAME).then_some([start as u16, length as u16])
}

/// Parses a frame that is well-formed IP. The key is the one under which the chain looks up its flow.
#[inline]
pub fn ip_headers(frame: &[u8]) -> Option<Headers> {
    let mut headers = Headers::default();
    find_headers(frame, &mut headers).then_some(headers)
}

/// As [`ip_headers`], in place: reading a struct as a whole right after writing its parts is slow. Returns `false` if
/// there are no such headers.
#[inline(always)]
pub fn find_headers(frame: &[u8], headers: &mut Headers) -> bool {
    parse_ordinary(frame, headers) || find_other_headers(frame, headers)
}

/// Parses a frame that is not an ordinary one.
#[inline(never)]
fn find_other_headers(frame: &[u8], headers: &mut Headers) -> bool {
    match parse(frame) {
        Ok(found) if found.network != Network::NotIp => *headers = found,
        _ => return false,
    }
    if headers.fragment != Fragment::Whole {
        headers.key = headers.key.of_fragment();
    }
    true
}

const _: () = assert!(size_of::<FlowKey>() == size_of::<abi::FlowKey>());
const _: () = assert!(align_of::<FlowKey>() == align_of::<abi::FlowKey>());
