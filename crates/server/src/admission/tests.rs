//! Admission of chains with given profiles to a machine that runs nothing.

use super::*;
use crate::chain::{Manifest, Origin};
use crate::details::CoreDetails;
use crate::machine::{ChainObservation, Refusal};
use std::collections::BTreeMap;
use std::path::Path;
use tailwater_api::document::Document;
use tailwater_api::server::{DESCRIPTION, ServerSpec};
use tailwater_net::Nanos;
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::slo::{Curves, ISOLATED};

/// Machine with these cores, and profiles by the names of chains: packets per second of a whole core.
#[derive(Default)]
struct Profiled {
    cores: Vec<u32>,
    rates: BTreeMap<&'static str, f64>,
}

impl Machine for Profiled {
    fn capacity(&self) -> Capacity {
        Capacity {
            cores: self.cores.clone(),
            cache_bytes: 1 << 20,
        }
    }

    fn curves(&self, chain: &AppliedChain) -> Result<Option<Arc<Curves>>, Refusal> {
        if chain.name == "damaged" {
            return Err(Refusal::new("x.curves.yaml cannot be read"));
        }
        let curves = |rate: &f64| {
            Arc::new(Curves {
                machine: "m".into(),
                cores: 1,
                cache: CacheCurve::new(vec![(1024, rate / ISOLATED)]).unwrap(),
                load: LoadCurve::new(vec![(0.5, Nanos(10_000)), (1.0, Nanos(100_000))]).unwrap(),
            })
        };
        Ok(self.rates.get(&*chain.name).map(curves))
    }

    fn check(&self, _: &AppliedChain, _: &[&AppliedChain]) -> Result<(), Refusal> {
        Ok(())
    }

    fn start(&mut self, _: &AppliedChain) -> Result<(), Refusal> {
        Ok(())
    }

    fn replace(&mut self, _: &str, _: &AppliedChain) -> Result<(), Refusal> {
        Ok(())
    }

    fn drain(&mut self, _: &str) -> Result<(), Refusal> {
        Ok(())
    }

    fn cores(&self) -> Vec<CoreDetails> {
        Vec::new()
    }

    fn observe(&mut self) -> Vec<ChainObservation> {
        Vec::new()
    }
}

/// Server whose configuration is what was admitted.
struct Server {
    spec: ServerSpec,
    machine: Profiled,
    current: Configuration,
}

impl Server {
    fn new(admission: &str, cores: &[u32], rates: &[(&'static str, f64)]) -> Server {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {{name: s}}\nspec:\n  cores: 1\n  \
             ports: [{{name: a, traffic: bursty}}]\n{admission}"
        );
        let document = Document::parse(&text, "s.yaml", DESCRIPTION).unwrap();
        Server {
            spec: ServerSpec::new(&document, Path::new("/")).unwrap(),
            machine: Profiled {
                cores: cores.to_vec(),
                rates: rates.iter().copied().collect(),
            },
            current: Configuration::default(),
        }
    }

    fn chain(&self, name: &str, slo: &str) -> AppliedChain {
        let yaml = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {name}}}\nspec:\n  slo: {{{slo}}}\n  \
             functions: [{{forward: }}]\n"
        );
        let manifest = Manifest {
            source: "x".to_owned(),
            path: None,
            yaml,
        };
        AppliedChain::parse(&manifest, &self.spec, Origin::Applied).unwrap()
    }

    fn admit(&mut self, chains: Vec<AppliedChain>) -> Result<(), String> {
        let mut next = self.current.clone();
        for chain in chains {
            next.chains.insert(chain.name.clone(), Arc::new(chain));
        }
        let admitted = admit(&self.machine, self.spec.admission.as_ref(), &self.current, next);
        self.current = admitted.map_err(|error| error.to_string())?;
        Ok(())
    }

    fn apply(&mut self, name: &str, slo: &str) -> Result<(), String> {
        self.admit(vec![self.chain(name, slo)])
    }

    fn placement(&self, name: &str) -> &Placement {
        &self.current.chains[name].placement
    }

    fn place(&self, name: &str) -> (u32, Promise, &str) {
        let placement = self.placement(name);
        (placement.cores[0], placement.promise, &placement.reason)
    }
}

/// Chain on several cores.
fn wide(server: &Server, cores: u16, slo: &str) -> AppliedChain {
    let mut chain = server.chain("wide", slo);
    chain.settings.cores = Some(cores);
    chain
}

