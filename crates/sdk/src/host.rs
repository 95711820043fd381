//! A function as whoever runs it sees it: what it says of itself, checked, and its calls.
//!
//! One of the few modules with `unsafe` code: a function's own pointers are followed, by the rules of
//! `tailwater_nf.h`.

use crate::abi;
use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::slice;
use tailwater_net::parse::{Fragment, Headers, MAX_FRAME, Network, parse, parse_ordinary};
use tailwater_net::{FlowKey, Nanos};

/// Why packets are dropped that a function made unfit to go on.
const INVALID: &str = "invalid";

/// The longest name.
const MOST_NAME: usize = 63;

/// What a function says of itself.
#[derive(Debug)]
pub struct Described {
    /// The name it gives itself, a label.
    pub name: &'static str,
    /// Why it drops packets; last, [`invalid`](Described::invalid).
    pub drop_reasons: Vec<&'static str>,
    /// Which of these are losses.
    pub losses: Vec<bool>,
    /// What else it counts.
    pub counters: Vec<&'static str>,
    /// All it says. Its pointers are to its own data and code, which stay.
    pub function: abi::Function,
    /// How it processes a batch.
    pub process: abi::Process,
}

// SAFETY: it is not written after it was made, and the function's data that it points to is not either.
unsafe impl Sync for Described {}
// SAFETY: as above.
unsafe impl Send for Described {}

/// Why something is no function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WrongFunction {
    /// It was built for another version of the header.
    Version {
        /// This one's.
        expected: u32,
        /// The function's.
        found: u32,
    },
    /// What it says of itself makes no sense.
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

impl Described {
    /// Reads what a function says of itself.
    ///
    /// # Safety
    /// `function` is aligned, and points to a `struct tw_function` of any version that stays as it is, with all that
    /// it points to. If it is of this version, it is by the header's rules: texts end with a zero byte, lists are as
    /// long as it says.
    ///
    /// # Errors
    /// It is none of this version.
    pub unsafe fn read(function: *const abi::Function) -> Result<Described, WrongFunction> {
        // SAFETY: whatever the version, the object begins with its version and its size; the caller's word for the
        // rest.
        let [version, size] = unsafe { *function.cast::<[u32; 2]>() };
        if version != abi::ABI_VERSION {
            return Err(WrongFunction::Version {
                expected: abi::ABI_VERSION,
                found: version,
            });
        }
        if (size as usize) < size_of::<abi::Function>() {
            return Err(wrong(format!(
                "expected a size of {} bytes or more, found {size}",
                size_of::<abi::Function>()
            )));
        }
        // SAFETY: an object of this version and at least this size.
        let function = unsafe { *function };
        let name = text(function.name, "name")?;
        let [reasons, counters] = [function.drop_reason_count, function.counter_count].map(|count| count as usize);
        at_most(reasons, abi::MAX_DROP_REASONS, "drop_reason_count")?;
        at_most(counters, abi::MAX_COUNTERS, "counter_count")?;
        at_most(function.state_bytes as usize, abi::MAX_STATE_BYTES, "state_bytes")?;
        if function.state_bytes == 0 && function.flows_ended.is_some() {
            let message = "flows_ended: expected NULL, since there is no state_bytes";
            return Err(wrong(message.to_owned()));
        }
        if function.state_bytes == 0 && function.state_version != 0 {
            let message = "state_version: expected 0, since there is no state_bytes";
            return Err(wrong(message.to_owned()));
        }
        let known = abi::HEADERS_ONLY | abi::REWRITES_FLOWS;
        if function.flags & !known != 0 {
            let found = function.flags;
            return Err(wrong(format!(
                "flags: expected only those of tailwater_nf.h, found {found:#x}"
            )));
        }
        // SAFETY: lists of so many, by the header's rules.
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
        Ok(Described {
            name,
            losses: losses.chain([true]).collect(),
            drop_reasons,
            counters: names,
            function,
            process,
        })
    }

    /// The version of what its flow state means to all instances, if it means something to them.
    pub fn durable(&self) -> Option<u32> {
        let version = self.function.state_version;
        (version != 0).then_some(version)
    }

    /// The place in the reasons to drop of the one for packets that the function made unfit to go on.
    pub fn invalid(&self) -> u8 {
        (self.drop_reasons.len() - 1) as u8
    }

    /// Whether it may move a frame's ends, behind which others may yet write where they were.
    pub fn may_move(&self) -> bool {
        self.function.flags & abi::HEADERS_ONLY == 0
    }
}

/// Whether this is a name as RFC 1123 has them: lower-case letters, digits and inner dashes, at most 63.
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

/// A copy of a name, for as long as the function is there: for ever.
fn text(pointer: *const c_char, what: &str) -> Result<&'static str, WrongFunction> {
    let expected = |found: &str| {
        wrong(format!(
            "{what}: expected a name of 1 to 63 lower-case letters, digits and dashes, found {found}"
        ))
    };
    if pointer.is_null() {
        return Err(expected("NULL"));
    }
    // SAFETY: not null; by the header's rules, a text that ends with a zero byte.
    let found = unsafe { CStr::from_ptr(pointer) }.to_string_lossy();
    match is_label(&found) {
        true => Ok(found.into_owned().leak()),
        false => Err(expected(&format!("{found:?}"))),
    }
}

