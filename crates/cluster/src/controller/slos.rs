//! Objectives that chains share: each chain gets those of the [`Slo`] that it names, as if it had written them.

use super::chains::{ChainReader, DocumentReader, manifest_of};
use super::objects::{Objects, full_name};
use super::write::Write;
use crate::resources::{Chain, SharedSlo, Slo, SloStatus, SloType, set_condition};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Slos of a round.
pub(super) struct Slos {
    /// By namespace and name: the object, and why it cannot be used.
    slos: BTreeMap<String, (Arc<Slo>, Option<String>)>,
}

impl Slos {
    /// Checks all Slos.
    pub(super) fn new(objects: &Objects) -> Slos {
        let checked = |slo: &Arc<Slo>| (full_name(&**slo), (Arc::clone(slo), problem(slo)));
        Slos {
            slos: objects.slos.iter().map(checked).collect(),
        }
    }

    /// Gives chains the objectives of the Slos that they name.
    pub(super) fn resolve(&self, chains: &mut [Arc<Chain>]) {
        for chain in chains {
            let Some(name) = chain.spec.slo_ref.clone() else {
                continue;
            };
            let namespace = chain.namespace().unwrap_or_default();
            let has_own = chain.spec.local.contains_key("slo");
            let found = self.slos.get(&format!("{namespace}/{name}"));
            let spec = &mut Arc::make_mut(chain).spec;
            spec.shared = match found {
                _ if has_own => SharedSlo::Unusable("Invalid", "spec: expected either slo or sloRef".to_owned()),
                None => {
                    let message = format!(
                        "there is no Slo {name} in namespace {namespace}: create it, or change spec.sloRef; instances \
                         keep the objectives that they have"
                    );
                    SharedSlo::Unusable("SloMissing", message)
                }
                Some((_, Some(problem))) => {
                    let message = format!("Slo {name}: {problem}; instances keep the objectives that they have");
                    SharedSlo::Unusable("SloInvalid", message)
                }
                Some((slo, None)) => {
                    spec.local
                        .insert("slo".to_owned(), Value::Object(slo.spec.local.clone()));
                    SharedSlo::Of(version(slo))
                }
            };
        }
    }

    /// Returns the statuses of Slos that have changed.
    pub(super) fn writes(&self, objects: &Objects, now: Timestamp) -> Vec<Write> {
        let mut users: HashMap<String, u32> = HashMap::new();
        for chain in &objects.chains {
            let namespace = chain.namespace().unwrap_or_default();
            let named = chain.spec.slo_ref.iter();
            named.for_each(|name| *users.entry(format!("{namespace}/{name}")).or_default() += 1);
        }
        let write = |(name, (slo, problem)): (&String, &(Arc<Slo>, Option<String>))| {
            let generation = slo.metadata.generation;
            let mut status = SloStatus {
                observed_generation: generation.unwrap_or_default(),
                conditions: slo.status.clone().unwrap_or_default().conditions,
                chains: users.get(name).copied().unwrap_or_default(),
            };
            let accepted = match problem {
                None => ("Accepted", true, "Valid", ""),
                Some(problem) => ("Accepted", false, "Invalid", &**problem),
            };
            set_condition(&mut status.conditions, now, accepted, generation);
            (slo.status.as_ref() != Some(&status)).then(|| Write::SloStatus {
                key: (slo.namespace().unwrap_or_default(), slo.name_any()),
                status: Box::new(status),
            })
        };
        self.slos.iter().filter_map(write).collect()
    }
}

/// Version of an Slo: one that was deleted and created again is another one.
fn version(slo: &Slo) -> String {
    let generation = slo.metadata.generation.unwrap_or_default();
    format!("{}/{generation}", slo.uid().unwrap_or_default())
}

