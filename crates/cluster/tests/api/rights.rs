//! The rights that the Helm chart gives suffice, and are no more than that.

use crate::definitions::real_api_server;
use crate::pools::{pool, pools};
use crate::support::rack::{
    ModelServer, chain, create, instances, rack, runs, start_agent, start_controller, until, warnings,
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tailwater_cluster::resources::{Chain, ChainInstance, RackServer};
use tokio::time::sleep;

/// File of the chart.
pub(crate) fn file(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/helm/tailwater/files")
        .join(name);
    let text = std::fs::read_to_string(&path)
        .unwrap()
        .replace("NAMESPACE", "tailwater");
    serde_saphyr::from_str(&text).unwrap()
}

pub(crate) async fn create_object(client: &Client, group: &str, plural: &str, namespace: Option<&str>, object: Value) {
    let kind = object["kind"].as_str().unwrap();
    let resource = ApiResource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{group}/v1"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// Gives a component the rights of the chart.
pub(crate) async fn bind(client: &Client, component: &str) {
    for (role, plural, file_name, namespace) in [
        ("ClusterRole", "clusterroles", format!("{component}-rules.yaml"), None),
        (
            "Role",
            "roles",
            format!("{component}-namespace-rules.yaml"),
            Some("tailwater"),
        ),
    ] {
        bind_rules(client, component, (role, plural, &file_name), namespace).await;
    }
}

/// Gives a component rights of the chart in a namespace.
pub(crate) async fn bind_in(client: &Client, component: &str, file_name: &str, namespace: &str) {
    bind_rules(client, component, ("Role", "roles", file_name), Some(namespace)).await;
}

async fn bind_rules(
    client: &Client,
    component: &str,
    (role, plural, file_name): (&str, &str, &str),
    namespace: Option<&str>,
) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let account = format!("tailwater-{component}");
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": role, "metadata": {"name": account}, "rules": file(file_name),
    });
    create_object(client, GROUP, plural, namespace, object).await;
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": format!("{role}Binding"), "metadata": {"name": account},
        "roleRef": {"apiGroup": GROUP, "kind": role, "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "tailwater"}],
    });
    let plural = format!("{}bindings", plural.trim_end_matches('s'));
    create_object(client, GROUP, &plural, namespace, binding).await;
}

