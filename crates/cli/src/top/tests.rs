use super::sample::{ChainSample, CoreSample, Counters, EventSample, FunctionSample, PortSample, Sample};
use super::shown::text;
use super::state::{Key, Page, State};
use super::{recording, state};
use tailwater_net::Nanos;

const SIZE: (u16, u16) = (150, 30);

fn chain(name: &str, p99: u64, packets: u64) -> ChainSample {
    ChainSample {
        name: name.to_owned(),
        phase: "Running".to_owned(),
        promise: "promised".to_owned(),
        rates: Some([packets as f64, packets as f64 - 3.0, 2.0, 1.0]),
        latency: [Some(Nanos::from_micros(20)), Some(Nanos::from_micros(p99))],
        objective: Nanos::from_micros(200),
        is_met: Some(p99 <= 200),
        cores: vec![1, 2, 5],
        auxiliary: 0.25,
        counters: Some(Counters {
            at: Nanos(packets * 1_000_000),
            late: [
                ("service".to_owned(), packets),
                ("queued-behind-own-flow".to_owned(), 4 * packets),
            ]
            .into(),
            reasons: [("acl/denied".to_owned(), 2 * packets)].into(),
            functions: vec![
                FunctionSample {
                    name: "acl".to_owned(),
                    packets: 100 * packets,
                    dropped: packets,
                    timed: [packets, 30 * packets],
                },
                FunctionSample {
                    name: "nat".to_owned(),
                    packets: 99 * packets,
                    dropped: 0,
                    timed: [0, 0],
                },
            ],
            to_auxiliary: 7 * packets,
            flows: Some(1234),
            preemptions: 0,
        }),
        ..ChainSample::default()
    }
}

fn sample(at: u64, packets: u64) -> Sample {
    let core = |core, is_auxiliary, busy: u64, chains: &[&str]| CoreSample {
        core,
        is_auxiliary,
        busy: Nanos(busy * at / 100),
        chains: chains.iter().map(|chain| (*chain).to_owned()).collect(),
    };
    Sample {
        title: "edge (tailwater 1.2.3)".to_owned(),
        state: "generation 4, ready, 2 of 2 chains run".to_owned(),
        at: Nanos(at),
        chains: vec![chain("calm", 100, packets), chain("late", 900, 2 * packets)],
        cores: vec![core(1, false, 50, &["calm", "late"]), core(3, true, 95, &[])],
        ports: Vec::new(),
        events: vec![EventSample {
            time: "2026-01-01T00:00:00Z".to_owned(),
            is_warning: true,
            chain: "late".to_owned(),
            text: "ObjectiveMissed p99 900us".to_owned(),
        }],
    }
}

/// State after two samples, of which the second has 1,000 more packets, in a second of each chain's clock.
fn two_samples() -> State {
    let mut state = State::new(sample(1_000_000_000, 1000));
    state.show(sample(2_000_000_000, 2000));
    state
}

fn press(state: &mut State, keys: &[Key]) {
    keys.iter().for_each(|key| assert!(state.press(*key)));
}

fn line_with(screen: &str, text: &str) -> String {
    let found = screen.lines().find(|line| line.contains(text));
    found
        .unwrap_or_else(|| panic!("no line with {text}:\n{screen}"))
        .to_owned()
}

#[test]
fn all_chains_are_shown_with_what_matters() {
    let screen = text(&two_samples(), None, SIZE);
    assert!(
        line_with(&screen, "objectives missed").contains("6.00k packets/s offered, 2 lost/s, 1 objectives missed"),
        "{screen}"
    );
    let calm = line_with(&screen, "calm");
    for part in [
        "100us",
        "████░░░░ 50 %",
        "yes",
        "2.00k",
        "1-2,5",
        "0.25",
        "1.23k",
        "promised",
        "queued-behind-own-flow 4.00k/s",
    ] {
        assert!(calm.contains(part), "{part} in {calm}");
    }
    let late = line_with(&screen, "late  ");
    assert!(late.contains("████████ 450 %") && late.contains("NO"), "{late}");
}

