//! Text formats of `schemata`, `bit_usage` and lists of cores.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Error;

/// Maximum number of bytes read from a file, enough for the task list of a large machine.
pub(crate) const MOST_BYTES: u64 = 8 << 20;

/// Maximum number of caches, cores or tasks accepted in one line.
const MOST: usize = 1 << 20;

/// Allocation of a group: for each resource, the value of each cache. Values are masks for caches, and per cent or
/// MiB/s for memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schemata {
    /// Values by resource name (`L3`, or `L3CODE` and `L3DATA`, `L2`, `MB`, ...) and cache identifier.
    pub resources: BTreeMap<String, BTreeMap<u32, u32>>,
}

/// Returns the radix of a resource's values, or `None` for an unknown resource.
fn radix(resource: &str) -> Option<u32> {
    match resource {
        "L3" | "L3CODE" | "L3DATA" | "L2" | "L2CODE" | "L2DATA" => Some(16),
        "MB" | "SMBA" => Some(10),
        _ => None,
    }
}

impl Schemata {
    /// Parses the kernel's format. Unknown resources are skipped, as are those of a group that is being pseudo-locked.
    ///
    /// # Errors
    /// [`Error::Syntax`], with `path` as the file, if the text is invalid.
    pub fn parse(text: &str, path: &Path) -> Result<Schemata, Error> {
        let mut resources = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let wrong = |expected, found: &str| syntax(path, index, expected, found);
            if line.trim().is_empty() {
                continue;
            }
            let (name, values) = line
                .split_once(':')
                .ok_or_else(|| wrong("a resource and \":\"", line))?;
            let name = name.trim();
            let Some(radix) = radix(name) else { continue };
            if values.trim() == "uninitialized" {
                continue;
            }
            let mut by_cache = BTreeMap::new();
            for value in values.split(';').filter(|value| !value.trim().is_empty()) {
                let pair = value.split_once('=').and_then(|(id, value)| {
                    let value = number(value.trim(), radix)?;
                    Some((number(id.trim(), 10)?, value))
                });
                let (id, value) = pair.ok_or_else(|| wrong("cache=value", value))?;
                if by_cache.insert(id, value).is_some() {
                    return Err(wrong("each cache once", line));
                }
            }
            if resources.insert(name.to_owned(), by_cache).is_some() {
                return Err(wrong("each resource once", line));
            }
        }
        Ok(Schemata { resources })
    }

    /// Returns the text that the kernel accepts, for one write.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (name, values) in self.resources.iter().filter(|(_, v)| !v.is_empty()) {
            let values = values.iter().map(|(id, value)| match radix(name) {
                Some(10) => format!("{id}={value}"),
                _ => format!("{id}={value:x}"),
            });
            text += &format!("{name}:{}\n", values.collect::<Vec<_>>().join(";"));
        }
        text
    }

    /// Sets one value.
    pub(crate) fn set(&mut self, resource: &str, id: u32, value: u32) {
        let values = self.resources.entry(resource.to_owned()).or_default();
        values.insert(id, value);
    }

    /// One value.
    pub(crate) fn get(&self, resource: &str, id: u32) -> Option<u32> {
        self.resources.get(resource)?.get(&id).copied()
    }

    /// Returns the ways of the level's cache, of code and data together.
    pub(crate) fn ways(&self, level: &str, id: u32) -> u32 {
        let of_level = self.resources.iter().filter(|(name, _)| name.starts_with(level));
        of_level
            .filter_map(|(_, values)| values.get(&id))
            .fold(0, |all, value| all | value)
    }

    /// Returns the values of this allocation for the resources and caches that `other` contains.
    pub(crate) fn within(&self, other: &Schemata) -> Schemata {
        let mut both = self.clone();
        for (name, values) in &mut both.resources {
            values.retain(|id, _| other.get(name, *id).is_some());
        }
        both.resources.retain(|_, values| !values.is_empty());
        both
    }
}

/// Parses digits only, without a sign.
fn number(text: &str, radix: u32) -> Option<u32> {
    let digits = !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
    u32::from_str_radix(text, radix).ok().filter(|_| digits)
}

/// Returns a syntax error.
pub(crate) fn syntax(path: &Path, index: usize, expected: &'static str, found: &str) -> Error {
    Error::Syntax {
        path: path.to_owned(),
        line: index + 1,
        expected,
        found: found.chars().take(60).collect(),
    }
}

/// User of a cache way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// `0`: no user.
    Nobody,
    /// `H`: hardware, such as devices that write into the cache (DDIO). Programs may use the way as well.
    Hardware,
    /// `X`: hardware and programs.
    Both,
    /// `S`: programs.
    Programs,
    /// `E`: one group exclusively.
    Exclusive,
    /// `P`: pseudo-locked.
    Locked,
}

/// Parses `bit_usage`: for each cache, the user of each way, the lowest way first.
///
/// # Errors
/// [`Error::Syntax`], with `path` as the file, if the text is invalid.
pub fn parse_bit_usage(text: &str, path: &Path) -> Result<BTreeMap<u32, Vec<Use>>, Error> {
    let wrong = |expected, found: &str| syntax(path, 0, expected, found);
    let mut caches = BTreeMap::new();
    for part in text.trim().split(';').filter(|part| !part.is_empty()) {
        let pair = part
            .split_once('=')
            .and_then(|(id, ways)| Some((number(id.trim(), 10)?, ways)));
        let (id, ways) = pair.ok_or_else(|| wrong("cache=ways", part))?;
        let uses = ways.trim().chars().rev().map(|way| match way {
            '0' => Some(Use::Nobody),
            'H' => Some(Use::Hardware),
            'X' => Some(Use::Both),
            'S' => Some(Use::Programs),
            'E' => Some(Use::Exclusive),
            'P' => Some(Use::Locked),
            _ => None,
        });
        let uses: Option<Vec<Use>> = uses.collect();
        let uses = uses.filter(|uses| (1..=32).contains(&uses.len()));
        let uses = uses.ok_or_else(|| wrong("up to 32 of 0, H, X, S, E and P", ways))?;
        if caches.insert(id, uses).is_some() {
            return Err(wrong("each cache once", part));
        }
    }
    Ok(caches)
}

/// Parses a list of cores such as `0-3,8`.
pub(crate) fn parse_cores(text: &str, path: &Path) -> Result<Vec<u32>, Error> {
    let wrong = |found: &str| syntax(path, 0, "cores such as 0-3,8", found);
    let mut cores = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = number(first, 10).zip(number(last, 10)).ok_or_else(|| wrong(part))?;
        if first > last || (last - first) as usize + cores.len() >= MOST {
            return Err(wrong(part));
        }
        cores.extend(first..=last);
    }
    Ok(cores)
}

/// Parses a list of task numbers, one per line.
pub(crate) fn parse_tasks(text: &str, path: &Path) -> Result<Vec<i32>, Error> {
    let lines = text.lines().enumerate();
    lines
        .map(|(index, line)| {
            let task = number(line.trim(), 10).and_then(|task| i32::try_from(task).ok());
            task.ok_or_else(|| syntax(path, index, "a task's number", line))
        })
        .collect()
}

/// Parses one number.
pub(crate) fn parse_number(text: &str, radix: u32, path: &Path) -> Result<u32, Error> {
    let expected = match radix {
        16 => "a hexadecimal number",
        _ => "a number",
    };
    number(text.trim(), radix).ok_or_else(|| syntax(path, 0, expected, text.trim()))
}

#[cfg(test)]
mod tests;
