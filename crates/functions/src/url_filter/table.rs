//! Compiled patterns: hosts by hash, label by label from the right; paths by binary search; texts by an Aho-Corasick
//! automaton.
//!
//! A host is looked up once per request, so nothing scans payload. A lookup costs a hash of the host's bytes and about
//! one cache miss per label, independent of the number of patterns.

use super::pattern::Pattern;
use aho_corasick::AhoCorasick;
use std::collections::BTreeMap;
use std::ops::Range;
use tailwater_streams::http::host::Host;

/// Reasons a filter cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The patterns need too much memory.
    #[error("the patterns require too much memory: {0}")]
    Patterns(String),
    /// There is not enough memory for stream buffers.
    #[error("not enough memory for {streams} streams ({error}): lower streams or bufferBytes")]
    Buffers {
        /// Streams requested.
        streams: usize,
        /// Error of the operating system.
        error: String,
    },
}

/// Compiled patterns of a filter, shared by its workers.
#[derive(Debug)]
pub struct UrlTable {
    /// Hash table of indices into `hosts`, plus 1. Its size is a power of two; it is at most half full.
    slots: Box<[u32]>,
    hosts: Box<[HostEntry]>,
    groups: Box<[Group]>,
    /// Path prefixes: sorted within each group, none a prefix of another.
    paths: Box<[Span]>,
    /// Path prefixes for any host.
    any_host: Range<u32>,
    texts: Option<AhoCorasick>,
    /// Bytes the spans refer to.
    bytes: Box<[u8]>,
}

/// Range of [`UrlTable::bytes`].
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    length: u32,
}

#[derive(Debug)]
struct HostEntry {
    name: Span,
    /// Sorted by exactness and port.
    groups: Range<u32>,
}

/// Patterns of a host with the same exactness and port.
#[derive(Debug)]
struct Group {
    exact: bool,
    /// Port; 0 for any.
    port: u16,
    /// `true` if every path matches.
    whole: bool,
    paths: Range<u32>,
}

