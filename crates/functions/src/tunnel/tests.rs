use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_chain::live::Live;
use tailwater_chain::rig::{ChainRig, INPUT, udp};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::{Fragment, parse};
use tailwater_net::protocol::ethertype;
use tailwater_net::vlan::{self, VlanTag};
use tailwater_net::{FlowKey, Nanos};

/// Function that fails if a packet's parsed headers disagree with its frame.
struct HeadersAreTrue;

impl NetworkFunction for HeadersAreTrue {
    fn kind(&self) -> &'static str {
        "HeadersAreTrue"
    }
    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        for i in 0..batch.len() {
            let (packet, frame) = batch.packet_mut(i);
            let parsed = parse(frame).unwrap();
            assert_eq!(packet.headers.fragment, Fragment::Whole);
            assert_eq!(packet.headers, parsed);
            assert_eq!(packet.length(), frame.len());
        }
    }
}

const NOTHING: Rule = Rule {
    source: None,
    destination: None,
    protocol: None,
    vlan: None,
    action: Action::Pop,
};

fn tunnel(rules: &[Rule], default: Action, in_flow: bool) -> Box<dyn NetworkFunction> {
    let rules = Arc::new(Live::new(TunnelRules::new(rules, default)));
    Box::new(Tunnel::new(rules, in_flow))
}

fn rig(rules: &[Rule], default: Action, in_flow: bool) -> ChainRig {
    let functions = vec![tunnel(rules, default, in_flow), Box::new(HeadersAreTrue)];
    ChainRig::new(functions, INPUT)
}

fn push(tag: VlanTag) -> Rule {
    Rule {
        action: Action::Push(tag),
        ..NOTHING
    }
}

/// Reference implementation: returns the frame after the rules; `None` if it is dropped.
fn expected(frame: &[u8], rules: &[Rule], default: Action) -> Option<Vec<u8>> {
    let key = parse(frame).unwrap().key;
    let tags: Vec<VlanTag> = vlan::tags(frame).collect();
    let outer = tags.first().map(|tag| tag.id);
    let rule = rules.iter().find(|rule| rule.matches(&key, outer));
    let mut frame = frame.to_vec();
    match rule.map_or(default, |rule| rule.action) {
        Action::Pass => {}
        Action::Drop => return None,
        Action::Pop if tags.is_empty() => {}
        Action::Pop => drop(frame.drain(12..16)),
        Action::Push(_) if tags.len() == 3 => return None,
        Action::Push(tag) => {
            let control = u16::from(tag.priority) << 13 | u16::from(tag.drop_eligible) << 12 | tag.id;
            let bytes = [tag.ethertype.to_be_bytes(), control.to_be_bytes()].concat();
            drop(frame.splice(12..12, bytes));
        }
    }
    Some(frame)
}

