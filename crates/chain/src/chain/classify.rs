//! Classification of packets in front of the first function.

use super::Chain;
use super::input::unfit_verdict;
use crate::batch::{Batch, Packet, Verdict};
use tailwater_net::parse::{Fragment, Network, parse, parse_ordinary};

impl Chain {
    /// Parses each packet's headers, and sorts out the packets that must not reach the functions.
    #[inline]
    pub(super) fn classify(&mut self, batch: &mut Batch) {
        let mut unfit = false;
        batch.for_each(|packet, frame| {
            if !parse_ordinary(frame, &mut packet.headers) {
                unfit |= self.classify_other(packet, frame);
            }
        });
        if unfit {
            batch.compact(|_, _| {});
        }
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
