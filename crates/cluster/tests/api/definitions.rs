//! Definitions of the custom resources.

use crate::support::api_server::{ADMIN, ApiServer};
use kube::api::{ListParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Api, Resource};
use serde_json::{Value, json};
use tailwater_cluster::resources::{Chain, ChainInstance};
use tailwater_functions::registry::schemas;

/// Starts a real API server; prints why a test is skipped.
macro_rules! real_api_server {
    ($name:expr) => {
        match $crate::support::api_server::ApiServer::start_real($name).await {
            Ok(server) => server,
            Err(reason) => {
                println!("skipped without a real API server: {reason}");
                return;
            }
        }
    };
}
pub(crate) use real_api_server;

fn chain(name: &str, spec: Value) -> DynamicObject {
    let chain = json!({
        "apiVersion": "tailwater.dev/v1alpha1", "kind": "Chain", "metadata": {"name": name}, "spec": spec,
    });
    serde_json::from_value(chain).unwrap()
}

async fn created(server: &ApiServer, spec: Value) -> Result<Value, String> {
    let resource = ApiResource::erase::<Chain>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(server.client(ADMIN), "default", &resource);
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match api.create(&parameters, &chain("web", spec)).await {
        Ok(created) => Ok(created.data),
        Err(kube::Error::Api(status)) => Err(status.message.clone()),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn the_api_server_checks_chains_and_completes_them() {
    let server = real_api_server!("definitions");
    server.define_with(&schemas()).await;
    let functions = json!([{"accounting": {}}, {"nat": {"external": ["192.0.2.0/28"]}}]);
    let right = json!({"functions": functions, "slo": {"latency": "200us"}});
    let created_chain = created(&server, right).await.unwrap();
    assert_eq!(
        created_chain["spec"]["scale"],
        json!({"min": 1, "max": 1024, "servers": 1})
    );
    // Defaults of functions are filled in, too.
    assert_eq!(created_chain["spec"]["functions"][1]["nat"]["otherProtocols"], "drop");
    let wrong = [
        (json!({"functions": functions}), "expected either slo or sloRef"),
        (
            json!({"functions": functions, "slo": {"latency": "1ms"}, "sloRef": "gold"}),
            "expected either slo or sloRef",
        ),
        (json!({"functions": [], "slo": {"latency": "1ms"}}), "spec.functions"),
        (
            json!({"functions": functions, "slo": {"latency": "soon"}}),
            "spec.slo.latency",
        ),
        (
            json!({"functions": [{"nat": {"exernal": []}}], "slo": {"latency": "1ms"}}),
            "spec.functions[0].nat",
        ),
        (
            json!({"functions": [{"accounting": {}, "forward": {}}], "slo": {"latency": "1ms"}}),
            "one function in each item",
        ),
        (
            json!({"functions": [{"acounting": {}}], "slo": {"latency": "1ms"}}),
            "spec.functions[0]",
        ),
        (
            json!({"functions": functions, "slo": {"latency": "1ms"}, "scale": {"min": 3, "max": 2}}),
            "expected min to be at most max",
        ),
        (
            json!({"functions": functions, "slo": {"latency": "1ms"}, "scale": {"min": 0}}),
            "spec.scale.min",
        ),
    ];
    for (spec, message) in wrong {
        let error = created(&server, spec).await.unwrap_err();
        assert!(error.contains(message), "{error}");
    }
    let instances: Api<ChainInstance> = Api::all(server.client(ADMIN));
    let by_server = ListParams::default().fields("spec.server=node-1");
    assert!(instances.list(&by_server).await.unwrap().items.is_empty());
    assert_eq!(Chain::plural(&()), "chains");
}
