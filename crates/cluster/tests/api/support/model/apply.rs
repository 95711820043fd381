//! Patches: merged, and applied by a manager of fields.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Fields from an object to a value that is no map.
type Path = Vec<String>;

/// Fields that managers applied last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied(BTreeMap<String, BTreeSet<Path>>);

impl Applied {
    /// Fields that an update changed are no longer those of who applied them.
    pub fn without_changed(&self, old: &Value, new: &Value) -> Applied {
        let mut applied = self.clone();
        for paths in applied.0.values_mut() {
            paths.retain(|path| at(old, path) == at(new, path));
        }
        applied
    }

    /// Applies an object to another one. Fields that the manager applied before and does not name any more are removed.
    ///
    /// # Errors
    /// A field that has another value, of another manager, unless it is forced.
    pub fn apply(&mut self, manager: &str, object: &mut Value, new: &Value, is_forced: bool) -> Result<(), String> {
        let mut paths = BTreeSet::new();
        leaves(new, &mut Vec::new(), &mut paths);
        let before = self.0.get(manager).cloned().unwrap_or_default();
        for path in &paths {
            let is_other = at(object, path).is_some_and(|value| Some(value) != at(new, path));
            if is_other && !before.contains(path) {
                if !is_forced {
                    return Err(format!("Apply failed with 1 conflict: .{}", path.join(".")));
                }
                for of_others in self.0.values_mut() {
                    of_others.remove(path);
                }
            }
        }
        self.0.insert(manager.to_owned(), paths.clone());
        for path in before.difference(&paths) {
            if !self.0.values().any(|paths| paths.contains(path)) {
                remove(object, path);
            }
        }
        for path in &paths {
            let place = path.iter().fold(&mut *object, |value, field| {
                if !value.is_object() {
                    *value = Value::Object(Map::new());
                }
                &mut value[field.as_str()]
            });
            *place = at(new, path).expect("a leaf").clone();
        }
        Ok(())
    }
}

fn at<'v>(value: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, field| value.get(field))
}

fn remove(object: &mut Value, path: &[String]) {
    let Some((last, path)) = path.split_last() else { return };
    let parent = path.iter().try_fold(object, |value, field| value.get_mut(field));
    if let Some(Value::Object(fields)) = parent {
        fields.remove(last);
    }
}

/// Paths of values that are no maps, but for those that identify the object.
fn leaves(value: &Value, path: &mut Path, all: &mut BTreeSet<Path>) {
    let identity: [&[&str]; 5] = [
        &["apiVersion"],
        &["kind"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "resourceVersion"],
    ];
    if identity.iter().any(|fields| path.iter().eq(fields.iter())) {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                path.push(field.clone());
                leaves(value, path, all);
                path.pop();
            }
        }
        Value::Null => {}
        _ => drop(all.insert(path.clone())),
    }
}

/// Merges a patch into a value (RFC 7396).
pub fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Value::Object(fields) = value else {
        unreachable!("a map")
    };
    for (field, patch) in patch {
        match patch {
            Value::Null => drop(fields.remove(field)),
            patch => merge(fields.entry(field.clone()).or_insert(Value::Null), patch),
        }
    }
}