fn tag() -> impl Strategy<Value = VlanTag> {
    let kind = [ethertype::VLAN, ethertype::QINQ, ethertype::QINQ_OLD];
    (prop::sample::select(kind.to_vec()), 0u8..8, any::<bool>(), 0u16..8).prop_map(
        |(ethertype, priority, drop_eligible, id)| VlanTag {
            ethertype,
            priority,
            drop_eligible,
            id,
        },
    )
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let v4 = (0u32..16, 0u32..16).prop_map(|(source, destination)| {
        let base = 0x0a00_0000;
        FlowKey::v4((base | source).into(), (base | destination).into(), 17, 1, 2)
    });
    let v6 = (0u128..16, 0u128..16).prop_map(|(source, destination)| {
        let base = 0x2001_0db8 << 96;
        FlowKey::v6((base | source).into(), (base | destination).into(), 6, 1, 2)
    });
    let tags = prop::collection::vec(tag(), 0..=3);
    (prop_oneof![v4, v6], tags, any::<bool>()).prop_map(|(key, tags, pad)| {
        let mut builder = FrameBuilder::new(&key).payload(b"payload");
        for tag in tags {
            builder = builder.vlan(tag);
        }
        if pad {
            builder = builder.pad_to_minimum();
        }
        builder.to_vec().unwrap()
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let prefix = || {
        let prefixes = ["10.0.0.0/30", "10.0.0.8/29", "10.0.0.3/32", "2001:db8::/125", "::/0"];
        let prefixes: Vec<_> = prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect();
        prop::option::of(prop::sample::select(prefixes))
    };
    let protocol = prop::option::of(prop::sample::select(vec![6u8, 17]));
    let vlan = prop_oneof![Just(VlanMatch::Untagged), (0u16..8).prop_map(VlanMatch::Id)];
    let action = prop_oneof![tag().prop_map(Action::Push), Just(Action::Pop)];
    (prefix(), prefix(), protocol, prop::option::of(vlan), action).prop_map(
        |(source, destination, protocol, vlan, action)| Rule {
            source,
            destination,
            protocol,
            vlan,
            action,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn frames_become_what_the_oracle_says(
        mut rules in prop::collection::vec(rule(), 0..8),
        with_vlan in any::<bool>(),
        in_flow in any::<bool>(),
        default in prop::sample::select(vec![Action::Pass, Action::Drop]),
        frames in prop::collection::vec(frame(), 1..64),
    ) {
        if !with_vlan {
            rules.iter_mut().for_each(|rule| rule.vlan = None);
        }
        let wanted: Vec<_> = frames.iter().filter_map(|f| expected(f, &rules, default)).collect();
        let sent = rig(&rules, default, in_flow).run(&frames, Nanos::from_secs(1));
        prop_assert_eq!(sent, wanted);
    }

    #[test]
    fn what_is_pushed_is_popped(
        frames in prop::collection::vec(frame(), 1..64),
        tags in prop::collection::vec(tag(), 1..=3),
    ) {
        let room = |frame: &&Vec<u8>| vlan::tags(frame).count() + tags.len() <= 3;
        let frames: Vec<_> = frames.iter().filter(room).cloned().collect();
        let mut functions = Vec::new();
        for tag in &tags {
            functions.push(tunnel(&[push(*tag)], Action::Pass, false));
            functions.push(Box::new(HeadersAreTrue));
        }
        for _ in &tags {
            functions.push(tunnel(&[NOTHING], Action::Pass, true));
            functions.push(Box::new(HeadersAreTrue));
        }
        let sent = ChainRig::new(functions, INPUT).run(&frames, Nanos::from_secs(1));
        prop_assert_eq!(sent, frames);
    }
}

#[test]
fn drops_have_their_reasons() {
    let key = parse(&udp(1)).unwrap().key;
    let tag = VlanTag::customer(1);
    let three = FrameBuilder::new(&key).vlan(tag).vlan(tag).vlan(tag);
    let three = three.to_vec().unwrap();
    for in_flow in [false, true] {
        let mut rig = rig(&[push(VlanTag::service(9))], Action::Pass, in_flow);
        let sent = rig.run(&[three.clone(), udp(2)], Nanos::from_secs(1));
        assert_eq!(sent.len(), 1);
        assert_eq!(rig.count("tunnel/too-many-tags"), 1);
        let mut rig = self::rig(&[], Action::Drop, in_flow);
        assert!(rig.run(std::slice::from_ref(&three), Nanos::from_secs(1)).is_empty());
        assert_eq!(rig.count("tunnel/no-rule"), 1);
        assert_eq!(rig.chain.lost(), 0);
    }
}

#[test]
fn the_longest_frame_has_no_room() {
    let key = parse(&udp(1)).unwrap().key;
    let frame = |length| FrameBuilder::new(&key).frame_length(length).to_vec();
    let mut pool = BufferPool::new(2, 65_535).unwrap();
    let mut batch = Batch::new(&pool, 2);
    for length in [65_532, 65_531] {
        let frame = frame(length).unwrap();
        assert!(batch.push(&mut pool, &frame, Nanos::ZERO, 0));
    }
    let function = tunnel(&[push(VlanTag::customer(1))], Action::Pass, false);
    let mut chain = Chain::new(vec![("tunnel".to_owned(), function)], None, INPUT);
    chain.process(&mut batch, Nanos::ZERO);
    assert_eq!((batch.len(), chain.lost()), (1, 1));
    assert_eq!(batch.frame(0).len(), 65_535);
    batch.release(&mut pool);
}

#[test]
fn only_vlans_need_every_packet() {
    let rules = |vlan| {
        let rule = Rule { vlan, ..NOTHING };
        TunnelRules::new(&[rule], Action::Pass)
    };
    assert_eq!(rules(None).constant(), Some(Action::Pop));
    assert!(!rules(None).depend_on_vlan());
    let by_vlan = rules(Some(VlanMatch::Id(5)));
    assert_eq!(by_vlan.constant(), None);
    assert_eq!(Tunnel::new(Arc::new(Live::new(by_vlan)), true).state_bytes(), 0);
    let in_flow = Tunnel::new(Arc::new(Live::new(rules(None))), true);
    assert_eq!(in_flow.state_bytes(), 4);
}
