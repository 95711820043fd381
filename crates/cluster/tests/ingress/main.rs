//! The ingress on a real Open vSwitch, and on the software data plane.

mod by_load;
mod live;
mod many_rows;
mod ovs;
mod packets;
mod switches;

use live::{Ingress, balanced, chain, config, server};
use ovs::{Ovs, skipped, wait_for};
use std::time::Instant;
use tailwater_cluster::ingress::{Input, LossCause, MoveCause, Output, Readiness, SteeringProblem};

const PORTS: [&str; 4] = ["u0", "s1", "s2", "s3"];

/// Lets a packet to an address arrive on the uplink.
fn arrives(ovs: &Ovs, destination: &str) {
    ovs.appctl(&format!(
        "netdev-dummy/receive u0 'in_port(1),eth(src=50:54:00:00:00:05,dst=50:54:00:00:00:07),eth_type(0x0800),\
         ipv4(src=192.0.2.1,dst={destination},proto=17,tos=0,ttl=64,frag=no),udp(src=8,dst=9)'"
    ));
}

fn known(route: tailwater_cluster::ingress::ChainRoute) -> Vec<Input> {
    let mut known: Vec<Input> = (1..=3).map(|number| server(number, Readiness::Ready)).collect();
    known.push(Input::Chain(route));
    known
}

/// Returns the server of each row as the switch has it: the match, and the number in the server's address.
fn rows(ovs: &Ovs) -> Vec<(String, String)> {
    let rules = ovs.rules();
    let row = |rule: &String| {
        let (head, actions) = rule.split_once(" actions=").unwrap();
        let server = actions.split("02:00:00:00:00:0").nth(1)?.chars().next()?;
        let prefix = head.split("nw_dst=").nth(1).unwrap_or("any");
        Some((prefix.to_owned(), server.to_string()))
    };
    rules.iter().filter_map(row).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let pair = |(row, server): &(&str, &str)| ((*row).to_owned(), (*server).to_owned());
    expected.iter().map(pair).collect()
}

fn is_problem(output: &Output) -> bool {
    matches!(output, Output::Problem(_))
}

#[tokio::test]
async fn rows_move_off_a_lost_server_and_return_after_the_switch_restarts() {
    if skipped(&[]) {
        return;
    }
    let mut ovs = Ovs::new("dummy", &PORTS, None);
    ovs.ofctl("add-flow", "cookie=0x1,priority=10,ip,actions=drop");
    let mut ingress = Ingress::new(&ovs.endpoint(), config(), known(balanced("edge", &[1, 2, 3])));
    let first = ingress.written().await;
    assert!(first.iter().any(|output| matches!(
        output,
        Output::Connected {
            adopted: 0,
            foreign: 1,
            ..
        }
    )));
    let rules = ovs.rules();
    assert_eq!(rules.len(), 6, "{rules:?}");
    let has = |text: &str| assert!(rules.iter().any(|rule| rule.contains(text)), "{text}: {rules:?}");
    has("nw_dst=10.0.0.0/8 actions=set_field:02:00:00:00:00:01->eth_dst,output:2");
    has("priority=65000,in_port=2 actions=output:1");
    has("priority=65000,in_port=4 actions=output:1");
    has("priority=500 actions=drop");
    has("cookie=0x1, priority=10,ip actions=drop");
    // A packet is sent as the row says.
    arrives(&ovs, "10.1.2.3");
    wait_for(|| ovs.ofctl("dump-flows", "").contains("n_packets=1,"));

    let before = Instant::now();
    ovs.appctl("netdev-dummy/set-admin-state s1 down");
    let asked = Instant::now();
    let outputs = ingress.written().await;
    println!(
        "port down: {:.1} ms from the request to the new rule ({:.1} ms of it for the request)",
        before.elapsed().as_secs_f64() * 1e3,
        (asked - before).as_secs_f64() * 1e3
    );
    let lost = Output::ServerLost {
        server: 1,
        cause: LossCause::PortDown,
    };
    assert!(outputs.contains(&lost), "{outputs:?}");
    let moved = ingress.until(|output| matches!(output, Output::MoveEnded { .. })).await;
    let Some(Output::MoveEnded { moved, .. }) = moved.last() else {
        panic!("{moved:?}");
    };
    assert_eq!((moved.from, moved.to, moved.cause), (1, 2, MoveCause::Lost));
    assert_eq!(rows(&ovs), pairs(&[("10.0.0.0/8", "2")]));

    // The switch restarts without rules.
    let before = Instant::now();
    ovs.restart();
    ingress
        .until(|output| matches!(output, Output::Disconnected { .. }))
        .await;
    let outputs = ingress.written().await;
    println!(
        "switch restarted: {:.0} ms to all rules",
        before.elapsed().as_secs_f64() * 1e3
    );
    assert!(
        outputs
            .iter()
            .any(|output| matches!(output, Output::Connected { adopted: 0, .. }))
    );
    let rules = ovs.rules();
    assert_eq!(rules.len(), 5, "{rules:?}");
    // The new daemon's ports are up.
    assert_eq!(rows(&ovs), pairs(&[("10.0.0.0/8", "2")]));

    // Somebody deletes a rule: the audit restores it.
    ovs.ofctl("del-flows", "ip,nw_dst=10.0.0.0/8");
    let outputs = ingress.written().await;
    let tampered = Output::Problem(SteeringProblem::Tampered { rules: 1 });
    assert!(outputs.contains(&tampered), "{outputs:?}");
    assert_eq!(ovs.rules(), rules);
    ingress.stop().await;
    assert_eq!(ovs.rules(), rules, "the rules stay");
}

