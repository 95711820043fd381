//! The session against a scripted switch.

use super::*;
use crate::ingress::openflow::{Features, FlowCommand, Multipart};
use crate::ingress::rule::{Action, FlowMatch, FlowRule, MaskedAddress};

/// Rule of 10.1.0.0/16 that sends packets to a server.
fn rule() -> FlowRule {
    FlowRule {
        cookie: 1,
        priority: 100,
        matching: FlowMatch {
            eth_type: Some(0x0800),
            destination: MaskedAddress::of_prefix("10.1.0.0/16".parse().unwrap()),
            ..FlowMatch::default()
        },
        action: Action::Normal,
    }
}

/// Switch that answers as a real one does.
struct ScriptedSwitch {
    session: Session,
    rules: Vec<FlowRule>,
    has_bundles: bool,
    table: usize,
    bundle: Vec<FlowMod>,
    /// Requests of the session, in order.
    seen: Vec<Message>,
}

impl ScriptedSwitch {
    fn new(has_bundles: bool, table: usize) -> ScriptedSwitch {
        ScriptedSwitch {
            session: Session::new(SessionConfig::default(), Nanos::ZERO),
            rules: Vec::new(),
            has_bundles,
            table,
            bundle: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Exchanges messages until nobody has any. Answers reach the session in pieces of this size.
    fn run(&mut self, piece: usize) {
        for _ in 0..100 {
            let sent = self.session.output().to_vec();
            self.session.sent(sent.len());
            let mut answers = Vec::new();
            let mut at = 0;
            while let Ok(Some(length)) = length_of(&sent[at..]) {
                let (transaction, message) = Message::decode(&sent[at..at + length]).unwrap();
                self.answer(transaction, message, &mut answers);
                at += length;
            }
            if answers.is_empty() {
                return;
            }
            for part in answers.chunks(piece) {
                self.session.receive(part, Nanos::ZERO).unwrap();
            }
        }
        panic!("it never ends");
    }

    fn add(&mut self, change: &FlowMod) -> bool {
        self.rules.retain(|rule| rule.key() != change.rule.key());
        if change.command == FlowCommand::Add {
            if self.rules.len() >= self.table {
                return false;
            }
            self.rules.push(change.rule.clone());
        }
        true
    }

    fn answer(&mut self, transaction: u32, message: Message, answers: &mut Vec<u8>) {
        self.seen.push(message.clone());
        let mut say = |answer: Message| answer.encode(transaction, answers);
        let unknown = ErrorMessage { kind: 1, code: 3 };
        match message {
            Message::Hello(true) => say(Message::Hello(true)),
            Message::FeaturesRequest => say(Message::FeaturesReply(Features { datapath: 9, tables: 2 })),
            Message::PortsRequest => {
                for more in [true, false] {
                    let number = if more { 1 } else { 2 };
                    let items = vec![PortDescription {
                        number,
                        name: format!("p{number}"),
                        is_up: true,
                    }];
                    say(Message::Ports(Multipart { items, more }));
                }
            }
            Message::TablesRequest => say(Message::Tables(Multipart {
                items: vec![(0, self.table as u32), (1, 7)],
                more: false,
            })),
            Message::FlowsRequest => {
                let flow = |rule: &FlowRule| FlowStatistics {
                    rule: rule.clone(),
                    packets: 1,
                    bytes: 60,
                };
                let items: Vec<FlowStatistics> = self.rules.iter().map(flow).collect();
                say(Message::Flows(Multipart { items, more: false }));
            }
            Message::EchoRequest(bytes) => say(Message::EchoReply(bytes)),
            Message::BundleControl { .. } | Message::BundleAdd { .. } if !self.has_bundles => {
                say(Message::Error(unknown));
            }
            Message::BundleControl { bundle, step } => {
                if step == BundleStep::Commit {
                    let before = self.rules.clone();
                    let changes = std::mem::take(&mut self.bundle);
                    if !changes.iter().all(|change| self.add(change)) {
                        self.rules = before;
                        say(Message::Error(ErrorMessage::TABLE_FULL));
                        return;
                    }
                }
                let next = match step {
                    BundleStep::Open => BundleStep::Opened,
                    BundleStep::Close => BundleStep::Closed,
                    BundleStep::Commit => BundleStep::Committed,
                    _ => BundleStep::Discarded,
                };
                say(Message::BundleControl { bundle, step: next });
            }
            Message::BundleAdd { change, .. } if change.rule.priority == 666 => {
                say(Message::Error(ErrorMessage { kind: 4, code: 9 }));
            }
            Message::BundleAdd { change, .. } => self.bundle.push(change),
            Message::FlowMod(change) => {
                let is_added = self.add(&change);
                if !is_added {
                    say(Message::Error(ErrorMessage::TABLE_FULL));
                }
            }
            Message::BarrierRequest => say(Message::BarrierReply),
            _ => {}
        }
    }

    fn write(&mut self, id: u64, bundles: Vec<Vec<FlowMod>>) -> Option<SwitchEvent> {
        self.session.command(SwitchCommand::Write { id, bundles });
        self.run(1000);
        self.session.event()
    }
}

fn add(priority: u16) -> FlowMod {
    FlowMod {
        command: FlowCommand::Add,
        rule: FlowRule { priority, ..rule() },
    }
}

#[test]
fn a_session_shakes_hands_and_writes_by_bundles_or_without() {
    for (has_bundles, piece) in [(true, 1), (true, 64), (false, 7)] {
        let mut switch = ScriptedSwitch::new(has_bundles, 4);
        switch.rules.push(rule());
        switch.run(piece);
        let Some(SwitchEvent::Connected(state)) = switch.session.event() else {
            panic!("not connected");
        };
        assert_eq!((state.datapath, state.max_rules, state.ports.len()), (9, 4, 2));
        assert_eq!(state.rules[0].rule, rule());
        assert!(switch.seen.contains(&Message::SetConfig));
        let delete = FlowMod {
            command: FlowCommand::Delete,
            rule: rule(),
        };
        let written = switch.write(5, vec![vec![add(1), add(2)], vec![add(3), delete]]);
        assert_eq!(written, Some(SwitchEvent::Written { id: 5 }));
        let priorities: Vec<u16> = switch.rules.iter().map(|rule| rule.priority).collect();
        assert_eq!(priorities, [1, 2, 3]);
        // The second list is too large, and the third is not tried.
        let failed = switch.write(6, vec![vec![add(1)], vec![add(5), add(6)], vec![add(7)]]);
        let error = ErrorMessage::TABLE_FULL;
        assert_eq!(failed, Some(SwitchEvent::WriteFailed { id: 6, error }));
        assert_eq!(switch.rules.len(), if has_bundles { 3 } else { 4 });
        assert!(!switch.session.is_writing());
        switch.session.command(SwitchCommand::Read);
        switch.run(piece);
        assert!(matches!(switch.session.event(), Some(SwitchEvent::Rules(rules)) if rules.len() >= 3));
        assert_eq!(switch.session.event(), None);
    }
}

#[test]
fn a_bundle_with_a_bad_change_is_discarded() {
    let mut switch = ScriptedSwitch::new(true, 100);
    switch.run(64);
    switch.session.event();
    let error = ErrorMessage { kind: 4, code: 9 };
    let failed = switch.write(1, vec![vec![add(1), add(666), add(2)]]);
    assert_eq!(failed, Some(SwitchEvent::WriteFailed { id: 1, error }));
    assert!(switch.rules.is_empty());
    let discarded = |message: &Message| {
        matches!(
            message,
            Message::BundleControl {
                step: BundleStep::Discard,
                ..
            }
        )
    };
    assert!(switch.seen.iter().any(discarded));
}

#[test]
fn a_silent_switch_is_given_up() {
    let config = SessionConfig::default();
    let mut switch = ScriptedSwitch::new(true, 100);
    switch.run(64);
    switch.session.event();
    let ask = config.echo_interval + Nanos(1);
    switch.session.tick(ask).unwrap();
    assert!(!switch.session.output().is_empty());
    let echoes = switch.session.output().len();
    switch.session.tick(ask + Nanos(1)).unwrap();
    assert_eq!(switch.session.output().len(), echoes, "it is asked once");
    let end = config.echo_interval + config.echo_timeout + Nanos(1);
    let error = switch.session.tick(end).unwrap_err();
    assert_eq!(error.to_string(), "no answer to an echo request within 1500 ms");
    // A switch that answers echoes, but not the handshake.
    let mut session = Session::new(config, Nanos::ZERO);
    for second in 1..=20 {
        let mut echo = Vec::new();
        Message::Hello(true).encode(1, &mut echo);
        session.receive(&echo, Nanos::from_secs(second)).unwrap();
        session.tick(Nanos::from_secs(second)).unwrap();
    }
    let error = session.tick(Nanos(20_000_000_001)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no answer to a request for the switch's state within 20000 ms"
    );
}

/// A switch that took more than two seconds for a bundle used to lose its connection, and the bundle was written again.
#[test]
fn a_switch_that_applies_changes_for_seconds_is_not_given_up() {
    let config = SessionConfig::default();
    let mut switch = ScriptedSwitch::new(true, 100);
    switch.run(64);
    let change = FlowMod {
        command: FlowCommand::Add,
        rule: rule(),
    };
    switch.session.command(SwitchCommand::Write {
        id: 1,
        bundles: vec![vec![change]],
    });
    switch.session.tick(config.reply_timeout).unwrap();
    let error = switch.session.tick(config.reply_timeout + Nanos(1)).unwrap_err();
    assert_eq!(error.to_string(), "no answer to a change of rules within 20000 ms");
}

#[test]
fn floods_end_the_connection() {
    let config = SessionConfig {
        max_rules: 3,
        max_ports: 2,
        ..SessionConfig::default()
    };
    let hello = |session: &mut Session| {
        let mut bytes = Vec::new();
        Message::Hello(true).encode(1, &mut bytes);
        session.receive(&bytes, Nanos::ZERO).unwrap();
    };
    let flow = FlowStatistics {
        rule: rule(),
        packets: 0,
        bytes: 0,
    };
    let flows = Message::Flows(Multipart {
        items: vec![flow; 2],
        more: true,
    });
    let mut session = Session::new(config, Nanos::ZERO);
    hello(&mut session);
    let mut bytes = Vec::new();
    flows.encode(6, &mut bytes);
    session.receive(&bytes, Nanos::ZERO).unwrap();
    let error = session.receive(&bytes, Nanos::ZERO).unwrap_err();
    assert_eq!(error.to_string(), "flow statistics: expected 3 at most");
    // Echo requests whose replies are not read.
    let mut session = Session::new(config, Nanos::ZERO);
    hello(&mut session);
    let mut bytes = Vec::new();
    Message::EchoRequest(vec![0; 60_000]).encode(6, &mut bytes);
    let refused = (0..100).find_map(|_| session.receive(&bytes, Nanos::ZERO).err());
    assert_eq!(
        refused.unwrap().to_string(),
        "unread echo replies: expected 1048576 at most"
    );
    assert!(session.output().len() < 2 << 20);
    // A switch of another version.
    let mut session = Session::new(config, Nanos::ZERO);
    let error = session.receive(&[1, 0, 0, 8, 0, 0, 0, 1], Nanos::ZERO).unwrap_err();
    assert!(error.to_string().starts_with("hello.versions: expected"), "{error}");
}