/// Limits agents to their servers.
async fn limit(client: &Client) {
    const GROUP: &str = "admissionregistration.k8s.io";
    let mut policy = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "tailwater-agent"},
    });
    policy["spec"] = file("agent-policy.yaml")["spec"].clone();
    create_object(client, GROUP, "validatingadmissionpolicies", None, policy).await;
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "tailwater-agent"},
        "spec": {"policyName": "tailwater-agent", "validationActions": ["Deny"]},
    });
    create_object(client, GROUP, "validatingadmissionpolicybindings", None, binding).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_of_the_chart_suffice_and_agents_are_limited_to_their_servers() {
    let server = real_api_server!("rights");
    let client = &rack(&server).await;
    bind(client, "controller").await;
    bind(client, "agent").await;
    limit(client).await;
    let models = [ModelServer::default(), ModelServer::default()];
    let names = ["right-a", "right-b"];
    let account = |node| server.account("tailwater-agent", Some(node));
    let _agents: Vec<_> = names
        .iter()
        .zip(&models)
        .map(|(name, model)| start_agent(&account(name), name, 4, model))
        .collect();
    let controller = start_controller(&server.account("tailwater-controller", None), "right-controller");
    let pool = pool("right", &json!({"servers": names}));
    pools(client).create(&PostParams::default(), &pool).await.unwrap();
    let spec = json!({"pool": "right", "scale": {"min": 2, "servers": 2}});
    create(client, &[chain("web", "10.1.0.0/16", &spec)]).await;
    until("two instances run", || async {
        instances(client).await.iter().filter(|one| runs(one)).count() == 2
    })
    .await;
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    let patch = json!({"spec": {"slo": {"latency": "300us"}}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    until("both have the new spec", || async {
        models
            .iter()
            .all(|model| model.model().chains.values().all(|text| text.contains("300us")))
    })
    .await;

    // Another server's agent.
    let of_b: Vec<ChainInstance> = instances(client)
        .await
        .into_iter()
        .filter(|one| one.spec.server == "right-b")
        .collect();
    let name = of_b[0].metadata.name.clone().unwrap();
    let as_a: Api<ChainInstance> = Api::namespaced(account("right-a"), "default");
    let merge = |patch: Value| Patch::Merge(patch);
    let status = merge(json!({"status": {"phase": "Failed"}}));
    let error = as_a
        .patch_status(&name, &PatchParams::default(), &status)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("expected an object of server right-a"),
        "{error}"
    );
    // Its own instance, but not its spec.
    let as_b: Api<ChainInstance> = Api::namespaced(account("right-b"), "default");
    let spec = merge(json!({"spec": {"promised": 1e9}}));
    let error = as_b.patch(&name, &PatchParams::default(), &spec).await.unwrap_err();
    assert!(error.to_string().contains("as the controller wrote it"), "{error}");
    let servers: Api<RackServer> = Api::all(account("right-a"));
    let error = servers
        .create(&PostParams::default(), &RackServer::new("right-c", Default::default()))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("expected an object of server right-a"),
        "{error}"
    );
    until("the pool's status is written", || async {
        let status = pools(client).get("right").await.unwrap().status.unwrap_or_default();
        status.servers == 2 && status.instances == 2
    })
    .await;
    // A server of its own, but in a pool of its choice.
    let mut labelled = RackServer::new("right-d", Default::default());
    labelled.labels_mut().insert("tier".to_owned(), "fast".to_owned());
    let servers: Api<RackServer> = Api::all(account("right-d"));
    let error = servers.create(&PostParams::default(), &labelled).await.unwrap_err();
    assert!(error.to_string().contains("as operators wrote them"), "{error}");
    labelled.labels_mut().clear();
    servers.create(&PostParams::default(), &labelled).await.unwrap();
    let patch = merge(json!({"metadata": {"labels": {"tier": "fast"}}}));
    let patched = servers.patch_status("right-d", &PatchParams::default(), &patch).await;
    assert!(patched.is_err() || patched.unwrap().labels().is_empty());
    // Another server's lease; and, whatever a server's name is, the election's.
    for (node, lease) in [
        ("right-a", "server-right-b"),
        ("tailwater-controller", "tailwater-controller"),
    ] {
        let leases: Api<Lease> = Api::namespaced(account(node), "tailwater");
        let renewed = merge(json!({"spec": {"holderIdentity": node}}));
        let patched = leases.patch(lease, &PatchParams::default(), &renewed).await;
        let error = patched.unwrap_err().to_string();
        assert!(
            error.contains(&format!("expected an object of server {node}")),
            "{error}"
        );
    }
    let error = as_a.delete(&name, &DeleteParams::default()).await.unwrap_err();
    assert!(error.to_string().contains("forbidden"), "{error}");

    api.delete("web", &DeleteParams::default()).await.unwrap();
    until("nothing is left", || async { instances(client).await.is_empty() }).await;
    for name in names.into_iter().chain(["right-controller"]) {
        let forbidden = warnings(name).into_iter().find(|line| line.contains("forbidden"));
        assert_eq!(forbidden, None);
    }

    // Revoked rights are told.
    let resource = ApiResource {
        group: "rbac.authorization.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "rbac.authorization.k8s.io/v1".to_owned(),
        kind: "ClusterRoleBinding".to_owned(),
        plural: "clusterrolebindings".to_owned(),
    };
    let bindings: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    bindings
        .delete("tailwater-controller", &DeleteParams::default())
        .await
        .unwrap();
    sleep(Duration::from_millis(300)).await;
    create(client, &[chain("late", "10.3.0.0/16", &json!({}))]).await;
    drop(controller);
    let _controller = start_controller(&server.account("tailwater-controller", None), "right-controller");
    until("it tells what it may not do", || async {
        warnings("right-controller")
            .iter()
            .any(|line| line.contains("forbidden"))
    })
    .await;
}
