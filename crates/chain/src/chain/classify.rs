//! Classification of packets in front of the first function.

use super::Chain;
use super::input::unfit_verdict;
use crate::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_net::parse::{
    Fragment, Headers, Network, guess_v4, is_plain, is_tagged_v4, parse, parse_common, parse_ordinary,
};

/// Packets are a mixture if more than one in this number is not plain TCP or UDP over IPv4. About then, the branches
/// mispredicted on the way for plain packets cost as much as the longer way without them.
const MIXTURE: i32 = 8;
/// Bound of the record of recent packets: eight full batches of plain packets end a mixture, two of others begin one.
const MEMORY: i32 = 256;

// A packet's index in its batch is a byte.
const _: () = assert!(MAX_BATCH <= 256);

impl Chain {
    /// Parses each packet's headers, and sorts out the packets that must not reach the functions.
    #[inline]
    pub(super) fn classify(&mut self, batch: &mut Batch) {
        let packets = batch.len() as i32;
        let (unfit, others) = match self.mixture > 0 {
            false => self.classify_plain(batch),
            true => self.classify_mixture(batch),
        };
        self.mixture = (self.mixture + MIXTURE * others - packets).clamp(-MEMORY, MEMORY);
        if unfit {
            batch.compact(|_, _| {});
        }
    }

    /// Parses packets of which most are plain. Returns `true` if functions cannot process some, and the number of
    /// packets that are not plain.
    #[inline]
    fn classify_plain(&mut self, batch: &mut Batch) -> (bool, i32) {
        let (mut unfit, mut others) = (false, 0);
        batch.for_each(|packet, frame| {
            if !parse_ordinary(frame, &mut packet.headers) {
                unfit |= self.classify_other(packet, frame);
                others += 1;
            }
        });
        (unfit, others)
    }

    /// Same as [`classify_plain`](Chain::classify_plain), where it cannot be predicted which packets are plain: in two
    /// passes. The first parses IPv4 with or without a VLAN tag and collects the other packets without a branch, the
    /// second parses those.
    #[inline(never)]
    fn classify_mixture(&mut self, batch: &mut Batch) -> (bool, i32) {
        let mut rest = [0_u8; MAX_BATCH];
        let (mut packets, mut left, mut others) = (0_usize, 0_usize, 0);
        batch.for_each(|packet, frame| {
            let found = guess_v4(frame, &mut packet.headers);
            // Always below: a batch has at most as many packets as the list.
            rest[left % MAX_BATCH] = packets as u8;
            packets += 1;
            left += usize::from(!found);
            others += i32::from(found & is_tagged_v4(&packet.headers));
        });
        let mut unfit = false;
        for i in &rest[..left] {
            let (packet, frame) = batch.packet_mut(usize::from(*i));
            match parse_common(frame) {
                Some(headers) => {
                    packet.headers = headers;
                    others += i32::from(!is_plain(&headers));
                }
                None => {
                    packet.headers = Headers::default();
                    unfit |= self.classify_other(packet, frame);
                    others += 1;
                }
            }
        }
        (unfit, others)
    }

    /// Parses a packet that is not an ordinary one. Returns `true` if functions cannot process it.
    #[inline(never)]
    fn classify_other(&mut self, packet: &mut Packet, frame: &[u8]) -> bool {
        match parse(frame) {
            Ok(headers) if headers.network == Network::NotIp => {
                self.non_ip += 1;
                packet.headers = headers;
                packet.verdict = unfit_verdict(self.input.non_ip);
                if packet.verdict == Verdict::Bypass {
                    self.show_non_ip(packet, frame);
                }
                true
            }
            Ok(headers) => {
                packet.headers = headers;
                if headers.fragment != Fragment::Whole {
                    packet.headers.key = headers.key.of_fragment();
                }
                false
            }
            Err(reason) => {
                self.malformed[reason.index()] += 1;
                packet.verdict = unfit_verdict(self.input.malformed);
                true
            }
        }
    }

    /// Passes a packet that is not IP to the functions that inspect such packets, up to one that drops it.
    fn show_non_ip(&mut self, packet: &mut Packet, frame: &[u8]) {
        for stage in &mut self.stages {
            if let Verdict::Drop(reason) = stage.function.inspect_non_ip(packet, frame) {
                packet.verdict = Verdict::Drop(reason);
                self.lost += stage.count_drop(reason);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
