use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::parse::{Fragment, parse};
use tailwater_net::{FlowKey, Nanos, protocol};

mod bounds;

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
const SIZES: Sizes = Sizes {
    accounts: 4096,
    queries: 4096,
};

fn rules() -> GuardRules {
    GuardRules {
        ports: vec![53],
        servers: Vec::new(),
        clients: Vec::new(),
        exempt: Vec::new(),
        limits: Limits::default(),
        amplification: None,
        window: Nanos::from_secs(15),
        prefixes: [24, 56],
        slip: 2,
        leak: 0,
        mode: Mode::Limit,
        query_timeout: Nanos::from_secs(5),
        fragments: Fragments::Follow,
    }
}

fn guard(rules: GuardRules) -> ChainRig {
    let table = Arc::new(DnsGuardTable::new(rules, SIZES, 7));
    ChainRig::new(vec![Box::new(DnsGuard::new(table))], INPUT)
}

fn count(rig: &ChainRig, name: &str) -> u64 {
    rig.count(&format!("dnsguard/{name}"))
}

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Asks,
    Answers,
    NoData,
    Refers,
    Denies,
    DeniesWithoutZone,
    Fails,
}

#[derive(Clone, Debug)]
struct Spoken {
    says: Says,
    client: IpAddr,
    port: u16,
    id: u16,
    /// Labels of the name. The last two are its zone.
    name: [&'static str; 3],
    kind: u16,
    /// Additional bytes.
    extra: usize,
}

impl Spoken {
    fn message(&self) -> Vec<u8> {
        let (flags, counts): ([u8; 2], [u8; 3]) = match self.says {
            Says::Asks => ([1, 0], [0, 0, 1]),
            Says::Answers => ([0x84, 0], [1, 0, 0]),
            Says::NoData => ([0x84, 0], [0, 1, 0]),
            Says::Refers => ([0x80, 0], [0, 1, 0]),
            Says::Denies => ([0x84, 3], [0, 1, 0]),
            Says::DeniesWithoutZone => ([0x84, 3], [0, 0, 0]),
            Says::Fails => ([0x80, 2], [0, 0, 0]),
        };
        let mut bytes = self.id.to_be_bytes().to_vec();
        bytes.extend(flags);
        bytes.extend([0, 1]);
        counts.iter().for_each(|count| bytes.extend([0, *count]));
        let zone = bytes.len() + 1 + self.name[0].len();
        for label in self.name {
            bytes.push(label.len() as u8);
            bytes.extend(label.as_bytes());
        }
        bytes.push(0);
        bytes.extend([self.kind.to_be_bytes(), [0, 1]].concat());
        let owner = match self.says {
            Says::Answers => Some((0xc00c_u16, self.kind)),
            Says::NoData | Says::Denies => Some((0xc000 | zone as u16, 6)),
            Says::Refers => Some((0xc000 | zone as u16, 2)),
            Says::Asks => {
                bytes.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
                None
            }
            _ => None,
        };
        if let Some((owner, kind)) = owner {
            bytes.extend([owner, kind, 1, 0, 60].iter().flat_map(|word| word.to_be_bytes()));
            bytes.extend((self.extra as u16).to_be_bytes());
        }
        bytes.extend(vec![0xaa; self.extra]);
        bytes
    }

    fn key(&self) -> FlowKey {
        let key = match self.client {
            IpAddr::V4(client) => FlowKey::v4(client, SERVER, protocol::UDP, self.port, 53),
            IpAddr::V6(client) => {
                let server = SERVER.to_ipv6_mapped();
                FlowKey::v6(client, server, protocol::UDP, self.port, 53)
            }
        };
        match self.says {
            Says::Asks => key,
            _ => key.reversed(),
        }
    }

    fn frame(&self) -> Vec<u8> {
        let message = self.message();
        FrameBuilder::new(&self.key()).payload(&message).to_vec().unwrap()
    }