/// Reason why no chain can have an Slo's objectives, if there is one. The API server checks the same, where it has the
/// definition of this version.
fn problem(slo: &Slo) -> Option<String> {
    let has_throughput = slo.spec.local.get("throughput").is_some_and(|value| !value.is_null());
    if has_throughput != (slo.spec.kind == SloType::Reserved) {
        return Some("spec: expected throughput with type reserved, and none with on-demand".to_owned());
    }
    let spec = json!({"functions": [{"count": {}}], "slo": slo.spec.local});
    let read = DocumentReader.read(&manifest_of("slo", spec.as_object().expect("a map")));
    read.err().map(|error| error.replace("spec.slo", "spec"))
}

/// Gives chains that name an Slo some objective, for those who need none: the ingress has no rights on Slos.
pub(crate) fn with_any_slo(chains: &mut [Arc<Chain>]) {
    for chain in chains.iter_mut().filter(|chain| chain.spec.slo_ref.is_some()) {
        let local = &mut Arc::make_mut(chain).spec.local;
        local.entry("slo").or_insert_with(|| json!({"latency": "1s"}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::chains::Chains;

    fn slo(spec: Value, generation: i64) -> Arc<Slo> {
        let slo = json!({
            "apiVersion": "tailwater.dev/v1alpha1", "kind": "Slo", "spec": spec,
            "metadata": {"name": "gold", "namespace": "a", "uid": "u", "generation": generation},
        });
        Arc::new(serde_json::from_value(slo).unwrap())
    }

    fn objects(slos: Vec<Arc<Slo>>) -> Objects {
        let chain = json!({
            "apiVersion": "tailwater.dev/v1alpha1", "kind": "Chain",
            "metadata": {"name": "web", "namespace": "a", "uid": "w", "generation": 1},
            "spec": {"functions": [{"count": {}}], "sloRef": "gold"},
        });
        let mut objects = Objects {
            chains: vec![Arc::new(serde_json::from_value(chain).unwrap())],
            slos,
            ..Objects::default()
        };
        Slos::new(&objects).resolve(&mut objects.chains);
        objects
    }

    #[test]
    fn a_chain_has_the_objectives_of_its_slo_or_the_reason_why_not() {
        let mut chains = Chains::new(Arc::new(DocumentReader));
        let mut read = |slos| {
            chains.read(&objects(slos));
            let facts = chains.facts("a/web").unwrap();
            facts
                .map(|facts| (facts.objective.0, facts.throughput))
                .map_err(|rejection| (rejection.reason, rejection.message.clone()))
        };
        let (reason, message) = read(vec![]).unwrap_err();
        assert_eq!(reason, "SloMissing");
        assert!(message.contains("no Slo gold in namespace a: create it"), "{message}");
        let reserved = json!({"type": "reserved", "latency": "200us", "throughput": "2Mpps"});
        assert_eq!(read(vec![slo(reserved, 1)]), Ok((200_000, Some(2e6))));
        // The chain's own generation is the same.
        assert_eq!(read(vec![slo(json!({"latency": "300us"}), 2)]), Ok((300_000, None)));
        for (spec, expected) in [
            (json!({"type": "reserved", "latency": "1ms"}), "expected throughput"),
            (json!({"latency": "1ms", "throughput": "1Mpps"}), "none with on-demand"),
            (json!({"latency": "soon"}), "spec.latency"),
            (
                json!({"type": "reserved", "latency": "1ms", "throughput": "1Gbps"}),
                "packets per second",
            ),
        ] {
            let (reason, message) = read(vec![slo(spec, 3)]).unwrap_err();
            assert_eq!(reason, "SloInvalid");
            assert!(
                message.starts_with("Slo gold: ") && message.contains(expected),
                "{message}"
            );
        }
    }

    #[test]
    fn an_slos_status_counts_its_chains() {
        let objects = objects(vec![slo(json!({"latency": "1ms"}), 1)]);
        let writes = Slos::new(&objects).writes(&objects, Timestamp::UNIX_EPOCH);
        let [Write::SloStatus { status, .. }] = &*writes else {
            panic!("{writes:?}")
        };
        assert_eq!((status.chains, &*status.conditions[0].reason), (1, "Valid"));
    }
}
