//! Functions of chains that run as pods.

use crate::definitions::real_api_server;
use crate::pools::{pool, pools};
use crate::rights::{bind, bind_in, create_object, file};
use crate::support::api_server::ApiServer;
use crate::support::rack::{
    ModelServer, chain, chains, condition, create, instances, pods_folder, rack, runs, start_agent, start_controller,
    until, warnings,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::fs;
use tailwater_cluster::resources::{Chain, ChainInstance, Function};

fn function(name: &str, image: &str) -> Function {
    let function = json!({
        "apiVersion": "tailwater.dev/v1alpha1", "kind": "Function",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "image": image, "args": ["--fast"], "hugepages": "64Mi",
            "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "limit"}}}],
            "resources": {"intel.com/sriov_a": "1"}, "annotations": {"k8s.v1.cni.cncf.io/networks": "sriov-a"},
        },
    });
    serde_json::from_value(function).unwrap()
}

/// Image with a digest.
fn image(repository: &str) -> String {
    format!("{repository}@sha256:{}", "0123456789abcdef".repeat(4))
}

fn functions(client: &Client) -> Api<Function> {
    Api::namespaced(client.clone(), "default")
}

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), "default")
}

async fn pod_list(client: &Client) -> Vec<Pod> {
    let list = pods(client).list(&ListParams::default()).await.unwrap();
    list.items
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .collect()
}

/// Plays a node.
async fn set_status(client: &Client, pod: &str, status: Value) {
    let patch = Patch::Merge(json!({"status": status}));
    pods(client)
        .patch_status(pod, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn run(client: &Client, pod: &str) {
    let container = json!({
        "name": "function", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    });
    set_status(
        client,
        pod,
        json!({"phase": "Running", "containerStatuses": [container]}),
    )
    .await;
}

async fn wait(client: &Client, pod: &str, reason: &str, message: &str) {
    let container = json!({
        "name": "function", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}},
    });
    set_status(
        client,
        pod,
        json!({"phase": "Pending", "containerStatuses": [container]}),
    )
    .await;
}

fn with_function(name: &str) -> Chain {
    let program = json!({"program": {"function": "limit", "file": "./limit", "config": {"rate": 7}}});
    chain(name, "10.1.0.0/16", &json!({"functions": [{"forward": {}}, program]}))
}

/// Condition of the chain `web`.
async fn told(client: &Client, name: &str, expected: &str, message: &str) -> bool {
    let chains = chains(client).await;
    let found = condition(&chains["web"], name);
    found.is_some_and(|(status, text)| status == expected && text.contains(message))
}

