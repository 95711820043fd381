use proptest::prelude::*;

use super::*;

/// RFC 1071 §4.1, word by word: reference implementation.
fn oracle(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += (word[0] as u32) << 8 | *word.get(1).unwrap_or(&0) as u32;
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn example_of_rfc_1071() {
    let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(sum(&data), 0xddf2);
    assert_eq!(sum(&[]), 0);
    assert_eq!(sum(&[0xff; 65_535]), oracle(&[0xff; 65_535]));
}

#[test]
fn example_of_rfc_1624() {
    // RFC 1624 §4: checksum 0xdd2f, a field changes from 0x5555 to 0x3285. The new checksum is 0x0000, not 0xffff as in
    // RFC 1141.
    assert_eq!(ChecksumDelta::u16(0x5555, 0x3285).apply(0xdd2f), 0x0000);
}

#[test]
fn udp_zero_is_no_checksum() {
    let delta = ChecksumDelta::u16(0x5555, 0x3285);
    assert_eq!(delta.apply_udp(0xdd2f), 0xffff);
    assert_eq!(delta.apply_udp(0), 0);
    // 0xffff stands for a computed zero.
    assert_eq!(delta.apply_udp(0xffff), delta.apply(0));
}

/// Checks that updating the checksum of `data` for a change at `offset` equals recomputing it.
fn check(data: &[u8], offset: usize, new: &[u8], delta: ChecksumDelta) -> Result<(), TestCaseError> {
    let mut changed = data.to_vec();
    changed[offset..offset + new.len()].copy_from_slice(new);
    let (before, after) = (!oracle(data), !oracle(&changed));
    prop_assert_eq!(delta.inverse().apply(delta.apply(before)), before);
    prop_assert_eq!(delta.apply(before), after);
    prop_assert_eq!(delta.apply_udp(udp_field(before)), udp_field(after));
    Ok(())
}

/// Random words, biased towards the extremes of ones' complement.
fn word() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), Just(0xffff), Just(1), Just(0xfffe), any::<u16>()]
}

fn words(count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(word(), count).prop_map(|words| words.iter().flat_map(|word| word.to_be_bytes()).collect())
}

proptest! {
    #[test]
    fn sum_equals_the_definition(data in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(sum(&data), oracle(&data));
    }

    #[test]
    fn incremental_equals_recomputed(
        data in words(9..40),
        new in words(8),
        index in any::<prop::sample::Index>(),
    ) {
        // Data that is all zeros has two checksums: RFC 1624 §3.
        let mut data = data;
        let last = data.len() - 1;
        data[last] |= 1;
        let offset = index.index((last + 1 - 18) / 2 + 1) * 2;
        let (old16, new16) = (bytes::u16_at(&data, offset), bytes::u16_at(&new, 0));
        check(&data, offset, &new[..2], ChecksumDelta::u16(old16, new16))?;
        let (old32, new32) = (bytes::u32_at(&data, offset), bytes::u32_at(&new, 0));
        check(&data, offset, &new[..4], ChecksumDelta::u32(old32, new32))?;
        check(&data, offset, &new[..4], ChecksumDelta::ipv4(old32.into(), new32.into()))?;
        let both = ChecksumDelta::u16(old16, new16)
            .and(ChecksumDelta::u16(bytes::u16_at(&data, offset + 2), bytes::u16_at(&new, 2)));
        check(&data, offset, &new[..4], both)?;
        let old128: [u8; 16] = bytes::array(&data, offset);
        let new128: [u8; 16] = bytes::array(&new, 0);
        check(&data, offset, &new, ChecksumDelta::ipv6(old128.into(), new128.into()))?;
    }

    #[test]
    fn pseudo_headers_equal_their_bytes(
        source in any::<u128>(),
        destination in any::<u128>(),
        protocol in any::<u8>(),
        segment in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let (s4, d4) = (Ipv4Addr::from(source as u32), Ipv4Addr::from(destination as u32));
        let length = segment.len() as u16;
        let mut bytes = [&s4.octets()[..], &d4.octets(), &[0, protocol], &length.to_be_bytes()].concat();
        bytes.extend(&segment);
        prop_assert_eq!(transport_v4(s4, d4, protocol, &segment), !oracle(&bytes));

        let (s6, d6) = (Ipv6Addr::from(source), Ipv6Addr::from(destination));
        let length = segment.len() as u32;
        let mut bytes = [&s6.octets()[..], &d6.octets(), &length.to_be_bytes(), &[0, 0, 0, protocol]].concat();
        bytes.extend(&segment);
        prop_assert_eq!(transport_v6(s6, d6, protocol, &segment), !oracle(&bytes));
    }
}

/// The update without branches is that of RFC 1624 for TCP, and keeps RFC 768's zero for UDP, for every field.
#[test]
fn a_transport_checksum_is_updated_by_its_protocol() {
    for delta in [0, 1, 0x00ff, 0x7fff, 0x8000, 0xfffe, 0xffff].map(ChecksumDelta::from_bits) {
        for field in 0..=u16::MAX {
            let new = !fold(u64::from(!field) + u64::from(delta.to_bits()));
            assert_eq!(delta.apply(field), new);
            assert_eq!(delta.apply_transport(field, false), new);
            let udp = match (field, new) {
                (0, _) => 0,
                (_, 0) => 0xffff,
                _ => new,
            };
            assert_eq!(delta.apply_transport(field, true), udp);
            assert_eq!(delta.apply_udp(field), udp);
        }
    }
}