#[test]
fn a_chain_on_several_cores_is_promised_its_part_of_each() {
    const SLO: &str = "latency: 1ms, throughput: 1Mpps";
    let mut server = Server::new(ADMISSION, &[1, 2, 3], &[("wide", 1e6), ("a", 1e6)]);
    server.apply("a", "latency: 1ms, throughput: 300kpps").unwrap();
    server.admit(vec![wide(&server, 2, SLO)]).unwrap();
    assert_eq!(server.placement("wide").cores, [2, 3]);
    let share = |server: &Server| server.placement("wide").predicted.unwrap().share;
    assert!((share(&server) - 0.5).abs() < 1e-9, "{}", share(&server));
    let refused = server.admit(vec![wide(&server, 2, "latency: 1ms, throughput: 2Mpps")]);
    assert_eq!(
        refused.unwrap_err(),
        "chain \"wide\": needs 1.00 of each of 2 cores at 2Mpps, 0.90 is free on core 3: at most 1.79Mpps would fit"
    );
    assert_eq!(
        server.admit(vec![wide(&server, 4, SLO)]).unwrap_err(),
        "chain \"wide\": spec.cores: expected at most 3, the cores of the server, found 4"
    );
    // On fewer cores it stays on one of those that it has, on more it gets another one.
    server.admit(vec![wide(&server, 1, "latency: 1ms")]).unwrap();
    assert_eq!(server.placement("wide").cores, [2]);
    server.admit(vec![wide(&server, 3, SLO)]).unwrap();
    assert_eq!(server.placement("wide").cores, [2, 3, 1]);
    // A server that starts with fewer cores runs it on those, without a promise.
    server.machine.cores = vec![1];
    let stored = AppliedChain::clone(&server.current.chains["wide"]);
    let (chain, lost) = admit_stored(&server.machine, server.spec.admission.as_ref(), &server.current, stored);
    assert_eq!(
        (chain.placement.cores, chain.placement.promise),
        (vec![1], Promise::None)
    );
    assert!(lost.unwrap().starts_with("spec.cores: expected at most 1"));
}

#[test]
fn promised_chains_are_capped_where_the_server_says_so() {
    const SLO: &str = "latency: 1ms, throughput: 300kpps";
    let cap = |server: &Server, name: &str| server.placement(name).cap.map(|cap| (cap.rate, cap.burst));
    let mut server = Server::new(ADMISSION, &[1, 2], &[("a", 1e6)]);
    server.apply("a", SLO).unwrap();
    assert_eq!(cap(&server, "a"), None);
    let capped = "  admission: {profiles: /p, cap: promise}\n";
    let mut server = Server::new(capped, &[1, 2], &[("a", 1e6), ("b", 1e6), ("c", 1e6)]);
    server.apply("a", SLO).unwrap();
    // The packets of 1 ms.
    assert_eq!(cap(&server, "a"), Some((300_000, 300)));
    server.apply("d", "latency: 1ms").unwrap();
    assert_eq!(cap(&server, "d"), None, "no promise");
    let mut named = server.chain("b", SLO);
    named.functions = vec![(Some("cap".to_owned()), "forward".to_owned())];
    let mut full = server.chain("c", SLO);
    full.functions = vec![(None, "forward".to_owned()); 16];
    server.admit(vec![named, full]).unwrap();
    assert_eq!((cap(&server, "b"), cap(&server, "c")), (None, None));
}

const ADMISSION: &str = "  admission: {profiles: /p}\n";

#[test]
fn without_admission_chains_go_to_the_core_with_the_fewest_and_are_unchecked() {
    let mut server = Server::new("", &[4, 2], &[("a", 1.0)]);
    for (name, core) in [("a", 4), ("b", 2), ("c", 4), ("d", 2)] {
        server.apply(name, "latency: 1ms, throughput: 100Mpps").unwrap();
        assert_eq!(
            server.place(name),
            (core, Promise::Unchecked, "the server has no spec.admission")
        );
        assert_eq!(server.placement(name).weight, server.placement("a").weight);
    }
    // Machines that choose cores themselves are left alone.
    let mut server = Server::new(ADMISSION, &[], &[]);
    server.apply("a", "latency: 1ms, throughput: 100Mpps").unwrap();
    assert_eq!(server.placement("a"), &Placement::default());
}

