use super::*;
use crate::batch::{Batch, Verdict};
use crate::function::{Explanation, FlowStates, FunctionProperties, NetworkFunction, TracedPacket};
use crate::rig::{ChainRig, INPUT, udp};
use tailwater_net::Nanos;

/// Writes into frames, or drops those of a port.
struct Probe(Option<u16>);

impl NetworkFunction for Probe {
    fn kind(&self) -> &'static str {
        "Probe"
    }
    fn drop_reasons(&self) -> &'static [&'static str] {
        &["other", "unwanted"]
    }
    fn properties(&self) -> FunctionProperties {
        FunctionProperties::default()
    }
    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        batch.for_each(|packet, frame| match self.0 {
            Some(port) if packet.headers.key.source_port() == port => packet.verdict = Verdict::Drop(1),
            Some(_) => {}
            None => frame[0] = 0xee,
        });
    }
    fn explain(&self, traced: &TracedPacket<'_>, _: &mut FlowStates<'_>, text: &mut Explanation) {
        let port = traced.key.source_port();
        text.add_part(format_args!(
            "port {port} of {}",
            traced.packet().headers.key.source_port()
        ));
    }
}

fn rig() -> (ChainRig, Arc<PacketTraces>) {
    let mut rig = ChainRig::new(vec![Box::new(Probe(None)), Box::new(Probe(Some(7)))], INPUT);
    let traces = Arc::<PacketTraces>::default();
    let clock = std::sync::atomic::AtomicU64::new(0);
    let read = move || Nanos(clock.fetch_add(1, Ordering::Relaxed));
    traces.set_functions(rig.chain.traced_functions().collect());
    rig.chain.sample_functions(
        Box::new(read),
        Arc::clone(&traces),
        TracePlace {
            core: 3,
            ..TracePlace::default()
        },
    );
    (rig, traces)
}

fn steps(stream: &TraceStream) -> Vec<(u16, Option<u16>, Option<u8>)> {
    let steps = std::iter::from_fn(|| stream.next_step());
    steps
        .map(|step| (step.key.source_port(), step.function, step.dropped))
        .collect()
}

#[test]
fn packets_that_match_are_followed_through_all_functions() {
    let (mut rig, traces) = rig();
    let frames: Vec<_> = [5, 7, 9, 7].map(udp).into();
    rig.run(&frames, Nanos(10));
    let filter = PacketFilter::parse("src port 7 or src port 9").unwrap();
    let stream = traces.begin(filter.clone(), 2).unwrap();
    assert_eq!(traces.begin(filter, 1).unwrap_err(), AlreadyTraced);
    rig.run(&frames, Nanos(20));
    // The first two that match; the fourth frame is a third one.
    let found = steps(&stream);
    assert_eq!(
        found,
        [
            (7, None, None),
            (9, None, None),
            (7, Some(0), None),
            (9, Some(0), None),
            (7, Some(1), Some(1)),
            (9, Some(1), None),
        ]
    );
    assert_eq!((stream.left(), stream.lost()), (0, 0));
    assert_eq!(stream.traces().functions()[1].reasons[1], "unwanted");
    rig.run(&frames, Nanos(30));
    assert_eq!(steps(&stream), []);
    // Others may trace afterwards.
    drop(stream);
    let stream = traces.begin(PacketFilter::parse("").unwrap(), 1).unwrap();
    rig.run(&frames, Nanos(40));
    let step: Vec<_> = std::iter::from_fn(|| stream.next_step()).collect();
    assert_eq!(step.len(), 3);
    assert_eq!(
        (step[0].core, step[0].batch, step[0].packet.2),
        (3, 4, step[2].packet.2)
    );
    // The function has written into the frame.
    assert_ne!(step[0].captured()[0], 0xee);
    assert_eq!(step[1].captured()[0], 0xee);
    assert_eq!(step[1].captured().len(), frames[0].len().min(CAPTURED));
    assert!(step[1].times[0] < step[1].times[1] && step[1].times[1] < step[2].times[1]);
}

#[test]
fn an_explanation_has_the_key_in_front_of_the_function() {
    let (mut rig, traces) = rig();
    let stream = traces.begin(PacketFilter::parse("src port 7").unwrap(), 1).unwrap();
    rig.run(&[udp(5), udp(7)], Nanos(20));
    let steps: Vec<_> = std::iter::from_fn(|| stream.next_step()).collect();
    let texts: Vec<_> = steps.iter().map(|step| step.explanation.as_str()).collect();
    assert_eq!(texts, ["", "port 7 of 7", "port 7 of 7"]);
    assert_eq!(steps[0].role, TraceRole::Dedicated);
    assert!(steps[0].flow.index.is_some() && steps[0].flow.is_new);
}

#[test]
fn batches_without_traced_packets_are_timed_as_seldom_as_without_a_trace() {
    let (mut rig, traces) = rig();
    let stream = traces.begin(PacketFilter::parse("src port 7").unwrap(), 1000).unwrap();
    for round in 0..128 {
        rig.run(&[udp(5)], Nanos(round));
    }
    assert_eq!(rig.chain.function_totals()[0].timed, 2);
    assert_eq!(stream.left(), 1000);
}

#[test]
fn steps_that_nobody_reads_are_lost_and_counted() {
    let (mut rig, traces) = rig();
    let stream = traces.begin(PacketFilter::parse("udp").unwrap(), u32::MAX).unwrap();
    let frames: Vec<_> = (1000..1032).map(udp).collect();
    for round in 0..60 {
        rig.run(&frames, Nanos(round));
    }
    let kept = steps(&stream).len();
    assert_eq!(kept, WAITING);
    assert_eq!(stream.lost() as usize, 60 * 32 * 3 - kept);
}

#[test]
fn one_batch_in_sixty_four_is_looked_at_while_nobody_traces() {
    let traces = PacketTraces::default();
    assert_eq!(traces.every(), 64);
    let traces = Arc::new(traces);
    let stream = traces.begin(PacketFilter::parse("").unwrap(), 1).unwrap();
    assert_eq!(traces.every(), 1);
    drop(stream);
    assert_eq!(traces.every(), 64);
}

#[test]
fn a_sample_gives_way_to_a_trace_and_not_the_other_way_round() {
    let (mut rig, traces) = rig();
    let sample = traces.sample(1).unwrap();
    rig.run(&[udp(5), udp(7)], Nanos(10));
    assert_eq!(steps(&sample).len(), 3);
    let stream = traces.begin(PacketFilter::parse("src port 7").unwrap(), 1).unwrap();
    assert_eq!((sample.is_current(), stream.is_current()), (false, true));
    assert_eq!(traces.sample(1).unwrap_err(), AlreadyTraced);
    // The end of the sample is not that of the trace.
    drop(sample);
    rig.run(&[udp(5), udp(7)], Nanos(20));
    assert_eq!((steps(&stream).len(), traces.every()), (3, 1));
    drop(stream);
    assert_eq!(traces.every(), TIMED_BATCHES);
}