    /// Returns the expected message after truncation.
    fn truncated(&self) -> Vec<u8> {
        let mut message = self.message();
        let name: usize = self.name.iter().map(|label| label.len() + 1).sum();
        message.truncate(12 + name + 1 + 4);
        message[2] |= 2;
        message[6..12].fill(0);
        message
    }
}

/// Token bucket as in BIND: `rate` tokens per second, up to one second's worth. Each response takes one, down to a debt
/// of `window` seconds' worth.
struct Tokens {
    rate: i128,
    balance: i128,
    filled: i128,
    beyond: u64,
}

const TICKS: i128 = 16_000_000;

impl Tokens {
    fn take(&mut self, now: i128, window: i128) -> Option<u64> {
        self.balance = (self.balance + self.rate * (now - self.filled)).min(self.rate * TICKS);
        self.filled = now;
        self.balance -= TICKS;
        self.balance = self.balance.max(-window * TICKS * self.rate);
        match self.balance >= 0 {
            true => self.beyond = 0,
            false => self.beyond += 1,
        }
        (self.beyond > 0).then_some(self.beyond)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Drop,
    Truncate,
}

/// Reference model of a guard: unbounded maps of its state, and messages that need no parsing.
#[derive(Default)]
struct Model {
    tokens: HashMap<String, Tokens>,
    credit: HashMap<String, u64>,
    waiting: HashMap<String, (u64, i128, String)>,
}

impl Model {
    fn take(&mut self, account: String, rate: Option<u32>, now: i128, window: i128) -> Option<u64> {
        let rate = i128::from(rate?);
        let new = || Tokens {
            rate,
            balance: rate * TICKS,
            filled: now,
            beyond: 0,
        };
        self.tokens.entry(account).or_insert_with(new).take(now, window)
    }

