//! Inputs of the ingress from objects.

use super::super::telling::Said;
use super::*;
use crate::controller::DocumentReader;
use crate::ingress::{Output, SwitchLimits};
use crate::reports::{FlowClass, InstanceReport};
use serde_json::json;
use tailwater_policy::server::{ClassLoad, FlowClass as Class};

#[test]
fn reports_tell_the_load_of_each_instance_and_their_absence_of_none() {
    let mapping = IngressConfig {
        prefix_v4: 24,
        prefix_v6: 48,
        threshold: 0,
        table: 0,
        flow_hash: true,
        rebalance: true,
        scale_in: false,
    };
    let mut feed = Feed::new(mapping);
    for (name, number) in [("a/web-0", 3), ("a/web-1", 4)] {
        let (uid, chain) = (name.to_owned(), "a/web".to_owned());
        feed.numbers.insert(name.to_owned(), Numbered { number, uid, chain });
        let on = feed.on.entry("one".to_owned()).or_default();
        on.push((name.to_owned(), "a/web".to_owned()));
    }
    let class = |destination: &[u8]| FlowClass {
        destination: destination.to_vec(),
        source_bits: 5,
        packets: 70,
    };
    let instance = InstanceReport {
        name: "a--web-1".to_owned(),
        offered: 10,
        processed: 9,
        late: 1,
        busy_nanos: 4_000,
        measured_nanos: 300,
        classes: vec![class(&[10, 0, 0, 1]), class(&[10])],
    };
    let report = AgentReport {
        server: "one".to_owned(),
        instances: vec![instance],
    };
    let expected = ChainReport {
        chain: "a/web".to_owned(),
        counters: ServerCounters {
            offered: 10,
            processed: 9,
            busy: Nanos(4_000),
            late: 1,
        },
        measured: Some(Nanos(300)),
        dedicated: 1,
        classes: vec![ClassLoad {
            class: Class::by_source_bits(5, [10, 0, 0, 1].into()),
            packets: 70,
        }],
    };
    let report_of = |server, chains| Input::Report(ServerReport { server, chains });
    assert_eq!(
        feed.report(&report),
        [report_of(3, vec![]), report_of(4, vec![expected])]
    );
    let silent = AgentReport {
        instances: Vec::new(),
        ..report
    };
    assert_eq!(feed.report(&silent), [report_of(3, vec![]), report_of(4, vec![])]);
}

/// Chain, and instances of it with the matches that they run.
fn objects(chains: &[(&str, &str)], instances: &[(&str, &str, &str, Option<&str>)]) -> Objects {
    let chain = |(name, prefix): &(&str, &str)| {
        let generation: usize = prefix.bytes().map(usize::from).sum();
        let chain = json!({
            "apiVersion": "tailwater.dev/v1alpha1", "kind": "Chain",
            "metadata": {"name": name, "namespace": "a", "uid": name, "generation": generation},
            "spec": {"match": {"destinations": [prefix]}, "functions": [{"count": {}}], "slo": {"latency": "1ms"}},
        });
        Arc::new(serde_json::from_value(chain).unwrap())
    };
    let instance = |(name, uid, chain, prefix): &(&str, &str, &str, Option<&str>)| {
        let runs = prefix.map(|prefix| json!({"destinations": [prefix]}).to_string());
        let instance = json!({
            "apiVersion": "tailwater.dev/v1alpha1", "kind": "ChainInstance",
            "metadata": {"name": name, "namespace": "a", "uid": uid},
            "spec": {
                "chain": chain, "server": "one", "chainGeneration": 1, "mac": "02:00:00:00:00:01", "chainSpec": {},
            },
            "status": {"phase": "Running", "match": runs},
        });
        Arc::new(serde_json::from_value(instance).unwrap())
    };
    let server = json!({
        "apiVersion": "tailwater.dev/v1alpha1", "kind": "RackServer", "metadata": {"name": "one"},
        "spec": {}, "status": {"switchPort": "p1"},
    });
    Objects {
        chains: chains.iter().map(chain).collect(),
        instances: instances.iter().map(instance).collect(),
        servers: vec![Arc::new(serde_json::from_value(server).unwrap())],
        ..Objects::default()
    }
}

