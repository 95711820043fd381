//! Rules of the API server that the programs rely on. They hold for the real one and for the model.

use crate::support::api_server::ApiServer;
use crate::support::rack::{chain, rack};
use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::time::Duration;
use tailwater_cluster::resources::{Chain, ChainInstance, DRAIN_FINALIZER};
use tokio::time::timeout;

/// Code and reason of a refusal.
fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason.clone()),
        other => panic!("expected a refusal, found {other:?}"),
    }
}

fn is(code: u16, reason: &str) -> (u16, String) {
    (code, reason.to_owned())
}

fn instance(name: &str, server: &str) -> ChainInstance {
    let instance = json!({
        "apiVersion": "tailwater.dev/v1alpha1", "kind": "ChainInstance",
        "metadata": {"name": name, "namespace": "default", "finalizers": [DRAIN_FINALIZER]},
        "spec": {"chain": "web", "server": server, "chainGeneration": 1, "chainSpec": {"slo": {}}},
    });
    serde_json::from_value(instance).unwrap()
}

fn merge(patch: Value) -> Patch<Value> {
    Patch::Merge(patch)
}

/// Next event of a watch: its type, and the object's name.
async fn next(
    events: &mut (impl futures::TryStream<Ok = WatchEvent<ChainInstance>, Error = kube::Error> + Unpin),
) -> String {
    let event = timeout(Duration::from_secs(10), events.try_next())
        .await
        .expect("an event in time");
    match event.unwrap().expect("an event") {
        WatchEvent::Added(object) => format!("added {}", object.name_any()),
        WatchEvent::Modified(object) => format!("modified {}", object.name_any()),
        WatchEvent::Deleted(object) => format!("deleted {}", object.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".to_owned(),
        WatchEvent::Error(status) => format!("error {} {}", status.code, status.reason),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_follow_the_rules_that_the_programs_rely_on() {
    let mut server = ApiServer::start("rules").await;
    let client = &rack(&server).await;
    spec_and_status_are_apart(client).await;
    writes_conflict(client).await;
    leases_are_applied(client).await;
    finalizers_hold_objects(client).await;
    lists_have_pages(client).await;
    requests_are_refused(&server, client).await;
    watches_are_filtered_and_end(&mut server, client).await;
}

async fn spec_and_status_are_apart(client: &Client) {
    let (api, parameters) = (
        Api::<Chain>::namespaced(client.clone(), "default"),
        PatchParams::default(),
    );
    let created = api
        .create(&PostParams::default(), &chain("web", "10.0.0.0/16", &json!({})))
        .await
        .unwrap();
    assert_eq!((created.metadata.generation, created.spec.scale.max), (Some(1), 1024));
    assert!(created.status.is_none() && created.uid().is_some() && created.creation_timestamp().is_some());

    // The status by the main resource is ignored, and nothing has changed then.
    let ignored = api
        .patch("web", &parameters, &merge(json!({"status": {"cores": 7}})))
        .await
        .unwrap();
    assert_eq!(ignored.resource_version(), created.resource_version());
    // So is the spec by the status; unknown fields are left out.
    let patch = json!({"spec": {"slo": {"latency": "9ms"}}, "status": {"cores": 7, "unknown": 1}});
    let written = api.patch_status("web", &parameters, &merge(patch)).await.unwrap();
    assert_eq!(written.spec, created.spec);
    assert_eq!(
        (written.status.unwrap().cores, written.metadata.generation),
        (7, Some(1))
    );
    // Metadata raises no generation, a spec does, and leaves the status.
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(
        api.patch("web", &parameters, &merge(patch))
            .await
            .unwrap()
            .metadata
            .generation,
        Some(1)
    );
    let patch = json!({"spec": {"slo": {"latency": "9ms"}}});
    let changed = api.patch("web", &parameters, &merge(patch)).await.unwrap();
    assert_eq!(
        (changed.metadata.generation, changed.status.unwrap().cores),
        (Some(2), 7)
    );
    let wrong = json!({"spec": {"scale": {"min": 0}}});
    assert_eq!(
        refusal(api.patch("web", &parameters, &merge(wrong)).await),
        is(422, "Invalid")
    );
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    api.create(&dry, &chain("dry", "10.1.0.0/16", &json!({})))
        .await
        .unwrap();
    assert_eq!(api.get_opt("dry").await.unwrap(), None);
}

async fn writes_conflict(client: &Client) {
    let (api, parameters) = (
        Api::<Chain>::namespaced(client.clone(), "default"),
        PostParams::default(),
    );
    let mut first = api.get("web").await.unwrap();
    let second = first.clone();
    first.spec.scale.max = 9;
    let mut written = api.replace("web", &parameters, &first).await.unwrap();
    assert_eq!(
        refusal(api.replace("web", &parameters, &second).await),
        is(409, "Conflict")
    );
    let stale = json!({"metadata": {"resourceVersion": second.resource_version()}, "spec": {"scale": {"max": 8}}});
    let patched = api.patch("web", &PatchParams::default(), &merge(stale)).await;
    assert_eq!(refusal(patched), is(409, "Conflict"));
    written.metadata.resource_version = None;
    assert_eq!(
        refusal(api.replace("web", &parameters, &written).await),
        is(422, "Invalid")
    );
    let again = chain("web", "10.0.0.0/16", &json!({}));
    assert_eq!(refusal(api.create(&parameters, &again).await), is(409, "AlreadyExists"));
    let mut named = chain("x", "10.0.0.0/16", &json!({}));
    named.metadata.name = None;
    named.metadata.generate_name = Some("made-".to_owned());
    let made = api.create(&parameters, &named).await.unwrap();
    assert!(made.name_any().len() == 10 && made.name_any().starts_with("made-"));
}

async fn leases_are_applied(client: &Client) {
    let api = Api::<Lease>::namespaced(client.clone(), "tailwater");
    let lease = |spec: LeaseSpec| {
        let metadata = ObjectMeta {
            name: Some("node".to_owned()),
            ..ObjectMeta::default()
        };
        Patch::Apply(Lease {
            metadata,
            spec: Some(spec),
        })
    };
    let spec = LeaseSpec {
        holder_identity: Some("node".to_owned()),
        lease_duration_seconds: Some(4),
        ..LeaseSpec::default()
    };
    let first = PatchParams::apply("first");
    api.patch("node", &first, &lease(spec.clone())).await.unwrap();
    // A field that its manager does not name any more is removed.
    let less = LeaseSpec {
        lease_duration_seconds: None,
        ..spec.clone()
    };
    let applied = api.patch("node", &first, &lease(less)).await.unwrap().spec.unwrap();
    assert_eq!(
        (applied.lease_duration_seconds, applied.holder_identity.as_deref()),
        (None, Some("node"))
    );
    let other = LeaseSpec {
        holder_identity: Some("other".to_owned()),
        ..LeaseSpec::default()
    };
    let second = PatchParams::apply("second");
    assert_eq!(
        refusal(api.patch("node", &second, &lease(other.clone())).await),
        is(409, "Conflict")
    );
    let forced = api
        .patch("node", &second.force(), &lease(other))
        .await
        .unwrap()
        .spec
        .unwrap();
    assert_eq!(forced.holder_identity.as_deref(), Some("other"));
    let wrong = LeaseSpec {
        lease_duration_seconds: Some(0),
        ..LeaseSpec::default()
    };
    assert_eq!(
        refusal(api.patch("node", &first, &lease(wrong)).await),
        is(422, "Invalid")
    );
}

async fn finalizers_hold_objects(client: &Client) {
    let (api, parameters) = (
        Api::<ChainInstance>::namespaced(client.clone(), "default"),
        PatchParams::default(),
    );
    api.create(&PostParams::default(), &instance("held", "node-1"))
        .await
        .unwrap();
    assert!(api.delete("held", &DeleteParams::default()).await.unwrap().is_left());
    let held = api.get("held").await.unwrap();
    assert!(held.metadata.deletion_timestamp.is_some());
    assert_eq!(held.metadata.generation, Some(2));
    assert!(api.delete("held", &DeleteParams::default()).await.unwrap().is_left());
    assert_eq!(
        api.get("held").await.unwrap().resource_version(),
        held.resource_version()
    );
    let more = json!({"metadata": {"finalizers": [DRAIN_FINALIZER, "tailwater.dev/other"]}});
    assert_eq!(
        refusal(api.patch("held", &parameters, &merge(more)).await),
        is(422, "Invalid")
    );
    api.patch("held", &parameters, &merge(json!({"metadata": {"finalizers": []}})))
        .await
        .unwrap();
    assert_eq!(refusal(api.get("held").await), is(404, "NotFound"));
}

async fn lists_have_pages(client: &Client) {
    let api = Api::<ChainInstance>::namespaced(client.clone(), "default");
    for (name, server) in [("a", "node-1"), ("b", "node-2"), ("c", "node-1"), ("d", "node-1")] {
        api.create(&PostParams::default(), &instance(name, server))
            .await
            .unwrap();
    }
    let names =
        |list: &kube::core::ObjectList<ChainInstance>| list.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    // Later pages are of the same time.
    api.patch(
        "d",
        &PatchParams::default(),
        &merge(json!({"metadata": {"finalizers": null}})),
    )
    .await
    .unwrap();
    api.delete("d", &DeleteParams::default()).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let second = api
        .list(&ListParams::default().limit(2).continue_token(&token))
        .await
        .unwrap();
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    let by_server = api
        .list(&ListParams::default().fields("spec.server=node-1"))
        .await
        .unwrap();
    assert_eq!(names(&by_server), ["a", "c"]);
    let by_chain = api.list(&ListParams::default().fields("spec.chain=web")).await;
    assert_eq!(refusal(by_chain), is(400, "BadRequest"));
}

async fn requests_are_refused(server: &ApiServer, client: &Client) {
    let nobody = Api::<Chain>::namespaced(server.client("nobody"), "default");
    assert_eq!(refusal(nobody.list(&ListParams::default()).await).0, 401);
    let nowhere = Api::<Chain>::namespaced(client.clone(), "nowhere");
    let mut lost = chain("lost", "10.0.0.0/16", &json!({}));
    lost.metadata.namespace = None;
    assert_eq!(
        refusal(nowhere.create(&PostParams::default(), &lost).await),
        is(404, "NotFound")
    );
    for (path, media_type, code) in [
        (
            "/apis/tailwater.dev/v1alpha1/things/x",
            "application/merge-patch+json",
            404,
        ),
        (
            "/apis/tailwater.dev/v1/namespaces/default/chains/web",
            "application/merge-patch+json",
            404,
        ),
        (
            "/apis/tailwater.dev/v1alpha1/namespaces/default/chains/web",
            "text/plain",
            415,
        ),
        (
            "/apis/tailwater.dev/v1alpha1/namespaces/default/chains",
            "application/merge-patch+json",
            400,
        ),
        (
            "/apis/tailwater.dev/v1alpha1/chains",
            "application/merge-patch+json",
            404,
        ),
    ] {
        let request = http::Request::patch(path).header("content-type", media_type);
        let result = client.request_text(request.body(b"{}".to_vec()).unwrap()).await;
        assert_eq!(refusal(result).0, code, "{path} {media_type}");
    }
}

async fn watches_are_filtered_and_end(server: &mut ApiServer, client: &Client) {
    let (api, parameters) = (
        Api::<ChainInstance>::namespaced(client.clone(), "default"),
        PatchParams::default(),
    );
    let all = api.list(&ListParams::default()).await.unwrap();
    let since = all.metadata.resource_version.unwrap();
    let by_server = WatchParams::default().fields("spec.server=node-1");
    let mut events = Box::pin(api.watch(&by_server, &since).await.unwrap());
    let phase = |phase: &str| merge(json!({"status": {"phase": phase}}));
    api.patch_status("b", &parameters, &phase("Running")).await.unwrap();
    api.patch_status("a", &parameters, &phase("Running")).await.unwrap();
    assert_eq!(next(&mut events).await, "modified a");
    api.create(&PostParams::default(), &instance("e", "node-1"))
        .await
        .unwrap();
    assert_eq!(next(&mut events).await, "added e");
    api.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await
        .unwrap();
    for name in ["a", "c", "e"] {
        assert_eq!(next(&mut events).await, format!("modified {name}"));
    }
    api.patch("c", &parameters, &merge(json!({"metadata": {"finalizers": null}})))
        .await
        .unwrap();
    assert_eq!(next(&mut events).await, "deleted c");

    // Changes from before a restart cannot be watched after it.
    server.pause();
    server.resume().await.unwrap();
    let is_over = timeout(Duration::from_secs(10), events.try_next())
        .await
        .expect("its end in time");
    assert!(is_over.is_err() || is_over.is_ok_and(|event| event.is_none()));
    let mut events = Box::pin(api.watch(&by_server, &since).await.unwrap());
    assert_eq!(next(&mut events).await, "error 410 Expired");
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 3);
}