/// Patterns in table order: by name, then by exactness and port; each with a flag for the whole host, and the paths of
/// the other patterns.
type Sorted<'a> = BTreeMap<&'a [u8], BTreeMap<(bool, u16), (bool, Vec<&'a [u8]>)>>;

impl UrlTable {
    /// Compiles patterns.
    ///
    /// # Errors
    /// There are too many patterns for 32-bit offsets, or too much text.
    pub fn new(patterns: &[Pattern]) -> Result<UrlTable, TableError> {
        let mut sorted = Sorted::new();
        let mut any_host = Vec::new();
        let mut texts = Vec::new();
        for pattern in patterns {
            match pattern {
                Pattern::Host {
                    name,
                    exact,
                    port,
                    path,
                } => {
                    let groups = sorted.entry(name).or_default();
                    let group = groups.entry((*exact, port.unwrap_or(0))).or_default();
                    match path {
                        None => group.0 = true,
                        Some(path) => group.1.push(path),
                    }
                }
                Pattern::Path(path) => any_host.push(&**path),
                Pattern::Text(text) => texts.push(&**text),
            }
        }
        let mut filler = Filler::default();
        let any_host = filler.prefixes(any_host)?;
        for (name, groups) in sorted {
            let first = filler.groups.len() as u32;
            for ((exact, port), (whole, paths)) in groups {
                let paths = filler.prefixes(if whole { Vec::new() } else { paths })?;
                filler.groups.push(Group {
                    exact,
                    port,
                    whole,
                    paths,
                });
            }
            let name = filler.span(name)?;
            let groups = first..filler.groups.len() as u32;
            filler.hosts.push(HostEntry { name, groups });
        }
        let texts = (!texts.is_empty())
            .then(|| AhoCorasick::builder().ascii_case_insensitive(true).build(texts))
            .transpose()
            .map_err(|error| TableError::Patterns(error.to_string()))?;
        Ok(UrlTable {
            slots: slots(&filler.hosts, &filler.bytes),
            hosts: filler.hosts.into(),
            groups: filler.groups.into(),
            paths: filler.paths.into(),
            any_host,
            texts,
            bytes: filler.bytes.into(),
        })
    }

    /// Returns the bytes of memory used.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slots)
            + size_of_val(&*self.hosts)
            + size_of_val(&*self.groups)
            + size_of_val(&*self.paths)
            + self.bytes.len()
            + self.texts.as_ref().map_or(0, AhoCorasick::memory_usage)
    }

    fn text(&self, span: Span) -> &[u8] {
        &self.bytes[span.start as usize..][..span.length as usize]
    }

    /// Returns `true` if a normalised path is blocked on every host.
    pub(crate) fn blocks_path(&self, path: &[u8]) -> bool {
        self.any_prefix(&self.any_host, path) || self.texts.as_ref().is_some_and(|texts| texts.is_match(path))
    }

    /// Returns `true` if a host is blocked. `path` is a request's normalised path, `None` where none is visible.
    /// `ports` are the ports a pattern may name. `joined` is a buffer for host and path together; it never grows beyond
    /// its capacity.
    pub(crate) fn blocks(&self, host: &Host, ports: [u16; 2], path: Option<&[u8]>, joined: &mut Vec<u8>) -> bool {
        if self.blocks_host(host.name(), ports, path) {
            return true;
        }
        let Some(texts) = &self.texts else {
            return false;
        };
        joined.clear();
        joined.extend_from_slice(host.name());
        let path = path.unwrap_or_default();
        joined.extend_from_slice(&path[..path.len().min(joined.capacity() - joined.len())]);
        texts.is_match(&*joined)
    }

    fn blocks_host(&self, name: &[u8], ports: [u16; 2], path: Option<&[u8]>) -> bool {
        if self.hosts.is_empty() {
            return false;
        }
        let mut hash = SEED;
        for (at, &byte) in name.iter().enumerate().rev() {
            hash = mix(hash, byte);
            if at > 0 && name[at - 1] != b'.' {
                continue;
            }
            if let Some(entry) = self.host(hash, &name[at..])
                && self.entry_blocks(entry, at > 0, ports, path)
            {
                return true;
            }
        }
        false
    }

    fn host(&self, hash: u64, name: &[u8]) -> Option<&HostEntry> {
        let mask = self.slots.len() - 1;
        let mut slot = finish(hash) & mask;
        loop {
            let entry = &self.hosts[self.slots[slot].checked_sub(1)? as usize];
            if self.text(entry.name) == name {
                return Some(entry);
            }
            slot = (slot + 1) & mask;
        }
    }

    fn entry_blocks(&self, entry: &HostEntry, is_subdomain: bool, ports: [u16; 2], path: Option<&[u8]>) -> bool {
        let groups = &self.groups[entry.groups.start as usize..entry.groups.end as usize];
        let blocks = |exact: bool, port: u16| {
            let found = groups.binary_search_by_key(&(exact, port), |group| (group.exact, group.port));
            found.is_ok_and(|place| {
                let group = &groups[place];
                group.whole || path.is_some_and(|path| self.any_prefix(&group.paths, path))
            })
        };
        [0, ports[0], ports[1]]
            .into_iter()
            .any(|port| blocks(false, port) || (!is_subdomain && blocks(true, port)))
    }

    /// Returns `true` if one of `prefixes` is a prefix of `path`. None is a prefix of another, so only the last one not
    /// greater than `path` can match.
    fn any_prefix(&self, prefixes: &Range<u32>, path: &[u8]) -> bool {
        let prefixes = &self.paths[prefixes.start as usize..prefixes.end as usize];
        let beyond = prefixes.partition_point(|&prefix| self.text(prefix) <= path);
        beyond > 0 && path.starts_with(self.text(prefixes[beyond - 1]))
    }
}

const SEED: u64 = 0x243f_6a88_85a3_08d3;

