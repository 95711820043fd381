//! Kind `Profile`: measurements of a chain on a machine.

use kube::api::{Patch, PatchParams};
use kube::{Api, Client, CustomResource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Spec of a profile.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailwater.dev",
    version = "v1alpha1",
    kind = "Profile",
    namespaced,
    derive = "PartialEq",
    category = "tailwater",
    selectable = ".spec.chain",
    doc = "Measurements of a chain on a machine.",
    printcolumn(name = "Chain", type_ = "string", json_path = ".spec.chain"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ProfileSpec {
    /// Name of the chain, in the same namespace.
    #[schemars(length(max = 253))]
    pub chain: String,
    /// The file that `tailwater profile all` writes.
    #[schemars(length(max = 1_000_000))]
    pub file: String,
}

/// Writes a Profile of a chain: creates it, or replaces what it was.
///
/// # Errors
/// The API server refuses it, or cannot be reached.
pub async fn apply_profile(
    client: &Client,
    (namespace, name): (&str, &str),
    chain: &str,
    file: &str,
) -> kube::Result<()> {
    let spec = ProfileSpec {
        chain: chain.to_owned(),
        file: file.to_owned(),
    };
    let api: Api<Profile> = Api::namespaced(client.clone(), namespace);
    let parameters = PatchParams::apply("tailwater-profiler").force();
    api.patch(name, &parameters, &Patch::Apply(Profile::new(name, spec)))
        .await
        .map(drop)
}