/// # Safety
/// Unless it is null, `first` points to so many values that are never written.
unsafe fn list<T>(first: *const T, count: usize, what: &str) -> Result<&'static [T], WrongFunction> {
    match (count, first.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(wrong(format!("{what}: expected {count}, found NULL"))),
        // SAFETY: the caller's word.
        _ => Ok(unsafe { slice::from_raw_parts(first, count) }),
    }
}

/// What a function says about its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongConfig {
    /// The field, such as `limits[2].rate`; empty for all of it.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

/// A function that has read its configuration. Outlives every instance.
#[derive(Debug)]
pub struct Configured {
    /// What it is.
    pub what: &'static Described,
    made: *mut c_void,
}

// SAFETY: the header's rules: `made` is read-only, `start` may be called by any thread, `release` by the last.
unsafe impl Sync for Configured {}
// SAFETY: as above.
unsafe impl Send for Configured {}

impl Configured {
    /// Has a function read its configuration, a JSON object.
    ///
    /// # Errors
    /// It refuses it.
    pub fn new(what: &'static Described, config: &str) -> Result<Configured, WrongConfig> {
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
        // SAFETY: as the header says: a text of so many bytes with a zero behind it, and places for what
        // comes back, all of which outlive the call.
        let code = unsafe { configure(text.as_ptr(), config.len(), &raw mut made, &raw mut error) };
        if code == 0 {
            return Ok(Configured { what, made });
        }
        let message = match told(&error.message) {
            message if message.is_empty() => {
                format!("{} refuses it (code {code}) and does not say why", what.name)
            }
            message => message,
        };
        Err(WrongConfig {
            field: told(&error.field),
            message,
        })
    }

    /// An instance; `None` if the function gives none.
    pub fn start(&self) -> Option<*mut c_void> {
        match self.what.function.start {
            // SAFETY: as the header says: what `configure` made, not released.
            Some(start) => Some(unsafe { start(self.made) }).filter(|made| !made.is_null()),
            None => Some(self.made),
        }
    }

    /// Ends an instance.
    ///
    /// # Safety
    /// It is of [`start`](Self::start), and not used again.
    pub unsafe fn stop(&self, instance: *mut c_void) {
        if let Some(stop) = self.what.function.stop {
            // SAFETY: the caller's word.
            unsafe { stop(instance) }
        }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        if let Some(release) = self.what.function.release {
            // SAFETY: once, and after the last instance, whose holders hold this.
            unsafe { release(self.made) }
        }
    }
}

/// A text of the function's, up to its zero byte.
fn told(text: &[c_char]) -> String {
    // SAFETY: a `c_char` is a byte, and the slice stays as it is.
    let bytes = unsafe { slice::from_raw_parts(text.as_ptr().cast::<u8>(), text.len()) };
    let text = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
    String::from_utf8_lossy(text).into_owned()
}

/// No packet.
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

/// Where a frame is: its buffer and the bytes of it, where the frame starts in it, and the frame's length, within the
/// buffer.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The buffer's first byte.
    pub buffer: *mut u8,
    /// Bytes of the buffer.
    pub buffer_bytes: usize,
    /// Where the frame starts.
    pub start: usize,
    /// Bytes of the frame.
    pub length: usize,
}

/// A packet as a function sees it that has no state, of a flow with this number. Its key is that of `headers`.
#[inline(always)]
pub fn packet(place: Place, headers: &Headers, arrival: Nanos, (flow, rss_hash): (Option<u32>, u32)) -> abi::Packet {
    let Place {
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

/// Where in its buffer the frame of a packet is that a function rewrote, which was at `place` before; `None` if it
/// cannot be there.
#[inline]
pub fn moved(what: &Described, packet: &abi::Packet, place: Place) -> Option<[u16; 2]> {
    let start = (packet.frame as usize).wrapping_sub(place.buffer as usize);
    let length = packet.length as usize;
    let inside = start <= place.buffer_bytes && length <= place.buffer_bytes - start;
    // Somebody may yet write the end of the payload where it was.
    let may = (start, length) == (place.start, place.length) || what.may_move();
    (inside && may && start.max(length) <= MAX_FRAME).then_some([start as u16, length as u16])
}

/// The headers of a frame that is well-formed IP, with the key by which the chain knows its flow.
#[inline]
pub fn ip_headers(frame: &[u8]) -> Option<Headers> {
    let mut headers = Headers::default();
    find_headers(frame, &mut headers).then_some(headers)
}

/// As [`ip_headers`], in place: what is written in parts and then read as a whole is slow. Whether there are any.
#[inline(always)]
pub fn find_headers(frame: &[u8], headers: &mut Headers) -> bool {
    parse_ordinary(frame, headers) || find_other_headers(frame, headers)
}

/// Of a frame that is not an ordinary one.
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
