//! Client for companion flows, which the worker opens on request.

use rustix::thread::sched_yield;
use std::cell::Cell;
use std::sync::Arc;
use tailwater_chain::flow_table::{Companions, NoCompanion};
use tailwater_net::FlowKey;
use tailwater_sdk::program::YIELDS;
use tailwater_sdk::protocol::layout::{
    CompanionRefusal, CompanionRequest, CompanionRequestKind, CompanionResponse, ResponseArea,
};

/// Requests companions from the worker.
#[derive(Debug)]
pub(super) struct CompanionClient {
    response_area: Arc<ResponseArea>,
    /// Number of the last request.
    number: Cell<u64>,
}

impl CompanionClient {
    pub(super) fn new(slate: Arc<ResponseArea>) -> CompanionClient {
        CompanionClient {
            response_area: slate,
            number: Cell::new(0),
        }
    }

    /// Sends the worker a request and waits for its response.
    fn request(&self, kind: CompanionRequestKind, at: u16, key: &FlowKey, rss_hash: u32) -> CompanionResponse {
        let number = self.number.get() + 1;
        self.number.set(number);
        self.response_area.set_companion_request(&CompanionRequest {
            number,
            kind,
            at,
            rss_hash,
            key: *key,
        });
        let mut waited = 0;
        loop {
            if let Some(answer) = self.response_area.companion_response(number) {
                return answer;
            }
            if waited < YIELDS {
                waited += 1;
                sched_yield();
            } else {
                waited = 0;
                self.response_area
                    .sleep(|| self.response_area.companion_response(number).is_some());
            }
        }
    }
}

impl Companions for CompanionClient {
    fn open(&mut self, at: u16, key: &FlowKey, rss_hash: u32) -> Result<(u32, u64), NoCompanion> {
        opened(self.request(CompanionRequestKind::Open, at, key, rss_hash))
    }

    fn rejoin(&mut self, at: u16, key: &FlowKey, rss_hash: u32) -> Result<(u32, u64), NoCompanion> {
        opened(self.request(CompanionRequestKind::Rejoin, at, key, rss_hash))
    }

    fn is_free(&self, key: &FlowKey, bucket: u16) -> bool {
        // The bucket is the lowest bits of the hash.
        self.request(CompanionRequestKind::Free, 0, key, bucket.into()).is_ok()
    }
}

/// Returns the reason as it is sent in a response.
pub(crate) fn refusal_of(reason: NoCompanion) -> CompanionRefusal {
    match reason {
        NoCompanion::Taken => CompanionRefusal::Taken,
        NoCompanion::OtherBucket => CompanionRefusal::OtherBucket,
        NoCompanion::HasOne => CompanionRefusal::HasOne,
        NoCompanion::TableFull => CompanionRefusal::TableFull,
    }
}

/// Returns a response as slot and generation of the companion.
fn opened(response: CompanionResponse) -> Result<(u32, u64), NoCompanion> {
    match response {
        Ok(companion) => Ok((companion.flow, companion.generation)),
        Err(CompanionRefusal::Taken) => Err(NoCompanion::Taken),
        Err(CompanionRefusal::OtherBucket) => Err(NoCompanion::OtherBucket),
        Err(CompanionRefusal::HasOne) => Err(NoCompanion::HasOne),
        Err(CompanionRefusal::TableFull) => Err(NoCompanion::TableFull),
    }
}
