//! Contents of a slot of the receive ring: the kernel's header in front of a frame (`struct tpacket2_hdr`).

use super::checksum;

/// Size of the header in bytes.
const HEADER: usize = size_of::<libc::tpacket2_hdr>();
/// Both MAC addresses, behind which a VLAN tag stands.
const ADDRESSES: usize = 12;
/// Type of tags whose type the kernel does not report.
const VLAN: u16 = 0x8100;

/// Frame in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'s> {
    bytes: &'s [u8],
    /// Outermost VLAN tag, which the kernel has taken out of the frame.
    tag: Option<[u8; 4]>,
    /// The sender left the transport checksum to a device.
    partial_checksum: bool,
}

impl<'s> Frame<'s> {
    /// Returns the frame in a slot. `None` if the kernel has truncated it, since it was longer than the slot, or if it
    /// does not lie within the slot.
    #[inline]
    pub(crate) fn of_slot(slot: &'s [u8]) -> Option<Frame<'s>> {
        let header: &[u8; HEADER] = slot.first_chunk()?;
        // Fields in the order of `struct tpacket2_hdr`.
        let [status, length, captured] = [0, 4, 8].map(|at| u32_at(header, at));
        let start = usize::from(u16_at(header, 12));
        let [tci, tpid] = [24, 26].map(|at| u16_at(header, at));
        if captured != length {
            return None;
        }
        let end = start.checked_add(captured as usize)?;
        let bytes = slot.get(start..end)?;
        let is_set = |flag: u32| status & flag != 0;
        let tag = is_set(libc::TP_STATUS_VLAN_VALID).then(|| {
            let kind = if is_set(libc::TP_STATUS_VLAN_TPID_VALID) {
                tpid
            } else {
                VLAN
            };
            let ([a, b], [c, d]) = (kind.to_be_bytes(), tci.to_be_bytes());
            [a, b, c, d]
        });
        // A tag has its place behind the addresses.
        (tag.is_none() || bytes.len() >= ADDRESSES).then_some(Frame {
            bytes,
            tag,
            partial_checksum: is_set(libc::TP_STATUS_CSUMNOTREADY),
        })
    }

    /// Length of the frame with its tag, in bytes.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.bytes.len() + self.tag.map_or(0, |tag| tag.len())
    }

    /// Copies the frame to the start of `room`, as it would have been on a wire: with its tag and checksum.
    ///
    /// # Panics
    /// If it is longer than `room`.
    #[inline]
    pub(crate) fn copy_to(&self, room: &mut [u8]) {
        let room = &mut room[..self.length()];
        match &self.tag {
            None => room.copy_from_slice(self.bytes),
            Some(tag) => {
                let (addresses, rest) = self.bytes.split_at(ADDRESSES);
                room[..ADDRESSES].copy_from_slice(addresses);
                room[ADDRESSES..ADDRESSES + tag.len()].copy_from_slice(tag);
                room[ADDRESSES + tag.len()..].copy_from_slice(rest);
            }
        }
        if self.partial_checksum {
            checksum::complete(room);
        }
    }
}

fn u32_at(header: &[u8; HEADER], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|i| header[at + i]))
}

