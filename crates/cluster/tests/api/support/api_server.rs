//! API server of a test: a real one where its program is, and a model of it elsewhere.

use super::model::ApiModel;
use super::real::{self, RealApiServer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client, Config};
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;
use tailwater_api::schema::FunctionSchema;
use tailwater_cluster::resources::definitions;
use tokio::time::timeout;

/// `model` for the model, though the real one is there; `real` fails where it is not.
const VARIABLE: &str = "TAILWATER_API_SERVER";
/// Longest time until an API server is ready.
pub const READY: Duration = Duration::from_secs(60);
/// Token of the administrator.
pub const ADMIN: &str = "administrator";

/// Running API server. Ends when it is dropped.
pub struct ApiServer(Variant);

enum Variant {
    Real(RealApiServer),
    Model(ApiModel),
}

/// Program of the real one, or why there is none.
fn program() -> Result<PathBuf, String> {
    match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("") => real::program(),
        Ok("model") => Err(format!("{VARIABLE}=model")),
        Ok("real") => Ok(real::program().unwrap_or_else(|reason| panic!("{VARIABLE}=real: {reason}"))),
        Ok(other) => panic!("{VARIABLE}: expected model or real, found {other}"),
    }
}

impl ApiServer {
    /// Starts the real one, or the model where the real one cannot run.
    pub async fn start(name: &str) -> ApiServer {
        static NOTE: Once = Once::new();
        match program() {
            Ok(program) => ApiServer(Variant::Real(RealApiServer::start(name, program).await)),
            Err(reason) => {
                NOTE.call_once(|| println!("note: a model of the API server is used: {reason}"));
                ApiServer(Variant::Model(ApiModel::start().await))
            }
        }
    }

    /// Starts the real one, for tests of rights, policies and rules, which the model does not have.
    ///
    /// # Errors
    /// The reason why a test is skipped.
    pub async fn start_real(name: &str) -> Result<ApiServer, String> {
        let server = RealApiServer::start(name, program()?).await;
        Ok(ApiServer(Variant::Real(server)))
    }

    /// Stops it; objects stay.
    pub fn pause(&mut self) {
        match &mut self.0 {
            Variant::Real(server) => server.pause(),
            Variant::Model(server) => server.pause(),
        }
    }

    /// Starts it again, and waits until it is ready.
    ///
    /// # Errors
    /// It does not become ready.
    pub async fn resume(&mut self) -> Result<(), String> {
        match &mut self.0 {
            Variant::Real(server) => server.resume().await,
            Variant::Model(server) => {
                server.resume().await;
                Ok(())
            }
        }
    }

    /// Client with a token.
    pub fn client(&self, token: &str) -> Client {
        self.client_with(token, &[])
    }

    /// Client of a service account of the rack, on a node if it is given.
    pub fn account(&self, account: &str, node: Option<&str>) -> Client {
        let user = format!("system:serviceaccount:tailwater:{account}");
        let mut headers = vec![("impersonate-user", user.as_str())];
        headers.extend(node.map(|node| ("impersonate-extra-authentication.kubernetes.io%2fnode-name", node)));
        self.client_with(ADMIN, &headers)
    }

    /// Client of a service account of the namespace `default`, in a pod.
    pub fn account_in_pod(&self, account: &str, pod: &str) -> Client {
        let user = format!("system:serviceaccount:default:{account}");
        let pod = ("impersonate-extra-authentication.kubernetes.io%2fpod-name", pod);
        self.client_with(ADMIN, &[("impersonate-user", &user), pod])
    }

    fn client_with(&self, token: &str, headers: &[(&'static str, &str)]) -> Client {
        let mut config = match &self.0 {
            Variant::Real(server) => server.config(),
            Variant::Model(server) => Config::new(format!("http://{}", server.address()).parse().unwrap()),
        };
        config.auth_info.token = Some(token.to_owned().into());
        for (name, value) in headers {
            config
                .headers
                .push((http::HeaderName::from_static(name), value.parse().unwrap()));
        }
        Client::try_from(config).unwrap()
    }

    /// Creates the definitions of all kinds, and waits until they can be used. Functions are not checked.
    pub async fn define(&self) {
        self.define_with(&[]).await;
    }

    /// Same, with these functions.
    pub async fn define_with(&self, functions: &[FunctionSchema]) {
        let client = self.client(ADMIN);
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        for definition in definitions(functions) {
            api.create(&PostParams::default(), &definition).await.unwrap();
        }
        for definition in definitions(functions) {
            let name = definition.metadata.name.unwrap();
            let established = kube::runtime::wait::conditions::is_crd_established();
            let wait = kube::runtime::wait::await_condition(api.clone(), &name, established);
            timeout(READY, wait).await.expect("established in time").unwrap();
        }
    }
}
