//! Tests of two ends with a bad link between them, and reference implementations of both.

mod chains;
mod codec;
mod damage;
mod oracle;
mod sampling;

use super::decoder::{Decoder, Lost, Missing};
use super::encoder::{Encoder, Outbound};
use super::header::{self, Content, Message, Request};
use super::{Fingerprints, LEAST_CACHE, MAX_CONTENT, Sampling};
use std::sync::Arc;
use tailwater_chain::shared_counters::SharedCounters;

const PERIOD_32: Fingerprints = Fingerprints {
    sampling: Sampling::SampleByte,
    period: 32,
};

/// Random number generator with reproducible output (SplitMix64).
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    /// Returns content with much repetition: pieces of a few files, and some new bytes.
    pub(super) fn content(&mut self, files: &[Vec<u8>], length: usize) -> Vec<u8> {
        let mut content = Vec::with_capacity(length);
        while content.len() < length {
            let most = (length - content.len()).min(1 + self.below(600));
            if self.below(4) == 0 {
                content.extend(self.bytes(most));
            } else {
                let file = &files[self.below(files.len())];
                let from = self.below(file.len());
                content.extend(&file[from..(from + most).min(file.len())]);
            }
        }
        content
    }

    pub(super) fn files(&mut self) -> Vec<Vec<u8>> {
        (0..6).map(|_| self.bytes(4000)).collect()
    }
}

/// Encoder with its shared state.
pub(super) struct Near {
    pub(super) encoder: Encoder,
    pub(super) outbound: Arc<Outbound>,
    epochs: u32,
}

impl Near {
    pub(super) fn new(cache: u64, fingerprints: Fingerprints, epoch: u32) -> Near {
        let outbound = Arc::new(Outbound::new(cache, &SharedCounters::of_this_process()).unwrap());
        let mut encoder = Encoder::new(Arc::clone(&outbound), fingerprints);
        assert!(encoder.refresh());
        encoder.begin(epoch);
        assert!(!encoder.refresh());
        Near {
            encoder,
            outbound,
            epochs: epoch,
        }
    }

    pub(super) fn encode(&mut self, content: &[u8]) -> Vec<u8> {
        if self.encoder.refresh() {
            self.epochs += 1;
            self.encoder.begin(self.epochs);
            assert!(!self.encoder.refresh());
        }
        let planned = self.encoder.plan(content, 0);
        let mut out = vec![0xee; planned];
        assert_eq!(self.encoder.write(content, &mut out), Some(planned));
        assert!(planned <= header::HEADER + content.len());
        out
    }

    /// Applies a request as the function does.
    pub(super) fn apply_request(&self, request: &[u8]) -> bool {
        self.outbound.apply_request(&request_in(request))
    }
}

/// Decoder with its scratch buffer.
pub(super) struct Far {
    pub(super) decoder: Decoder,
    missing: Missing,
    out: Vec<u8>,
}

impl Far {
    pub(super) fn new(cache: u64) -> Far {
        Far {
            decoder: Decoder::new(cache, &SharedCounters::of_this_process()).unwrap(),
            missing: Missing::new(),
            out: vec![0; MAX_CONTENT],
        }
    }

    /// Returns the restored content, or the reason and the request made in its place.
    pub(super) fn decode(&mut self, sent: &[u8]) -> Result<Vec<u8>, (Lost, Vec<u8>)> {
        let content = content_in(sent);
        let restored = self.decoder.restore(&content, &mut self.out, &mut self.missing);
        if let Err(lost) = restored {
            let epoch = content.epoch;
            let numbers = [epoch, self.decoder.since(epoch), self.decoder.lines()];
            let mut request = vec![0; sent.len() + header::ENTRY];
            let ranges = self.missing.ranges();
            let reset = lost == Lost::Damaged;
            let length = header::write_request(&mut request, numbers, reset, ranges).unwrap();
            request.truncate(length);
            return Err((lost, request));
        }
        Ok(self.out[..content.length.into()].to_vec())
    }
}

pub(super) fn content_in(bytes: &[u8]) -> Content<'_> {
    match header::parse(bytes) {
        Ok(Message::Content(content)) => content,
        other => panic!("expected content, found {other:?}"),
    }
}

pub(super) fn request_in(bytes: &[u8]) -> Request<'_> {
    match header::parse(bytes) {
        Ok(Message::Request(request)) => request,
        other => panic!("expected a request, found {other:?}"),
    }
}
