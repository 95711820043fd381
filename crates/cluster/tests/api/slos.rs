//! Objectives that chains share.

use crate::support::api_server::ApiServer;
use crate::support::rack::{
    ModelServer, chain, chains, condition, create, instances, rack, runs, start_agent, start_controller, until,
};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tailwater_cluster::resources::{Chain, Slo};

fn slo(spec: &Value) -> Slo {
    let slo = json!({
        "apiVersion": "tailwater.dev/v1alpha1", "kind": "Slo", "metadata": {"name": "gold"}, "spec": spec,
    });
    serde_json::from_value(slo).unwrap()
}

fn with_slo(name: &str, destinations: &str) -> Chain {
    let mut chain = chain(name, destinations, &json!({"sloRef": "gold"}));
    chain.spec.local.remove("slo");
    chain
}

async fn accepted(client: &Client, chain: &str) -> (String, String) {
    condition(&chains(client).await[chain], "Accepted").unwrap_or_default()
}

/// Waits until both chains have a latency on their server, and their status says so.
async fn both_have(client: &Client, model: &ModelServer, latency: &str) {
    until("both have the latency of the Slo", || async {
        let chains = chains(client).await;
        let is_updated = |name: &str| condition(&chains[name], "Updated").unwrap_or_default().0 == "True Updated";
        let has_it = model
            .model()
            .chains
            .values()
            .filter(|text| text.contains(latency))
            .count()
            == 2;
        has_it && is_updated("web") && is_updated("dns")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_share_an_slo_and_follow_it() {
    let server = ApiServer::start("slos").await;
    let client = &rack(&server).await;
    let model = ModelServer::default();
    let _agent = start_agent(client, "node-a", 4, &model);
    let _controller = start_controller(client, "slo-controller");
    create(
        client,
        &[with_slo("web", "10.1.0.0/16"), with_slo("dns", "10.2.0.0/16")],
    )
    .await;
    until("an Slo that is missing is told", || async {
        let (status, message) = accepted(client, "web").await;
        status == "False SloMissing" && message.contains("there is no Slo gold in namespace default: create it")
    })
    .await;
    assert!(instances(client).await.is_empty());
    until("so does an event", || async {
        let events: Api<Event> = Api::all(client.clone());
        let events = events.list(&ListParams::default()).await.unwrap().items;
        events.iter().any(|event| event.reason.as_deref() == Some("SloMissing"))
    })
    .await;

    let slos: Api<Slo> = Api::namespaced(client.clone(), "default");
    let parameters = PostParams::default();
    slos.create(&parameters, &slo(&json!({"latency": "250us"})))
        .await
        .unwrap();
    both_have(client, &model, "250us").await;
    until("its status counts them", || async {
        let status = slos.get("gold").await.unwrap().status.unwrap_or_default();
        status.chains == 2
            && status
                .conditions
                .iter()
                .any(|one| one.name == "Accepted" && one.status == "True")
    })
    .await;

    // The chains' own generations stay: the Slo's version is what changes.
    let patch = Patch::Merge(json!({"spec": {"latency": "350us", "percentile": 99.9}}));
    slos.patch("gold", &PatchParams::default(), &patch).await.unwrap();
    both_have(client, &model, "350us").await;
    assert!(
        instances(client)
            .await
            .iter()
            .all(|one| runs(one) && one.spec.chain_generation == 1)
    );

    // One that no chain can have is refused, or told where the API server has the definition of another version, as the
    // model has none. It leaves the chains as they are, and so does one that is gone.
    let problem = "expected throughput with type reserved";
    let patch = Patch::Merge(json!({"spec": {"type": "reserved"}}));
    match slos.patch("gold", &PatchParams::default(), &patch).await {
        Err(error) => assert!(error.to_string().contains(problem), "{error}"),
        Ok(_) => {
            until("a wrong Slo is told", || async {
                let (status, message) = accepted(client, "dns").await;
                status == "False SloInvalid" && message.contains(problem)
            })
            .await;
        }
    }
    slos.delete("gold", &DeleteParams::default()).await.unwrap();
    until("its end is told", || async {
        accepted(client, "dns").await.0 == "False SloMissing"
    })
    .await;
    assert_eq!(instances(client).await.iter().filter(|one| runs(one)).count(), 2);

    // Another one of the name has another identity, though its generation is 1, too.
    let reserved = json!({"type": "reserved", "latency": "450us", "throughput": "100kpps"});
    slos.create(&parameters, &slo(&reserved)).await.unwrap();
    both_have(client, &model, "450us").await;
    assert!(model.model().removed.is_empty());
}
