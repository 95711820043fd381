//! Rule evaluation: candidate rules, their tests, and actions on a match.

use crate::alert::{Alert, Detail};
use crate::buffer::BufferKey;
use crate::connection::{BLOCKED, Connection, DETECTED, ESTABLISHED, PASSED};
use crate::evaluate::Budget;
use crate::packet::Subject;
use crate::prefilter::Candidates;
use crate::rule::{Action, Anomalies, Header, PacketTest, ThresholdKind};
use crate::ruleset::RuleSet;
use crate::signature::{Hook, Signature, Transport, flags_match};
use crate::stream::Side;
use crate::threshold::{ThresholdDecision, Thresholds};
use crate::unit::{Lowered, Unit};
use std::sync::Arc;
use tailwater_net::{FlowKey, protocol};
use tailwater_streams::http::messages::Cursor;

/// Budget of one rule's tests per evaluation.
const RULE_BUDGET: u32 = 2048;
/// Budget of all rules' tests per packet.
const PACKET_BUDGET: u32 = 16_384;
/// Largest number of alerts per packet.
pub const MAX_ALERTS: usize = 16;

/// Outcome for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PacketOutcome {
    Pass,
    /// Rules were not evaluated, or not completely.
    Unclear,
    /// An earlier rule blocked the connection.
    Blocked,
    Drop,
    Reject,
}

/// Counter indices; names are in [`COUNTERS`](crate::inspector::COUNTERS).
pub(crate) mod counter {
    pub(crate) const ALERTS: usize = 0;
    pub(crate) const ALERTS_LOST: usize = 1;
    pub(crate) const BUDGET: usize = 2;
    pub(crate) const BITS_FULL: usize = 3;
    pub(crate) const PENDING_FULL: usize = 4;
    pub(crate) const OVERFLOW: usize = 5;
    pub(crate) const GAP: usize = 6;
    pub(crate) const CONFLICT: usize = 7;
    pub(crate) const CHECKSUM: usize = 8;
    pub(crate) const FRAGMENT: usize = 9;
    pub(crate) const HTTP_LOST: usize = 10;
    pub(crate) const TUNNEL: usize = 11;
    pub(crate) const HTTP2_MALFORMED: usize = 12;
    pub(crate) const HTTP2_OVERFLOW: usize = 13;
    /// First of the anomalies of HTTP messages.
    pub(crate) const HTTP_ANOMALIES: usize = 14;
    pub(crate) const COUNT: usize = HTTP_ANOMALIES + super::Anomalies::NAMES.len();
}

/// Evaluates rules on a worker's packets.
#[derive(Debug)]
pub(crate) struct RuleEvaluator {
    pub(crate) rules: Arc<RuleSet>,
    pub(crate) version: u32,
    thresholds: Arc<Thresholds>,
    candidates: Candidates,
    lowered: Lowered,
    budget: u32,
    pub(crate) alerts: Vec<Alert>,
    /// Rules that have matched the packet.
    matched: Vec<u32>,
    pub(crate) fate: PacketOutcome,
    /// `true` if a rule with action `pass` matched.
    passed: bool,
    /// Anomalies of the HTTP message that is evaluated.
    pub(crate) anomalies: Anomalies,
    pub(crate) counters: [u64; counter::COUNT],
}

impl RuleEvaluator {
    pub(crate) fn new(
        (version, rules): (u32, Arc<RuleSet>),
        thresholds: Arc<Thresholds>,
        room: usize,
    ) -> RuleEvaluator {
        RuleEvaluator {
            candidates: Candidates::new(rules.len()),
            rules,
            version,
            thresholds,
            lowered: Lowered::with_room(room),
            budget: 0,
            alerts: Vec::with_capacity(MAX_ALERTS),
            matched: Vec::with_capacity(MAX_ALERTS),
            fate: PacketOutcome::Pass,
            passed: false,
            anomalies: Anomalies::NONE,
            counters: [0; counter::COUNT],
        }
    }

    /// Switches to a new rule set.
    #[cold]
    pub(crate) fn renew(&mut self, version: u32, rules: Arc<RuleSet>) {
        self.candidates = Candidates::new(rules.len());
        (self.version, self.rules) = (version, rules);
    }

