//! Sizing of packet buffers to the part of the last-level cache that devices write to (DDIO).
//!
//! A NIC writes packets into that part. If the buffers of all its queues together do not fit, packets are evicted to
//! memory before a core reads them, and fetched again. This is the leaky DMA of ResQ (§4.4), which also slows down
//! other cores.

use std::fmt;
use std::fs;
use std::path::Path;
use tailwater_api::DdioSpec;

/// Ways of the last-level cache that Intel servers assign to DDIO by default.
const DDIO_WAYS: u32 = 2;

/// Size of a cache line in bytes.
const LINE: u64 = 64;

/// Last-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Size in bytes.
    pub bytes: u64,
    /// Number of ways.
    pub ways: u32,
    /// Ways that devices write to.
    pub ddio_ways: u32,
}

impl Cache {
    /// Last-level cache of the first core, from sysfs. `None` where the kernel does not report it.
    pub fn of_machine() -> Option<Cache> {
        Cache::read(Path::new("/sys/devices/system/cpu/cpu0/cache"))
    }

    /// Values of the spec, completed by this machine's.
    pub fn of_machine_or(ddio: &DdioSpec) -> Option<Cache> {
        Cache::with(Cache::of_machine(), ddio)
    }

    fn with(machine: Option<Cache>, ddio: &DdioSpec) -> Option<Cache> {
        let bytes = ddio.cache_bytes.or(machine.map(|cache| cache.bytes))?;
        let ways = ddio.cache_ways.or(machine.map(|cache| cache.ways))?;
        Some(Cache {
            bytes,
            ways,
            ddio_ways: ddio.ways.unwrap_or(DDIO_WAYS).min(ways),
        })
    }

    fn read(folder: &Path) -> Option<Cache> {
        let caches = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        let text = |cache: &Path, file: &str| {
            let text = fs::read_to_string(cache.join(file)).ok()?;
            Some(text.trim().to_owned())
        };
        let level = |cache: &Path| text(cache, "level")?.parse::<u32>().ok();
        let last = caches.max_by_key(|cache| level(cache))?;
        let size = text(&last, "size")?;
        let ways = text(&last, "ways_of_associativity")?.parse().ok()?;
        Some(Cache {
            bytes: size.strip_suffix('K')?.parse::<u64>().ok()? * 1024,
            ways,
            ddio_ways: DDIO_WAYS.min(ways),
        })
        .filter(|cache| cache.bytes > 0 && cache.ways > 0)
    }

    /// Size of the part that devices write to, in bytes.
    pub fn share(&self) -> u64 {
        self.bytes / u64::from(self.ways.max(1)) * u64::from(self.ddio_ways)
    }
}

/// Buffers held by device queues, compared with the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Queues of all ports, both directions.
    pub queues: u64,
    /// Descriptors per queue.
    pub descriptors: u64,
    /// Length of the longest frame in bytes.
    pub frame_bytes: u64,
    /// The cache.
    pub cache: Cache,
}

/// Minimum number of descriptors: bursts must fit.
const LEAST: u64 = 128;

impl Sizing {
    /// Largest number of descriptors that fits the share: a power of two, at least 128 and at most `most`.
    pub fn fit(queues: u64, most: u64, frame_bytes: u64, cache: Cache) -> Sizing {
        let mut sizing = Sizing {
            queues,
            descriptors: most,
            frame_bytes,
            cache,
        };
        while !sizing.fits() && sizing.descriptors > LEAST {
            sizing.descriptors = (sizing.descriptors.next_power_of_two() / 2).max(LEAST);
        }
        sizing
    }

    /// Cache lines of the longest frame.
    fn lines(&self) -> u64 {
        self.frame_bytes.div_ceil(LINE)
    }

    /// Bytes of all descriptors' frames, each of maximum length.
    pub fn bytes(&self) -> u64 {
        self.queues * self.descriptors * self.lines() * LINE
    }

    /// Returns `true` if the frames fit the share.
    pub fn fits(&self) -> bool {
        self.bytes() <= self.cache.share()
    }
}

impl fmt::Display for Sizing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "{} queues x {} descriptors x {} lines of 64 B (frames of {} B) = {:.1} MiB; \
             devices write to {} of {} ways of {:.1} MiB of cache = {:.1} MiB",
            self.queues,
            self.descriptors,
            self.lines(),
            self.frame_bytes,
            mib(self.bytes()),
            self.cache.ddio_ways,
            self.cache.ways,
            mib(self.cache.bytes),
            mib(self.cache.share()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cache of ResQ's machines.
    const CACHE: Cache = Cache {
        bytes: 30 << 20,
        ways: 20,
        ddio_ways: 2,
    };

    #[test]
    fn resqs_example_does_not_fit() {
        let sizing = Sizing {
            queues: 12,
            descriptors: 2048,
            frame_bytes: 1518,
            cache: CACHE,
        };
        assert_eq!((sizing.bytes() as f64 / f64::from(1 << 20)).round(), 36.0);
        assert!(!sizing.fits());
        assert_eq!(
            sizing.to_string(),
            "12 queues x 2048 descriptors x 24 lines of 64 B (frames of 1518 B) = 36.0 MiB; \
             devices write to 2 of 20 ways of 30.0 MiB of cache = 3.0 MiB"
        );
        let small = Sizing {
            frame_bytes: 64,
            ..sizing
        };
        assert!(small.fits());
    }

    #[test]
    fn descriptors_are_chosen_to_fit() {
        let chosen = |queues, most, frame| Sizing::fit(queues, most, frame, CACHE).descriptors;
        assert_eq!(chosen(1, 1024, 1518), 1024);
        assert_eq!(chosen(2, 1024, 1518), 1024);
        assert_eq!(chosen(4, 1024, 1518), 512);
        assert_eq!(chosen(4, 1000, 1518), 512);
        assert_eq!(chosen(100, 1024, 9018), 128);
    }

    #[test]
    fn a_spec_goes_before_the_machine() {
        let spec = DdioSpec {
            ways: Some(4),
            ..DdioSpec::default()
        };
        let cache = Cache::with(Some(CACHE), &spec).unwrap();
        assert_eq!((cache.ddio_ways, cache.share()), (4, 6 << 20));
        assert_eq!(Cache::with(Some(CACHE), &DdioSpec::default()), Some(CACHE));
        assert_eq!(Cache::with(None, &spec), None);
        let all = DdioSpec {
            cache_ways: Some(3),
            cache_bytes: Some(3 << 20),
            ..spec
        };
        let cache = Cache::with(None, &all).unwrap();
        assert_eq!((cache.ddio_ways, cache.share()), (3, 3 << 20));
    }

    #[test]
    fn the_kernel_tells_the_last_level() {
        let folder = std::env::temp_dir().join(format!("tailwater-cache-{}", std::process::id()));
        for (index, level, size) in [(0, 1, "32K"), (3, 3, "32768K"), (2, 2, "1024K")] {
            let cache = folder.join(format!("index{index}"));
            fs::create_dir_all(&cache).unwrap();
            fs::write(cache.join("level"), format!("{level}\n")).unwrap();
            fs::write(cache.join("size"), format!("{size}\n")).unwrap();
            fs::write(cache.join("ways_of_associativity"), "16\n").unwrap();
        }
        let cache = Cache::read(&folder).unwrap();
        assert_eq!((cache.bytes, cache.ways, cache.share()), (32 << 20, 16, 4 << 20));
        fs::write(folder.join("index3/size"), "much\n").unwrap();
        assert_eq!(Cache::read(&folder), None);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(Cache::read(&folder), None);
    }
}
