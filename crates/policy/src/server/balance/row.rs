//! Rows of a switch's table: a destination prefix, and where that is too coarse, the first bits of a flow's hash.
//!
//! Both are one string of bits, the address followed by the hash. A prefix of that string is what a row matches.

use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bits of the flow hash that a row can match: shares of a sixteenth.
const HASH_BITS: u8 = 4;
/// Bits of IPv6 addresses that are steered by, as in tables of switches. Hosts behind them are told apart by hash.
const V6_BITS: u8 = 64;
/// Bits of an RSS bucket's number.
const BUCKET_BITS: u32 = 9;

/// Smallest set of flows that a row can match: a destination (64 bits of an IPv6 address) and a share of the hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowClass(u128);

impl FlowClass {
    /// Returns the class of the flows to `destination` with this RSS bucket, a number below 512. Neighbouring buckets,
    /// which go to different cores, are in the same class.
    pub fn new(destination: IpAddr, bucket: u16) -> FlowClass {
        let hash = u128::from(bucket) >> (BUCKET_BITS - u32::from(HASH_BITS));
        let hash = hash & ((1 << HASH_BITS) - 1);
        // Bit 127: the family. Then the address, then the hash.
        FlowClass(match destination {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 95 | hash << 91,
            IpAddr::V6(address) => 1 << 127 | (address.to_bits() >> 64) << 63 | hash << 59,
        })
    }

    /// Returns the class of a flow where rows match the lowest four bits of the source address in place of those of a
    /// hash, as the rules of a switch do.
    pub fn by_source(source: IpAddr, destination: IpAddr) -> FlowClass {
        let last = match source {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(address) => address.octets()[15],
        };
        FlowClass::by_source_bits(last, destination)
    }

    /// Same with the lowest four bits of `bits`.
    pub fn by_source_bits(bits: u8, destination: IpAddr) -> FlowClass {
        let bits = u16::from(bits) & ((1 << HASH_BITS) - 1);
        FlowClass::new(destination, bits << (BUCKET_BITS - u32::from(HASH_BITS)))
    }

    /// Returns the destination address; of an IPv6 address the first 64 bits.
    pub fn destination(self) -> IpAddr {
        match self.is_v6() {
            false => IpAddr::V4(Ipv4Addr::from_bits((self.0 >> 95) as u32)),
            true => IpAddr::V6(Ipv6Addr::from_bits((self.0 >> 63 & u128::from(u64::MAX)) << 64)),
        }
    }

    /// Returns the first four bits of the hash.
    pub const fn hash(self) -> u8 {
        let below = if self.is_v6() { 59 } else { 91 };
        (self.0 >> below) as u8 & ((1 << HASH_BITS) - 1)
    }

    const fn is_v6(self) -> bool {
        self.0 >> 127 != 0
    }

    /// Returns the length of a row that matches a prefix of `v4` or `v6` bits of the destination.
    pub(super) const fn length_of(self, v4: u8, v6: u8) -> u8 {
        match (self.is_v6(), v6 < V6_BITS) {
            (false, _) => 1 + v4,
            (true, true) => 1 + v6,
            (true, false) => 1 + V6_BITS,
        }
    }

    /// Returns the length of the longest row that matches the class, with `hashes` if rows can match hashes.
    pub(super) const fn longest(self, hashes: bool) -> u8 {
        self.length_of(32, V6_BITS) + if hashes { HASH_BITS } else { 0 }
    }

    /// Returns the number of leading bits that two classes have in common.
    pub(super) const fn common(self, other: FlowClass) -> u8 {
        (self.0 ^ other.0).leading_zeros() as u8
    }
}

/// Match of a row of the switch's table. Of all rows that match a flow, the longest applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowMatch {
    bits: u128,
    length: u8,
}

impl RowMatch {
    /// Default row, which matches everything.
    pub const DEFAULT: RowMatch = RowMatch { bits: 0, length: 0 };

    /// Returns the row that matches a destination prefix, and of its flows those whose hash begins with the lowest
    /// `count` bits of `bits`. Returns `None` if no row can match that: prefixes of IPv6 have 64 bits at most, there
    /// are four bits of a hash, and only single destinations are divided by hash.
    ///
    /// ```
    /// use tailwater_policy::server::RowMatch;
    /// let row = RowMatch::new("10.0.0.1/32".parse().unwrap(), (0b01, 2)).unwrap();
    /// assert_eq!(row.to_string(), "10.0.0.1/32 hash 0b01");
    /// assert_eq!(row.destination(), Some("10.0.0.1/32".parse().unwrap()));
    /// assert_eq!(row.hash(), (0b01, 2));
    /// ```
    pub fn new(destination: IpNet, (bits, count): (u8, u8)) -> Option<RowMatch> {
        if count > HASH_BITS || u32::from(bits) >> count != 0 {
            return None;
        }
        let hash = u16::from(bits) << (HASH_BITS - count);
        let class = FlowClass::new(destination.network(), hash << (BUCKET_BITS - u32::from(HASH_BITS)));
        let length = class.length_of(destination.prefix_len(), destination.prefix_len());
        let is_whole = length == class.longest(false);
        let fits = length == 1 + destination.prefix_len() && (count == 0 || is_whole);
        fits.then(|| RowMatch::of(class, length + count))
    }

