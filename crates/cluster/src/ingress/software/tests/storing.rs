//! The file of the rules.

use super::super::store::{load, save};
use super::to;
use crate::ingress::openflow::PortDescription;
use crate::ingress::rows::{Ranks, Row, RuleSet, add_from_server, add_rows, add_unmatched};
use crate::ingress::rule::Action;
use tailwater_api::chain::Match;

fn ports(names: &[&str]) -> Vec<PortDescription> {
    let port = |(at, name): (usize, &&str)| PortDescription {
        number: at as u32 + 1,
        name: (*name).to_owned(),
        is_up: true,
    };
    names.iter().enumerate().map(port).collect()
}

/// Rules of 1000 rows, with the ports of these servers.
fn rules(server: impl Fn(usize) -> u8) -> RuleSet {
    let matching = Match::default();
    let ranks = Ranks::new([&matching]).unwrap();
    let prefix = |number: usize| format!("10.{}.{}.0/24", number / 256, number % 256).parse().unwrap();
    let rows: Vec<_> = (0..1000)
        .map(|number| (Row::of_prefix(prefix(number)), to(server(number))))
        .collect();
    let mut rules = RuleSet::new();
    add_rows(&mut rules, (3, 9), &matching, &ranks, &rows);
    add_unmatched(&mut rules, 3, Action::Normal);
    rules
}

#[test]
fn rules_are_read_back_with_the_ports_as_they_are_numbered_now() {
    let folder = std::env::temp_dir().join(format!("tailwater-store-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("rules");
    let before = ports(&["up", "a", "b"]);
    assert_eq!(load(&file, &before).unwrap(), RuleSet::new(), "the first start");
    // Servers 1 and 2 have the ports 2 and 3.
    let mut written = rules(|number| 1 + number as u8 % 2);
    add_from_server(&mut written, 3, 3, Action::Ports(vec![1]));
    save(&file, &before, &written).unwrap();
    assert_eq!(load(&file, &before).unwrap(), written);
    // `b` is gone, and the others have changed places.
    let found = load(&file, &ports(&["a", "up"])).unwrap();
    assert_eq!(found.len(), 501);
    let is_there = |rule: &&crate::ingress::rule::FlowRule| match rule.action {
        Action::Server { mac, port } => (mac[5], port) == (1, 1),
        Action::Normal => true,
        _ => false,
    };
    assert_eq!(found.values().filter(is_there).count(), 501);

    let bytes = std::fs::read(&file).unwrap();
    for length in [0, 1, 8, bytes.len() / 2, bytes.len() - 16, bytes.len() - 1] {
        std::fs::write(&file, &bytes[..length]).unwrap();
        let error = load(&file, &before).unwrap_err().to_string();
        assert!(
            error.starts_with("expected the rules that an ingress has written, found "),
            "{error}"
        );
    }
    std::fs::write(&file, b"apiVersion: tailwater.dev/v1alpha1").unwrap();
    load(&file, &before).unwrap_err();
    std::fs::remove_dir_all(&folder).unwrap();
}
