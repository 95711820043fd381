//! Rounds with functions that are threads of the test.

use super::*;
use crate::layout::{
    CompanionRequestKind, MASKS, MAX_BATCH, PacketMasks, PacketResponse, ResponseArea, TRACED, all_of,
};
use crate::message::Description;
use crate::server::area::{Flows, TableShape};
use crate::server::proxy::{self, FAILED};
use crate::server::slot::FunctionSlot;
use crate::server::{Launch, Program};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use tailwater_api::PacketAction as Unfit;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, InputPolicy};
use tailwater_chain::function::MAX_EXPLANATION;
use tailwater_chain::packet_traces::{PacketFilter, PacketTraces, TracePlace};
use tailwater_functions::build::Requirements;
use tailwater_functions::spec::OnFailure;
use tailwater_net::FlowKey;
use tailwater_net::builder::FrameBuilder;
use tailwater_sdk::program::ProcessPart;

const BUFFER_BYTES: usize = 2048;

/// Returns a worker's group whose functions are all attached under number 1.
fn group(descriptions: &[Description]) -> Group {
    group_with(descriptions, OnFailure::Drop)
}

/// Like [`group`], with this treatment of packets while a function has no process.
fn group_with(descriptions: &[Description], on_failure: OnFailure) -> Group {
    let program = Program {
        function: "told".to_owned(),
        launch: Launch {
            program: "/nowhere".into(),
            arguments: Vec::new(),
        },
        config: String::new(),
        single_instance: false,
        demands: Requirements::default(),
        on_failure,
        confined: None,
        joins: None,
    };
    let seats = descriptions
        .iter()
        .map(|description| FunctionSlot::vacant(program.clone(), description.clone()));
    let mut group = Group::new(0.into(), ProcessPart { index: 0, of: 1 }, seats.collect(), false);
    let table = TableShape {
        capacity: 0,
        connections: false,
    };
    let functions = descriptions.iter().cloned();
    let functions: Vec<_> = functions.map(|it| (it, Requirements::default(), None)).collect();
    let flows = Flows::create(&functions, table, None).unwrap();
    let area = Area::create(descriptions.len(), BUFFER_BYTES, &flows).unwrap();
    group.area = Some(Arc::new(area));
    for k in 0..descriptions.len() {
        group.status.set_up(k, 1);
    }
    group
}

fn round(group: &Group) -> Round {
    let config = RoundConfig {
        batch: BatchBounds {
            overhead: 0.03,
            objective: Nanos(200_000),
            most: MAX_BATCH,
        },
        followed: false,
        passed_by: false,
    };
    Round::new(group, 0, config).unwrap()
}

/// Returns a chain of these functions, and a batch with one packet.
fn chain(group: &Group) -> (Chain, Batch) {
    let functions = proxy::all(&group.slots, false, &Arc::new(Mutex::new(Some(round(group)))));
    let input = InputPolicy {
        malformed: Unfit::Drop,
        non_ip: Unfit::Drop,
    };
    let mut pool = BufferPool::new(MAX_BATCH as u32, BUFFER_BYTES).unwrap();
    let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 1, 2);
    let frame = FrameBuilder::new(&key).to_vec().unwrap();
    let mut batch = Batch::new(&pool, MAX_BATCH);
    assert!(batch.push(&mut pool, &frame, Nanos(0), 0));
    (Chain::new(functions, None, input), batch)
}

/// Returns the sum of a counter of this name over a chain's functions.
fn count(chain: &Chain, name: &str) -> u64 {
    let counts = chain.reasons().into_iter().zip(chain.reason_counts());
    let of_name = counts.filter(|(reason, _)| reason.short_name() == name);
    of_name.map(|(_, count)| count).sum()
}

/// Ends the functions' threads, even if the worker panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn masks(left: u64, moved: u64) -> PacketMasks {
    PacketMasks { left, moved }
}