    /// Returns the destination prefix, or `None` for the default row.
    pub fn destination(self) -> Option<IpNet> {
        let class = FlowClass(self.bits);
        let bits = self.length.min(class.longest(false)).checked_sub(1)?;
        let address = match class.is_v6() {
            false => IpAddr::V4(Ipv4Addr::from_bits((self.bits >> 95) as u32)),
            true => IpAddr::V6(Ipv6Addr::from_bits((self.bits >> 63 & u128::from(u64::MAX)) << 64)),
        };
        // The hash's bits are below the address.
        IpNet::new(address, bits).ok().map(|prefix| prefix.trunc())
    }

    /// Returns the first bits of the hash that it matches, and their number, 0 to 4.
    pub fn hash(self) -> (u8, u8) {
        let longest = FlowClass(self.bits).longest(false);
        match self.length.checked_sub(longest) {
            None | Some(0) => (0, 0),
            Some(count) => ((self.bits >> (128 - self.length) & ((1 << count) - 1)) as u8, count),
        }
    }

    /// Returns the row that matches the first `length` bits of a class.
    pub(super) const fn of(class: FlowClass, length: u8) -> RowMatch {
        let mask = match length {
            0 => 0,
            length => u128::MAX << (128 - length),
        };
        RowMatch {
            bits: class.0 & mask,
            length,
        }
    }

    /// Returns the first class that it matches.
    pub(super) const fn first_class(self) -> FlowClass {
        FlowClass(self.bits)
    }

    /// Returns the number of bits that it matches.
    pub(super) const fn length(self) -> u8 {
        self.length
    }

    /// Returns `true` if it matches a class.
    pub fn matches(self, class: FlowClass) -> bool {
        RowMatch::of(class, self.length) == self
    }

    /// Returns `true` if it matches everything that `other` matches.
    pub(super) fn covers(self, other: RowMatch) -> bool {
        self.length <= other.length && self.matches(FlowClass(other.bits))
    }

    /// Returns `true` if it matches a part of the flows to one destination.
    pub fn is_by_hash(self) -> bool {
        self.length > FlowClass(self.bits).longest(false)
    }
}

impl fmt::Display for RowMatch {
    /// Writes `any`, a prefix, or a prefix with the first bits of the hash: `10.0.0.1/32 hash 0b01`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.length == 0 {
            return f.write_str("any");
        }
        if let Some(destination) = self.destination() {
            write!(f, "{destination}")?;
        }
        if !self.is_by_hash() {
            return Ok(());
        }
        let (hash, count) = self.hash();
        write!(f, " hash 0b{hash:0width$b}", width = usize::from(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(destination: &str, bucket: u16) -> FlowClass {
        FlowClass::new(destination.parse().unwrap(), bucket)
    }

    #[test]
    fn a_row_matches_a_prefix_and_then_a_share_of_the_hashes() {
        let one = class("10.1.2.3", 511);
        for (length, text) in [
            (0, "any"),
            (1, "0.0.0.0/0"),
            (9, "10.0.0.0/8"),
            (33, "10.1.2.3/32"),
            (35, "10.1.2.3/32 hash 0b11"),
            (37, "10.1.2.3/32 hash 0b1111"),
        ] {
            let row = RowMatch::of(one, length);
            assert_eq!(row.to_string(), text);
            assert!(row.matches(one));
            assert_eq!(row.is_by_hash(), length > 33, "{text}");
            assert!(RowMatch::DEFAULT.covers(row) && row.covers(row));
        }
        assert!(!RowMatch::of(one, 35).matches(class("10.1.2.3", 0)));
        assert!(RowMatch::of(one, 33).matches(class("10.1.2.3", 0)));
        assert!(!RowMatch::of(one, 1).matches(class("::", 511)));
        let six = class("2001:db8:0:7::1", 32);
        assert_eq!(RowMatch::of(six, 65).to_string(), "2001:db8:0:7::/64");
        assert_eq!(RowMatch::of(six, 69).to_string(), "2001:db8:0:7::/64 hash 0b0001");
        assert_eq!((six.longest(false), six.longest(true)), (65, 69));
        assert_eq!((six.length_of(24, 48), six.length_of(24, 128)), (49, 65));
        for length in [0, 1, 20, 33, 34, 37] {
            let row = RowMatch::of(one, length);
            let again = row.destination().map(|prefix| RowMatch::new(prefix, row.hash()));
            assert_eq!(again.unwrap_or(Some(RowMatch::DEFAULT)), Some(row));
        }
        let row = RowMatch::of(six, 69);
        assert_eq!(RowMatch::new(row.destination().unwrap(), row.hash()), Some(row));
        for (prefix, hash) in [
            ("::/65", (0, 0)),
            ("10.0.0.0/31", (1, 1)),
            ("10.0.0.0/32", (2, 1)),
            ("10.0.0.0/32", (0, 5)),
        ] {
            assert_eq!(RowMatch::new(prefix.parse().unwrap(), hash), None, "{prefix}");
        }
        assert_eq!((one.destination(), one.hash()), ("10.1.2.3".parse().unwrap(), 15));
        assert_eq!((six.destination(), six.hash()), ("2001:db8:0:7::".parse().unwrap(), 1));
        // Neighbouring buckets are one class, and others' classes differ in the hash only.
        assert_eq!(class("10.1.2.3", 0), class("10.1.2.3", 31));
        assert_eq!(class("10.1.2.3", 0).common(class("10.1.2.3", 32)), 36);
        assert_eq!(class("10.1.2.2", 0).common(class("10.1.2.3", 0)), 32);
    }
}
