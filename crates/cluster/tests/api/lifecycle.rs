//! Chains from their creation to their end.

use crate::support::api_server::ApiServer;
use crate::support::rack::{
    CORE_RATE, FAST, ModelServer, Pace, chain, chains, condition, create, instances, rack, runs, start_agent,
    start_agents, start_controller, start_controller_at, until,
};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tailwater_cluster::resources::{Chain, ChainInstance, Profile, ProfileSpec, RackServer};

/// Returns `true` if an instance's server has a prefix in the match that it runs.
fn runs_match(instance: &ChainInstance, prefix: &str) -> bool {
    let status = instance.status.as_ref();
    let runs = status.and_then(|status| status.match_.as_ref());
    runs.is_some_and(|text| text.contains(prefix))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_is_placed_changed_and_removed() {
    let server = ApiServer::start("lifecycle").await;
    let client = &rack(&server).await;
    let models = [ModelServer::default(), ModelServer::default()];
    let _agents = [
        start_agent(client, "node-a", 4, &models[0]),
        start_agent(client, "node-b", 4, &models[1]),
    ];
    let _controller = start_controller(client, "first");
    create(
        client,
        &[chain("web", "10.1.0.0/16", &json!({"scale": {"min": 2, "servers": 2}}))],
    )
    .await;
    until("two instances run", || async {
        let instances = instances(client).await;
        instances.len() == 2 && instances.iter().all(runs)
    })
    .await;
    until("the chain's status tells", || async {
        let web = &chains(client).await["web"];
        let status = web.status.clone().unwrap_or_default();
        status.ready_instances == "2/2"
            && status.p99.as_deref() == Some("42.0us")
            && condition(web, "Ready").is_some_and(|(status, _)| status == "True Ready")
            && condition(web, "ObjectiveMet").is_some_and(|(status, _)| status == "True Met")
    })
    .await;
    let names = models
        .each_ref()
        .map(|model| model.model().chains.keys().cloned().collect::<Vec<_>>());
    assert!(names.iter().all(|names| names.len() == 1), "{names:?}");

    // A changed spec reaches one instance after another, and removed fields are removed.
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    let patch =
        json!({"spec": {"slo": {"latency": "300us"}, "functions": [{"count": {}}, {"count": {}, "name": "two"}]}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    until("both servers have the new spec", || async {
        let has_new = |model: &ModelServer| model.model().chains.values().all(|text| text.contains("300us"));
        models.iter().all(has_new)
    })
    .await;
    until("the roll-out is complete", || async {
        condition(&chains(client).await["web"], "Updated").is_some_and(|(status, _)| status == "True Updated")
    })
    .await;

    for (value, is_there) in [(json!("serve-fresh"), true), (json!(null), false)] {
        let patch = json!({"spec": {"whenOverloaded": value}});
        api.patch("web", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
        until("a field comes and goes", || async {
            let has_it = |model: &ModelServer| {
                let model = model.model();
                model
                    .chains
                    .values()
                    .all(|text| text.contains("serve-fresh") == is_there)
            };
            models.iter().all(has_it)
        })
        .await;
    }
    until("the roll-out of both is complete", || async {
        condition(&chains(client).await["web"], "Updated").is_some_and(|(status, _)| status == "True Updated")
    })
    .await;

    // A spec that every server refuses stops at the first one.
    for model in &models {
        model.model().refuses = Some("the rule set is too large".to_owned());
    }
    let patch = json!({"spec": {"slo": {"latency": "400us"}, "match": {"destinations": ["10.9.0.0/16"]}}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    until("the refusal is told", || async {
        condition(&chains(client).await["web"], "Updated")
            .is_some_and(|(status, message)| status == "False Refused" && message.contains("the rule set is too large"))
    })
    .await;
    let old = instances(client)
        .await
        .iter()
        .filter(|one| one.spec.chain_spec["slo"]["latency"] == "300us")
        .count();
    assert_eq!(old, 1);
    // The ingress steers by the match that the instances run.
    let run_match = |prefix: &'static str| async move {
        let instances = instances(client).await;
        instances.iter().all(|one| runs_match(one, prefix))
    };
    assert!(run_match("10.1.0.0/16").await);
    for model in &models {
        model.model().refuses = None;
    }
    until("it is tried again", || async {
        condition(&chains(client).await["web"], "Updated").is_some_and(|(status, _)| status == "True Updated")
    })
    .await;
    assert!(run_match("10.9.0.0/16").await);

    // Which packets instances get is the ingress's part: a match changes nothing on their servers.
    let applied = || models.each_ref().map(|model| model.model().applied.len());
    let before = applied();
    let patch = json!({"spec": {"match": {"destinations": ["10.8.0.0/16"]}}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    until("all run the new match", || run_match("10.8.0.0/16")).await;
    assert_eq!(applied(), before);

    api.delete("web", &DeleteParams::default()).await.unwrap();
    until("nothing is left", || async {
        instances(client).await.is_empty() && models.iter().all(|model| model.model().chains.is_empty())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_is_created_again_at_once_gets_its_own_spec_and_tells_what_the_ingress_says() {
    let server = ApiServer::start("again").await;
    let client = &rack(&server).await;
    let model = ModelServer::default();
    let _agent = start_agent(client, "node-a", 4, &model);
    let controller = start_controller(client, "first");
    create(client, &[chain("web", "10.1.0.0/16", &json!({}))]).await;
    until("it runs", || async { instances(client).await.iter().any(runs) }).await;
    // No controller sees that there was none for a moment.
    drop(controller);
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    api.delete("web", &DeleteParams::default()).await.unwrap();
    create(client, &[chain("web", "10.2.0.0/16", &json!({}))]).await;
    let uid = chains(client).await["web"].metadata.uid.clone();
    let _controller = start_controller(client, "first");
    until("its instance has its spec, and is its own", || async {
        let web = &chains(client).await["web"];
        let owns = |one: &ChainInstance| {
            let owners = one.metadata.owner_references.as_deref().unwrap_or_default();
            owners.iter().all(|owner| Some(&owner.uid) == uid.as_ref())
        };
        condition(web, "Updated").is_some_and(|(status, _)| status == "True Updated")
            && instances(client).await.iter().all(owns)
            && instances(client).await.iter().all(|one| runs_match(one, "10.2.0.0/16"))
    })
    .await;

    let told = |name: &'static str, status: serde_json::Value, expected: &'static str| async move {
        let name_of = instances(client).await[0].metadata.name.clone().unwrap();
        let of_instances: Api<ChainInstance> = Api::namespaced(client.clone(), "default");
        let patch = Patch::Merge(json!({ "status": status }));
        let parameters = PatchParams::default();
        of_instances.patch_status(&name_of, &parameters, &patch).await.unwrap();
        until(name, || async {
            condition(&chains(client).await["web"], "Steered").is_some_and(|(status, _)| status == expected)
        })
        .await;
    };
    let refused = json!({"steered": false, "steeringReason": "too many"});
    told("a refusal", refused, "False Refused").await;
    told("no packets", json!({"steeringReason": null}), "False NoRows").await;
    told("packets", json!({"steered": true}), "True Steered").await;
    let limit = |reason: &str| json!({"steeringLimit": {"reason": reason, "message": "the table is full: enlarge it"}});
    told("no room", limit("TableTooSmall"), "False TableTooSmall").await;
    told("too little room", limit("TableFull"), "True TableFull").await;
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    until("a warning says what to do", || async {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        let is_it = |event: &Event| {
            event.reason.as_deref() == Some("TableFull")
                && event.type_.as_deref() == Some("Warning")
                && event.note.as_deref().is_some_and(|note| note.contains("enlarge it"))
        };
        events.iter().any(is_it)
    })
    .await;
    told("room", json!({"steeringLimit": null}), "True Steered").await;

    // A definition of an older version.
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let annotate = |digest: String| {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"tailwater.dev/digest": digest}}}));
        let definitions = definitions.clone();
        async move {
            let parameters = PatchParams::default();
            definitions
                .patch("slos.tailwater.dev", &parameters, &patch)
                .await
                .unwrap();
        }
    };
    let slos = definitions.get("slos.tailwater.dev").await.unwrap();
    annotate("0".to_owned()).await;
    until("it is told", || async {
        let told = condition(&chains(client).await["web"], "Definitions");
        told.is_some_and(|(status, message)| {
            status == "False OldDefinition" && message.contains("definition slos.tailwater.dev is older")
        })
    })
    .await;
    annotate(slos.metadata.annotations.unwrap()["tailwater.dev/digest"].clone()).await;
    until("it is new", || async {
        condition(&chains(client).await["web"], "Definitions").is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_and_conflicting_chains_are_told_so_and_disturb_nobody() {
    let server = ApiServer::start("conditions").await;
    let client = &rack(&server).await;
    let model = ModelServer::default();
    let _agent = start_agent(client, "node-a", 4, &model);
    let _controller = start_controller(client, "first");
    let wrong = chain("wrong", "10.2.0.0/16", &json!({"flows": {"capacity": "many"}}));
    create(client, &[chain("web", "10.1.0.0/16", &json!({})), wrong]).await;
    until("the first chain runs", || async {
        instances(client).await.iter().any(runs)
    })
    .await;
    create(client, &[chain("same", "10.1.0.0/16", &json!({}))]).await;
    until("both are told", || async {
        let chains = chains(client).await;
        let of = |name: &str| condition(&chains[name], "Accepted").unwrap_or_default();
        of("wrong").0 == "False Invalid"
            && of("wrong").1.contains("capacity")
            && of("same").0 == "False Conflict"
            && of("same").1.contains("default/web")
    })
    .await;
    assert_eq!(instances(client).await.len(), 1);

    // A chain that becomes wrong goes on as it was.
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    let patch = json!({"spec": {"flows": {"capacity": "few"}}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    until("it is told", || async {
        condition(&chains(client).await["web"], "Accepted").is_some_and(|(status, _)| status == "False Invalid")
    })
    .await;
    // The chain that would have its packets still waits.
    assert_eq!(instances(client).await.len(), 1);
    let patch = json!({"spec": {"flows": null}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    until("it is accepted again", || async {
        condition(&chains(client).await["web"], "Accepted").is_some_and(|(status, _)| status == "True Valid")
    })
    .await;
    assert!(model.model().removed.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_leave_a_server_that_is_lost_or_unschedulable() {
    let server = ApiServer::start("servers").await;
    let client = &rack(&server).await;
    let models: Vec<ModelServer> = (0..3).map(|_| ModelServer::default()).collect();
    let name = |number: usize| format!("node-{number}");
    let mut agents: Vec<_> = models
        .iter()
        .enumerate()
        .map(|(number, model)| Some(start_agent(client, &name(number), 4, model)))
        .collect();
    let _controller = start_controller(client, "first");
    create(client, &[chain("web", "10.1.0.0/16", &json!({}))]).await;
    let place = || async {
        let instances = instances(client).await;
        let found = instances
            .iter()
            .find(|instance| runs(instance) && !instance.spec.draining);
        found.map(|instance| instance.spec.server.clone())
    };
    until("it runs", || async { place().await.is_some() }).await;
    let first = place().await.unwrap();
    let number = (0..3).find(|number| name(*number) == first).unwrap();

    // Like a crash: the server is silent.
    agents[number] = None;
    let took = until("it runs elsewhere", || async {
        place().await.is_some_and(|server| server != first)
    })
    .await;
    println!("a lost server's instance runs elsewhere after {took:?}, of which 2 s until the server counts as lost");
    until("the old instance is gone", || async {
        instances(client).await.len() == 1
    })
    .await;
    let servers: Api<RackServer> = Api::all(client.clone());
    until("the server is not ready", || async {
        let server = servers.get(&first).await.unwrap();
        let conditions = server.status.unwrap_or_default().conditions;
        conditions
            .iter()
            .any(|condition| condition.status == "False" && condition.reason == "Lost")
    })
    .await;

    // It comes back, and ends what does not belong there any more.
    agents[number] = Some(start_agent(client, &first, 4, &models[number]));
    until("the old chain ends", || async {
        models[number].model().chains.is_empty()
    })
    .await;

    let second = place().await.unwrap();
    let patch = json!({"spec": {"unschedulable": true}});
    servers
        .patch(&second, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    until("it moves", || async {
        let instances = instances(client).await;
        instances.len() == 1 && runs(&instances[0]) && instances[0].spec.server != second
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_on_demand_follows_its_load() {
    let server = ApiServer::start("demand").await;
    let client = &rack(&server).await;
    let (models, _agents) = start_agents(client, 3, 1);
    let _controller = start_controller(client, "first");
    let profiles: Api<Profile> = Api::namespaced(client.clone(), "default");
    let spec = ProfileSpec {
        chain: "web".to_owned(),
        file: String::new(),
    };
    profiles
        .create(&PostParams::default(), &Profile::new("web", spec))
        .await
        .unwrap();
    create(client, &[chain("web", "10.1.0.0/16", &json!({}))]).await;
    // All load is on the server of the first instance.
    let load = |rate: f64| {
        let loaded = models
            .iter()
            .position(|model| !model.model().chains.is_empty())
            .unwrap_or(0);
        for (number, model) in models.iter().enumerate() {
            model.model().offered = if number == loaded { rate } else { 0.0 };
        }
    };
    let promised = || async {
        let instances = instances(client).await;
        let active = instances.iter().filter(|one| runs(one) && !one.spec.draining);
        active.fold((0, 0.0), |(count, rate), one| (count + 1, rate + one.spec.promised))
    };
    until("one instance runs", || async { promised().await.0 == 1 }).await;
    load(0.3 * CORE_RATE);
    until("its promise follows the load", || async {
        let (count, rate) = promised().await;
        count == 1 && rate > 0.3 * CORE_RATE
    })
    .await;
    load(1.5 * CORE_RATE);
    until("more instances share a load that exceeds a server", || async {
        let (count, rate) = promised().await;
        count >= 2 && rate > 1.5 * CORE_RATE
    })
    .await;
    load(0.2 * CORE_RATE);
    until("fewer suffice again", || async {
        let (count, rate) = promised().await;
        count == 1 && rate < 0.5 * CORE_RATE
    })
    .await;
    // Manifests have the promised throughput, so that servers admit by it.
    let manifests: Vec<String> = models
        .iter()
        .flat_map(|model| model.model().chains.values().cloned().collect::<Vec<_>>())
        .collect();
    assert!(
        manifests.iter().all(|text| text.contains("\"throughput\":\"")),
        "{manifests:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_without_a_profile_follows_the_time_of_its_cores() {
    let server = ApiServer::start("busy").await;
    let client = &rack(&server).await;
    let (models, _agents) = start_agents(client, 4, 1);
    let _controller = start_controller(client, "first");
    create(client, &[chain("web", "10.1.0.0/16", &json!({"scale": {"max": 3}}))]).await;
    let load = |busy: f64| {
        for model in &models {
            model.model().busy = Some(busy);
        }
    };
    let running = || async {
        let instances = instances(client).await;
        let active = instances.iter().filter(|one| runs(one) && !one.spec.draining);
        active.count()
    };
    load(0.6);
    until("one instance runs", || async { running().await == 1 }).await;
    load(0.9);
    until("there are as many as permitted", || async { running().await == 3 }).await;
    // Instances have their place without a promise.
    assert!(instances(client).await.iter().all(|one| one.spec.promised == 0.0));
    load(0.1);
    until("one suffices again", || async { running().await == 1 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_with_state_that_stays_behind_has_one_instance_which_does_not_move() {
    let server = ApiServer::start("bound").await;
    let client = &rack(&server).await;
    let (models, _agents) = start_agents(client, 2, 2);
    let reason = "function xdp: its maps belong to one core, and do not move with flows";
    for model in &models {
        model.model().bound = Some(reason.to_owned());
    }
    let _controller = start_controller(client, "first");
    create(
        client,
        &[chain("web", "10.1.0.0/16", &json!({"scale": {"min": 2, "servers": 2}}))],
    )
    .await;
    let told = |name: &'static str, expected: &'static str, text: &'static str| async move {
        let (status, message) = condition(&chains(client).await["web"], name).unwrap_or_default();
        status == expected && message.contains(text)
    };
    until("it is told", || {
        told("SingleInstance", "True BoundState", "its maps belong to one core")
    })
    .await;
    until("one is left", || async { instances(client).await.len() == 1 }).await;
    // It stays on a server that is to become empty; who deletes it has it begin anew.
    let first = instances(client).await.remove(0);
    let servers: Api<RackServer> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    let parameters = PatchParams::default();
    servers.patch(&first.spec.server, &parameters, &patch).await.unwrap();
    until("it stays", || {
        told("Placed", "True CannotMove", "delete the ChainInstance")
    })
    .await;
    let api: Api<ChainInstance> = Api::namespaced(client.clone(), "default");
    let name = first.metadata.name.as_deref().unwrap();
    api.delete(name, &DeleteParams::default()).await.unwrap();
    until("another one runs elsewhere", || async {
        let instances = instances(client).await;
        instances.len() == 1 && runs(&instances[0]) && instances[0].spec.server != first.spec.server
    })
    .await;
    // Another version of the chain, without such a function.
    for model in &models {
        model.model().bound = None;
    }
    until("it has two again", || async {
        condition(&chains(client).await["web"], "SingleInstance").is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn better_plans_empty_servers_in_the_background() {
    let server = ApiServer::start("better").await;
    let client = &rack(&server).await;
    let models: Vec<ModelServer> = (0..3).map(|_| ModelServer::default()).collect();
    let controller = start_controller(client, "first");
    let profiles: Api<Profile> = Api::namespaced(client.clone(), "default");
    let mut agents = Vec::new();
    let places = || async {
        let instances = instances(client).await;
        let running: Vec<String> = instances
            .iter()
            .filter(|one| runs(one))
            .map(|one| one.spec.server.clone())
            .collect();
        let servers: std::collections::BTreeSet<&String> = running.iter().collect();
        (running.len(), servers.len(), instances.len())
    };
    let profiled = |name: String| {
        let profiles = profiles.clone();
        async move {
            let spec = ProfileSpec {
                chain: name.clone(),
                file: String::new(),
            };
            let profile = Profile::new(&name, spec);
            profiles.create(&PostParams::default(), &profile).await.unwrap();
        }
    };
    for (number, model) in models.iter().enumerate() {
        agents.push(start_agent(client, &format!("node-{number}"), 2, model));
    }
    // An instance of a large chain on each server leaves room for one small chain there. It runs on all before there
    // are small ones: where the controller has not seen a server yet, it divides a chain among what the others
    // have left.
    profiled("large".to_owned()).await;
    let on_all = json!({"slo": {"throughput": "2550kpps"}, "scale": {"min": 3, "servers": 3}});
    create(client, &[chain("large", "10.0.0.0/16", &on_all)]).await;
    until("the large one is on all servers", || async {
        places().await == (3, 3, 3)
    })
    .await;
    for number in 0..3 {
        let name = format!("small-{number}");
        profiled(name.clone()).await;
        let destinations = format!("10.{}.0.0/16", number + 1);
        create(
            client,
            &[chain(&name, &destinations, &json!({"slo": {"throughput": "700kpps"}}))],
        )
        .await;
    }
    until("the small ones run, too", || async { places().await == (6, 3, 6) }).await;
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    api.delete("large", &DeleteParams::default()).await.unwrap();
    until("the large one is gone", || async { places().await.2 == 3 }).await;
    assert_eq!(places().await.1, 3, "there is something to save");
    drop(controller);
    let pace = Pace {
        consolidate: true,
        profiling: false,
        ..FAST
    };
    let _controller = start_controller_at(pace, client, "second");
    until("two of the small ones share a server", || async {
        places().await == (3, 2, 3)
    })
    .await;
}