    fn judge(&mut self, rules: &GuardRules, spoken: &Spoken, now: i128) -> Fate {
        let prefix = match spoken.client {
            IpAddr::V4(client) => format!("{:?}", &client.octets()[..3]),
            IpAddr::V6(client) => format!("{:?}", &client.octets()[..7]),
        };
        let window = (rules.window.0 / 1_000_000_000) as i128;
        let waiting = format!("{} {} {}", spoken.client, spoken.port, spoken.id);
        let name = spoken.name.join(".").to_lowercase();
        let zone = spoken.name[1..].join(".").to_lowercase();
        let question = format!("{name} {}", spoken.kind);
        let bytes = spoken.message().len() as u64;
        if spoken.says == Says::Asks {
            if self
                .take(format!("q {prefix}"), rules.limits.queries, now, window)
                .is_some()
            {
                return Fate::Drop;
            }
            if let Some(Amplification { ratio, burst }) = rules.amplification {
                let credit = self.credit.entry(prefix).or_insert(burst.into());
                *credit = (*credit + bytes * u64::from(ratio)).min(burst.into());
            }
            let until = now + (rules.query_timeout.0 / 125 * 2) as i128;
            let entry = self.waiting.entry(waiting).or_insert((0, 0, String::new()));
            let before = if entry.1 > now { entry.0 } else { 0 };
            *entry = (before + 1, until, question);
            return Fate::Pass;
        }
        if rules.mode == Mode::Strict {
            match self.waiting.get_mut(&waiting) {
                Some((count, until, asked)) if *count > 0 && *until > now && *asked == question => {
                    *count -= 1;
                }
                _ => return Fate::Drop,
            }
        }
        let limits = &rules.limits;
        let (account, rate) = match spoken.says {
            Says::Asks | Says::Answers => (format!("a {question}"), limits.responses),
            Says::NoData => (format!("n {name}"), limits.nodata),
            Says::Refers => (format!("r {zone}"), limits.referrals),
            Says::Denies => (format!("x {zone}"), limits.nxdomains),
            Says::DeniesWithoutZone => (format!("x {name}"), limits.nxdomains),
            Says::Fails => ("e".to_owned(), limits.errors),
        };
        let one = self.take(format!("{account} {prefix}"), rate, now, window);
        let all = self.take(format!("all {prefix}"), limits.all, now, window);
        if let Some(number) = one.or(all) {
            let each = |of: u16| of > 0 && number % u64::from(of) == 0;
            return match spoken.says {
                _ if each(rules.leak) => Fate::Pass,
                Says::Fails if each(rules.slip) => Fate::Pass,
                _ if each(rules.slip) => Fate::Truncate,
                _ => Fate::Drop,
            };
        }
        if let Some(Amplification { burst, .. }) = rules.amplification {
            let credit = self.credit.entry(prefix).or_insert(burst.into());
            if *credit < bytes {
                return match spoken.says {
                    Says::Fails => Fate::Drop,
                    _ if rules.slip == 0 => Fate::Drop,
                    _ => Fate::Truncate,
                };
            }
            *credit -= bytes;
        }
        Fate::Pass
    }
}

fn spoken() -> impl Strategy<Value = Spoken> {
    let says = prop::sample::select(vec![
        Says::Asks,
        Says::Asks,
        Says::Answers,
        Says::Answers,
        Says::NoData,
        Says::Refers,
        Says::Denies,
        Says::DeniesWithoutZone,
        Says::Fails,
    ]);
    let clients: Vec<IpAddr> = vec![
        "10.0.0.1".parse().unwrap(),
        "10.0.0.200".parse().unwrap(),
        "10.0.1.1".parse().unwrap(),
        "2001:db8:0:1::1".parse().unwrap(),
        "2001:db8:0:1ff::1".parse().unwrap(),
    ];
    let names = prop::sample::select(vec![
        ["www", "example", "com"],
        ["wWw", "eXample", "com"],
        ["mail", "example", "com"],
        ["www", "example", "org"],
    ]);
    let kind = prop::sample::select(vec![1, 28]);
    (
        says,
        prop::sample::select(clients),
        1000..1002_u16,
        0..2_u16,
        names,
        kind,
        0..300_usize,
    )
        .prop_map(|(says, client, port, id, name, kind, extra)| Spoken {
            says,
            client,
            port,
            id,
            name,
            kind,
            extra,
        })
}

/// Generates rates that divide a second's ticks.
fn rate() -> impl Strategy<Value = Option<u32>> {
    prop::sample::select(vec![None, Some(1), Some(2), Some(5), Some(20)])
}

prop_compose! {
    fn any_rules()(
        rates in prop::collection::vec(rate(), 7),
        amplification in prop::option::of((1_u32..5, 200_u32..3000)),
        window in 1_u64..4,
        slip in 0_u16..4,
        leak in 0_u16..4,
        strict in any::<bool>(),
    ) -> GuardRules {
        GuardRules {
            limits: Limits {
                responses: rates[0],
                nodata: rates[1],
                referrals: rates[2],
                nxdomains: rates[3],
                errors: rates[4],
                all: rates[5],
                queries: rates[6],
            },
            amplification: amplification.map(|(ratio, burst)| Amplification { ratio, burst }),
            window: Nanos::from_secs(window),
            slip,
            leak,
            mode: if strict { Mode::Strict } else { Mode::Limit },
            query_timeout: Nanos::from_millis(1500),
            ..rules()
        }
    }
}

/// Checks that a sent frame is the original, or its truncated form with correct checksums.
fn fate(sent: &[Vec<u8>], frame: &[u8], spoken: &Spoken) -> Fate {
    let [sent] = sent else {
        assert!(sent.is_empty());
        return Fate::Drop;
    };
    if sent == frame {
        return Fate::Pass;
    }
    let headers = parse(sent).unwrap();
    assert_ne!(verify_network(sent, &headers), Checksum::Wrong);
    assert_eq!(verify_transport(sent, &headers), Checksum::Correct);
    assert_eq!(headers.payload(sent), spoken.truncated());
    assert_eq!(headers.key, spoken.key());
    Fate::Truncate
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_guard_does_what_a_plain_one_does(
        rules in any_rules(),
        said in prop::collection::vec((spoken(), 0_u64..400), 1..150),
    ) {
        let (mut rig, mut model) = (guard(rules.clone()), Model::default());
        let mut now = Nanos::from_secs(100);
        let (mut dropped, mut truncated) = (0, 0);
        for (spoken, pause) in said {
            now += Nanos::from_millis(pause);
            let frame = spoken.frame();
            let sent = rig.run(std::slice::from_ref(&frame), now);
            let expected = model.judge(&rules, &spoken, (now.0 * 2 / 125).into());
            dropped += u64::from(expected == Fate::Drop);
            truncated += u64::from(expected == Fate::Truncate);
            prop_assert_eq!(fate(&sent, &frame, &spoken), expected, "{:?}", spoken);
        }
        let reasons = ["responses", "nodata", "referrals", "nxdomains", "errors", "all", "queries",
            "amplification", "unsolicited", "fragment"];
        let counted: u64 = reasons.iter().map(|reason| count(&rig, reason)).sum();
        prop_assert_eq!((counted, count(&rig, "slipped")), (dropped, truncated));
        prop_assert_eq!(count(&rig, "not-counted") + count(&rig, "accounts-evicted"), 0);
    }

    /// Arbitrary bytes on the servers' port cause no panic. A sent frame is the original or a complete shorter packet.
    #[test]
    fn any_bytes_pass_or_are_counted(
        payloads in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..60), any::<bool>()), 1..40),
        rules in any_rules(),
    ) {
        let mut rig = guard(rules);
        for (payload, from_server) in payloads {
            let key = FlowKey::v4([10, 0, 0, 1].into(), SERVER, protocol::UDP, 53, 53);
            let key = if from_server { key.reversed() } else { key };
            let frame = FrameBuilder::new(&key).payload(&payload).to_vec().unwrap();
            for sent in rig.run(std::slice::from_ref(&frame), Nanos::from_secs(3)) {
                let headers = parse(&sent).unwrap();
                prop_assert_eq!(verify_transport(&sent, &headers), Checksum::Correct);
                prop_assert!(sent == frame || headers.payload(&sent).len() <= payload.len());
            }
        }
    }
}

