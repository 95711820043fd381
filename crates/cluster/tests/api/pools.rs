//! Pools of servers.

use crate::definitions::real_api_server;
use crate::support::api_server::ApiServer;
use crate::support::rack::{
    chain, chains, condition, create, instances, rack, runs, start_agents, start_controller, until,
};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tailwater_cluster::resources::{Chain, PoolStatus, RackServer, ServerPool};

pub(crate) fn pool(name: &str, spec: &Value) -> ServerPool {
    let pool = json!({
        "apiVersion": "tailwater.dev/v1alpha1", "kind": "ServerPool", "metadata": {"name": name}, "spec": spec,
    });
    serde_json::from_value(pool).unwrap()
}

pub(crate) fn pools(client: &Client) -> Api<ServerPool> {
    Api::all(client.clone())
}

pub(crate) async fn label(client: &Client, server: &str, tier: Option<&str>) {
    let servers: Api<RackServer> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"metadata": {"labels": {"tier": tier}}}));
    servers.patch(server, &PatchParams::default(), &patch).await.unwrap();
}

/// Servers of the running instances of a chain, sorted; those that drain included.
async fn places(client: &Client, chain: &str) -> Vec<String> {
    let running = instances(client).await.into_iter().filter(runs);
    let mut places: Vec<String> = running
        .filter(|one| one.spec.chain == chain)
        .map(|one| one.spec.server)
        .collect();
    places.sort();
    places
}

/// Servers of all instances of a chain.
async fn servers_of(client: &Client, chain: &str) -> Vec<String> {
    let instances = instances(client).await.into_iter();
    let of_chain = instances.filter(|one| one.spec.chain == chain);
    of_chain.map(|one| one.spec.server).collect()
}

async fn is_told(client: &Client, chain: &str, expected: &str, message: &str) -> bool {
    let chains = chains(client).await;
    condition(&chains[chain], "Placed").is_some_and(|(status, text)| status == expected && text.contains(message))
}