/// Columns were as narrow as two cells: `5.` for 5.1 ms.
#[test]
fn a_narrow_terminal_shows_fewer_columns_and_whole_values() {
    let screen = text(&two_samples(), None, (40, 12));
    let late = line_with(&screen, "late  ");
    let words: Vec<&str> = late.split_whitespace().collect();
    assert_eq!(words, ["late", "Running", "900us", "NO", "1"], "{screen}");
    let mut state = two_samples();
    press(&mut state, &[Key::Enter]);
    let screen = text(&state, None, (40, 30));
    let line = line_with(&screen, "cores 1-2,5");
    assert!(line.len() <= 40, "{screen}");
    let acl = line_with(&screen, "acl  ");
    assert!(acl.contains(" 30 ns ") && acl.ends_with("100 %"), "{screen}");
    assert!(screen.contains("LATE OR LOST, BY CAUSE\n"), "{screen}");
    press(&mut state, &[Key::Char('3')]);
    let screen = text(&state, None, (40, 12));
    assert!(screen.contains("00:00:00 late       ObjectiveMissed p99"), "{screen}");
    press(&mut state, &[Key::Char('2')]);
    let screen = text(&state, None, (40, 12));
    assert!(line_with(&screen, "auxiliary").contains("lent to"), "{screen}");
}

#[test]
fn losses_of_ports_are_shown_and_leave_no_verdict() {
    let mut lossy = sample(2_000_000_000, 2000);
    let port = |name: &str, rate, lost| PortSample {
        name: name.to_owned(),
        rate,
        lost,
    };
    lossy.ports = vec![port("a", 0.0, 0), port("b", 0.0, 7), port("c", 1500.0, 20_000)];
    (lossy.chains[0].is_met, lossy.chains[0].port_lost) = (None, 12);
    let mut state = State::new(lossy);
    let screen = text(&state, None, SIZE);
    let losses = "1 objectives missed, port c loses 1.50k/s (20.0k so far), port b loses 0/s (7 so far)";
    assert!(line_with(&screen, "objectives missed").contains(losses), "{screen}");
    assert!(line_with(&screen, "calm").contains(" port "), "{screen}");
    press(&mut state, &[Key::Enter]);
    assert!(text(&state, None, SIZE).contains("objective 200us: unknown, its port loses packets"));
}

#[test]
fn a_chain_is_opened_with_the_rates_of_its_functions() {
    let mut state = two_samples();
    press(&mut state, &[Key::Enter]);
    assert_eq!(state.page, Page::Chain("calm".to_owned()));
    let screen = text(&state, None, SIZE);
    let acl = line_with(&screen, "acl  ");
    for part in ["100k", "1.00k", "30 ns", "0.003", "100 %"] {
        assert!(acl.contains(part), "{part} in {acl}");
    }
    assert!(line_with(&screen, "nat").contains("99.0k"), "{screen}");
    // Most first.
    let (own, service) = (
        screen.find("queued-behind-own-flow").unwrap(),
        screen.find("service").unwrap(),
    );
    assert!(own < service);
    assert!(screen.contains("2.00k/s  acl/denied"), "{screen}");
    press(&mut state, &[Key::Escape]);
    assert_eq!(state.page, Page::Chains);
}

#[test]
fn cores_are_shown_with_their_load_and_borrowers() {
    let mut state = two_samples();
    press(&mut state, &[Key::Tab]);
    let screen = text(&state, None, SIZE);
    let dedicated = line_with(&screen, "dedicated");
    assert!(
        dedicated.contains("50 %") && dedicated.contains("calm, late"),
        "{dedicated}"
    );
    let auxiliary = line_with(&screen, "auxiliary");
    assert!(
        auxiliary.contains("95 %") && auxiliary.contains("lent to calm 7.00k/s, late 7.00k/s"),
        "{auxiliary}"
    );
    press(&mut state, &[Key::Tab]);
    assert!(text(&state, None, SIZE).contains("ObjectiveMissed p99 900us"));
}