fn u16_at(header: &[u8; HEADER], at: usize) -> u16 {
    u16::from_ne_bytes(std::array::from_fn(|i| header[at + i]))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::mem::offset_of;

    /// Slot with a frame, as the kernel fills it.
    pub(in super::super) fn slot(bytes: &[u8], status: u32, [tci, tpid]: [u16; 2], size: usize) -> Vec<u8> {
        let start = 66;
        let mut slot = vec![0; size];
        let captured = bytes.len().min(size - start);
        let mut put = |at: usize, field: &[u8]| slot[at..at + field.len()].copy_from_slice(field);
        put(
            offset_of!(libc::tpacket2_hdr, tp_status),
            &(status | libc::TP_STATUS_USER).to_ne_bytes(),
        );
        put(
            offset_of!(libc::tpacket2_hdr, tp_len),
            &(bytes.len() as u32).to_ne_bytes(),
        );
        put(
            offset_of!(libc::tpacket2_hdr, tp_snaplen),
            &(captured as u32).to_ne_bytes(),
        );
        put(offset_of!(libc::tpacket2_hdr, tp_mac), &(start as u16).to_ne_bytes());
        put(offset_of!(libc::tpacket2_hdr, tp_vlan_tci), &tci.to_ne_bytes());
        put(offset_of!(libc::tpacket2_hdr, tp_vlan_tpid), &tpid.to_ne_bytes());
        put(start, &bytes[..captured]);
        slot
    }

    fn copied(slot: &[u8]) -> Option<Vec<u8>> {
        let frame = Frame::of_slot(slot)?;
        let mut room = vec![0xaa; frame.length() + 8];
        frame.copy_to(&mut room);
        assert_eq!(room.split_off(frame.length()), [0xaa; 8]);
        Some(room)
    }

    #[test]
    fn a_frame_is_copied_with_the_tag_that_the_kernel_took_out() {
        let bytes: Vec<u8> = (0..60).collect();
        assert_eq!(copied(&slot(&bytes, 0, [7, 0x88a8], 256)), Some(bytes.clone()));
        let (valid, with_type) = (libc::TP_STATUS_VLAN_VALID, libc::TP_STATUS_VLAN_TPID_VALID);
        for (status, tag) in [(valid, [0x81, 0, 0x60, 7]), (valid | with_type, [0x88, 0xa8, 0x60, 7])] {
            let tagged = [&bytes[..12], &tag, &bytes[12..]].concat();
            assert_eq!(copied(&slot(&bytes, status, [0x6007, 0x88a8], 256)), Some(tagged));
        }
        // Too short for a tag behind the addresses.
        assert_eq!(copied(&slot(&bytes[..11], valid, [7, 0], 256)), None);
        assert_eq!(copied(&slot(&bytes[..11], 0, [7, 0], 256)), Some(bytes[..11].to_vec()));
    }

    #[test]
    fn a_truncated_frame_is_refused() {
        let bytes = [1; 200];
        assert_eq!(
            copied(&slot(&bytes[..190], 0, [0; 2], 256)),
            Some(bytes[..190].to_vec())
        );
        assert_eq!(copied(&slot(&bytes[..191], 0, [0; 2], 256)), None);
        assert_eq!(Frame::of_slot(&[0xff; HEADER - 1]), None);
    }

    proptest! {
        /// Whatever a slot contains, nothing beyond it is read.
        #[test]
        fn any_slot_is_read_within_its_bounds(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            fields in any::<[u16; 8]>(),
        ) {
            let mut slot = bytes;
            // Plausible values of the fields of a slot that is long enough.
            if let (Some(header), [status, length, start, ..]) = (slot.first_chunk_mut::<HEADER>(), fields) {
                header[..4].copy_from_slice(&u32::from(status).to_ne_bytes());
                header[4..8].copy_from_slice(&u32::from(length % 300).to_ne_bytes());
                header[8..12].copy_from_slice(&u32::from(length % 300).to_ne_bytes());
                header[12..14].copy_from_slice(&(start % 300).to_ne_bytes());
            }
            if let Some(frame) = Frame::of_slot(&slot) {
                let (slot, bytes) = (slot.as_ptr_range(), frame.bytes.as_ptr_range());
                prop_assert!(slot.start <= bytes.start && bytes.end <= slot.end);
                let mut room = vec![0; frame.length()];
                frame.copy_to(&mut room);
            }
        }

        #[test]
        fn any_slot_without_plausible_fields_is_read_within_its_bounds(
            slot in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let read = Frame::of_slot(&slot);
            prop_assert!(read.is_none_or(|frame| frame.bytes.len() <= slot.len()));
        }
    }
}
