//! Comparison and summary table of the benchmark `scaling`.

#[path = "../benches/scaling/comparison.rs"]
mod comparison;

use comparison::{
    Cell, HEADING, Keeps, PolicyRun, Row, STATIC, TWO_DEDICATED, Total, Window, median, table_lines, total,
};
use tailwater_measure::sign_test::SignTest;

fn window(index: u64, p99_us: f64, late: f64) -> Window {
    Window {
        index,
        p99_us,
        late,
        flagged: false,
    }
}

/// Row with two rounds of `late.len()` windows each.
fn row(name: &'static str, late: &[f64], cores: f64) -> Row {
    let windows = late.iter().enumerate();
    let run = PolicyRun {
        windows: windows.map(|(i, late)| window(i as u64, 1e4 * late, *late)).collect(),
        cores,
        lost: 3,
    };
    Row {
        name,
        runs: vec![run.clone(), run],
    }
}

fn cell(rows: Vec<Row>) -> Cell {
    Cell {
        name: "acl-nat/as/60/200".to_owned(),
        late_limit: 0.01,
        capacity_mpps: vec![4.0, 6.0],
        offered_mpps: vec![2.4, 3.6],
        rows,
    }
}

#[test]
fn medians() {
    assert_eq!(median([]), 0.0);
    assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
}

#[test]
fn summaries_exclude_flagged_windows_unless_they_are_the_most() {
    let mut row = row("tailwater", &[0.0, 0.02, 0.04], 1.25);
    let all = row.summary(0.03);
    assert_eq!((all.p99_us, all.late, all.lost, all.cores), (200.0, 0.02, 6, 1.25));
    assert_eq!((all.windows, all.flagged), (6, 0));
    assert!((all.kept - 2.0 / 3.0).abs() < 1e-9);

    row.runs[0].windows[2].flagged = true;
    row.runs[1].windows[2].flagged = true;
    let some = row.summary(0.03);
    assert_eq!((some.late, some.kept, some.windows, some.flagged), (0.01, 1.0, 6, 2));

    row.runs[0].windows[1].flagged = true;
    row.runs[1].windows[1].flagged = true;
    let most = row.summary(0.03);
    assert_eq!((most.late, most.flagged), (all.late, 4));
}

#[test]
fn pairs_have_the_same_round_and_index() {
    let mut reference = row(STATIC, &[0.02, 0.02, 0.02, 0.02], 1.0);
    let mut policy = row("tailwater", &[0.01, 0.02, 0.03, 0.01], 1.2);
    let signs = |better, worse, equal| SignTest { better, worse, equal };
    assert_eq!(policy.compared(&reference).late, signs(4, 2, 2));
    // A window that one of the runs does not have, and a round that was not completed.
    reference.runs[0].windows.remove(2);
    assert_eq!(policy.compared(&reference).late, signs(4, 1, 2));
    policy.runs.pop();
    assert_eq!(policy.compared(&reference).late, signs(2, 0, 1));
    // Flagged on either side.
    reference.runs[0].windows[0].flagged = true;
    let compared = policy.compared(&reference);
    assert_eq!((compared.late, compared.p99), (signs(1, 0, 1), signs(1, 0, 1)));
    assert!(!compared.disturbed);
    policy.runs[0].windows[1].flagged = true;
    let compared = policy.compared(&reference);
    assert_eq!(compared.late, signs(2, 0, 1));
    assert!(compared.disturbed);
}

#[test]
fn policies_have_to_keep_what_two_dedicated_cores_keep() {
    let policy = |late: f64, cores| row("tailwater", &[late; 5], cores);
    let keeps = |two: f64, policy: &Row| {
        let rows = vec![
            row(STATIC, &[0.5; 5], 1.0),
            policy.clone(),
            row(TWO_DEDICATED, &[two; 5], 2.0),
        ];
        cell(rows).keeps(policy)
    };
    assert_eq!(keeps(0.01, &policy(0.01, 1.35)), Some(Keeps::Yes));
    assert_eq!(keeps(0.01, &policy(0.011, 1.35)), Some(Keeps::Late));
    assert_eq!(keeps(0.01, &policy(0.01, 1.36)), Some(Keeps::TooManyCores(1.36)));
    assert_eq!(keeps(0.011, &policy(0.01, 1.2)), None);
    assert_eq!(cell(vec![policy(0.0, 1.0)]).keeps(&policy(0.0, 1.0)), None);
}

#[test]
fn tables_and_totals() {
    let cells = [
        cell(vec![
            row(STATIC, &[0.02; 5], 1.0),
            row("tailwater", &[0.005; 5], 1.1),
            row("netblaze", &[0.03; 5], 1.5),
            row(TWO_DEDICATED, &[0.0; 5], 2.0),
        ]),
        cell(vec![
            row(STATIC, &[0.02; 5], 1.0),
            row("tailwater", &[0.02; 5], 1.1),
            row(TWO_DEDICATED, &[0.05; 5], 2.0),
        ]),
    ];
    let judged = ["tailwater", "netblaze"];
    assert_eq!(
        table_lines(&cells[0], &judged),
        [
            "| acl-nat/as/60/200 | 3.00 of 5.00 | static | 200 | 2.00 % | 0 % | 6 | 1.00 | – | – | – |",
            "|  |  | tailwater | **50** | 0.50 % | 100 % | 6 | 1.10 | 10, 0, 0 (0.002) | yes | yes |",
            "|  |  | netblaze | 300 | 3.00 % | 0 % | 6 | 1.50 | 0, 10, 0 (0.002) | **NO** | **NO**: late |",
            "|  |  | static-two-dedicated | **0** | 0.00 % | 100 % | 6 | 2.00 | 10, 0, 0 (0.002) | – | – |",
        ]
    );
    let columns = |line: &str| line.matches('|').count();
    let heading: Vec<usize> = HEADING.lines().map(columns).collect();
    assert_eq!(heading, [columns(&table_lines(&cells[0], &judged)[0]); 2]);
    let windows = |better, worse, equal| SignTest { better, worse, equal };
    let expected = Total {
        cells: 2,
        disturbed: 0,
        worse: 0,
        better: 1,
        can_keep: 1,
        keeps: 1,
        windows: windows(10, 0, 10),
    };
    assert_eq!(total(&cells, "tailwater"), expected);
    let expected = Total {
        cells: 1,
        disturbed: 0,
        worse: 1,
        better: 0,
        can_keep: 1,
        keeps: 0,
        windows: windows(0, 10, 0),
    };
    assert_eq!(total(&cells, "netblaze"), expected);
}
