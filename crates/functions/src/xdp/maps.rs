//! Maps of a program: their definitions, and a worker's values.

use super::hash_index::HashIndex;
use std::sync::Arc;

/// Maximum size of a worker's maps of one function in bytes.
pub const MAX_MAP_BYTES: u64 = 256 << 20;
/// Maximum number of maps of a program, sections of global variables included.
pub const MAX_MAPS: usize = 64;
/// Maximum size of a key in bytes.
pub(super) const MAX_KEY: usize = 64;
/// Maximum size of a value in bytes.
pub(super) const MAX_VALUE: u32 = 1 << 20;

/// Error numbers that helpers return, negated.
pub(super) mod errno {
    pub(in super::super) const NOENT: i64 = -2;
    pub(in super::super) const TOO_BIG: i64 = -7;
    pub(in super::super) const EXIST: i64 = -17;
    pub(in super::super) const INVALID: i64 = -22;
}

/// Kind of a map. Each worker has values of its own, so kinds "per CPU" do not differ from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Array, and array per CPU.
    Array,
    /// Hash table, and one per CPU.
    Hash,
    /// Hash table that evicts the least recently used entry, and one per CPU.
    LruHash,
    /// Global variables, of which the map is the only value.
    Globals {
        /// `true` if the program may not write them.
        read_only: bool,
    },
}

/// Definition of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// Name of the variable that defines it, or of the section of global variables.
    pub name: String,
    /// Its kind.
    pub kind: MapKind,
    /// Size of a key in bytes.
    pub key_size: u32,
    /// Size of a value in bytes.
    pub value_size: u32,
    /// Maximum number of entries.
    pub entries: u32,
    /// Initial value of global variables; empty if it is zero.
    pub initial: Arc<[u8]>,
}

/// Numbers of the kernel's kinds of maps: name and kind, if it is provided.
const KINDS: [(&str, Option<MapKind>); 32] = {
    const NO: Option<MapKind> = None;
    [
        ("unspecified", NO),
        ("hash", Some(MapKind::Hash)),
        ("array", Some(MapKind::Array)),
        ("prog_array", NO),
        ("perf_event_array", NO),
        ("percpu_hash", Some(MapKind::Hash)),
        ("percpu_array", Some(MapKind::Array)),
        ("stack_trace", NO),
        ("cgroup_array", NO),
        ("lru_hash", Some(MapKind::LruHash)),
        ("lru_percpu_hash", Some(MapKind::LruHash)),
        ("lpm_trie", NO),
        ("array_of_maps", NO),
        ("hash_of_maps", NO),
        ("devmap", NO),
        ("sockmap", NO),
        ("cpumap", NO),
        ("xskmap", NO),
        ("sockhash", NO),
        ("cgroup_storage", NO),
        ("reuseport_sockarray", NO),
        ("percpu_cgroup_storage", NO),
        ("queue", NO),
        ("stack", NO),
        ("sk_storage", NO),
        ("devmap_hash", NO),
        ("struct_ops", NO),
        ("ringbuf", NO),
        ("inode_storage", NO),
        ("task_storage", NO),
        ("bloom_filter", NO),
        ("user_ringbuf", NO),
    ]
};

/// Flags that make no difference here: no preallocation, one list of recent entries per CPU.
const HARMLESS_FLAGS: u32 = 0b11;

impl MapSpec {
    /// Definition of a map by the kernel's numbers: kind, sizes of key and value, entries, flags.
    ///
    /// # Errors
    /// The kind is not provided, or a number is out of range.
    pub(super) fn new(name: &str, [kind, key_size, value_size, entries, flags]: [u32; 5]) -> Result<MapSpec, String> {
        let known = KINDS.get(kind as usize);
        let Some(kind) = known.and_then(|(_, kind)| *kind) else {
            let found = known.map_or("unknown", |(name, _)| name);
            return Err(format!(
                "expected an array, hash or lru_hash, or one per CPU, found kind {kind} ({found})"
            ));
        };
        let is_array = kind == MapKind::Array;
        if (is_array && key_size != 4) || key_size == 0 || key_size as usize > MAX_KEY {
            let expected = if is_array {
                "of 4 bytes".to_owned()
            } else {
                format!("of 1 to {MAX_KEY} bytes")
            };
            return Err(format!("expected a key {expected}, found {key_size}"));
        }
        if value_size == 0 || value_size > MAX_VALUE {
            return Err(format!(
                "expected a value of 1 to {MAX_VALUE} bytes, found {value_size}"
            ));
        }
        if entries == 0 {
            return Err("expected at least one entry (max_entries)".to_owned());
        }
        if flags & !HARMLESS_FLAGS != 0 {
            return Err(format!("flags {flags:#x} are not supported"));
        }
        let spec = MapSpec {
            name: name.to_owned(),
            kind,
            key_size,
            value_size,
            entries,
            initial: [].into(),
        };
        let bytes = spec.bytes();
        match bytes <= MAX_MAP_BYTES && (u64::from(entries) << spec.shift()) <= 1 << 32 {
            true => Ok(spec),
            false => Err(format!(
                "expected at most {MAX_MAP_BYTES} bytes, found {entries} entries, {bytes} bytes"
            )),
        }
    }