fn says(says: Says, client: &str) -> Spoken {
    Spoken {
        says,
        client: client.parse().unwrap(),
        port: 4000,
        id: 9,
        name: ["www", "example", "com"],
        kind: 1,
        extra: 200,
    }
}

/// Sends `count` responses at once and returns the number that pass unchanged.
fn whole(rig: &mut ChainRig, spoken: &Spoken, count: usize, now: Nanos) -> usize {
    let frame = spoken.frame();
    let sent: usize = (0..count)
        .map(|_| {
            let sent = rig.run(std::slice::from_ref(&frame), now);
            usize::from(fate(&sent, &frame, spoken) == Fate::Pass)
        })
        .sum();
    sent
}

#[test]
fn servers_clients_ports_and_exemptions_are_gone_by() {
    let answer = says(Says::Answers, "10.0.0.1");
    let five = Limits {
        responses: Some(5),
        ..Limits::default()
    };
    let now = Nanos::from_secs(1);
    let with = |change: &dyn Fn(&mut GuardRules)| {
        let mut rules = GuardRules {
            limits: five,
            slip: 0,
            ..rules()
        };
        change(&mut rules);
        whole(&mut guard(rules), &answer, 20, now)
    };
    let prefix = |text: &str| vec![text.parse().unwrap()];
    assert_eq!(with(&|_| {}), 5);
    assert_eq!(with(&|rules| rules.ports = vec![5353]), 20);
    assert_eq!(with(&|rules| rules.ports = vec![5353, 53]), 5);
    assert_eq!(with(&|rules| rules.servers = prefix("192.0.2.0/24")), 5);
    assert_eq!(with(&|rules| rules.servers = prefix("192.0.3.0/24")), 20);
    assert_eq!(with(&|rules| rules.exempt = prefix("10.0.0.0/31")), 20);
    assert_eq!(with(&|rules| rules.exempt = prefix("10.0.0.2/31")), 5);
    assert_eq!(with(&|rules| rules.mode = Mode::Strict), 0);
    let strict = |clients: &str| {
        with(&|rules| {
            rules.mode = Mode::Strict;
            rules.clients = prefix(clients);
        })
    };
    assert_eq!((strict("10.0.0.0/24"), strict("10.1.0.0/16")), (0, 5));
}

/// New rules take effect at once, and debts are kept.
#[test]
fn rules_are_replaced_under_traffic() {
    let limits = |responses| Limits {
        responses,
        ..Limits::default()
    };
    let with = |responses| GuardRules {
        limits: limits(responses),
        slip: 0,
        ..rules()
    };
    let table = Arc::new(DnsGuardTable::new(with(Some(10)), SIZES, 7));
    let function = DnsGuard::new(Arc::clone(&table));
    assert_eq!(function.state_bytes(), 0);
    let mut rig = ChainRig::new(vec![Box::new(function)], INPUT);
    let answer = says(Says::Answers, "10.0.0.1");
    let now = Nanos::from_secs(1);
    assert_eq!(whole(&mut rig, &answer, 30, now), 10);
    assert_eq!(table.replace(with(None)), 2);
    assert_eq!(whole(&mut rig, &answer, 30, now), 30);
    table.replace(with(Some(20)));
    assert_eq!(whole(&mut rig, &answer, 30, now), 0);
    // Repaying the first 30 takes 3 seconds, the later 30 another 1.5 seconds.
    assert_eq!(whole(&mut rig, &answer, 30, Nanos::from_millis(5500)), 20);
}

