//! Description of a function in a module: `struct tw_function`, read from the module's memory.

use super::error::WasmError;
use super::layout::{DROP_REASON_BYTES, EXPLAIN, FUNCTION_BYTES, u32_at};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use tailwater_sdk::abi;
use tailwater_sdk::host::{WrongFunction, is_label};

/// Maximum length of a name.
const MAX_NAME: usize = 63;
/// Drop reasons that the host adds to the function's own: a packet that is no longer well-formed, and packets of calls
/// that were ended.
const HOST_REASONS: [&str; 3] = ["invalid", "wasm-limit", "wasm-trap"];

/// Description of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name of the function, a label.
    pub name: &'static str,
    /// Drop reasons: the function's own, then three of the host's.
    pub drop_reasons: &'static [&'static str],
    /// For each of the function's own drop reasons, `true` if it is a loss.
    pub losses: Vec<bool>,
    /// Counters.
    pub counters: &'static [&'static str],
    /// `TW_HEADERS_ONLY` and `TW_REWRITES_FLOWS`.
    pub flags: u32,
    /// Size of a flow's state in bytes.
    pub state_bytes: usize,
    /// Version of the state's format; 0 if it cannot be stored externally.
    pub state_version: u32,
    /// Indices in the table of functions; 0 for none.
    pub(super) configure: u32,
    pub(super) start: u32,
    pub(super) process: u32,
    pub(super) flows_ended: u32,
    pub(super) explain: u32,
}

impl Description {
    /// Reads the description at an address.
    ///
    /// # Errors
    /// It has another version, or is inconsistent.
    pub(super) fn read(memory: &[u8], address: u32) -> Result<Description, WasmError> {
        let outside = || WasmError::description("expected an address within the memory");
        let end = (address as usize).checked_add(FUNCTION_BYTES);
        let function = end
            .and_then(|end| memory.get(address as usize..end))
            .ok_or_else(outside)?;
        let word = |at: usize| u32_at(function, at).ok_or_else(outside);
        let (version, size) = (word(0)?, word(4)? as usize);
        if version != abi::ABI_VERSION {
            return Err(WrongFunction::Version {
                expected: abi::ABI_VERSION,
                found: version,
            }
            .into());
        }
        if size < FUNCTION_BYTES {
            let message = format!("expected a size of {FUNCTION_BYTES} bytes or more, found {size}");
            return Err(WasmError::description(message));
        }
        // Modules built with an earlier header of this version lack the fields appended since.
        let explain = match size >= EXPLAIN + 4 {
            true => u32_at(memory, address as usize + EXPLAIN).ok_or_else(outside)?,
            false => 0,
        };
        let name = name(memory, word(8)?, "name")?;
        let (flags, state_bytes) = (word(12)?, word(16)? as usize);
        let (reasons, counters) = (word(28)? as usize, word(32)? as usize);
        at_most(reasons, abi::MAX_DROP_REASONS, "drop_reason_count")?;
        at_most(counters, abi::MAX_COUNTERS, "counter_count")?;
        at_most(state_bytes, abi::MAX_STATE_BYTES, "state_bytes")?;
        if flags & !(abi::HEADERS_ONLY | abi::REWRITES_FLOWS) != 0 {
            let message = format!("flags: expected only those of tailwater_nf.h, found {flags:#x}");
            return Err(WasmError::description(message));
        }
        let (process, flows_ended, state_version) = (word(52)?, word(56)?, word(60)?);
        if process == 0 {
            return Err(WasmError::description("expected process, found NULL"));
        }
        if state_bytes == 0 && flows_ended != 0 {
            return Err(WasmError::description("flows_ended: expected NULL with state_bytes 0"));
        }
        if state_bytes == 0 && state_version != 0 {
            return Err(WasmError::description("state_version: expected 0 with state_bytes 0"));
        }
        let (mut drop_reasons, mut losses) = (Vec::new(), Vec::new());
        for i in 0..reasons {
            let at = word(20)? as usize + i * DROP_REASON_BYTES;
            let field = format!("drop_reasons[{i}].name");
            drop_reasons.push(self::name(memory, u32_at(memory, at).ok_or_else(outside)?, &field)?);
            losses.push(u32_at(memory, at + 4).ok_or_else(outside)? != 0);
        }
        drop_reasons.extend(HOST_REASONS);
        let mut names = Vec::new();
        for i in 0..counters {
            let at = word(24)? as usize + 4 * i;
            let address = u32_at(memory, at).ok_or_else(outside)?;
            names.push(self::name(memory, address, &format!("counters[{i}]"))?);
        }
        let all: Vec<&str> = drop_reasons.iter().chain(&names).copied().collect();
        if let Some(twice) = (1..all.len()).find(|i| all[..*i].contains(&all[*i])) {
            let twice = all[twice];
            let message = format!("expected a different name for each reason and counter, found {twice:?} twice");
            return Err(WasmError::description(message));
        }
        Ok(Description {
            name,
            drop_reasons: intern_list(drop_reasons),
            losses,
            counters: intern_list(names),
            flags,
            state_bytes,
            state_version,
            configure: word(36)?,
            start: word(44)?,
            process,
            flows_ended,
            explain,
        })
    }