#[test]
fn a_chain_that_fits_is_promised_and_others_stay() {
    let mut server = Server::new(ADMISSION, &[1, 2], &[("a", 1e6), ("b", 1e6), ("c", 1e6)]);
    server.apply("a", "latency: 1ms, throughput: 500kpps").unwrap();
    server.apply("b", "latency: 1ms, throughput: 400kpps").unwrap();
    server.apply("c", "latency: 1ms, throughput: 300kpps").unwrap();
    let places = ["a", "b", "c"].map(|name| server.place(name));
    assert_eq!(places, [1, 2, 2].map(|core| (core, Promise::Promised, "")));
    let of = |name| server.placement(name).predicted.unwrap();
    assert!((of("b").share - 0.4).abs() < 1e-9 && (of("b").core_load - 0.7).abs() < 1e-9);
    assert!((of("b").cost - 1000.0).abs() < 1e-6);
    // A core's load, and 32 packets of the other chain.
    assert!(of("b").latency.0.abs_diff(46_000 + 32_000) <= 2, "{}", of("b").latency);
    assert!(of("a").latency.0.abs_diff(10_000) <= 2);
    // The weights keep the shares.
    assert!(server.placement("a").weight > server.placement("b").weight);
}

#[test]
fn a_chain_that_does_not_fit_is_refused_with_what_binds_and_nothing_changes() {
    let mut server = Server::new(ADMISSION, &[1], &[("dns", 1e6), ("web", 2e6)]);
    server.apply("dns", "latency: 1ms, throughput: 590kpps").unwrap();
    let before = server.current.clone();
    let refused = server.apply("web", "latency: 1ms, throughput: 1.24Mpps").unwrap_err();
    assert_eq!(
        refused,
        "chain \"web\": needs 0.62 of a core at 1.24Mpps, 0.31 is free on core 1: at most 620kpps would fit"
    );
    assert_eq!(server.current, before);
    // Both or none, in one request.
    let both = vec![
        server.chain("web", "latency: 1ms, throughput: 1.24Mpps"),
        server.chain("other", "latency: 1ms"),
    ];
    assert!(server.admit(both).is_err());
    assert_eq!(server.current, before);
    // A chain of the size that was said to fit is admitted.
    server.apply("web", "latency: 1ms, throughput: 620kpps").unwrap();
    assert_eq!(server.place("web").1, Promise::Promised);
}

#[test]
fn chains_of_one_request_are_placed_one_beside_the_other() {
    const SLO: &str = "latency: 1ms, throughput: 500kpps";
    let mut server = Server::new(ADMISSION, &[1, 2], &[("a", 1e6), ("b", 1e6), ("c", 1e6)]);
    let refused = server.admit(["a", "b", "c"].map(|name| server.chain(name, SLO)).into());
    let expected = "chain \"c\": needs 0.50 of a core at 500kpps, 0.40 is free on core 1: ";
    assert!(refused.unwrap_err().starts_with(expected));
    assert!(server.current.chains.is_empty());
    server
        .admit(["a", "b"].map(|name| server.chain(name, SLO)).into())
        .unwrap();
    assert_eq!((server.place("a").0, server.place("b").0), (1, 2));
}

#[test]
fn a_drained_chain_has_no_core_to_return_to() {
    let mut server = Server::new("", &[1, 2], &[]);
    server.apply("a", "latency: 1ms").unwrap();
    let drained = AppliedChain {
        drained: true,
        ..AppliedChain::clone(&server.current.chains["a"])
    };
    server.current.chains.insert("a".to_owned(), Arc::new(drained));
    server.apply("b", "latency: 1ms").unwrap();
    server.apply("a", "latency: 1ms").unwrap();
    assert_eq!((server.place("b").0, server.place("a").0), (1, 2));
}

#[test]
fn latencies_bind_too() {
    let mut server = Server::new(ADMISSION, &[1], &[("a", 1e6), ("b", 1e6)]);
    let refused = server.apply("a", "latency: 9us, throughput: 1kpps").unwrap_err();
    assert_eq!(
        refused,
        "chain \"a\": its profile has a latency of 10us at any load, its objective is 9us: a latency of 10us would fit"
    );
    server.apply("a", "latency: 50us, throughput: 300kpps").unwrap();
    let refused = server.apply("b", "latency: 1ms, throughput: 400kpps").unwrap_err();
    let expected = "chain \"b\": needs 0.40 of a core at 400kpps; on core 1 chain \"a\" would have a latency of 78us, \
                    its objective is 50us: at most ";
    assert!(refused.starts_with(expected), "{refused}");
}

#[test]
fn by_force_a_chain_runs_without_a_promise_and_takes_no_promised_time() {
    let mut server = Server::new(ADMISSION, &[1], &[("a", 1e6), ("b", 1e6), ("c", 1e6)]);
    server.apply("a", "latency: 1ms, throughput: 800kpps").unwrap();
    let forced = AppliedChain {
        forced: true,
        ..server.chain("b", "latency: 1ms, throughput: 800kpps")
    };
    server.admit(vec![forced]).unwrap();
    assert_eq!(server.place("b"), (1, Promise::None, "applied with --force"));
    assert_eq!(server.placement("b").predicted, None);
    server.apply("c", "latency: 1ms, throughput: 100kpps").unwrap();
    assert_eq!(server.place("c").1, Promise::Promised);
    assert!(server.placement("b").weight * 64 < server.placement("a").weight + server.placement("c").weight);
}

