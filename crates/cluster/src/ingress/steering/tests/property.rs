//! Any events of servers.

use super::*;

proptest! {
    /// After any events of servers, every prefix has a rule to a server that can have rows, if there is one, once all
    /// is written; it is never without a rule; and its server changes only for a reason.
    #[test]
    fn every_prefix_always_has_a_server(
        events in proptest::collection::vec((0_u8..8, 1_u16..4, 0_u8..6), 1..40),
        rebalance in any::<bool>(),
        per_bundle in 1_usize..6,
    ) {
        let config = SteeringConfig { per_bundle, transfer: Nanos::from_millis(20), ..config() };
        let mut rig = Rig::connected(config, &[route("edge", "10.0.0.0/8", rebalance)]);
        let mut known: BTreeMap<u8, ServerNumber> = BTreeMap::new();
        let mut is_up = [true; 4];
        let mut readiness = [Readiness::Ready; 4];
        for (event, number, prefix) in events {
            let index = usize::from(number);
            let place = format!("10.0.{prefix}.1");
            match event {
                0 if rig.server_of(&place) == Some(0) => rig.packet_in(&place),
                1 => {
                    readiness[index] = Readiness::Draining;
                    rig.input(Input::Server(server(number, readiness[index])));
                }
                2 => {
                    readiness[index] = Readiness::NotReady;
                    rig.input(Input::Server(server(number, readiness[index])));
                }
                3 => {
                    readiness[index] = Readiness::Ready;
                    rig.input(Input::Server(server(number, readiness[index])));
                }
                4 | 5 => {
                    is_up[index] = event == 5;
                    let port = PortDescription { number: number.into(), name: String::new(), is_up: is_up[index] };
                    rig.event(SwitchEvent::Port(port));
                }
                6 => {
                    rig.answer();
                }
                _ => rig.pass(30, &[]),
            }
            for prefix in known.keys() {
                let at = rig.server_of(&format!("10.0.{prefix}.1"));
                prop_assert!(at.is_some_and(|at| at != 0), "prefix {} has no server", prefix);
            }
            for prefix in 0..6 {
                if let Some(server @ 1..) = rig.server_of(&format!("10.0.{prefix}.1")) {
                    known.insert(prefix, server);
                }
            }
        }
        for _ in 0..60 {
            rig.pass(40, &[]);
            rig.settle();
        }
        let can = |number: usize| is_up[number] && readiness[number] == Readiness::Ready;
        if (1..4).any(can) {
            for prefix in known.keys() {
                let at = rig.server_of(&format!("10.0.{prefix}.1")).unwrap();
                prop_assert!(can(usize::from(at)), "prefix {} is at server {}", prefix, at);
            }
        }
        // The rules are those of the rows, and stay as they are.
        let before = rig.table.clone();
        rig.pass(100, &[]);
        rig.settle();
        prop_assert_eq!(before, rig.table);
    }
}
