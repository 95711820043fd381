//! Folders of the sockets by which processes of pods join.
//!
//! A pod sees the folder of its function and nothing else of the server. The server creates the socket in it, for the
//! pod's user, and accepts processes of the pod that the file beside it names.

use crate::resources::{ChainInstance, PODS_ANNOTATION, local_name, pod_folder, pod_socket, with_sockets};
use kube::ResourceExt;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// File that names the control group of the processes that may join.
const GROUP_FILE: &str = "group";

/// Identifiers of an instance's pods that run, by the pods' names, as the controller has told.
fn running(instance: &ChainInstance) -> BTreeMap<String, String> {
    let told = instance.annotations().get(PODS_ANNOTATION);
    told.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// Returns the name of the first pod of an instance that does not run yet.
pub(super) fn missing(instance: &ChainInstance) -> Option<&str> {
    let running = running(instance);
    let mut pods = instance.spec.pods.iter();
    pods.find(|pod| !running.contains_key(&pod.name)).map(|pod| &*pod.name)
}

/// Spec of an instance's chain, with the sockets of its functions in pods.
pub(super) fn spec_of(instance: &ChainInstance, local: &str, directory: &Path) -> Map<String, Value> {
    let socket = |index| pod_socket(&pod_folder(directory, local, index));
    with_sockets(&instance.spec.chain_spec, &instance.spec.pods, socket)
}

/// Creates the folders of all instances with functions in pods, says which pods may join, and removes folders of
/// instances that are gone, but for those of chains that still run.
///
/// # Errors
/// A folder or file cannot be written.
pub(super) fn prepare<'i>(
    directory: &Path,
    instances: impl Iterator<Item = &'i ChainInstance>,
    runs: impl Fn(&str) -> bool,
) -> io::Result<()> {
    let mut wanted = Vec::new();
    for instance in instances.filter(|instance| !instance.spec.pods.is_empty()) {
        let namespace = instance.namespace().unwrap_or_default();
        let Ok(local) = local_name(&namespace, &instance.name_any()) else {
            continue;
        };
        let running = running(instance);
        for (index, pod) in instance.spec.pods.iter().enumerate() {
            let folder = pod_folder(directory, &local, index);
            DirBuilder::new().recursive(true).mode(0o755).create(&folder)?;
            if let Some(uid) = running.get(&pod.name) {
                write_group(&folder, uid)?;
            }
        }
        wanted.push(local);
    }
    let Ok(entries) = fs::read_dir(directory) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !wanted.iter().any(|wanted| *wanted == *name) && !runs(&name) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Writes the file as a whole, if it changes.
fn write_group(folder: &Path, uid: &str) -> io::Result<()> {
    let file = folder.join(GROUP_FILE);
    if fs::read_to_string(&file).is_ok_and(|text| text == uid) {
        return Ok(());
    }
    let new = folder.join(".group");
    fs::write(&new, uid)?;
    fs::rename(&new, &file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn instance(name: &str, running: &str) -> ChainInstance {
        let instance = json!({
            "apiVersion": "tailwater.dev/v1alpha1", "kind": "ChainInstance",
            "metadata": {"name": name, "namespace": "default", "annotations": {PODS_ANNOTATION: running}},
            "spec": {
                "chain": "web", "server": "a", "chainGeneration": 1,
                "chainSpec": {"functions": [{"program": {"function": "limit"}}]},
                "pods": [{"name": format!("{name}-f0"), "function": "limit", "user": 7}],
            },
        });
        serde_json::from_value(instance).unwrap()
    }

    #[test]
    fn folders_follow_the_instances() {
        let directory = std::env::temp_dir().join(format!("tailwater-pods-{}", std::process::id()));
        let prepare = |instances: &[ChainInstance], running: &str| {
            super::prepare(&directory, instances.iter(), |name| name == running).unwrap();
        };
        let group = directory.join("default--web-1/0/group");
        let waiting = instance("web-1", "{}");
        assert_eq!(missing(&waiting), Some("web-1-f0"));
        prepare(&[waiting], "");
        assert!(directory.join("default--web-1/0").is_dir() && !group.exists());
        for pod in ["11-22", "33-44"] {
            let runs = instance("web-1", &json!({"web-1-f0": pod}).to_string());
            assert_eq!(missing(&runs), None);
            prepare(&[runs], "");
            assert_eq!(fs::read_to_string(&group).unwrap(), pod);
        }
        prepare(&[], "default--web-1");
        assert!(group.exists());
        prepare(&[], "");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir(directory).unwrap();
    }
}
