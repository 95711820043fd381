//! Controllers, agents and the API server that end at any time.

use crate::support::api_server::ApiServer;
use crate::support::rack::{
    ModelServer, Pace, Running, chain, chains, condition, create, instances, rack, runs, start_agent, start_agent_at,
    start_controller, start_controller_at, until, until_at,
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tailwater_cluster::resources::Chain;
use tokio::time::sleep;

async fn leader(client: &Client) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "tailwater");
    let lease = leases.get_opt("tailwater-controller").await.ok()??;
    lease.spec?.holder_identity
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_controller_leads_and_another_takes_its_place() {
    let server = ApiServer::start("leaders").await;
    let client = &rack(&server).await;
    let model = ModelServer::default();
    let _agent = start_agent(client, "node-a", 4, &model);
    let mut controllers = BTreeMap::new();
    for name in ["first", "second"] {
        controllers.insert(name.to_owned(), start_controller(client, name));
    }
    until("one leads", || async { leader(client).await.is_some() }).await;
    create(client, &[chain("one", "10.1.0.0/16", &json!({}))]).await;
    until("it runs", || async {
        instances(client).await.iter().filter(|one| runs(one)).count() == 1
    })
    .await;

    // Like a crash: the lease has to expire.
    let before = leader(client).await.unwrap();
    drop(controllers.remove(&before));
    create(client, &[chain("two", "10.2.0.0/16", &json!({}))]).await;
    let took = until("the other leads", || async {
        leader(client).await.is_some_and(|name| name != before)
            && instances(client).await.iter().filter(|one| runs(one)).count() == 2
    })
    .await;
    println!("another controller has placed a chain {took:?} after its leader's crash; the lease lasts 2 s");

    // Ended in order: the lease is free at once.
    controllers.insert("third".to_owned(), start_controller(client, "third"));
    let before = leader(client).await.unwrap();
    controllers.remove(&before).unwrap().stop().await;
    until("the third leads", || async {
        leader(client).await.as_deref() == Some("third")
    })
    .await;
    let lease: Api<Lease> = Api::namespaced(client.clone(), "tailwater");
    let spec = lease.get("tailwater-controller").await.unwrap().spec.unwrap();
    assert_eq!(spec.lease_transitions, Some(2));
    assert!(model.model().removed.is_empty());
}

