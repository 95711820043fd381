//! Definitions of the kinds: whether the API server has those of this version.

use super::objects::Objects;
use crate::resources::{Chain, ChainStatus, DIGEST_ANNOTATION, PROGRAM_ANNOTATION, VERSION, set_condition};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

/// Condition of chains, while there is something to do.
const CONDITION: &str = "Definitions";

/// State of the definitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Definitions {
    /// Not known: not seen yet, or not permitted.
    Unknown,
    /// Those of this version, or newer ones.
    Current,
    /// An old one: reason, and what to do.
    Old(&'static str, String),
}

impl Definitions {
    /// Compares the API server's definitions with those of this controller.
    pub(super) fn new(objects: &Objects, own: &[CustomResourceDefinition]) -> Definitions {
        let Some(found) = &objects.definitions else {
            return Definitions::Unknown;
        };
        for own in own {
            let name = own.name_any();
            let Some(found) = found.iter().find(|found| found.name_any() == name) else {
                return Definitions::old(&name);
            };
            let versions = found.status.as_ref().and_then(|status| status.stored_versions.as_ref());
            if let Some(old) = versions.into_iter().flatten().find(|version| *version != VERSION) {
                let plural = &own.spec.names.plural;
                let message = format!(
                    "objects of {name} may be stored as {old}, which this controller does not know: write each anew \
                     (kubectl get {plural} -A -o json | kubectl replace -f -), then take {old} out of \
                     status.storedVersions of the definition"
                );
                return Definitions::Old("OldVersion", message);
            }
            let annotation = |of: &CustomResourceDefinition, key: &str| of.annotations().get(key).cloned();
            let program = |of| annotation(of, PROGRAM_ANNOTATION).map(|text| numbers(&text));
            let is_same = annotation(found, DIGEST_ANNOTATION) == annotation(own, DIGEST_ANNOTATION);
            // In an upgrade the definitions come first.
            if !is_same && program(found) <= program(own) {
                return Definitions::old(&name);
            }
        }
        Definitions::Current
    }

    fn old(name: &str) -> Definitions {
        let message = format!(
            "the definition {name} is older than this controller, and drops what it does not know: tailwater \
             definitions | kubectl apply --server-side -f -"
        );
        Definitions::Old("OldDefinition", message)
    }

    /// Sets the condition of a chain, or removes it.
    pub(super) fn tell(&self, chain: &Chain, status: &mut ChainStatus, now: Timestamp) {
        match self {
            Definitions::Unknown => {}
            Definitions::Current => status.conditions.retain(|condition| condition.name != CONDITION),
            Definitions::Old(reason, message) => {
                let new = (CONDITION, false, *reason, &**message);
                set_condition(&mut status.conditions, now, new, chain.metadata.generation);
                if status.reason.is_empty() {
                    (*reason).clone_into(&mut status.reason);
                }
            }
        }
    }
}

/// Numbers of a version: `0.10.2` is newer than `0.9.1`.
fn numbers(version: &str) -> Vec<u64> {
    let numbers = version
        .split(['.', '-'])
        .map(|number| number.parse().unwrap_or_default());
    numbers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::definitions;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn old_definitions_and_stored_versions_are_found() {
        let own = definitions(&[]);
        let state = |change: &dyn Fn(&mut Vec<CustomResourceDefinition>)| {
            let mut found = own.clone();
            change(&mut found);
            let objects = Objects {
                definitions: Some(found.into_iter().map(Arc::new).collect()),
                ..Objects::default()
            };
            match Definitions::new(&objects, &own) {
                Definitions::Old(reason, message) => format!("{reason}: {message}"),
                other => format!("{other:?}"),
            }
        };
        let annotate = |definition: &mut CustomResourceDefinition, program: &str| {
            let annotations = definition.annotations_mut();
            annotations.insert(DIGEST_ANNOTATION.to_owned(), "0".to_owned());
            annotations.insert(PROGRAM_ANNOTATION.to_owned(), program.to_owned());
        };
        assert_eq!(state(&|_| {}), "Current");
        let old = "OldDefinition: the definition chains.tailwater.dev is older";
        assert!(state(&|found| drop(found.remove(0))).starts_with(old));
        assert!(state(&|found| found[0].annotations_mut().clear()).starts_with(old));
        assert!(state(&|found| annotate(&mut found[0], "0.0.9")).starts_with(old));
        assert!(state(&|found| annotate(&mut found[0], env!("CARGO_PKG_VERSION"))).starts_with(old));
        assert_eq!(state(&|found| annotate(&mut found[0], "100.0.0")), "Current");
        let stored = |found: &mut Vec<CustomResourceDefinition>| {
            let status = json!({"storedVersions": ["v1alpha0", VERSION]});
            found[0].status = serde_json::from_value(status).unwrap();
        };
        let text = state(&stored);
        assert!(
            text.starts_with("OldVersion: objects of chains.tailwater.dev may be stored as v1alpha0"),
            "{text}"
        );
        assert_eq!(Definitions::new(&Objects::default(), &own), Definitions::Unknown);
    }
}