    /// Starts a packet.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.alerts.clear();
        self.matched.clear();
        self.fate = PacketOutcome::Pass;
        self.passed = false;
        self.budget = PACKET_BUDGET;
    }

    /// Records that something could not be inspected, and counts the reason.
    pub(crate) fn unclear(&mut self, why: usize) {
        self.counters[why] += 1;
        self.fate = self.fate.max(PacketOutcome::Unclear);
    }

    /// Counts the anomalies of a message that were not counted before.
    #[cold]
    pub(crate) fn count_anomalies(&mut self, message: &mut Cursor) {
        for position in message.anomalies.without(message.counted).positions() {
            self.counters[counter::HTTP_ANOMALIES + position] += 1;
        }
        message.counted = message.anomalies;
    }

    /// Evaluates the rules on the application protocol, when it is known, once in each direction.
    pub(crate) fn detected(&mut self, subject: &Subject<'_>, connection: &mut Connection) {
        if connection.app().is_some() && !connection.has_for(DETECTED, subject.direction) {
            connection.set_for(DETECTED, subject.direction);
            self.evaluate(Hook::Detected, &Unit::new(), subject, connection);
        }
    }

    /// Evaluates the rules of a hook on a unit.
    pub(crate) fn evaluate(
        &mut self,
        place: Hook,
        unit: &Unit<'_>,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        if self.passed || !self.rules.has_rules_at(place) {
            return;
        }
        let rules = Arc::clone(&self.rules);
        self.candidates.clear();
        let ports = self.port_group(&rules, subject, connection);
        let candidates = &mut self.candidates;
        for group in rules.groups(place, subject.direction) {
            group.search(unit, 0, ports, |rule| candidates.add(rule));
        }
        let (ends, flags) = (subject.ends(), subject.flags());
        rules.unfiltered(place, ends, flags, |rule| candidates.add(rule));
        self.settle(&rules, unit, subject, connection, None);
    }

    /// Evaluates the stream rules on a window whose bytes from `fresh` on are new.
    pub(crate) fn evaluate_stream(
        &mut self,
        (side, fresh): (&mut Side, usize),
        unit: &Unit<'_>,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        let place = Hook::stream(subject.direction);
        if self.passed || !self.rules.has_rules_at(place) {
            return;
        }
        let rules = Arc::clone(&self.rules);
        side.rules.renew(self.version);
        self.candidates.clear();
        let ports = self.port_group(&rules, subject, connection);
        let candidates = &mut self.candidates;
        for group in rules.groups(place, subject.direction) {
            group.search(unit, fresh, ports, |rule| candidates.add(rule));
        }
        side.rules.pending().iter().for_each(|rule| candidates.add(*rule));
        let (ends, flags) = (subject.ends(), subject.flags());
        rules.unfiltered(place, ends, flags, |rule| candidates.add(rule));
        self.settle(&rules, unit, subject, connection, Some(side));
    }

    /// Returns the connection's port group, which is cached per connection and rule set.
    #[inline]
    fn port_group(&self, rules: &RuleSet, subject: &Subject<'_>, connection: &mut Connection) -> u8 {
        connection.port_group(self.version).unwrap_or_else(|| {
            let group = rules.port_group(&subject.key, subject.direction);
            connection.set_port_group(self.version, group);
            group
        })
    }

    /// Evaluates the candidates.
    fn settle(
        &mut self,
        rules: &RuleSet,
        unit: &Unit<'_>,
        subject: &Subject<'_>,
        connection: &mut Connection,
        mut side: Option<&mut Side>,
    ) {
        self.lowered.clear();
        self.candidates.order();
        for i in 0..self.candidates.rules.len() {
            let rule = self.candidates.rules[i];
            let signature = &rules.signatures[rule as usize];
            if !applies(signature, subject) || self.matched.contains(&rule) {
                continue;
            }
            if let Some(side) = &side
                && (side.rules.is_done(rule) || signature.from_start && side.bytes.base() > 0)
            {
                continue;
            }
            if self.matches(signature, unit, subject, connection) {
                if let Some(side) = &mut side {
                    side.rules.finish(rule);
                }
                self.fire(rule, signature, unit, subject, connection);
                if self.passed {
                    return;
                }
            } else if let Some(side) = &mut side
                && !signature.checks.is_empty()
                && !side.rules.wait_for(rule)
            {
                self.counters[counter::PENDING_FULL] += 1;
            }
        }
    }

    /// Returns `true` if a rule that applies to the packet matches.
    fn matches(
        &mut self,
        signature: &Signature,
        unit: &Unit<'_>,
        subject: &Subject<'_>,
        connection: &Connection,
    ) -> bool {
        if signature.app.is_some_and(|app| !connection.runs(app)) {
            return false;
        }
        let established = signature.rule.flow.established;
        if established.is_some_and(|wanted| wanted != connection.has(ESTABLISHED)) {
            return false;
        }
        if !signature.bit_conditions.iter().all(|step| connection.bits_are(step)) {
            return false;
        }
        let mut tests = signature.rule.packet.iter();
        let anomalies = self.anomalies;
        if !tests.all(|test| packet_test(test, subject, connection, anomalies)) {
            return false;
        }
        let mut budget = Budget::new(RULE_BUDGET.min(self.budget));
        let before = budget.left();
        let holds = signature.checks.iter().all(|checks| {
            let bytes = self.lowered.get(unit, checks.buffer, checks.nocase);
            bytes.is_some_and(|bytes| checks.all_match(bytes, &mut budget))
        });
        self.budget -= before - budget.left();
        if !holds && budget.is_spent() {
            self.unclear(counter::BUDGET);
        }
        holds
    }

    /// Carries out the actions of a matching rule.
    #[cold]
    fn fire(
        &mut self,
        rule: u32,
        signature: &Signature,
        unit: &Unit<'_>,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        if self.matched.len() < self.matched.capacity() {
            self.matched.push(rule);
        }
        for step in &signature.bit_changes {
            if !connection.change_bits(step) {
                self.counters[counter::BITS_FULL] += 1;
            }
        }
        let about = &signature.rule.about;
        let number = u64::from(about.generator) << 32 | u64::from(about.sid);
        let mut told = ThresholdDecision::WithAlert;
        for threshold in &signature.rule.thresholds {
            // A rule may have one threshold and one filter; they count separately.
            let salt = u64::from(threshold.kind == ThresholdKind::Filter) << 63;
            let count = self
                .thresholds
                .count(number | salt, threshold, subject.ends(), subject.arrival());
            told = match (told, count) {
                (ThresholdDecision::No, _) | (_, ThresholdDecision::No) => ThresholdDecision::No,
                (ThresholdDecision::WithoutAlert, _) | (_, ThresholdDecision::WithoutAlert) => {
                    ThresholdDecision::WithoutAlert
                }
                _ => ThresholdDecision::WithAlert,
            };
        }
        if signature.rule.silent || told == ThresholdDecision::No {
            return;
        }
        let action = signature.rule.header.action;
        match action {
            Action::Pass => {
                self.passed = true;
                connection.set(PASSED, true);
                return;
            }
            Action::Drop | Action::Reject if subject.drops => {
                let fate = match action {
                    Action::Drop => PacketOutcome::Drop,
                    _ => PacketOutcome::Reject,
                };
                self.fate = self.fate.max(fate);
                connection.set(BLOCKED, subject.key.protocol() == protocol::TCP);
            }
            _ => {}
        }
        if told == ThresholdDecision::WithoutAlert {
            return;
        }
        self.counters[counter::ALERTS] += 1;
        if self.alerts.len() == MAX_ALERTS {
            self.counters[counter::ALERTS_LOST] += 1;
            return;
        }
        self.alerts.push(Alert {
            rule,
            version: self.version,
            key: subject.key,
            time: subject.arrival(),
            to_server: subject.direction == crate::rule::Direction::ToServer,
            dropped: subject.drops && matches!(action, Action::Drop | Action::Reject),
            app: connection.app(),
            detail: Detail::of(unit),
        });
    }
}