/// Takes function `k`'s turns until `over`: `turn` runs each, and all packets are forwarded.
fn take_turns(area: &Area, k: usize, over: &AtomicBool, turn: impl Fn(&ResponseArea, u64)) {
    let slate = &area.response_areas[k];
    let mut last = slate.done();
    while !over.load(Ordering::Relaxed) {
        let round = area.request_area.round();
        if round == last || k > 0 && area.response_areas[k - 1].done() != round {
            thread::yield_now();
            continue;
        }
        turn(slate, round);
        for word in 0..MASKS {
            let masks = match k {
                0 => masks(all_of(area.request_area.count(), word), 0),
                k => area.response_areas[k - 1].masks(word),
            };
            slate.set_masks(word, masks);
        }
        slate.set_masks_round(round);
        last = round;
        slate.set_done(round);
    }
}

/// A process that declared no companions cannot access a flow table, which a chain without state does not have.
#[test]
fn who_may_not_wish_for_companions_lies_when_it_does() {
    for opens_companions in [false, true] {
        let group = group(&[Description {
            opens_companions,
            ..Description::default()
        }]);
        let (mut chain, mut batch) = chain(&group);
        let (area, over) = (group.area.clone().unwrap(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                take_turns(&area, 0, &over, |slate, _| {
                    if area.request_area.count() == 0 {
                        return;
                    }
                    slate.set_companion_request(&CompanionRequest {
                        number: 1,
                        kind: CompanionRequestKind::Open,
                        at: 0,
                        rss_hash: 0,
                        key: FlowKey::default(),
                    });
                    while slate.companion_response(1).is_none() && !over.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                    let refused = Err(CompanionRefusal::TableFull);
                    assert_eq!(slate.companion_response(1), Some(refused));
                });
            });
            let _at_end = Over(&over);
            chain.process(&mut batch, Nanos(1));
        });
        assert!(group.status.violation(0).is_some());
    }
}

/// A process may exit before its invalid response is detected, and another one be attached by then.
#[test]
fn an_accusation_is_of_the_process_that_lied() {
    let group = group(&[Description::default()]);
    let (mut round, status) = (round(&group), &group.status);
    assert_eq!(round.meet(), None);
    for found_late in [false, true] {
        if found_late {
            status.set_down(0);
            status.set_up(0, 2);
        }
        // The same as if it had returned no verdict on the packet.
        assert_eq!(round.read_verdicts(1, 1), Some(0));
        round.report(0, Violation::InvalidResponse);
        assert_eq!(status.violation(0).is_some(), !found_late);
    }
    assert_eq!(round.meet(), None);
    round.report(0, Violation::InvalidResponse);
    assert!(status.violation(0).is_some());
}

/// A process replaced between two rounds leaves no round to its successor, while the worker continues.
#[test]
fn a_round_begins_with_the_processes_that_were_met() {
    let group = group(&[Description::default(), Description::default()]);
    let (area, status) = (group.area.clone().unwrap(), &group.status);
    let mut round = round(&group);
    assert_eq!(round.meet(), None);
    status.set_down(1);
    let failed = Some(Failed { function: 1, turns: 0 });
    assert_eq!(
        round.go(0, 0, |_, _, _| Err(CompanionRefusal::TableFull)),
        failed,
        "down"
    );
    status.set_up(1, 2);
    assert_eq!(
        round.go(0, 0, |_, _, _| Err(CompanionRefusal::TableFull)),
        failed,
        "another one"
    );
    assert_eq!((area.request_area.round(), status.busy()), (0, 0), "nothing to do");
    // A process attached in the middle of a round is sent that round as done.
    status.begin(7, [1, 2].into_iter()).unwrap();
    assert_eq!(group.last_round(&area), 7);
    status.end();
    assert_eq!(group.last_round(&area), 0);
}