#[test]
fn chains_are_sorted_reversed_and_filtered() {
    let mut state = two_samples();
    let order = |state: &State| {
        state
            .chains()
            .iter()
            .map(|chain| chain.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(order(&state), ["calm", "late"]);
    press(&mut state, &[Key::Char('s')]);
    assert_eq!(state.order, state::Order::Latency);
    assert_eq!(order(&state), ["late", "calm"]);
    press(&mut state, &[Key::Char('r')]);
    assert_eq!(order(&state), ["calm", "late"]);
    press(
        &mut state,
        &[
            Key::Char('/'),
            Key::Char('L'),
            Key::Char('q'),
            Key::Backspace,
            Key::Char('a'),
            Key::Enter,
        ],
    );
    assert_eq!(order(&state), ["late"]);
    // Esc clears the filter first, then ends.
    press(&mut state, &[Key::Escape]);
    assert_eq!(order(&state).len(), 2);
    assert!(!state.press(Key::Escape));
    assert!(!state.press(Key::Char('q')));
}

#[test]
fn a_chain_that_was_replaced_has_the_rates_of_its_new_run() {
    let mut state = two_samples();
    // It counts from zero: no rate is taken from the old run's counters.
    state.show(sample(3_000_000_000, 500));
    assert_eq!(state.rates["calm"].functions[0].packets, 100_000.0);
    let mut gone = sample(4_000_000_000, 600);
    gone.chains.remove(0);
    press(&mut state, &[Key::Enter]);
    state.show(gone);
    assert!(text(&state, None, SIZE).contains("no chain calm any more"));
}

#[test]
fn screens_of_any_size_are_drawn() {
    let mut state = two_samples();
    for page in ["1", "2", "3", "h"] {
        press(&mut state, &[Key::Char(page.chars().next().unwrap())]);
        for width in [2, 10, 41, 200] {
            for height in [2, 3, 4, 9, 60] {
                text(&state, Some((0, 1)), (width, height));
            }
        }
        press(&mut state, &[Key::Char('1'), Key::Enter]);
        text(&state, None, (3, 3));
        press(&mut state, &[Key::Escape]);
    }
}

#[test]
fn a_report_is_a_recording() {
    let step = |start: f64, late: u64| {
        format!(
            r#"{{"start_s": {start}, "windows": 1, "offered": 1000, "delivered": 990, "dropped_by_nf": 10, "lost": 0,
            "busy": 0.5, "late_by_cause": {{"service": {late}}}, "dropped_by_reason": {{"acl/denied": 10}},
            "latency_us": {{"p50": 5.0, "p99": 250.0}}}}"#
        )
    };
    let report = format!(
        r#"{{"chain": "edge", "traffic": "x.pcap", "slo": {{"latency_us": 200.0, "percentile": 99.0}},
        "cores": {{"dedicated": 2}}, "timeline": {{"step_ms": 500.0, "list": [{}, {}]}}}}"#,
        step(0.0, 5),
        step(0.5, 50)
    );
    let samples = recording::samples(report.as_bytes()).unwrap();
    let mut state = State::new(samples[0].clone());
    assert_eq!(state.sample.chains[0].is_met, Some(true));
    state.show(samples[1].clone());
    assert_eq!(state.sample.chains[0].is_met, Some(false));
    assert_eq!(state.rates["edge"].late, [("service".to_owned(), 100.0)]);
    assert_eq!(state.busy[&1], 0.5);
    let screen = text(&state, Some((1, 2)), SIZE);
    assert!(screen.contains("step 2 of 2"), "{screen}");
    for wrong in [
        "",
        "[]",
        r#"{"chain": 5}"#,
        &report.replace("500.0", "0.0"),
        &report.replace("\"list\"", "\"liszt\""),
    ] {
        assert!(
            recording::samples(wrong.as_bytes())
                .unwrap_err()
                .starts_with("expected a report"),
            "{wrong}"
        );
    }
}
