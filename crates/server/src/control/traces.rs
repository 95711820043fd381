//! Streams of traced packets.

use super::generated as message;
use super::streams::{self, Stream};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tailwater_chain::packet_traces::{PacketFilter, TraceRole, TraceStep, TraceStream, TracedFunction};
use tailwater_net::Nanos;
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

/// Most packets of a trace.
const MOST_PACKETS: u32 = 10_000;
/// Longest trace.
const LONGEST: Duration = Duration::from_secs(3600);
/// Time between two looks for steps.
const PERIOD: Duration = Duration::from_millis(20);
/// A trace whose packets have all come ends once there has been no step for this time.
const REST: Duration = Duration::from_millis(200);

/// Filter and number of packets of a request.
///
/// # Errors
/// One of them is wrong.
pub(super) fn checked(request: &message::TracePacketsRequest) -> Result<PacketFilter, Status> {
    if !(1..=MOST_PACKETS).contains(&request.packets) {
        let message = format!("packets: expected 1 to {MOST_PACKETS}, found {}", request.packets);
        return Err(Status::invalid_argument(message));
    }
    let filter = PacketFilter::parse(&request.filter);
    filter.map_err(|error| Status::invalid_argument(format!("filter: {error}")))
}

/// Returns the steps of a trace until it is over, its time is, or the client is gone.
pub(super) fn stream(trace: TraceStream, longest: Nanos, permit: OwnedSemaphorePermit) -> Stream<message::TraceUpdate> {
    let (sender, receiver) = streams::channel_of_updates();
    let end = Instant::now() + Duration::from_nanos(longest.0).min(LONGEST);
    tokio::spawn(async move {
        let mut numbers = Numbers::default();
        let mut latest = Instant::now();
        while Instant::now() < end && !sender.is_closed() {
            while let Some(step) = trace.next_step() {
                latest = Instant::now();
                let functions = trace.traces().functions();
                let step = of_step(numbers.of(&step), &step, functions);
                let update = message::trace_update::Update::Step(step);
                if sender
                    .send(Ok(message::TraceUpdate { update: Some(update) }))
                    .await
                    .is_err()
                {
                    return;
                }
            }
            if trace.left() == 0 && latest.elapsed() > REST {
                break;
            }
            tokio::time::sleep(PERIOD).await;
        }
        let end = message::TraceEnd {
            missing: trace.left(),
            lost: trace.lost(),
        };
        let update = Some(message::trace_update::Update::End(end));
        let _ = sender.send(Ok(message::TraceUpdate { update })).await;
        drop(permit);
    });
    receiver
}

/// Numbers of packets, in the order of their first steps. A step in front of the chain begins a new packet, even in a
/// buffer and with an arrival that an earlier one had.
#[derive(Default)]
struct Numbers {
    last: u32,
    known: HashMap<(u16, u32, Nanos), u32>,
}

impl Numbers {
    fn of(&mut self, step: &TraceStep) -> u32 {
        if let (Some(number), Some(_)) = (self.known.get(&step.packet), step.function) {
            return *number;
        }
        self.last += 1;
        self.known.insert(step.packet, self.last);
        self.last
    }
}

fn of_step(number: u32, step: &TraceStep, functions: &[TracedFunction]) -> message::TracedStep {
    let function = step.function.map(|function| functions.get(usize::from(function)));
    let reason = |reason: u8| {
        let reasons = function.flatten().map_or(&[][..], |function| &function.reasons);
        reasons
            .get(usize::from(reason))
            .map_or("other", String::as_str)
            .to_owned()
    };
    let key = &step.key;
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    message::TracedStep {
        packet: number,
        function: function.map(|function| function.map_or_else(String::new, |function| function.name.clone())),
        core: step.core,
        arrival_nanos: step.packet.2.0,
        began_nanos: step.times[0].0,
        ended_nanos: step.times[1].0,
        batch: step.batch.into(),
        dropped: step.dropped.map(reason),
        source: bytes(key.source()),
        destination: bytes(key.destination()),
        source_port: key.source_port().into(),
        destination_port: key.destination_port().into(),
        protocol: key.protocol().into(),
        opens_flow: step.flow.is_new,
        length: step.length.into(),
        frame: step.captured().to_vec(),
        explanation: step.explanation.as_str().to_owned(),
        flow_entry: step.flow.index,
        reversed: step.flow.is_reversed,
        bucket: step.flow.bucket.into(),
        role: match step.role {
            TraceRole::Dedicated => message::TraceRole::Dedicated,
            TraceRole::Auxiliary => message::TraceRole::Auxiliary,
            TraceRole::Leased => message::TraceRole::Leased,
        }
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_chain::packet_traces::{CAPTURED, TracedFlow};
    use tailwater_net::FlowKey;

    fn step(packet: (u16, u32, Nanos), function: Option<u16>) -> TraceStep {
        TraceStep {
            packet,
            function,
            core: 0,
            role: TraceRole::Dedicated,
            times: [Nanos::ZERO; 2],
            batch: 1,
            dropped: None,
            key: FlowKey::default(),
            flow: TracedFlow::default(),
            explanation: Default::default(),
            length: 0,
            frame: [0; CAPTURED],
        }
    }

    #[test]
    fn packets_of_two_pools_with_equal_buffers_and_arrivals_are_two() {
        let mut numbers = Numbers::default();
        let (one, other) = ((0, 7, Nanos(5)), (1, 7, Nanos(5)));
        let steps = [
            (one, None),
            (other, None),
            (one, Some(0)),
            (other, Some(0)),
            // The buffer is free again, and holds a packet that came at the same time.
            (one, None),
            (one, Some(0)),
        ];
        let found = steps.map(|(packet, function)| numbers.of(&step(packet, function)));
        assert_eq!(found, [1, 2, 1, 2, 3, 3]);
    }
}