fn mapping() -> IngressConfig {
    IngressConfig {
        prefix_v4: 24,
        prefix_v6: 48,
        threshold: 0,
        table: 0,
        flow_hash: true,
        rebalance: true,
        scale_in: false,
    }
}

fn fed(feed: &mut Feed, chains: &mut Chains, objects: &Objects) -> Vec<String> {
    chains.read(objects);
    let inputs = feed.update(objects, chains);
    let text = |input: &Input| match input {
        Input::Chain(route) => format!("{} {}", route.name, route.matching.destinations[0]),
        Input::ChainRemoved(name) => format!("-{name}"),
        Input::Server(server) => format!("server {}", server.number),
        Input::ServerRemoved(number) => format!("-server {number}"),
        other => panic!("{other:?}"),
    };
    inputs.iter().map(text).collect()
}

#[test]
fn chains_leave_before_others_come() {
    let (mut feed, mut chains) = (Feed::new(mapping()), Chains::new(Arc::new(DocumentReader)));
    let old = objects(&[("old", "10.0.0.0/16")], &[("old-0", "u0", "old", None)]);
    assert_eq!(fed(&mut feed, &mut chains, &old), ["server 0", "a/old 10.0.0.0/16"]);
    let new = objects(&[("new", "10.0.0.0/16")], &[("new-0", "u1", "new", None)]);
    let inputs = fed(&mut feed, &mut chains, &new);
    assert_eq!(inputs, ["server 1", "-a/old", "a/new 10.0.0.0/16", "-server 0"]);
}

#[test]
fn a_changed_match_is_steered_by_once_an_instance_runs_it() {
    let (mut feed, mut chains) = (Feed::new(mapping()), Chains::new(Arc::new(DocumentReader)));
    let (old, new) = ("10.0.0.0/16", "10.1.0.0/16");
    let instances = |zero, one| [("web-0", "u0", "web", zero), ("web-1", "u1", "web", one)];
    let first = objects(&[("web", old)], &instances(None, None));
    assert_eq!(fed(&mut feed, &mut chains, &first)[2], "a/web 10.0.0.0/16");
    let refused = objects(&[("web", new)], &instances(Some(old), Some(old)));
    assert_eq!(fed(&mut feed, &mut chains, &refused), Vec::<String>::new());
    // A new ingress knows it from the instances, too.
    let mut other = Feed::new(mapping());
    assert_eq!(fed(&mut other, &mut chains, &refused)[2], "a/web 10.0.0.0/16");
    let taken = objects(&[("web", new)], &instances(Some(new), Some(old)));
    assert_eq!(fed(&mut feed, &mut chains, &taken), ["a/web 10.1.0.0/16"]);
}

#[test]
fn an_instance_with_the_name_of_an_earlier_one_has_another_number_and_is_told_of() {
    let (mut feed, mut chains) = (Feed::new(mapping()), Chains::new(Arc::new(DocumentReader)));
    let with = |uid| objects(&[("web", "10.0.0.0/16")], &[("web-0", uid, "web", None)]);
    let mut said = Said::default();
    fed(&mut feed, &mut chains, &with("u0"));
    assert!(said.take(&Output::ServerUsable(0)));
    let first = said.of(&feed);
    assert_eq!(first.len(), 1);
    let inputs = fed(&mut feed, &mut chains, &with("u1"));
    assert_eq!(inputs, ["server 1", "a/web 10.0.0.0/16", "-server 0"]);
    assert_eq!(feed.name_of(0), None);
    assert!(said.of(&feed).is_empty());
    said.take(&Output::ServerUsable(1));
    let second = said.of(&feed);
    assert!(second.len() == 1 && second != first);
}

