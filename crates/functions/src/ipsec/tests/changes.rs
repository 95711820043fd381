//! Tests of replacing associations under running workers.

use super::*;
use tailwater_chain::rig::unlinked_file;
use tailwater_chain::shared_counters::SharedCounters;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, protocol};

fn packet(last: u8) -> Vec<u8> {
    let (source, destination) = ([10, 0, 0, 1], [10, 9, 0, last]);
    let key = FlowKey::v4(source.into(), destination.into(), protocol::UDP, 1, 2);
    FrameBuilder::new(&key).payload(b"payload").to_vec().unwrap()
}

fn keyed(byte: u8) -> Ends {
    let mut ends = Ends::new(Cipher::Aes128Gcm, false);
    let keying = Keying::new(Cipher::Aes128Gcm, vec![byte; 20]).unwrap();
    for association in [&mut ends.out.association, &mut ends.back.association] {
        association.keying = keying.clone();
        association.spi = 0x1000 + u32::from(byte);
    }
    ends
}

fn replace(table: &Live<IpsecTable>, rules: &IpsecRules) -> Result<u32, IpsecError> {
    let next = table.current().value.next_version(rules)?;
    Ok(table.replace(next))
}

/// Returns SPI, sequence number and initialisation vector.
fn numbers(frame: &[u8]) -> (u32, u32, u64) {
    let esp = parse(frame).unwrap().payload(frame).to_vec();
    let word = |at: usize| u32::from_be_bytes(esp[at..at + 4].try_into().unwrap());
    (word(0), word(4), u64::from(word(8)) << 32 | u64::from(word(12)))
}

/// A key that returns continues its sequence numbers: no initialisation vector is used twice with it.
#[test]
fn a_key_that_comes_back_goes_on() {
    let (first, second) = (keyed(1), keyed(2));
    let table = table(&first.sending());
    let mut rig = instance(&table);
    let mut send = || numbers(&run(&mut rig, &packet(1)).unwrap());
    let before = [send(), send()];
    assert_eq!(
        before.map(|(spi, sequence, _)| (spi, sequence)),
        [(0x1001, 1), (0x1001, 2)]
    );
    replace(&table, &second.sending()).unwrap();
    assert_eq!(send().1, 1);
    replace(&table, &first.sending()).unwrap();
    let after = send();
    assert_eq!((after.0, after.1, after.2), (0x1001, 3, before[1].2 + 1));
}

/// Packets received once are rejected as replays, whichever rules applied in between.
#[test]
fn replays_are_known_across_changes() {
    let (first, second) = (keyed(1), keyed(2));
    let mut sender = rig(&first.sending());
    let sent: Vec<_> = (0..3).map(|i| run(&mut sender, &packet(i)).unwrap()).collect();
    let table = table(&first.receiving());
    let mut rig = instance(&table);
    assert!(run(&mut rig, &sent[0]).is_some());
    replace(&table, &second.receiving()).unwrap();
    assert_dropped(&mut rig, &sent[1], "no-association");
    let both = IpsecRules {
        inbound: vec![second.back.clone(), first.back.clone()],
        ..first.receiving()
    };
    replace(&table, &both).unwrap();
    assert_dropped(&mut rig, &sent[0], "replayed");
    assert!(run(&mut rig, &sent[1]).is_some());
    assert!(run(&mut rig, &sent[2]).is_some());
}

/// Changes that would lose sequence numbers or alter the chain's properties are refused. A refused version leaves no
/// trace.
#[test]
fn what_cannot_be_is_refused() {
    let ends = keyed(1);
    let table = table(&ends.receiving());
    let mut narrower = ends.clone();
    narrower.back.window = Some(64);
    assert_eq!(
        replace(&table, &narrower.receiving()),
        Err(IpsecError::Numbers(ends.back.association.name.clone()))
    );
    assert_eq!(replace(&table, &ends.sending()), Err(IpsecError::Decapsulates));
    let new = keyed(3);
    let together = |back: &Inbound| IpsecRules {
        inbound: vec![back.clone(), narrower.back.clone()],
        ..ends.receiving()
    };
    assert!(replace(&table, &together(&new.back)).is_err());
    // The key was never in use, since that version was refused: other parameters are still possible.
    let mut other = new.clone();
    other.back.window = Some(64);
    assert_eq!(replace(&table, &other.receiving()), Ok(2));
}

/// Processes that share sequence numbers behave as one, even when some exit before others.
#[test]
fn processes_share_numbers_and_windows() {
    let ends = keyed(3);
    let shared = |rules: &IpsecRules| {
        let file = unlinked_file(IpsecTable::shared_bytes(rules));
        let rules = rules.clone();
        move || {
            let shared_counters = SharedCounters::in_file(&file).unwrap();
            let table = IpsecTable::sharing(&rules, &shared_counters).unwrap();
            instance(&Arc::new(Live::new(table)))
        }
    };
    let (sender, receiver) = (shared(&ends.sending()), shared(&ends.receiving()));
    let mut sent = Vec::new();
    let mut other = sender();
    for _ in 0..3 {
        // One sender lives for a while, the other throughout.
        let mut one = sender();
        for _ in 0..20 {
            sent.extend([&mut one, &mut other].map(|rig| run(rig, &packet(1)).unwrap()));
        }
    }
    let numbers: Vec<_> = sent.iter().map(|frame| numbers(frame)).collect();
    let base = numbers[0].2 - 1;
    let expected = (1..=120).map(|n| (0x1003, n, base + u64::from(n)));
    assert!(numbers.iter().copied().eq(expected), "{numbers:?}");
    let mut one = receiver();
    for frame in &sent {
        run(&mut one, frame).unwrap();
    }
    drop(one);
    let mut next = receiver();
    for frame in &sent[60..] {
        assert_dropped(&mut next, frame, "replayed");
    }
}