/// A chain of two functions and three packets: both responses, with the verdict on slot 1.
#[test]
fn what_functions_say_of_packets_is_checked() {
    const ROUND: u64 = 7;
    const ALL: u64 = 0b111;
    let description = Description {
        drop_reasons: vec![("asked".to_owned(), false)],
        ..Description::default()
    };
    let group = group(&[description.clone(), description]);
    let (mut round, area) = (round(&group), group.area.clone().unwrap());
    assert_eq!(round.meet(), None);
    round.round = ROUND;
    let here = |start, length| PacketResponse::Forwarded {
        start,
        length,
        rekeyed: false,
        turned: false,
    };
    let back = PacketResponse::Forwarded {
        start: 64,
        length: 70,
        rekeyed: false,
        turned: true,
    };
    let beyond = here(BUFFER_BYTES as u16 - 63, 64);
    let dropped = PacketResponse::Dropped(0);
    let going_on = (ROUND, masks(ALL, 0), dropped);
    let without_1 = (ROUND, masks(0b101, 0), dropped);
    let moved_1 = |place| (ROUND, masks(ALL, 0b010), place);
    for (said, liar) in [
        ([going_on, going_on], None),
        ([without_1, (ROUND, masks(0b101, 0), dropped)], None),
        ([going_on, without_1], None),
        ([moved_1(here(0, 64)), moved_1(here(64, 70))], None),
        // A response leaves by its ingress port, unless a function behind turns it again.
        ([going_on, moved_1(back)], None),
        ([moved_1(back), moved_1(here(0, 64))], None),
        // The second function may move a packet back that the first one moved.
        ([moved_1(here(0, 64)), going_on], None),
        // An unknown packet is forwarded, or one that the first function dropped.
        ([(ROUND, masks(0b1111, 0), dropped), going_on], Some(0)),
        ([without_1, going_on], Some(1)),
        // A packet is missing without a drop reason.
        ([going_on, (ROUND, masks(0b101, 0), here(0, 64))], Some(1)),
        // A dropped packet has moved, or a frame's bounds are invalid.
        ([going_on, (ROUND, masks(0b101, 0b010), dropped)], Some(1)),
        ([moved_1(dropped), going_on], Some(0)),
        ([moved_1(beyond), going_on], Some(0)),
        ([going_on, moved_1(here(0, 0))], Some(1)),
        // The verdict belongs to another round; the first invalid response counts.
        ([(ROUND - 1, masks(ALL, 0), dropped), going_on], Some(0)),
        ([moved_1(beyond), (ROUND - 1, masks(ALL, 0), dropped)], Some(0)),
    ] {
        for (slate, (of, masks, place)) in area.response_areas.iter().zip(said) {
            slate.set_masks(0, masks);
            slate.set_response_word(1, place.encode(ROUND));
            slate.set_masks_round(of);
        }
        assert_eq!(round.read_verdicts(3, 2), liar, "{said:?}");
        if liar.is_none() {
            let left = said.map(|(_, masks, _)| masks.left);
            let through: Vec<u64> = round.through.iter().map(|masks| masks[0]).collect();
            assert_eq!(through, [ALL, left[0], left[1]]);
            assert_eq!(round.moved[0], said[1].1.moved);
        }
        if let (
            0b010,
            PacketResponse::Forwarded {
                start, length, turned, ..
            },
        ) = (round.moved[0], said[1].2)
        {
            assert_eq!(round.frames[1], [start, length]);
            assert_eq!(round.turned[0], u64::from(turned) << 1);
        }
    }
    // A verdict of the previous round is invalid.
    area.response_areas[1].set_masks(0, masks(ALL, 0b010));
    area.response_areas[0].set_masks(0, masks(ALL, 0));
    area.response_areas
        .iter()
        .for_each(|slate| slate.set_masks_round(ROUND));
    area.response_areas[1].set_response_word(1, here(0, 64).encode(ROUND - 1));
    assert_eq!(round.read_verdicts(3, 2), Some(1));
    // Responses of the failed function and of those behind it do not count; the packets it held are lost by it.
    assert_eq!(round.read_verdicts(3, 1), None);
    round.lose(1);
    assert_eq!([round.through[1][0], round.through[2][0]], [ALL, 0]);
    assert_eq!(round.reasons[..3], [1, 1, 1]);
}

