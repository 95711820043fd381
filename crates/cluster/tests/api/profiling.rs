//! Jobs that measure profiles; the test plays what becomes of them.

use crate::definitions::real_api_server;
use crate::pools::{pool, pools};
use crate::rights::{bind, bind_in, create_object, file};
use crate::support::api_server::ApiServer;
use crate::support::rack::{
    FAST, Pace, chain, chains, condition, create, instances, rack, start_agents, start_controller_at, until, warnings,
};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tailwater_cluster::resources::{Chain, Profile, ProfileSpec, apply_profile};

const PROFILING: Pace = Pace {
    profiling: true,
    ..FAST
};

fn jobs(client: &Client) -> Api<Job> {
    Api::namespaced(client.clone(), "default")
}

/// Names of the Jobs, sorted.
async fn names(client: &Client) -> Vec<String> {
    let list = jobs(client).list(&ListParams::default()).await.unwrap().items;
    let mut names: Vec<String> = list.iter().map(|job| job.name_any()).collect();
    names.sort();
    names
}

/// Ends a Job: conditions as the Job controller sets them.
async fn end(client: &Client, job: &str, conditions: [&str; 2], message: &str) {
    let at = "2026-01-01T00:00:00Z";
    let condition = |name: &str| json!({"type": name, "status": "True", "message": message, "lastTransitionTime": at});
    let mut status = json!({"startTime": at, "conditions": conditions.map(condition)});
    if conditions.contains(&"Complete") {
        status["completionTime"] = json!(at);
        status["succeeded"] = json!(1);
    }
    let patch = Patch::Merge(json!({"status": status}));
    let patched = jobs(client).patch_status(job, &PatchParams::default(), &patch).await;
    patched.unwrap();
}