async fn status(client: &Client) -> PoolStatus {
    pools(client).get("fast").await.unwrap().status.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_stay_in_their_pool_and_follow_it() {
    let server = ApiServer::start("pools").await;
    let client = &rack(&server).await;
    let (_models, _agents) = start_agents(client, 3, 4);
    let servers: Api<RackServer> = Api::all(client.clone());
    until("three servers", || async {
        servers.list(&ListParams::default()).await.unwrap().items.len() == 3
    })
    .await;
    label(client, "node-2", Some("reserve")).await;
    let reserve = pool("reserve", &json!({"servers": ["node-2"]}));
    pools(client).create(&PostParams::default(), &reserve).await.unwrap();
    let _controller = start_controller(client, "pools-controller");
    create(
        client,
        &[
            chain("gold", "10.1.0.0/16", &json!({"pool": "fast"})),
            chain("plain", "10.2.0.0/16", &json!({"scale": {"min": 2, "servers": 2}})),
        ],
    )
    .await;
    until("a pool that is missing is told", || async {
        is_told(client, "gold", "False NoPool", "there is no ServerPool fast: create it").await
    })
    .await;
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    until("by an event, too", || async {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        events.iter().any(|event| {
            event.reason.as_deref() == Some("NoPool")
                && event.note.as_ref().is_some_and(|note| note.contains("create it"))
        })
    })
    .await;
    // Of a pool that is there, the chain without a pool gets nothing.
    until("the chain without a pool is on the two servers in none", || async {
        places(client, "plain").await == ["node-0", "node-1"]
    })
    .await;
    let fast = pool("fast", &json!({"selector": {"matchLabels": {"tier": "fast"}}}));
    pools(client).create(&PostParams::default(), &fast).await.unwrap();
    until("a pool without servers is told", || async {
        let ready = status(client).await.conditions;
        is_told(client, "gold", "False EmptyPool", "label RackServers").await
            && ready
                .first()
                .is_some_and(|ready| ready.status == "False" && ready.reason == "Empty")
    })
    .await;
    assert_eq!(places(client, "gold").await, [""; 0]);

    label(client, "node-1", Some("fast")).await;
    until("the chain is on the server of its pool", || async {
        places(client, "gold").await == ["node-1"] && is_told(client, "gold", "True Placed", "").await
    })
    .await;
    // The other chain has one server left, and redundancy survives moves: it stays until there is another one.
    until("what cannot move is told", || async {
        is_told(client, "plain", "True CannotMove", "stays where it is").await
    })
    .await;
    until("the pool's status", || async {
        let status = status(client).await;
        let cores = (status.cores, status.cores_used, status.cores_free);
        let is_ready = status.conditions[0].status == "True";
        is_ready && (status.servers, status.ready_servers, status.instances) == (1, 1, 2) && cores == (4, 2, 2)
    })
    .await;

    // The selector changes: the replacement is ready before the instance drains.
    pools(client).delete("reserve", &DeleteParams::default()).await.unwrap();
    until("the chain without a pool leaves the pool's server", || async {
        places(client, "plain").await == ["node-0", "node-2"]
    })
    .await;
    label(client, "node-1", None).await;
    label(client, "node-0", Some("fast")).await;
    until("the chain follows its pool", || async {
        let places = places(client, "gold").await;
        assert!(!places.is_empty(), "no instance runs");
        places == ["node-0"] && servers_of(client, "gold").await == ["node-0"]
    })
    .await;

    // Without the pool its instances stay, and none is created.
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    pools(client).delete("fast", &DeleteParams::default()).await.unwrap();
    until("the missing pool is told", || async {
        is_told(client, "gold", "False NoPool", "").await
    })
    .await;
    let patch = Patch::Merge(json!({"spec": {"scale": {"min": 2}}}));
    api.patch("gold", &PatchParams::default(), &patch).await.unwrap();
    until("the chain has been seen", || async {
        let seen = chains(client).await["gold"].clone();
        seen.status.unwrap_or_default().observed_generation == seen.metadata.generation.unwrap_or_default()
    })
    .await;
    let of_gold = instances(client)
        .await
        .into_iter()
        .filter(|one| one.spec.chain == "gold");
    assert_eq!(of_gold.map(|one| one.spec.server).collect::<Vec<_>>(), ["node-0"]);
    // Without a pool it may use every server.
    let patch = Patch::Merge(json!({"spec": {"pool": null}}));
    api.patch("gold", &PatchParams::default(), &patch).await.unwrap();
    until("the second instance runs", || async {
        places(client, "gold").await.len() == 2 && is_told(client, "gold", "True Placed", "").await
    })
    .await;
}

#[tokio::test]
async fn the_api_server_checks_pools() {
    let server = real_api_server!("pool-rules");
    let client = &rack(&server).await;
    let requirement = |operator: &str, values: &[&str]| {
        let requirement = json!({"key": "tier", "operator": operator, "values": values});
        json!({"selector": {"matchExpressions": [requirement]}})
    };
    for (name, spec, expected) in [
        ("by-name", json!({"servers": ["node-0"]}), ""),
        ("by-label", json!({"selector": {"matchLabels": {"tier": "fast"}}}), ""),
        ("by-values", requirement("In", &["fast"]), ""),
        ("by-key", requirement("Exists", &[]), ""),
        ("nothing", json!({}), "expected servers, selector, or both"),
        (
            "no-server",
            json!({"servers": []}),
            "expected servers, selector, or both",
        ),
        ("no-value", requirement("In", &[]), "expected values with In and NotIn"),
        (
            "value",
            requirement("Exists", &["fast"]),
            "expected values with In and NotIn",
        ),
    ] {
        let created = pools(client).create(&PostParams::default(), &pool(name, &spec)).await;
        match created {
            Ok(_) => assert_eq!(expected, "", "{name}"),
            Err(error) => assert!(
                !expected.is_empty() && error.to_string().contains(expected),
                "{name}: {error}"
            ),
        }
    }
    let wrong = chain("web", "10.1.0.0/16", &json!({"pool": "x".repeat(64)}));
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    let error = api.create(&PostParams::default(), &wrong).await.unwrap_err();
    assert!(error.to_string().contains("spec.pool"), "{error}");
}