#[tokio::test]
async fn a_new_ingress_keeps_the_rows_that_it_finds() {
    if skipped(&[]) {
        return;
    }
    let ovs = Ovs::new("dummy", &PORTS, None);
    let mut ingress = Ingress::new(&ovs.endpoint(), config(), known(chain("edge", &[1, 2, 3])));
    ingress.written().await;
    assert!(
        ovs.rules()
            .iter()
            .any(|rule| rule.contains("nw_dst=10.0.0.0/8 actions=CONTROLLER:65535"))
    );
    for destination in ["10.1.0.1", "10.2.0.1", "10.3.0.1", "10.2.9.9"] {
        arrives(&ovs, destination);
        if destination != "10.2.9.9" {
            ingress.written().await;
        }
    }
    let expected = pairs(&[("10.1.0.0/16", "1"), ("10.2.0.0/16", "2"), ("10.3.0.0/16", "3")]);
    assert_eq!(rows(&ovs), expected);
    // Each first packet went to its server's port after the row.
    for port in ["s1", "s2", "s3"] {
        wait_for(|| !ovs.ofctl("dump-ports", port).contains("tx pkts=0"));
    }
    ingress.stop().await;
    let rules = ovs.rules();

    // The next one has other servers first, and would choose others.
    let mut again = known(chain("edge", &[1, 2, 3]));
    again.reverse();
    let mut ingress = Ingress::new(&ovs.endpoint(), config(), again);
    let connected = |output: &Output| matches!(output, Output::Connected { .. });
    let outputs = ingress.until(connected).await;
    assert!(
        matches!(outputs.last(), Some(Output::Connected { adopted: 3, .. })),
        "{outputs:?}"
    );
    arrives(&ovs, "10.4.0.1");
    let outputs = ingress.written().await;
    assert!(
        matches!(outputs.last(), Some(Output::RulesWritten { changes: 1, .. })),
        "{outputs:?}"
    );
    assert!(!outputs.iter().any(is_problem), "{outputs:?}");
    assert_eq!(rows(&ovs)[..3], expected);
    let now = ovs.rules();
    assert!(rules.iter().all(|rule| now.contains(rule)), "{rules:?} {now:?}");
    ingress.stop().await;

    // A server that is not there any more loses its rows; the switch has rules of an ingress with another number.
    ovs.ofctl("add-flow", "cookie=0x7a08000000000000,priority=9,actions=drop");
    let mut less = known(chain("edge", &[1, 2]));
    less.remove(2);
    let mut ingress = Ingress::new(&ovs.endpoint(), config(), less);
    ingress.written().await;
    let rows = rows(&ovs);
    assert_eq!(rows[..2], expected[..2]);
    assert!(!rows.iter().any(|(_, server)| server == "3"), "{rows:?}");
    assert!(
        ovs.rules()
            .iter()
            .any(|rule| rule.contains("cookie=0x7a08000000000000"))
    );
    ingress.stop().await;
}

#[tokio::test]
async fn prefixes_beyond_a_full_table_share_a_server() {
    if skipped(&[]) {
        return;
    }
    let ovs = Ovs::new("dummy", &PORTS, None);
    // Fixed rules: one for what no chain matches, three for the servers, and the default row. Two prefixes fit.
    ovs.vsctl(
        "-- --id=@table create Flow_Table flow_limit=7 overflow_policy=refuse -- set bridge br0 flow_tables:0=@table",
    );
    let mut ingress = Ingress::new(&ovs.endpoint(), config(), known(chain("edge", &[1, 2, 3])));
    ingress.written().await;
    for destination in ["10.1.0.1", "10.2.0.1", "10.3.0.1"] {
        arrives(&ovs, destination);
        let outputs = ingress.written().await;
        assert!(!outputs.iter().any(is_problem), "{outputs:?}");
    }
    assert_eq!(
        rows(&ovs),
        pairs(&[("10.0.0.0/8", "3"), ("10.1.0.0/16", "1"), ("10.2.0.0/16", "2")])
    );
    assert_eq!(ovs.rules().len(), 7);
    ingress.stop().await;

    // Another owner takes the room that was there when the ingress connected.
    let ovs = Ovs::new("dummy", &PORTS, None);
    ovs.vsctl(
        "-- --id=@table create Flow_Table flow_limit=8 overflow_policy=refuse -- set bridge br0 flow_tables:0=@table",
    );
    let quiet = tailwater_cluster::ingress::SteeringConfig {
        audit: None,
        ..config()
    };
    let mut ingress = Ingress::new(&ovs.endpoint(), quiet, known(chain("edge", &[1, 2, 3])));
    ingress.written().await;
    arrives(&ovs, "10.1.0.1");
    ingress.written().await;
    ovs.ofctl("add-flow", "cookie=0x1,priority=10,ip,actions=drop");
    ovs.ofctl("add-flow", "cookie=0x1,priority=11,ip,actions=drop");
    arrives(&ovs, "10.2.0.1");
    let outputs = ingress.written().await;
    let full = Output::Problem(SteeringProblem::TableFull { rules: 6 });
    assert!(outputs.contains(&full), "{outputs:?}");
    let found = rows(&ovs);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[1], pairs(&[("10.1.0.0/16", "1")])[0]);
    assert_eq!(ovs.rules().len(), 8);
    ingress.stop().await;
}
