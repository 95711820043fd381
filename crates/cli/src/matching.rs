//! `spec.match`: filter of a chain's packets, applied before the trace NIC.

use crate::progress::Loading;
use tailwater_dataplane::shared_port::rules::ChainRules;
use tailwater_functions::spec::Match;
use tailwater_traffic::{Notice, Packet, PacketSource, TrafficError};

/// Source without the packets that the chain does not match.
pub struct Matching {
    source: Box<dyn PacketSource>,
    /// `None` if all packets match.
    rules: Option<ChainRules>,
    /// Copy of the last packet. A lent packet cannot be both inspected and returned from a loop.
    frame: Vec<u8>,
    loading: Loading,
    matched: u64,
    /// Packets excluded so far.
    pub not_matched: u64,
}

impl Matching {
    /// Filters a source by `wanted`.
    pub fn new(source: Box<dyn PacketSource>, wanted: &Match) -> Self {
        Matching {
            loading: Loading::new(source.name()),
            source,
            rules: (*wanted != Match::default()).then(|| ChainRules::new([(0, wanted)])),
            frame: Vec::new(),
            matched: 0,
            not_matched: 0,
        }
    }

    /// Returns the next packet's time and wire length; its bytes are in `frame`.
    fn advance(&mut self) -> Result<Option<(tailwater_net::Nanos, u32)>, TrafficError> {
        while let Some(packet) = self.source.next_packet()? {
            self.loading.tell(self.matched + self.not_matched);
            if self
                .rules
                .as_ref()
                .is_none_or(|rules| rules.chain_of(packet.data).is_some())
            {
                self.matched += 1;
                self.frame.clear();
                self.frame.extend_from_slice(packet.data);
                return Ok(Some((packet.timestamp, packet.wire_length)));
            }
            self.not_matched += 1;
        }
        Ok(None)
    }
}

impl PacketSource for Matching {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        Ok(self.advance()?.map(|(timestamp, wire_length)| Packet {
            timestamp,
            data: &self.frame,
            wire_length,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        self.source.notices()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}
