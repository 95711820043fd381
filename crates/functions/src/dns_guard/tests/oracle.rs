//! The function compared with a simple model, and with arbitrary bytes.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::net::IpAddr;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, protocol};

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