/// Another worker may reuse an ended flow's slot, so no process of this group may still access it.
#[test]
fn ends_are_told_before_flows_go_to_another_worker() {
    let group = group(&[Description::default(), Description::default()]);
    let (area, over) = (group.area.clone().unwrap(), AtomicBool::new(false));
    let mut round = round(&group);
    let end = |round: &mut Round, births: std::ops::Range<u64>| {
        births.for_each(|birth| round.end_flow(birth, birth as u32));
    };
    thread::scope(|scope| {
        for k in [0, 1] {
            let (area, over) = (&area, &over);
            scope.spawn(move || {
                take_turns(area, k, over, |slate, _| {
                    slate.set_handled_ended(area.request_area.ended());
                });
            });
        }
        let _at_end = Over(&over);
        end(&mut round, 1..4);
        round.deliver_flow_ends();
        assert_eq!([0, 1].map(|k| area.response_areas[k].handled_ended()), [3, 3]);
        // No round runs if nothing is pending.
        let rounds = area.request_area.round();
        round.deliver_flow_ends();
        assert_eq!(area.request_area.round(), rounds);
    });
    // A process that is attached too late finds no flow ends.
    end(&mut round, 4..6);
    group.status.set_down(1);
    round.deliver_flow_ends();
    assert_eq!([0, 1].map(|k| area.response_areas[k].handled_ended()), [3, 3]);
    assert!((0..5).all(|n| area.request_area.ended_flow(n).generation == 0));
    end(&mut round, 6..7);
    assert_eq!(area.request_area.ended_flow(5).generation, 6);
}

/// Functions without a process lost all packets that came until the next one was attached.
#[test]
fn packets_bypass_a_function_without_a_process_and_meet_all_others() {
    let descriptions = [Description::default(), Description::default(), Description::default()];
    let group = group_with(&descriptions, OnFailure::Bypass);
    let (mut chain, mut batch) = chain(&group);
    let (area, over) = (group.area.clone().unwrap(), AtomicBool::new(false));
    let turns = [0, 2].map(|_| AtomicUsize::new(0));
    group.status.set_down(1);
    thread::scope(|scope| {
        for (k, turns) in [0, 2].into_iter().zip(&turns) {
            let (area, over) = (&area, &over);
            scope.spawn(move || {
                take_turns(area, k, over, |_, _| {
                    turns.fetch_add(area.request_area.count(), Ordering::Relaxed);
                });
            });
        }
        let _at_end = Over(&over);
        chain.process(&mut batch, Nanos(1));
    });
    assert_eq!(turns.map(AtomicUsize::into_inner), [1, 1]);
    assert_eq!(batch.len(), 1, "the packet leaves the chain");
    assert_eq!([count(&chain, "bypassed"), count(&chain, FAILED)], [1, 0]);
}

/// A process that is being attached would take a turn in a round that does not wait for it.
#[test]
fn no_round_bypasses_a_function_whose_process_is_about_to_be_attached() {
    let group = group_with(&[Description::default(), Description::default()], OnFailure::Bypass);
    let (mut round, status) = (round(&group), &group.status);
    assert_eq!(round.get_past_outages(1), None);
    status.set_down(1);
    status.announce(1, true);
    assert_eq!(round.get_past_outages(1), Some(1), "after some time it is lost");
    status.announce(1, false);
    assert_eq!(round.get_past_outages(1), None);
    assert!(round.is_bypassed(1) && !round.is_bypassed(0));
    // Announced between this look and the round.
    status.announce(1, true);
    let failed = Some(Failed { function: 1, turns: 0 });
    assert_eq!(round.go(0, 0, |_, _, _| Err(CompanionRefusal::TableFull)), failed);
    assert_eq!(status.busy(), 0);
    // Once it is attached, it takes part.
    status.set_up(1, 2);
    status.announce(1, false);
    assert_eq!(round.get_past_outages(1), None);
    assert!(!round.is_bypassed(1));
}