    /// Global variables of a section: `size` bytes, which are zero where `initial` is empty.
    pub(super) fn globals(name: &str, read_only: bool, size: u32, initial: &[u8]) -> MapSpec {
        MapSpec {
            name: name.to_owned(),
            kind: MapKind::Globals { read_only },
            key_size: 4,
            value_size: size,
            entries: 1,
            initial: initial.into(),
        }
    }

    /// Returns `true` if the program can neither write nor remove values.
    pub(super) fn is_constant(&self) -> bool {
        self.kind == MapKind::Globals { read_only: true }
    }

    /// Memory of a worker's values in bytes.
    pub fn bytes(&self) -> u64 {
        let index = match self.kind {
            MapKind::Hash | MapKind::LruHash => u64::from(self.key_size) + HashIndex::BYTES_PER_ENTRY,
            MapKind::Array | MapKind::Globals { .. } => 0,
        };
        u64::from(self.entries) * (u64::from(self.value_size) + index)
    }

    /// Binary logarithm of the distance between the addresses of two values. It is a power of two, so that an address
    /// shows its value without a division; the values' memory is dense.
    fn shift(&self) -> u32 {
        self.value_size.next_power_of_two().trailing_zeros()
    }
}

/// A worker's values of a map.
#[derive(Debug)]
pub(super) struct MapData {
    pub(super) key_size: usize,
    pub(super) value_size: usize,
    shift: u32,
    is_read_only: bool,
    entries: u32,
    values: Box<[u8]>,
    index: Option<HashIndex>,
}

impl MapData {
    pub(super) fn new(spec: &MapSpec, seed: u64) -> MapData {
        let mut values = vec![0; spec.entries as usize * spec.value_size as usize].into_boxed_slice();
        if let Some(initial) = values.get_mut(..spec.initial.len()) {
            initial.copy_from_slice(&spec.initial);
        }
        let index = |evicts| HashIndex::new(spec.key_size as usize, spec.entries, evicts, seed);
        MapData {
            key_size: spec.key_size as usize,
            value_size: spec.value_size as usize,
            shift: spec.shift(),
            is_read_only: matches!(spec.kind, MapKind::Globals { read_only: true }),
            entries: spec.entries,
            values,
            index: match spec.kind {
                MapKind::Hash => Some(index(false)),
                MapKind::LruHash => Some(index(true)),
                MapKind::Array | MapKind::Globals { .. } => None,
            },
        }
    }

    /// Position in the values of `length` bytes at a relative address, which are within one value.
    #[inline]
    fn position(&self, address: u32, length: usize) -> Option<usize> {
        let index = (address >> self.shift) as usize;
        let offset = (address & ((1 << self.shift) - 1)) as usize;
        let is_inside = index < self.entries as usize && offset.checked_add(length)? <= self.value_size;
        is_inside.then(|| index * self.value_size + offset)
    }

    /// Bytes of a value at an address relative to the map's.
    #[inline]
    pub(super) fn bytes(&self, address: u32, length: usize) -> Option<&[u8]> {
        let start = self.position(address, length)?;
        self.values.get(start..start + length)
    }

    /// Same as [`bytes`](MapData::bytes), for writing.
    #[inline]
    pub(super) fn bytes_mut(&mut self, address: u32, length: usize) -> Option<&mut [u8]> {
        let start = self.position(address, length).filter(|_| !self.is_read_only)?;
        self.values.get_mut(start..start + length)
    }

    /// Relative address of the value of a key.
    #[inline]
    pub(super) fn find(&mut self, key: &[u8]) -> Option<u32> {
        let index = match &mut self.index {
            Some(index) => index.find(key)?,
            None => self.array_index(key)?,
        };
        Some(index << self.shift)
    }

    fn array_index(&self, key: &[u8]) -> Option<u32> {
        let index = u32::from_le_bytes(*key.first_chunk()?);
        (index < self.entries).then_some(index)
    }

    /// Sets the value of a key, as `bpf_map_update_elem` does. Returns 0 or an error number.
    pub(super) fn update(&mut self, key: &[u8], value: &[u8], flags: u64) -> i64 {
        const NO_EXIST: u64 = 1;
        const EXIST: u64 = 2;
        if flags > EXIST || self.is_read_only {
            return errno::INVALID;
        }
        let index = match &mut self.index {
            Some(index) => {
                let found = index.find(key);
                match (found, flags) {
                    (Some(_), NO_EXIST) => return errno::EXIST,
                    (None, EXIST) => return errno::NOENT,
                    (Some(found), _) => Some(found),
                    (None, _) => index.insert(key),
                }
            }
            None if flags == NO_EXIST => return errno::EXIST,
            None => self.array_index(key),
        };
        let Some(index) = index else {
            return errno::TOO_BIG;
        };
        let start = index as usize * self.value_size;
        if let Some(old) = self.values.get_mut(start..start + self.value_size) {
            old.copy_from_slice(value);
        }
        0
    }

    /// Removes a key, as `bpf_map_delete_elem` does. Returns 0 or an error number.
    pub(super) fn delete(&mut self, key: &[u8]) -> i64 {
        match &mut self.index {
            None => errno::INVALID,
            Some(index) => match index.remove(key) {
                true => 0,
                false => errno::NOENT,
            },
        }
    }

    /// Replaces the values of global variables that the program cannot write.
    pub(super) fn replace_constants(&mut self, spec: &MapSpec) {
        if self.is_read_only && self.values.len() == spec.initial.len() {
            self.values.copy_from_slice(&spec.initial);
        }
    }
}