/// Later fragments of a response are treated like the first, and a truncated response is a complete datagram.
#[test]
fn fragments_follow_their_first() {
    for (address, server) in [
        ("10.0.0.1", IpAddr::V4(SERVER)),
        ("2001:db8::1", Ipv6Addr::LOCALHOST.into()),
    ] {
        for (slip, policy, expected) in [
            (0, Fragments::Follow, [0, 0]),
            (1, Fragments::Follow, [1, 0]),
            (0, Fragments::Pass, [0, 1]),
            (0, Fragments::Drop, [0, 0]),
        ] {
            let mut rig = guard(GuardRules {
                limits: Limits {
                    responses: Some(1),
                    ..Limits::default()
                },
                slip,
                fragments: policy,
                ..rules()
            });
            let answer = Spoken {
                extra: 1000,
                ..says(Says::Answers, address)
            };
            let now = Nanos::from_secs(1);
            let [first, later] = fragments(&answer, server, 1);
            let sent = rig.run(&[first, later], now);
            let allowed = if policy == Fragments::Drop { 1 } else { 2 };
            assert_eq!(sent.len(), allowed, "the first response is within the rate");
            let [first, later] = fragments(&answer, server, 2);
            let sent = rig.run(std::slice::from_ref(&first), now);
            assert_eq!(sent.len(), expected[0]);
            for sent in sent {
                let headers = parse(&sent).unwrap();
                assert_eq!(headers.fragment, Fragment::Whole);
                assert_ne!(verify_network(&sent, &headers), Checksum::Wrong);
                assert_eq!(verify_transport(&sent, &headers), Checksum::Correct);
                assert_eq!(headers.payload(&sent), answer.truncated());
            }
            assert_eq!(rig.run(&[later], now).len(), expected[1]);
            // Fragments of another datagram are independent, and after 30 seconds the datagram is forgotten.
            let [_, other] = fragments(&answer, server, 3);
            let others = usize::from(policy != Fragments::Drop);
            assert_eq!(rig.run(&[other], now).len(), others);
            let [_, later] = fragments(&answer, server, 2);
            assert_eq!(rig.run(&[later], Nanos::from_secs(40)).len(), others);
        }
    }
}

/// A client that has sent no query gets at most the burst, however few bytes of a response are in its first fragment.
#[test]
fn fragments_count_towards_amplification_as_the_whole_does() {
    let answer = Spoken {
        extra: 1000,
        ..says(Says::Answers, "10.0.0.1")
    };
    let bytes = answer.message().len() as u32;
    for (burst, passed) in [(bytes, 2), (bytes - 1, 0)] {
        let mut rig = guard(GuardRules {
            amplification: Some(Amplification { ratio: 1, burst }),
            slip: 0,
            ..rules()
        });
        let sent = rig.run(&fragments(&answer, SERVER.into(), 1), Nanos::from_secs(1));
        assert_eq!(sent.len(), passed, "burst {burst}");
    }
}

/// The number of a dropped datagram is reused by a datagram that passes. The later fragments of the new one pass as
/// well.
#[test]
fn fragments_of_a_number_that_was_dropped_before_follow_their_own_first() {
    let mut rig = guard(GuardRules {
        limits: Limits {
            responses: Some(1),
            ..Limits::default()
        },
        slip: 0,
        ..rules()
    });
    let answer = Spoken {
        extra: 1000,
        ..says(Says::Answers, "10.0.0.1")
    };
    let datagram = |number| fragments(&answer, SERVER.into(), number);
    let now = Nanos::from_secs(1);
    assert_eq!(rig.run(&datagram(1), now).len(), 2);
    assert_eq!(rig.run(&datagram(2), now).len(), 0);
    assert_eq!(rig.run(&datagram(2), Nanos::from_secs(20)).len(), 2);
}

/// Returns the two fragments of a server's response.
fn fragments(spoken: &Spoken, server: IpAddr, number: u16) -> [Vec<u8>; 2] {
    let key = match (server, spoken.client) {
        (IpAddr::V4(server), IpAddr::V4(client)) => FlowKey::v4(server, client, 17, 53, 4000),
        (IpAddr::V6(server), IpAddr::V6(client)) => FlowKey::v6(server, client, 17, 53, 4000),
        _ => panic!("two versions"),
    };
    let whole = FrameBuilder::new(&key)
        .identification(number)
        .payload(&spoken.message())
        .to_vec()
        .unwrap();
    const CUT: usize = 504;
    let header = if server.is_ipv4() { 34 } else { 54 };
    let datagram = &whole[header..];
    [(0, &datagram[..CUT]), (CUT, &datagram[CUT..])].map(|(offset, data)| {
        let mut frame = whole[..header].to_vec();
        let more = u16::from(offset == 0);
        if server.is_ipv4() {
            frame[16..18].copy_from_slice(&(20 + data.len() as u16).to_be_bytes());
            let bits = (offset as u16 / 8) | more << 13;
            frame[20..22].copy_from_slice(&bits.to_be_bytes());
            frame[24..26].fill(0);
            let sum = !tailwater_net::checksum::sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        } else {
            frame[18..20].copy_from_slice(&(8 + data.len() as u16).to_be_bytes());
            frame[20] = 44;
            frame.extend([17, 0]);
            frame.extend(((offset as u16) | more).to_be_bytes());
            frame.extend(u32::from(number).to_be_bytes());
        }
        frame.extend(data);
        frame
    })
}