    /// Number of drop reasons of the function's own.
    pub(super) fn own_reasons(&self) -> u8 {
        self.losses.len() as u8
    }

    /// Index of the drop reason for packets that the function left malformed.
    pub(super) fn invalid(&self) -> u8 {
        self.own_reasons()
    }

    /// Index of the drop reason for packets of calls that took too many instructions.
    pub(super) fn limit(&self) -> u8 {
        self.own_reasons() + 1
    }

    /// Index of the drop reason for packets of calls that ended in a trap.
    pub(super) fn trap(&self) -> u8 {
        self.own_reasons() + 2
    }

    /// Returns `true` if the function accesses more than headers.
    pub(super) fn needs_payload(&self) -> bool {
        self.flags & abi::HEADERS_ONLY == 0
    }
}

fn at_most(found: usize, most: usize, field: &str) -> Result<(), WasmError> {
    match found <= most {
        true => Ok(()),
        false => Err(WasmError::description(format!(
            "{field}: expected at most {most}, found {found}"
        ))),
    }
}

/// Reads a name at an address.
fn name(memory: &[u8], address: u32, field: &str) -> Result<&'static str, WasmError> {
    let bytes = memory.get(address as usize..).unwrap_or_default();
    let bytes = &bytes[..bytes.len().min(MAX_NAME + 1)];
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = end.and_then(|end| std::str::from_utf8(&bytes[..end]).ok());
    match text.filter(|text| address != 0 && is_label(text)) {
        Some(text) => Ok(intern(text)),
        None => {
            let found = match (address, text) {
                (0, _) => "NULL".to_owned(),
                (_, Some(text)) => format!("{text:?}"),
                (_, None) => "no text of that length".to_owned(),
            };
            Err(WasmError::description(format!(
                "{field}: expected a name of 1 to {MAX_NAME} lower-case letters, digits and dashes, found {found}"
            )))
        }
    }
}

/// Names live as long as the process, as those of built-in functions do. Each is stored once, so that reading a spec
/// again needs no more memory.
static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
static LISTS: Mutex<BTreeSet<&'static [&'static str]>> = Mutex::new(BTreeSet::new());

fn intern(text: &str) -> &'static str {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = names.get(text) {
        return name;
    }
    let name: &'static str = text.to_owned().leak();
    names.insert(name);
    name
}

fn intern_list(list: Vec<&'static str>) -> &'static [&'static str] {
    let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(list) = lists.get(&list[..]) {
        return list;
    }
    let list: &'static [&'static str] = list.leak();
    lists.insert(list);
    list
}