/// Random numbers of a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Chains that should run, and chains of servers, are the same; each runs on one server.
async fn agrees(client: &Client, models: &[ModelServer], wanted: &BTreeSet<String>) -> bool {
    let instances = instances(client).await;
    let mut on_servers: Vec<String> = models
        .iter()
        .flat_map(|model| model.model().chains.keys().cloned().collect::<Vec<_>>())
        .collect();
    on_servers.sort();
    let mut running: Vec<String> = instances
        .iter()
        .filter(|one| runs(one))
        .map(|one| format!("default--{}", one.name_any()))
        .collect();
    running.sort();
    let chains: BTreeSet<String> = instances.iter().map(|one| one.spec.chain.clone()).collect();
    on_servers == running && instances.len() == wanted.len() && chains == *wanted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_at_random_points_leave_nothing_behind_and_lose_nothing() {
    let mut server = ApiServer::start("restarts").await;
    let client = &rack(&server).await;
    let models: Vec<ModelServer> = (0..3).map(|_| ModelServer::default()).collect();
    let agent = |number: usize| start_agent(client, &format!("node-{number}"), 4, &models[number]);
    let mut agents: Vec<Running> = (0..3).map(agent).collect();
    let mut controllers: Vec<Running> = (0..2)
        .map(|number| start_controller(client, &format!("c{number}")))
        .collect();
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    let mut random = Random(0x5eed);
    let (mut wanted, mut names) = (BTreeSet::new(), 0);
    for step in 0..24 {
        match random.below(6) {
            0 | 1 => {
                let name = format!("chain-{names}");
                create(client, &[chain(&name, &format!("10.{names}.0.0/16"), &json!({}))]).await;
                names += 1;
                wanted.insert(name);
            }
            2 => {
                if let Some(name) = wanted.pop_first() {
                    api.delete(&name, &DeleteParams::default()).await.unwrap();
                }
            }
            3 => {
                let number = random.below(2) as usize;
                controllers[number] = start_controller(client, &format!("c{number}-{step}"));
            }
            4 => {
                let number = random.below(3) as usize;
                agents[number] = agent(number);
            }
            _ => {
                server.pause();
                sleep(Duration::from_millis(random.below(500))).await;
                server.resume().await.unwrap();
            }
        }
        sleep(Duration::from_millis(random.below(400))).await;
    }
    until("all is as wanted", || agrees(client, &models, &wanted)).await;
    for name in &wanted {
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let none = BTreeSet::new();
    until("nothing is left", || agrees(client, &models, &none)).await;
}

/// Time between looks at all objects of a large rack.
const LOOK: Duration = Duration::from_millis(500);
/// Renewals of 200 agents every three seconds, which two cores carry.
const CALM: Pace = Pace {
    heartbeat: Duration::from_secs(3),
    lost_after: Duration::from_secs(10),
    period: Duration::from_secs(2),
    pause: Duration::from_secs(1),
    consolidate: false,
    profiling: false,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rack_of_200_servers_places_500_chains_and_loses_a_tenth_of_its_servers() {
    let server = ApiServer::start("scale").await;
    let client = &rack(&server).await;
    let models: Vec<ModelServer> = (0..200).map(|_| ModelServer::default()).collect();
    let agent =
        |(number, model): (usize, &ModelServer)| start_agent_at(CALM, client, &format!("node-{number:03}"), 4, model);
    let mut agents: Vec<Running> = models.iter().enumerate().map(agent).collect();
    let _controller = start_controller_at(CALM, client, "first");
    let began = Instant::now();
    let all: Vec<Chain> = (0..500)
        .map(|number| {
            chain(
                &format!("chain-{number}"),
                &format!("10.{}.{}.0/24", number / 250, number % 250),
                &json!({}),
            )
        })
        .collect();
    for some in all.chunks(50) {
        create(client, some).await;
    }
    println!("500 chains created in {:?}", began.elapsed());
    // Lists of all objects are read when the servers, which are in this process, have what is wanted.
    let on = |some: &[ModelServer]| some.iter().map(|model| model.model().chains.len()).sum::<usize>();
    until_at(LOOK, "all run", || async {
        on(&models) == 500 && instances(client).await.iter().filter(|one| runs(one)).count() == 500
    })
    .await;
    until_at(LOOK, "all statuses tell", || async {
        chains(client)
            .await
            .values()
            .filter(|chain| condition(chain, "Ready").is_some_and(|(status, _)| status == "True Ready"))
            .count()
            == 500
    })
    .await;
    println!(
        "500 chains run on 200 servers {:?} after the first was created",
        began.elapsed()
    );
    let lost: Vec<String> = (0..20).map(|number| format!("node-{number:03}")).collect();
    let moved = instances(client)
        .await
        .iter()
        .filter(|one| lost.contains(&one.spec.server))
        .count();
    agents.drain(..20);
    let took = until_at(LOOK, "nothing is on lost servers", || async {
        if on(&models[20..]) != 500 {
            return false;
        }
        let instances = instances(client).await;
        let is_there =
            |one: &&tailwater_cluster::resources::ChainInstance| runs(one) && !lost.contains(&one.spec.server);
        instances.len() == 500 && instances.iter().filter(is_there).count() == 500
    })
    .await;
    println!(
        "{moved} instances of 20 lost servers run elsewhere after {took:?}, of which 10 s until they count as lost"
    );
    assert_eq!(on(&models[20..]), 500);
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    for number in (0..500).step_by(5) {
        let name = format!("chain-{number}");
        api.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    until_at(LOOK, "nothing is left of a fifth", || async {
        on(&models[20..]) == 400 && instances(client).await.len() == 400
    })
    .await;
}