#[test]
fn chains_without_a_throughput_need_no_profile() {
    let mut server = Server::new(ADMISSION, &[1], &[]);
    server.apply("a", "latency: 1ms").unwrap();
    assert_eq!(server.place("a"), (1, Promise::None, "no spec.slo.throughput"));
    server.apply("b", "latency: 1ms, throughput: 1Gbps").unwrap();
    assert_eq!(server.place("b").1, Promise::None);
}

#[test]
fn a_chain_without_a_profile_is_refused_or_unchecked_as_the_server_says() {
    const SLO: &str = "latency: 1ms, throughput: 1kpps";
    let mut server = Server::new(ADMISSION, &[1], &[]);
    let refused = server.apply("a", SLO).unwrap_err();
    let expected = "chain \"a\": has spec.slo.throughput and no profile in /p: measure it by tailwater profile all, or \
                    apply it with --force";
    assert_eq!(refused, expected);
    let refused = server.apply("damaged", SLO).unwrap_err();
    assert_eq!(refused, "chain \"damaged\": x.curves.yaml cannot be read");
    let mut server = Server::new("  admission: {profiles: /p, profile: optional}\n", &[1], &[]);
    server.apply("a", SLO).unwrap();
    assert_eq!(server.place("a"), (1, Promise::Unchecked, "no profile"));
    server.apply("damaged", SLO).unwrap();
    assert_eq!(
        server.place("damaged"),
        (1, Promise::Unchecked, "x.curves.yaml cannot be read")
    );
}

#[test]
fn a_changed_chain_stays_on_its_core_with_its_profile() {
    let mut server = Server::new(ADMISSION, &[1, 2], &[("a", 1e6), ("b", 1e6)]);
    const SLO: &str = "latency: 1ms, throughput: 500kpps";
    server.apply("a", SLO).unwrap();
    server.apply("b", SLO).unwrap();
    assert_eq!(server.place("b"), (2, Promise::Promised, ""));
    // Without its old core's time, the other core would be as good.
    server.apply("b", "latency: 2ms, throughput: 300kpps").unwrap();
    assert_eq!(server.place("b"), (2, Promise::Promised, ""));
    // Its rules have changed, and it has no profile with these.
    server.machine.rates.clear();
    server.apply("b", "latency: 2ms, throughput: 300kpps").unwrap();
    assert_eq!(server.place("b"), (2, Promise::Promised, ""));
    // Another objective is another promise.
    assert!(server.apply("b", SLO).is_err());
}

#[test]
fn a_deleted_chain_makes_room() {
    let mut server = Server::new(ADMISSION, &[1], &[("a", 1e6), ("b", 1e6)]);
    const SLO: &str = "latency: 1ms, throughput: 500kpps";
    server.apply("a", SLO).unwrap();
    assert!(server.apply("b", SLO).is_err());
    let drained = AppliedChain {
        drained: true,
        ..AppliedChain::clone(&server.current.chains["a"])
    };
    server.current.chains.insert("a".to_owned(), Arc::new(drained));
    server.apply("b", SLO).unwrap();
    assert!(server.apply("a", SLO).is_err());
}

#[test]
fn a_resumed_chain_keeps_its_core_and_loses_its_promise_if_it_does_not_fit() {
    const SLO: &str = "latency: 1ms, throughput: 500kpps";
    let mut server = Server::new(ADMISSION, &[1, 2], &[("a", 1e6), ("b", 1e6), ("c", 1e6)]);
    let resume = |server: &mut Server, name: &str, core| {
        let chain = AppliedChain {
            placement: Placement::on(vec![core]),
            ..server.chain(name, SLO)
        };
        let (chain, lost) = admit_stored(&server.machine, server.spec.admission.as_ref(), &server.current, chain);
        server.current.chains.insert(name.to_owned(), Arc::new(chain));
        lost
    };
    assert_eq!(resume(&mut server, "a", 2), None);
    assert_eq!(server.place("a"), (2, Promise::Promised, ""));
    assert!(server.placement("a").predicted.is_some());
    // Core 7 does not exist any more.
    assert_eq!(resume(&mut server, "b", 7), None);
    assert_eq!(server.place("b"), (1, Promise::Promised, ""));
    let lost = resume(&mut server, "c", 2).unwrap();
    assert!(
        lost.starts_with("needs 0.50 of a core at 500kpps, 0.40 is free on core"),
        "{lost}"
    );
    assert_eq!(server.place("c"), (2, Promise::None, &*lost));
}