/// Status and reason of a function's condition, and its pods.
async fn of_function(client: &Client) -> (String, String) {
    let status = functions(client).get("limit").await.unwrap().status.unwrap_or_default();
    let ready = status.conditions.first();
    let ready = ready.map(|ready| format!("{} {}", ready.status, ready.reason));
    (ready.unwrap_or_default(), status.ready_pods)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_functions_follow_the_instances() {
    let server = ApiServer::start("functions").await;
    let client = &rack(&server).await;
    let model = ModelServer::default();
    let _agent = start_agent(client, "pods-a", 4, &model);
    let _controller = start_controller(client, "pods-controller");
    create(client, &[with_function("web")]).await;
    until("a function that is missing is told", || async {
        told(
            client,
            "FunctionsReady",
            "False FunctionMissing",
            "there is no Function limit",
        )
        .await
    })
    .await;
    // Sockets are for agents to name.
    let program = json!({"program": {"socket": "/run/tailwater/server.sock"}});
    create(client, &[chain("own", "10.9.0.0/16", &json!({"functions": [program]}))]).await;
    until("a socket is refused", || async {
        let chains = chains(client).await;
        condition(&chains["own"], "Accepted").is_some_and(|(status, _)| status == "False Invalid")
    })
    .await;
    functions(client)
        .create(
            &PostParams::default(),
            &function("limit", &image("example.com/nf/limit")),
        )
        .await
        .unwrap();
    until("there is a pod", || async { pod_list(client).await.len() == 1 }).await;
    let (pod, instance) = (pod_list(client).await.remove(0), instances(client).await.remove(0));
    let name = pod.name_any();
    assert_eq!(name, format!("{}-f0", instance.name_any()));
    assert_eq!(pod.owner_references()[0].uid, instance.uid().unwrap());
    let user = instance.spec.pods[0].user;
    let spec = serde_json::to_value(pod.spec.clone().unwrap()).unwrap();
    let node =
        "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0";
    assert_eq!(spec.pointer(node).unwrap()["values"], json!(["pods-a"]));
    assert_eq!(
        (
            &spec["securityContext"]["runAsUser"],
            &spec["automountServiceAccountToken"]
        ),
        (&json!(user), &json!(false))
    );
    let container = &spec["containers"][0];
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(container["resources"]["limits"]["intel.com/sriov_a"], "1");
    assert_eq!(container["resources"]["requests"]["hugepages-2Mi"], "64Mi");
    assert_eq!(pod.annotations()["k8s.v1.cni.cncf.io/networks"], "sriov-a");
    let volumes: Vec<&Value> = spec["volumes"].as_array().unwrap().iter().collect();
    let folder = format!("/run/tailwater/pods/default--{}/0", instance.name_any());
    assert_eq!((volumes.len(), &volumes[0]["hostPath"]["path"]), (1, &json!(folder)));

    // An image that cannot be pulled.
    wait(client, &name, "ImagePullBackOff", "no such image").await;
    until("it is told", || async {
        told(client, "FunctionsReady", "False ImagePullBackOff", "no such image").await
            && of_function(client).await == ("False ImagePullBackOff".to_owned(), "0/1".to_owned())
    })
    .await;
    assert!(model.model().chains.is_empty());
    run(client, &name).await;
    until("the instance runs", || async {
        instances(client).await.iter().any(runs)
    })
    .await;
    until("its functions are ready", || async {
        told(client, "FunctionsReady", "True Ready", "").await
            && of_function(client).await == ("True Ready".to_owned(), "1/1".to_owned())
    })
    .await;
    let manifest: Value = serde_json::from_str(model.model().chains.values().next().unwrap()).unwrap();
    let program = &manifest["spec"]["functions"][1]["program"];
    let own = pods_folder("pods-a");
    let folder = own.join(format!("default--{}/0", instance.name_any()));
    assert_eq!(
        *program,
        json!({"function": "limit", "socket": folder.join("function.sock"), "user": user, "config": {"rate": 7}})
    );
    let group = || fs::read_to_string(folder.join("group")).unwrap_or_default();
    assert_eq!(group(), pod.uid().unwrap());

    // A pod that is gone is replaced, and the chain goes on.
    pods(client).delete(&name, &DeleteParams::default()).await.unwrap();
    until("there is another pod", || async {
        pod_list(client).await.iter().any(|other| other.uid() != pod.uid())
    })
    .await;
    run(client, &name).await;
    let second = pod_list(client).await.remove(0);
    until("the agent knows it", || async { group() == second.uid().unwrap() }).await;
    assert_eq!(model.model().applied.len(), 1);
    // So is one that has failed for good, such as one that was evicted.
    set_status(client, &name, json!({"phase": "Failed"})).await;
    until("there is a third pod", || async {
        pod_list(client).await.iter().any(|other| other.uid() != second.uid())
    })
    .await;
    run(client, &name).await;
    let third = pod_list(client).await.remove(0);
    // Another version of the function.
    let patch = Patch::Merge(json!({"spec": {"args": ["--slow"]}}));
    functions(client)
        .patch("limit", &PatchParams::default(), &patch)
        .await
        .unwrap();
    until("its pod has the new arguments", || async {
        let pods = pod_list(client).await;
        let args = |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].args.clone();
        pods.len() == 1 && pods[0].uid() != third.uid() && args(&pods[0]) == Some(vec!["--slow".to_owned()])
    })
    .await;
    run(client, &name).await;

    // A chain without the function has no pod.
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    let patch = Patch::Merge(json!({"spec": {"functions": [{"forward": {}}]}}));
    api.patch("web", &PatchParams::default(), &patch).await.unwrap();
    until("the pod is gone", || async { pod_list(client).await.is_empty() }).await;
    until("no condition is about functions", || async {
        condition(&chains(client).await["web"], "FunctionsReady").is_none()
            && of_function(client).await == ("True Unused".to_owned(), "0/0".to_owned())
    })
    .await;
    let patch = Patch::Merge(json!({"spec": {"functions": with_function("web").spec.local["functions"]}}));
    api.patch("web", &PatchParams::default(), &patch).await.unwrap();
    until("there is a pod again", || async { pod_list(client).await.len() == 1 }).await;
    api.delete("web", &DeleteParams::default()).await.unwrap();
    until("nothing is left", || async {
        instances(client).await.is_empty() && pod_list(client).await.is_empty()
    })
    .await;
    until("the folder is gone", || async { !folder.exists() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_in_a_pool_with_devices_claim_them() {
    let server = ApiServer::start("devices").await;
    let client = &rack(&server).await;
    let devices = json!([{
        "name": "vf", "class": "vf.example.com", "count": 2,
        "selectors": ["device.attributes['example.com'].link == 'up'"],
        "replaces": ["intel.com/sriov_a", "k8s.v1.cni.cncf.io/networks"],
    }]);
    let fast = pool("fast", &json!({"servers": ["devices-a"], "devices": devices}));
    pools(client).create(&PostParams::default(), &fast).await.unwrap();
    let _agent = start_agent(client, "devices-a", 4, &ModelServer::default());
    let _controller = start_controller(client, "devices-controller");
    let limit = function("limit", &image("example.com/nf/limit"));
    functions(client).create(&PostParams::default(), &limit).await.unwrap();
    let mut web = with_function("web");
    web.spec.pool = Some("fast".to_owned());
    create(client, &[web]).await;
    let told = |expected: &'static str, text: &'static str| async move {
        let status = pools(client).get("fast").await.unwrap().status.unwrap_or_default();
        let told = status.conditions.iter().find(|condition| condition.name == "Devices");
        told.is_some_and(|told| format!("{} {}", told.status, told.reason) == expected && told.message.contains(text))
    };
    until("a class that is missing is told", || {
        told("False NoDeviceClass", "there is no DeviceClass vf.example.com")
    })
    .await;
    let class: DeviceClass = serde_json::from_value(json!({
        "metadata": {"name": "vf.example.com"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'vf.example.com'"}}]},
    }))
    .unwrap();
    let classes: Api<DeviceClass> = Api::all(client.clone());
    classes.create(&PostParams::default(), &class).await.unwrap();
    until("the class is there", || told("True Ready", "")).await;
    until("there is a pod", || async { pod_list(client).await.len() == 1 }).await;

    let pod = pod_list(client).await.remove(0);
    let spec = serde_json::to_value(pod.spec.clone().unwrap()).unwrap();
    let resources = &spec["containers"][0]["resources"];
    assert_eq!(resources["claims"], json!([{"name": "vf"}]));
    let (limits, annotations) = (resources["limits"].as_object().unwrap(), pod.annotations());
    assert!(
        limits.contains_key("hugepages-2Mi") && !limits.contains_key("intel.com/sriov_a"),
        "{limits:?}"
    );
    assert!(
        !annotations.contains_key("k8s.v1.cni.cncf.io/networks"),
        "{annotations:?}"
    );
    assert_eq!(spec["resourceClaims"][0]["name"], "vf");
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), "default");
    let template = spec["resourceClaims"][0]["resourceClaimTemplateName"].as_str().unwrap();
    let template = templates.get(template).await.unwrap();
    let instance = instances(client).await.remove(0);
    assert_eq!(template.owner_references()[0].uid, instance.uid().unwrap());
    let request = serde_json::to_value(&template.spec.spec.devices.unwrap().requests.unwrap()[0]).unwrap();
    let exactly = json!({
        "deviceClassName": "vf.example.com", "allocationMode": "ExactCount", "count": 2,
        "selectors": [{"cel": {"expression": "device.attributes['example.com'].link == 'up'"}}],
    });
    assert_eq!(request["exactly"], exactly);

    // Other devices: another pod, with another template.
    let patch = Patch::Merge(json!({"spec": {"devices": null}}));
    pools(client)
        .patch("fast", &PatchParams::default(), &patch)
        .await
        .unwrap();
    until("there is a pod without claims", || async {
        let pods = pod_list(client).await;
        let claims = |pod: &Pod| pod.spec.as_ref().unwrap().resource_claims.clone().unwrap_or_default();
        pods.len() == 1
            && claims(&pods[0]).is_empty()
            && pods[0].annotations().contains_key("k8s.v1.cni.cncf.io/networks")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_are_admitted_by_their_images_and_pods_by_their_namespaces() {
    let server = real_api_server!("images");
    let client = &rack(&server).await;
    bind(client, "controller").await;
    bind_in(client, "controller", "functions-rules.yaml", "default").await;
    const GROUP: &str = "admissionregistration.k8s.io";
    let mut policy = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "tailwater-functions"},
    });
    let text = file("functions-policy.yaml")["spec"].to_string();
    let allowing = |images: &str| -> Value { serde_json::from_str(&text.replace("ALLOWED", images)).unwrap() };
    policy["spec"] = allowing("[]");
    create_object(client, GROUP, "validatingadmissionpolicies", None, policy).await;
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "tailwater-functions"},
        "spec": {"policyName": "tailwater-functions", "validationActions": ["Deny"]},
    });
    create_object(client, GROUP, "validatingadmissionpolicybindings", None, binding).await;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let tried = async |image: &str| match functions(client).create(&dry, &function("limit", image)).await {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    // A new policy takes a moment.
    until("none is allowed", || async {
        tried(&image("example.com/nf/limit"))
            .await
            .contains("and none is allowed")
    })
    .await;
    let policies = Api::<DynamicObject>::all_with(
        client.clone(),
        &ApiResource {
            group: GROUP.to_owned(),
            version: "v1".to_owned(),
            api_version: format!("{GROUP}/v1"),
            kind: "ValidatingAdmissionPolicy".to_owned(),
            plural: "validatingadmissionpolicies".to_owned(),
        },
    );
    let patch = Patch::Merge(json!({"spec": allowing("['example.com/nf', 'registry:5000']")}));
    policies
        .patch("tailwater-functions", &PatchParams::default(), &patch)
        .await
        .unwrap();
    until("some are allowed", || async {
        tried(&image("example.com/nf/limit")).await.is_empty()
    })
    .await;
    let wrong = [
        (
            "example.com/nf/limit:1.0".to_owned(),
            "expected an image with its digest",
        ),
        (
            "example.com/nf/limit@sha256:12".to_owned(),
            "expected an image with its digest",
        ),
        (
            image("example.com/nf-evil/limit"),
            "expected an image of example.com/nf, registry:5000",
        ),
        (image("example.com.evil/nf/limit"), "expected an image of"),
        (image("registry/limit"), "expected an image of"),
        (image("evil/example.com/nf/limit"), "expected an image of"),
    ];
    for (image, expected) in wrong {
        let error = tried(&image).await;
        assert!(error.contains(expected), "{image}: {error}");
    }
    for right in [
        "example.com/nf/limit",
        "example.com/nf/a/b:1.0",
        "registry:5000/limit:2",
    ] {
        assert_eq!(tried(&image(right)).await, "", "{right}");
    }
    // With the rights of the chart, the controller creates pods.
    functions(client)
        .create(
            &PostParams::default(),
            &function("limit", &image("example.com/nf/limit")),
        )
        .await
        .unwrap();
    let model = ModelServer::default();
    let _agent = start_agent(client, "images-a", 4, &model);
    let _controller = start_controller(&server.account("tailwater-controller", None), "images-controller");
    create(client, &[with_function("web")]).await;
    until("there is a pod", || async { pod_list(client).await.len() == 1 }).await;
    until("the function has a status", || async {
        of_function(client).await.1 == "0/1"
    })
    .await;
    let forbidden = |line: &String| line.contains("forbidden");
    assert_eq!(warnings("images-controller").into_iter().find(forbidden), None);
    // In a namespace without the role it says what is missing.
    let mut elsewhere = with_function("elsewhere");
    elsewhere.metadata.namespace = Some("tailwater".to_owned());
    elsewhere.spec.local["match"]["destinations"] = json!(["10.2.0.0/16"]);
    let mut limit = function("limit", &image("example.com/nf/limit"));
    limit.metadata.namespace = Some("tailwater".to_owned());
    let all: Api<Function> = Api::namespaced(client.clone(), "tailwater");
    all.create(&PostParams::default(), &limit).await.unwrap();
    let all: Api<Chain> = Api::namespaced(client.clone(), "tailwater");
    all.create(&PostParams::default(), &elsewhere).await.unwrap();
    until("it is told", || async {
        warnings("images-controller").iter().any(forbidden)
    })
    .await;
    let all: Api<ChainInstance> = Api::namespaced(client.clone(), "tailwater");
    let waiting = all.list(&ListParams::default()).await.unwrap();
    assert!(!waiting.items.iter().any(runs));
}