#[test]
fn an_instance_of_a_refused_chain_is_not_steered_and_tells_why() {
    let (mut feed, mut chains) = (Feed::new(mapping()), Chains::new(Arc::new(DocumentReader)));
    let all = objects(&[("web", "10.0.0.0/16")], &[("web-0", "u0", "web", None)]);
    fed(&mut feed, &mut chains, &all);
    let mut said = Said::default();
    let refused = |is_steered| Output::ChainRefused {
        chain: "a/web".to_owned(),
        why: "too many".to_owned(),
        is_steered,
    };
    let mut told = |outputs: &[Output]| {
        outputs.iter().for_each(|output| assert!(said.take(output)));
        let told = said.of(&feed);
        format!("{:?}", told["a/web-0"])
    };
    let text = |is_steered, reason: Option<&str>| {
        format!("Told {{ uid: \"u0\", is_steered: {is_steered}, reason: {reason:?}, limit: None }}")
    };
    assert_eq!(told(&[refused(false)]), text(false, Some("too many")));
    assert_eq!(told(&[Output::ServerUsable(0)]), text(false, Some("too many")));
    assert_eq!(told(&[refused(true)]), text(true, Some("too many")));
    assert_eq!(told(&[Output::ChainAccepted("a/web".to_owned())]), text(true, None));
}

#[test]
fn instances_tell_of_a_switch_without_room_and_of_rules_of_others() {
    let (mut feed, mut chains) = (Feed::new(mapping()), Chains::new(Arc::new(DocumentReader)));
    let instances = [("mail-0", "u0", "mail", None), ("web-0", "u1", "web", None)];
    let all = objects(&[("mail", "10.0.0.0/16"), ("web", "10.1.0.0/16")], &instances);
    fed(&mut feed, &mut chains, &all);
    let mut said = Said::default();
    for server in 0..2 {
        said.take(&Output::ServerUsable(server));
    }
    let rule = |chain: &str| [(chain.to_owned(), "priority 7, cookie 0x99".to_owned())].into();
    let full = SwitchLimits {
        is_full: true,
        ..SwitchLimits::default()
    };
    let cases = [
        (full.clone(), ["TableFull", "TableFull"]),
        (
            SwitchLimits {
                foreign: rule("a/web"),
                ..full.clone()
            },
            ["TableFull", "ForeignRule"],
        ),
        (
            SwitchLimits {
                foreign: rule(""),
                ..full.clone()
            },
            ["ForeignRule", "ForeignRule"],
        ),
        (
            SwitchLimits {
                is_too_small: true,
                ..full
            },
            ["TableTooSmall", "TableTooSmall"],
        ),
        (SwitchLimits::default(), ["", ""]),
    ];
    for (limits, expected) in cases {
        assert!(said.take(&Output::Limits(limits)));
        let told = said.of(&feed);
        let reasons = ["a/mail-0", "a/web-0"].map(|name| {
            let limit = serde_json::to_value(told[name].limit.clone()).unwrap();
            limit["reason"].as_str().unwrap_or_default().to_owned()
        });
        assert_eq!(reasons, expected);
    }
}

#[test]
fn a_new_ingress_takes_chains_that_had_packets_first() {
    let (mut feed, mut chains) = (Feed::new(mapping()), Chains::new(Arc::new(DocumentReader)));
    let instances = [("heir-0", "u0", "heir", None), ("web-0", "u1", "web", None)];
    let mut all = objects(&[("heir", "10.0.0.0/16"), ("web", "10.1.0.0/16")], &instances);
    let mut steered = ChainInstance::clone(&all.instances[1]);
    steered.status.as_mut().unwrap().steered = Some(true);
    all.instances[1] = Arc::new(steered);
    let inputs = fed(&mut feed, &mut chains, &all);
    assert_eq!(inputs[2..], ["a/web 10.1.0.0/16", "a/heir 10.0.0.0/16"]);
}