/// Returns `true` if a rule applies to the packet's addresses, ports and direction.
fn applies(signature: &Signature, subject: &Subject<'_>) -> bool {
    let rule = &signature.rule;
    if rule
        .flow
        .direction
        .is_some_and(|direction| direction != subject.direction)
    {
        return false;
    }
    let number = subject.key.protocol();
    let transport = match signature.transport {
        Transport::Any => true,
        Transport::Tcp => number == protocol::TCP,
        Transport::Udp => number == protocol::UDP,
        Transport::Icmp => matches!(number, protocol::ICMP | protocol::ICMPV6),
        Transport::TcpOrUdp => matches!(number, protocol::TCP | protocol::UDP),
    };
    let header = &rule.header;
    let either = || header.both_ways && goes(header, &subject.key.reversed());
    transport && (goes(header, &subject.key) || either())
}

/// Returns `true` if a header matches a flow key.
fn goes(header: &Header, key: &FlowKey) -> bool {
    let ports = matches!(key.protocol(), protocol::TCP | protocol::UDP);
    let port = |set: &crate::address::PortSet, port| !ports || set.contains(port);
    port(&header.destination_ports, key.destination_port())
        && port(&header.source_ports, key.source_port())
        && header.source.contains(key.source())
        && header.destination.contains(key.destination())
}

/// Returns `true` if a test of the packet's headers holds.
fn packet_test(test: &PacketTest, subject: &Subject<'_>, connection: &Connection, anomalies: Anomalies) -> bool {
    match test {
        PacketTest::HttpEvent(wanted) => anomalies.intersects(*wanted),
        PacketTest::Flags(test) => subject.key.protocol() == protocol::TCP && flags_match(test, subject.flags()),
        PacketTest::SameAddress => subject.key.source() == subject.key.destination(),
        PacketTest::Number { field, range, negated } => {
            let number = subject.number(*field, connection);
            number.is_some_and(|number| range.contains(&number) != *negated)
        }
    }
}

/// Returns a unit with only the payload.
pub(crate) fn payload_unit(bytes: &[u8]) -> Unit<'_> {
    let mut unit = Unit::new();
    unit.set(BufferKey::PAYLOAD, bytes);
    unit
}
