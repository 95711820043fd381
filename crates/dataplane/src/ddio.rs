//! How many packet buffers stay in the cache: the part of the last-level cache that devices write to.
//!
//! A NIC's packets are written into the last-level cache, but only into a few of its ways (Intel's DDIO). If
//! the buffers that its descriptors name in turn are more than fit there, each packet that comes pushes out
//! one that was not yet read, to memory: it is written there, and fetched again. That is *leaky DMA*, and no
//! cache partition helps against it (ResQ, section 4.4). So the buffers of all queues together are to fit.

use crate::cores::parse_kernel_list;
use std::fmt;
use std::fs;
use std::path::Path;

/// Ways that processors give to devices unless they are told otherwise.
pub const USUAL_WAYS: u32 = 2;

/// A last-level cache, and the devices' part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCache {
    /// Bytes of the whole cache.
    pub bytes: u64,
    /// Its ways.
    pub ways: u32,
    /// Those that devices write to.
    pub device_ways: u32,
    /// Bytes in a cache line.
    pub line: u32,
}

impl DeviceCache {
    /// The cache of the machine's first processor, of which devices have the [usual](USUAL_WAYS) share.
    /// `None` if the kernel does not tell.
    pub fn of_machine() -> Option<DeviceCache> {
        DeviceCache::read(Path::new("/sys/devices/system/cpu/cpu0/cache"))
    }

    /// The outermost cache of those in a folder as the kernel shows them.
    fn read(folder: &Path) -> Option<DeviceCache> {
        let caches = fs::read_dir(folder).ok()?.flatten();
        let caches = caches.filter_map(|cache| {
            let read = |name| fs::read_to_string(cache.path().join(name)).ok();
            let number = |name| read(name)?.trim().parse::<u32>().ok();
            // Shared by some processors: one that is nobody's is no cache of ours.
            parse_kernel_list(&read("shared_cpu_list")?).filter(|cpus| !cpus.is_empty())?;
            let kib: u64 = read("size")?.trim().strip_suffix('K')?.parse().ok()?;
            let ways = number("ways_of_associativity").filter(|ways| *ways > 0)?;
            Some((
                number("level")?,
                DeviceCache {
                    bytes: kib.checked_mul(1024)?,
                    ways,
                    device_ways: USUAL_WAYS.min(ways),
                    line: number("coherency_line_size").filter(|line| *line > 0)?,
                },
            ))
        });
        caches
            .max_by_key(|(level, _)| *level)
            .map(|(_, cache)| cache)
    }

    /// Bytes of the devices' part.
    pub fn device_bytes(&self) -> u64 {
        self.bytes / u64::from(self.ways.max(1)) * u64::from(self.device_ways)
    }

    /// Bytes that a packet of so many takes there: its lines, and one for its descriptor.
    pub fn packet_bytes(&self, frame: u32) -> u64 {
        (u64::from(frame.div_ceil(self.line.max(1))) + 1) * u64::from(self.line)
    }

    /// How many packets of so many bytes fit.
    pub fn packets(&self, frame: u32) -> u64 {
        self.device_bytes() / self.packet_bytes(frame).max(1)
    }

    /// Whether `queues` rings of `ring` descriptors fit, with packets of `frame` bytes.
    pub fn sizing(&self, queues: u32, ring: u32, frame: u32) -> Sizing {
        Sizing {
            cache: *self,
            queues,
            ring,
            frame,
        }
    }
}

/// Buffers that are wanted, and those that fit. Shown, it is the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    cache: DeviceCache,
    queues: u32,
    ring: u32,
    frame: u32,
}

impl Sizing {
    /// Buffers that all rings name together.
    pub fn buffers(&self) -> u64 {
        u64::from(self.queues) * u64::from(self.ring)
    }

    /// Whether they fit.
    pub fn fits(&self) -> bool {
        self.buffers() <= self.cache.packets(self.frame)
    }

    /// The longest rings, a power of two as devices want them, with which they would fit; `None` if
    /// not even rings of one do.
    pub fn fitting_ring(&self) -> Option<u32> {
        let each = self.cache.packets(self.frame) / u64::from(self.queues.max(1));
        let each = u32::try_from(each).unwrap_or(1 << 31);
        each.checked_ilog2().map(|bits| 1 << bits)
    }
}

impl fmt::Display for Sizing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: f64 = (1 << 20) as f64;
        let Sizing {
            cache,
            queues,
            ring,
            frame,
        } = self;
        let needed = self.buffers() * cache.packet_bytes(*frame);
        write!(
            f,
            "{queues} x {ring} buffers x {} B (frames of {frame} B) = {:.1} MiB; devices have {} of {} \
             ways of {:.1} MiB = {:.1} MiB, room for {}",
            cache.packet_bytes(*frame),
            needed as f64 / MIB,
            cache.device_ways,
            cache.ways,
            cache.bytes as f64 / MIB,
            cache.device_bytes() as f64 / MIB,
            cache.packets(*frame)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The processor of ResQ's example: 45 MiB, of which devices have a tenth.
    const XEON: DeviceCache = DeviceCache {
        bytes: 45 << 20,
        ways: 20,
        device_ways: 2,
        line: 64,
    };

    /// 12 queues of 2,048: 3 MB of 64-byte packets, 37.5 MB of 1,518-byte ones.
    #[test]
    fn the_papers_example_comes_out() {
        let needed = |frame| XEON.sizing(12, 2048, frame).buffers() * XEON.packet_bytes(frame);
        assert_eq!(needed(64), 3 << 20);
        assert_eq!(needed(1518), 75 << 19);
        assert!(XEON.sizing(12, 2048, 64).fits());
        let long = XEON.sizing(12, 2048, 1518);
        assert!(!long.fits());
        assert_eq!(long.fitting_ring(), Some(128));
        assert!(XEON.sizing(12, 128, 1518).fits() && !XEON.sizing(12, 256, 1518).fits());
        let shown = long.to_string();
        let expected = "12 x 2048 buffers x 1600 B (frames of 1518 B) = 37.5 MiB; devices have 2 of 20 ways \
                        of 45.0 MiB = 4.5 MiB, room for 2949";
        assert_eq!(shown, expected);
    }

    #[test]
    fn no_ring_fits_where_devices_have_nothing() {
        let none = DeviceCache {
            device_ways: 0,
            ..XEON
        };
        let sizing = none.sizing(1, 64, 64);
        assert_eq!((sizing.fits(), sizing.fitting_ring()), (false, None));
    }

    #[test]
    fn the_outermost_cache_is_taken() {
        let folder = std::env::temp_dir().join(format!("tailwater-ddio-{}", std::process::id()));
        let cache = |name: &str, files: [(&str, &str); 5]| {
            let folder = folder.join(name);
            fs::create_dir_all(&folder).unwrap();
            files
                .iter()
                .for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
        };
        let files = |level, size, ways| {
            [
                ("level", level),
                ("size", size),
                ("ways_of_associativity", ways),
                ("coherency_line_size", "64\n"),
                ("shared_cpu_list", "0-3\n"),
            ]
        };
        cache("index0", files("1\n", "48K\n", "12\n"));
        cache("index3", files("3\n", "46080K\n", "20\n"));
        // Fully associative caches show no ways.
        cache("index4", files("4\n", "131072K\n", "0\n"));
        let found = DeviceCache::read(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, Some(XEON));
        assert_eq!(DeviceCache::read(&folder), None);
    }
}