/// Adds a byte to a host's hash; bytes are added from last to first.
#[inline]
fn mix(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Takes the upper bits, which are a product's best mixed ones.
#[inline]
fn finish(hash: u64) -> usize {
    (hash >> 32 ^ hash >> 17) as usize
}

fn slots(hosts: &[HostEntry], bytes: &[u8]) -> Box<[u32]> {
    let mut slots = vec![0u32; (2 * hosts.len()).next_power_of_two()].into_boxed_slice();
    let mask = slots.len() - 1;
    for (place, host) in hosts.iter().enumerate() {
        let name = &bytes[host.name.start as usize..][..host.name.length as usize];
        let mut slot = finish(name.iter().rev().fold(SEED, |hash, &b| mix(hash, b))) & mask;
        while slots[slot] != 0 {
            slot = (slot + 1) & mask;
        }
        slots[slot] = place as u32 + 1;
    }
    slots
}

#[derive(Default)]
struct Filler {
    hosts: Vec<HostEntry>,
    groups: Vec<Group>,
    paths: Vec<Span>,
    bytes: Vec<u8>,
}

impl Filler {
    fn span(&mut self, text: &[u8]) -> Result<Span, TableError> {
        let too_much = |_| TableError::Patterns("more than 4 GiB of text".to_owned());
        let start = u32::try_from(self.bytes.len()).map_err(too_much)?;
        u32::try_from(self.bytes.len() + text.len()).map_err(too_much)?;
        self.bytes.extend_from_slice(text);
        Ok(Span {
            start,
            length: text.len() as u32,
        })
    }

    /// Adds path prefixes, sorted, without those another one covers.
    fn prefixes(&mut self, mut prefixes: Vec<&[u8]>) -> Result<Range<u32>, TableError> {
        prefixes.sort_unstable();
        let start = self.paths.len() as u32;
        let mut last: Option<&[u8]> = None;
        for prefix in prefixes {
            if last.is_none_or(|last| !prefix.starts_with(last)) {
                let span = self.span(prefix)?;
                self.paths.push(span);
                last = Some(prefix);
            }
        }
        Ok(start..self.paths.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(patterns: &[&str]) -> UrlTable {
        let patterns: Vec<_> = patterns.iter().map(|text| Pattern::parse(text).unwrap()).collect();
        UrlTable::new(&patterns).unwrap()
    }

    fn blocks(table: &UrlTable, host: &str, ports: [u16; 2], path: Option<&str>) -> bool {
        let host = Host::new(host.as_bytes()).unwrap();
        let path = path.map(str::as_bytes);
        table.blocks(&host, ports, path, &mut Vec::with_capacity(4096))
            || path.is_some_and(|path| table.blocks_path(path))
    }

    #[test]
    fn hosts_ports_paths_and_texts() {
        let table = table(&[
            "a.example",
            "=b.example",
            "c.example:8080",
            "d.example/x",
            "=d.example/only",
            "/evil",
            "*Needle*",
            "d.example/xy/z",
        ]);
        for (host, ports, path, expected) in [
            ("a.example", [80, 80], Some("/"), true),
            ("A.Example.", [443, 443], None, true),
            ("www.a.example", [80, 80], None, true),
            ("wwwa.example", [80, 80], None, false),
            ("b.example", [80, 80], None, true),
            ("w.b.example", [80, 80], None, false),
            ("c.example", [80, 80], None, false),
            ("c.example", [80, 8080], None, true),
            ("d.example", [80, 80], Some("/xyz"), true),
            ("d.example", [80, 80], Some("/only"), true),
            ("w.d.example", [80, 80], Some("/only"), false),
            ("w.d.example", [80, 80], Some("/x"), true),
            ("d.example", [80, 80], Some("/w"), false),
            ("d.example", [80, 80], None, false),
            ("e.example", [80, 80], Some("/evil/1"), true),
            ("e.example", [80, 80], Some("/ev"), false),
            ("e.example", [80, 80], Some("/?q=NEEDLE"), true),
            ("needle.example", [443, 443], None, true),
            ("", [80, 80], Some("/"), false),
        ] {
            assert_eq!(blocks(&table, host, ports, path), expected, "{host} {path:?}");
        }
        assert!(!blocks(&UrlTable::new(&[]).unwrap(), "a", [1, 2], Some("/")));
    }

    proptest! {
        /// Compares lookups with a scan of all patterns.
        #[test]
        fn as_a_scan_finds(
            patterns in prop::collection::vec("=?([ab]\\.){0,2}[ab](:8[01])?(/[ab]{0,3})?", 1..12),
            host in "([ab]\\.){0,3}[ab]",
            path in "/[ab]{0,4}",
            port in 80u16..82,
        ) {
            let parsed: Vec<_> = patterns.iter().map(|text| Pattern::parse(text).unwrap()).collect();
            let expected = parsed.iter().any(|pattern| match pattern {
                Pattern::Host { name, exact, port: wanted, path: prefix } => {
                    let name = std::str::from_utf8(name).unwrap();
                    let prefix = prefix.as_deref().unwrap_or_default();
                    (host == name || (!exact && host.ends_with(&format!(".{name}"))))
                        && wanted.is_none_or(|wanted| wanted == port)
                        && path.as_bytes().starts_with(prefix)
                }
                _ => unreachable!(),
            });
            let table = UrlTable::new(&parsed).unwrap();
            prop_assert_eq!(blocks(&table, &host, [port, port], Some(&path)), expected);
        }
    }
}
