//! Machine on which a profile was measured.

use super::values::MAX_TEXT;
use crate::cache::Caches;
use std::fmt;

/// Properties that determine a chain's speed, as far as the kernel reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Maximum clock, MHz; 0 if unknown.
    pub megahertz: u32,
    /// Size of the last-level cache, KiB; 0 if unknown.
    pub cache_kibibytes: u32,
    /// Number of its ways; 0 if unknown.
    pub cache_ways: u32,
    /// Size of the private cache in front of it, KiB.
    pub private_kibibytes: u32,
}

/// Tolerated relative difference of clocks: not every kernel reports the maximum.
const CLOCKS: f64 = 0.05;

impl Machine {
    /// Reads this machine's properties for the core `core`.
    pub fn of(core: usize) -> Machine {
        let caches = Caches::of(core).unwrap_or_default();
        let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
        let cpus = read("/proc/cpuinfo".to_owned());
        let highest = read(format!("/sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq"));
        let kibibytes = |bytes: u64| u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
        let mut processor = crate::identity::processor(&cpus).to_owned();
        processor.retain(|c| !c.is_control());
        let end = (0..=processor.len().min(MAX_TEXT)).rev();
        let end = end.into_iter().find(|end| processor.is_char_boundary(*end));
        processor.truncate(end.unwrap_or(0));
        Machine {
            processor,
            megahertz: highest
                .trim()
                .parse::<u32>()
                .map_or_else(|_| clock(&cpus), |kilohertz| kilohertz / 1000),
            cache_kibibytes: kibibytes(caches.last_bytes),
            cache_ways: caches.last_ways,
            private_kibibytes: kibibytes(caches.private_bytes),
        }
    }

    /// Converts nanoseconds to cycles at the maximum clock; `None` if that is unknown.
    pub fn cycles(&self, nanoseconds: f64) -> Option<f64> {
        let gigahertz = f64::from(self.megahertz) / 1e3;
        (self.megahertz > 0).then(|| (nanoseconds * gigahertz * 10.0).round() / 10.0)
    }

    /// Returns `true` if both machines are of the same kind: clocks within 5 %, all else equal.
    pub fn is(&self, other: &Machine) -> bool {
        self.differences(other).is_empty()
    }

    /// Returns the [fields](Self::FIELDS) that differ between the kinds of machines.
    pub fn differences(&self, other: &Machine) -> Vec<&'static str> {
        let fast = f64::from(self.megahertz.max(other.megahertz));
        let apart = f64::from(self.megahertz.abs_diff(other.megahertz));
        let differs = [
            self.processor != other.processor,
            apart > CLOCKS * fast,
            self.cache_kibibytes != other.cache_kibibytes,
            self.cache_ways != other.cache_ways,
            self.private_kibibytes != other.private_kibibytes,
        ];
        let fields = Machine::FIELDS.into_iter().zip(differs);
        fields.filter_map(|(field, differs)| differs.then_some(field)).collect()
    }

    /// Returns the value of a [field](Self::FIELDS), or `None` for another name.
    pub fn value(&self, field: &str) -> Option<String> {
        match field {
            "processor" => Some(format!("\"{}\"", self.processor)),
            "megahertz" => Some(self.megahertz.to_string()),
            "cacheKibibytes" => Some(self.cache_kibibytes.to_string()),
            "cacheWays" => Some(self.cache_ways.to_string()),
            "privateKibibytes" => Some(self.private_kibibytes.to_string()),
            _ => None,
        }
    }

    /// Returns a name as an RFC 1123 label, such as `amd-epyc-32mib`.
    pub fn label(&self) -> String {
        let mut label = String::new();
        for c in self.processor.to_ascii_lowercase().chars() {
            match c {
                'a'..='z' | '0'..='9' => label.push(c),
                _ if !label.is_empty() && !label.ends_with('-') => label.push('-'),
                _ => {}
            }
        }
        label.truncate(48);
        let name = match label.trim_end_matches('-') {
            "" => "machine",
            name => name,
        };
        format!("{name}-{}mib", self.cache_kibibytes.div_ceil(1024))
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} KiB of last-level cache in {} ways, {} MHz",
            self.processor, self.cache_kibibytes, self.cache_ways, self.megahertz
        )
    }
}

/// Returns the first core's clock from `/proc/cpuinfo`, MHz; 0 if absent.
fn clock(description: &str) -> u32 {
    let clock = description.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        (field.trim() == "cpu MHz").then_some(value.trim())
    });
    let clock = clock.and_then(|clock| clock.parse::<f64>().ok());
    clock.map_or(0, |clock| clock.round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_api::document::is_label;

    #[test]
    fn machines_are_told_apart() {
        let machine = Machine {
            processor: "AMD EPYC".to_owned(),
            megahertz: 2600,
            cache_kibibytes: 32_768,
            cache_ways: 16,
            private_kibibytes: 1024,
        };
        assert!(machine.is(&machine));
        let with = |change: fn(&mut Machine)| {
            let mut other = machine.clone();
            change(&mut other);
            assert_eq!(machine.is(&other), other.is(&machine));
            machine.is(&other)
        };
        assert!(with(|other| other.megahertz = 2500));
        assert!(!with(|other| other.megahertz = 2400));
        assert!(!with(|other| other.cache_ways = 12));
        assert!(!with(|other| other.cache_kibibytes = 65_536));
        assert!(!with(|other| other.processor.push('2')));
        assert_eq!(machine.label(), "amd-epyc-32mib");
        let mut other = machine.clone();
        (other.megahertz, other.cache_ways) = (2000, 8);
        assert_eq!(machine.differences(&other), ["megahertz", "cacheWays"]);
        let values = Machine::FIELDS.map(|field| other.value(field));
        let values: Vec<String> = values.into_iter().flatten().collect();
        assert_eq!(values, ["\"AMD EPYC\"", "2000", "32768", "8", "1024"]);
    }

    #[test]
    fn a_label_is_one_whatever_the_processor_is_called() {
        for processor in ["", "-", "Intel(R) Xeon(R) @ 2.6GHz", "é", &"x-".repeat(100)] {
            let machine = Machine {
                processor: processor.to_owned(),
                ..Machine::default()
            };
            assert!(is_label(&machine.label()), "{}", machine.label());
        }
        assert_eq!(clock("processor: 0\ncpu MHz\t\t: 2596.118\n"), 2596);
        assert_eq!(clock("nothing"), 0);
        assert!(Machine::of(0).is(&Machine::of(0)));
    }
}