#[test]
fn packets_wait_for_a_successor_and_are_counted() {
    let group = group_with(&[Description::default()], OnFailure::Hold);
    let mut round = round(&group);
    assert_eq!(round.get_past_outages(7), None);
    group.status.set_down(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(5));
            group.status.set_up(0, 2);
        });
        assert_eq!(round.get_past_outages(7), None);
    });
    assert_eq!(round.outage_packets(0), 7);
    // Without a successor they are lost after some time, and those that follow at once.
    group.status.set_down(0);
    assert_eq!(round.get_past_outages(7), Some(0));
    let began = Instant::now();
    for _ in 0..1000 {
        assert_eq!(round.get_past_outages(7), Some(0));
    }
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "1,000 waits would take four minutes"
    );
    assert_eq!(round.outage_packets(0), 7);
}

/// While batches bypassed a function, the counters of its last process went back to zero once a successor was offered
/// its memory.
#[test]
fn counters_survive_a_bypass() {
    let description = Description {
        counters: vec!["seen".to_owned()],
        ..Description::default()
    };
    let group = group_with(&[description], OnFailure::Bypass);
    let (mut round, area) = (round(&group), group.area.clone().unwrap());
    let seen = |round: &mut Round| {
        let mut counts = [0; 2];
        round.read_notes(0, &mut counts);
        counts[0]
    };
    assert_eq!(round.get_past_outages(1), None);
    area.response_areas[0].set_counter(0, 5);
    assert_eq!(seen(&mut round), 5);
    group.status.set_down(0);
    assert_eq!(round.get_past_outages(1), None);
    assert!(round.is_bypassed(0));
    area.response_areas[0].reset(0, 0);
    assert_eq!(seen(&mut round), 5, "a successor is being attached");
    group.status.set_up(0, 2);
    assert_eq!(round.get_past_outages(1), None);
    area.response_areas[0].set_counter(0, 2);
    assert_eq!(seen(&mut round), 7);
}

/// Texts are from outside, and count in the round in which they were written.
#[test]
fn explanations_of_traced_packets_reach_the_trace() {
    let group = group(&[Description::default(), Description::default()]);
    let area = group.area.clone().unwrap();
    let over = AtomicBool::new(false);
    let (mut chain, mut batch) = chain(&group);
    let traces = Arc::<PacketTraces>::default();
    let clock = Box::new(|| Nanos(0));
    chain.sample_functions(clock, Arc::clone(&traces), TracePlace::default());
    let stream = traces.begin(PacketFilter::all(), 1).unwrap();
    thread::scope(|scope| {
        let _over = Over(&over);
        let (area, over) = (&area, &over);
        scope.spawn(move || {
            take_turns(area, 0, over, |responses, round| {
                let is_traced = area.request_area.flags() & TRACED != 0;
                for (i, slot) in area.request_area.traced().filter(|_| is_traced) {
                    let mut text = [0; MAX_EXPLANATION];
                    text[..8].copy_from_slice(b"slot  \n\xff");
                    text[5] = b'0' + slot as u8;
                    responses.set_explanation(i, round, &text);
                }
            });
        });
        // Of another round.
        let late = |responses: &ResponseArea, round| responses.set_explanation(0, round - 1, &[b'x'; MAX_EXPLANATION]);
        scope.spawn(move || take_turns(area, 1, over, late));
        chain.process(&mut batch, Nanos(0));
    });
    assert_eq!(batch.len(), 1);
    let steps: Vec<_> = std::iter::from_fn(|| stream.next_step()).collect();
    let texts: Vec<&str> = steps.iter().map(|step| step.explanation.as_str()).collect();
    assert_eq!(texts, ["", "slot 0\u{fffd}\u{fffd}", ""]);
}