async fn is_told(client: &Client, chain: &str, expected: &str, message: &str) -> bool {
    let chains = chains(client).await;
    condition(&chains[chain], "Profiled").is_some_and(|(status, text)| status == expected && text.contains(message))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_measures_a_chain_without_a_profile_once() {
    let server = ApiServer::start("profiling").await;
    let client = &rack(&server).await;
    let (_models, _agents) = start_agents(client, 2, 4);
    let fast = pool("fast", &json!({"servers": ["node-1"]}));
    pools(client).create(&PostParams::default(), &fast).await.unwrap();
    create(client, &[chain("one", "10.1.0.0/16", &json!({"pool": "fast"}))]).await;
    let controller = start_controller_at(PROFILING, client, "profiling-a");
    until("there is a Job", || async { !names(client).await.is_empty() }).await;
    let program = json!({"program": {"function": "limit"}});
    create(
        client,
        &[
            chain("two", "10.2.0.0/16", &json!({})),
            chain("pods", "10.3.0.0/16", &json!({"functions": [program]})),
        ],
    )
    .await;
    until("one is measured, and the other one waits", || async {
        is_told(client, "one", "False Profiling", "measures it on model").await
            && is_told(client, "two", "False Profiling", "waits until others have ended").await
    })
    .await;
    let [first] = &names(client).await[..] else {
        panic!("expected one Job")
    };
    let job = jobs(client).get(first).await.unwrap();
    let owner = chains(client).await["one"].uid().unwrap();
    assert!(first.starts_with("one-") && first.len() == "one-".len() + 10, "{first}");
    assert_eq!(job.owner_references()[0].uid, owner);
    let spec = serde_json::to_value(job.spec.unwrap()).unwrap();
    let (limit, retries) = (&spec["activeDeadlineSeconds"], &spec["backoffLimit"]);
    assert_eq!((limit, retries), (&json!(600), &json!(1)));
    let pod = &spec["template"]["spec"];
    let at = |path: &str| pod.pointer(path).cloned().unwrap_or_default();
    let nodes = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let node = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]);
    assert_eq!(at(nodes), node);
    assert_eq!(at("/serviceAccountName"), "tailwater-profiler");
    assert_eq!(at("/securityContext/runAsNonRoot"), true);
    assert_eq!(at("/containers/0/securityContext/capabilities/drop"), json!(["ALL"]));
    let arguments = [
        "profile",
        "publish",
        "/etc/tailwater/chain.yaml",
        "--profile",
        &format!("default/{first}"),
        "--file",
        "/tmp/curves.yaml",
        "--all-packets",
    ];
    assert_eq!(at("/containers/0/args"), json!(arguments));
    let manifest = &spec["template"]["metadata"]["annotations"]["tailwater.dev/chain"];
    let manifest: Value = serde_json::from_str(manifest.as_str().unwrap()).unwrap();
    assert_eq!(
        (&manifest["metadata"]["name"], &manifest["spec"]["pool"]),
        (&json!("one"), &Value::Null)
    );

    // It fails. It is not started again, also when it is gone and another controller leads.
    end(client, first, ["FailureTarget", "Failed"], "Job has reached\nits limit").await;
    until("the failure is told, and the other chain is measured", || async {
        is_told(
            client,
            "one",
            "False ProfileFailed",
            "Job has reached its limit. See kubectl -n default logs",
        )
        .await
            && names(client).await.len() == 2
    })
    .await;
    jobs(client).delete(first, &DeleteParams::background()).await.unwrap();
    controller.stop().await;
    let _controller = start_controller_at(PROFILING, client, "profiling-b");
    let [second] = &names(client).await[..] else {
        panic!("expected one Job")
    };
    assert!(second.starts_with("two-"), "{second}");
    let spec = ProfileSpec {
        chain: "two".to_owned(),
        file: "curves".to_owned(),
    };
    let profiles: Api<Profile> = Api::namespaced(client.clone(), "default");
    let profile = Profile::new(second, spec);
    profiles.create(&PostParams::default(), &profile).await.unwrap();
    end(client, second, ["SuccessCriteriaMet", "Complete"], "").await;
    until("the chain has its profile, and its instance a promise", || async {
        let instances = instances(client).await;
        is_told(client, "two", "True Profiled", "").await
            && instances
                .iter()
                .any(|one| one.spec.chain == "two" && one.spec.promised > 0.0)
    })
    .await;
    assert!(is_told(client, "one", "False ProfileFailed", first).await);
    assert_eq!(condition(&chains(client).await["pods"], "Profiled"), None);
    assert_eq!(names(client).await, std::slice::from_ref(second));

    // Another generation.
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    let patch = Patch::Merge(json!({"spec": {"slo": {"latency": "300us"}}}));
    api.patch("one", &PatchParams::default(), &patch).await.unwrap();
    until("the changed chain is measured", || async {
        let names = names(client).await;
        let is_new = |name: &String| name.starts_with("one-") && name != first;
        names.iter().any(is_new) && is_told(client, "one", "False Profiling", "measures it").await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_may_write_the_profile_of_its_chain_only() {
    let server = real_api_server!("profiler");
    let client = &rack(&server).await;
    const GROUP: &str = "admissionregistration.k8s.io";
    bind_in(client, "profiler", "profiler-rules.yaml", "default").await;
    let subjects = json!([{"kind": "ServiceAccount", "name": "tailwater-profiler", "namespace": "default"}]);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "profiler"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tailwater-profiler"},
        "subjects": subjects,
    });
    create_object(
        client,
        "rbac.authorization.k8s.io",
        "rolebindings",
        Some("default"),
        binding,
    )
    .await;
    let mut policy = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "tailwater-profiler"},
    });
    policy["spec"] = file("profiler-policy.yaml")["spec"].clone();
    create_object(client, GROUP, "validatingadmissionpolicies", None, policy).await;
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "tailwater-profiler"},
        "spec": {"policyName": "tailwater-profiler", "validationActions": ["Deny"]},
    });
    create_object(client, GROUP, "validatingadmissionpolicybindings", None, binding).await;
    let as_job = server.account_in_pod("tailwater-profiler", "web-0123456789-abcde");
    let write = |name: &'static str, chain: &'static str| {
        let client = as_job.clone();
        async move {
            let written = apply_profile(&client, ("default", name), chain, "curves").await;
            written.map_err(|error| error.to_string()).err().unwrap_or_default()
        }
    };
    until("the policy is in force", || async {
        write("other-0123456789", "other").await.contains("the name of the Job")
    })
    .await;
    assert_eq!(write("web-0123456789", "web").await, "");
    // A second time, after a first attempt.
    assert_eq!(write("web-0123456789", "web").await, "");
    let error = write("web-0123456789", "other").await;
    assert!(error.contains("the chain that the Job measures"), "{error}");
    let error = write("web-012345678", "web").await;
    assert!(error.contains("the name of the Job"), "{error}");
    let chains: Api<Chain> = Api::namespaced(as_job.clone(), "default");
    let error = chains.list(&ListParams::default()).await.unwrap_err();
    assert!(error.to_string().contains("forbidden"), "{error}");

    // The controller's rights suffice for the Jobs.
    bind(client, "controller").await;
    bind_in(client, "controller", "profiling-rules.yaml", "default").await;
    let (_models, _agents) = start_agents(client, 1, 4);
    let account = server.account("tailwater-controller", None);
    let _controller = start_controller_at(PROFILING, &account, "profiler-controller");
    create(client, &[chain("one", "10.1.0.0/16", &json!({}))]).await;
    until("there is a Job", || async { !names(client).await.is_empty() }).await;
    let mut warnings = warnings("profiler-controller").into_iter();
    assert_eq!(warnings.find(|line| line.contains("forbidden")), None);
}
