//! VLAN tags: 802.1Q and 802.1ad.

use crate::bytes;
use crate::malformed::Malformed;
use crate::protocol::ethertype;

/// Maximum number of VLAN tags of a frame: a service tag, a customer tag and one more.
pub const MAX_VLAN_TAGS: usize = 3;

/// Size of a tag in bytes.
pub const TAG: usize = 4;

/// VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// EtherType of the tag: 0x8100, 0x88a8 or 0x9100.
    pub ethertype: u16,
    /// Priority code point, 0 to 7.
    pub priority: u8,
    /// Drop eligible indicator.
    pub drop_eligible: bool,
    /// VLAN identifier, 0 to 4095; 0 means priority only.
    pub id: u16,
}

impl VlanTag {
    /// 802.1Q tag of priority zero. Only the low 12 bits of `id` are used.
    pub const fn customer(id: u16) -> Self {
        VlanTag {
            ethertype: ethertype::VLAN,
            priority: 0,
            drop_eligible: false,
            id: id & 0x0fff,
        }
    }

    /// 802.1ad service tag of priority zero. Only the low 12 bits of `id` are used.
    pub const fn service(id: u16) -> Self {
        VlanTag {
            ethertype: ethertype::QINQ,
            ..Self::customer(id)
        }
    }

    /// Returns the tag control information as on the wire.
    pub const fn control(&self) -> u16 {
        (self.priority as u16 & 7) << 13 | (self.drop_eligible as u16) << 12 | self.id & 0x0fff
    }
}

/// Returns the VLAN tags of a frame, outermost first: at most [`MAX_VLAN_TAGS`], and only complete ones.
///
/// ```
/// use tailwater_net::vlan::tags;
///
/// let frame = [&[0; 12][..], &[0x81, 0x00, 0x60, 0x2a, 0x08, 0x00]].concat();
/// let ids: Vec<u16> = tags(&frame).map(|tag| tag.id).collect();
/// assert_eq!(ids, [42]);
/// ```
pub fn tags(frame: &[u8]) -> impl Iterator<Item = VlanTag> + '_ {
    let (tags, _) = bytes::from(frame, 12).as_chunks::<TAG>();
    tags.iter()
        .take(MAX_VLAN_TAGS)
        .map(|&[kind_high, kind_low, high, low]| {
            let control = u16::from_be_bytes([high, low]);
            VlanTag {
                ethertype: u16::from_be_bytes([kind_high, kind_low]),
                priority: (control >> 13) as u8,
                drop_eligible: control & 0x1000 != 0,
                id: control & 0x0fff,
            }
        })
        .take_while(|tag| ethertype::is_vlan(tag.ethertype))
}

/// View of a VLAN tag; the bytes start after the tag's EtherType, with the tag control information, and reach to the
/// end of the frame.
#[derive(Clone, Copy, Debug)]
pub struct VlanView<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> VlanView<T> {
    /// Creates a view of a tag.
    ///
    /// # Errors
    /// [`Malformed::TruncatedEthernet`] if there are fewer than 4 bytes.
    pub fn new(bytes: T) -> Result<Self, Malformed> {
        if bytes.as_ref().len() < TAG {
            return Err(Malformed::TruncatedEthernet);
        }
        Ok(VlanView { bytes })
    }

    /// Priority code point, 0 to 7.
    pub fn priority(&self) -> u8 {
        bytes::u8_at(self.bytes.as_ref(), 0) >> 5
    }

    /// Drop eligible indicator.
    pub fn drop_eligible(&self) -> bool {
        bytes::u8_at(self.bytes.as_ref(), 0) & 0x10 != 0
    }

    /// VLAN identifier, 0 to 4095.
    pub fn id(&self) -> u16 {
        bytes::u16_at(self.bytes.as_ref(), 0) & 0x0fff
    }

    /// Returns the EtherType after the tag.
    pub fn ethertype(&self) -> u16 {
        bytes::u16_at(self.bytes.as_ref(), 2)
    }

    /// Returns the bytes after the tag.
    pub fn payload(&self) -> &[u8] {
        bytes::from(self.bytes.as_ref(), TAG)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> VlanView<T> {
    /// Sets the priority; only its low 3 bits are used.
    pub fn set_priority(&mut self, priority: u8) {
        bytes::put_bits(self.bytes.as_mut(), 0, 0xe0, priority << 5);
    }

    /// Sets the drop eligible indicator.
    pub fn set_drop_eligible(&mut self, eligible: bool) {
        bytes::put_bits(self.bytes.as_mut(), 0, 0x10, (eligible as u8) << 4);
    }

    /// Sets the VLAN identifier; only its low 12 bits are used.
    pub fn set_id(&mut self, id: u16) {
        let [high, low] = id.to_be_bytes();
        bytes::put_bits(self.bytes.as_mut(), 0, 0x0f, high);
        bytes::put_u8(self.bytes.as_mut(), 1, low);
    }

    /// Sets the EtherType after the tag.
    pub fn set_ethertype(&mut self, ethertype: u16) {
        bytes::put_u16(self.bytes.as_mut(), 2, ethertype);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let mut tag = [0xff; 5];
        let mut view = VlanView::new(&mut tag[..]).unwrap();
        view.set_priority(5);
        view.set_drop_eligible(false);
        view.set_id(0x123);
        view.set_ethertype(0x0800);
        assert_eq!((view.priority(), view.drop_eligible(), view.id()), (5, false, 0x123));
        assert_eq!((view.ethertype(), view.payload()), (0x0800, &[0xff][..]));
        assert_eq!(tag, [0xa1, 0x23, 0x08, 0x00, 0xff]);
        let tag = VlanTag {
            priority: 5,
            ..VlanTag::customer(0x123)
        };
        assert_eq!(tag.control(), 0xa123);
        assert!(VlanView::new([0; 3]).is_err());
    }

    #[test]
    fn tags_end_where_the_frame_does() {
        let mut frame = vec![0; 12];
        for id in 1..=5u8 {
            frame.extend([0x81, 0x00, 0x00, id]);
        }
        for (length, count) in [(0, 0), (12, 0), (15, 0), (16, 1), (19, 1), (20, 2), (24, 3), (32, 3)] {
            assert_eq!(tags(&frame[..length]).count(), count, "{length} bytes");
        }
        frame[16] = 0x08;
        assert_eq!(tags(&frame).collect::<Vec<_>>(), [VlanTag::customer(1)]);
    }
}
