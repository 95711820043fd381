//! Changes of objects, with the rules of the API server.

use super::apply::{Applied, merge};
use super::kinds::Kind;
use super::refusal::Refusal;
use super::store::{Key, Store, Stored};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Fields of metadata that clients write.
const WRITABLE: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];

/// Object that a request changes.
pub struct Place<'k> {
    pub kind: &'k Kind,
    pub key: Key,
    /// Its status alone, or everything else.
    pub is_status: bool,
    pub is_dry: bool,
}

impl Place<'_> {
    fn name(&self) -> &str {
        &self.key.1
    }
}

/// Body of a patch.
pub enum Patch {
    Merge(Value),
    Apply {
        object: Value,
        manager: String,
        is_forced: bool,
    },
}

/// Result of a request that removes an object.
pub enum Removal {
    Removed(Arc<Stored>),
    /// Finalizers are left.
    Marked(Arc<Stored>),
}

fn now() -> String {
    let second = Timestamp::now().as_second();
    Timestamp::from_second(second).expect("a time").to_string()
}

fn text<'v>(metadata: &'v Value, field: &str) -> Option<&'v str> {
    metadata[field].as_str().filter(|text| !text.is_empty())
}

/// A subdomain of RFC 1123.
fn is_name(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&name.len())
        && name.chars().all(|c| is_inner(c) || c == '-' || c == '.')
        && name.starts_with(is_inner)
        && name.ends_with(is_inner)
}

/// Fields of metadata that clients write, without empty ones.
fn writable(metadata: &Value) -> Map<String, Value> {
    let mut fields = Map::new();
    for field in WRITABLE {
        let is_empty = match &metadata[field] {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(items) => items.is_empty(),
            _ => false,
        };
        if !is_empty {
            fields.insert(field.to_owned(), metadata[field].clone());
        }
    }
    fields
}

fn check_metadata(metadata: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    let is_text = |value: &Value| value.is_string();
    for field in ["labels", "annotations"] {
        let map = &metadata[field];
        if !(map.is_null() || map.as_object().is_some_and(|map| map.values().all(is_text))) {
            errors.push(format!("metadata.{field}: Invalid value: {map}"));
        }
    }
    for value in metadata["labels"].as_object().into_iter().flat_map(Map::values) {
        if value.as_str().is_some_and(|value| value.len() > 63) {
            errors.push("metadata.labels: Invalid value: must be no more than 63 bytes".to_owned());
        }
    }
    for owner in metadata["ownerReferences"].as_array().into_iter().flatten() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, field).is_none() {
                errors.push(format!("metadata.ownerReferences.{field}: Required value"));
            }
        }
    }
    for finalizer in metadata["finalizers"].as_array().into_iter().flatten() {
        if !finalizer.as_str().is_some_and(|name| name.contains('/')) {
            errors.push(format!("metadata.finalizers: Invalid value: {finalizer}"));
        }
    }
    errors
}

/// Checks that a body is of the kind and place of its request.
fn check_identity(kind: &Kind, namespace: Option<&str>, name: Option<&str>, body: &Value) -> Result<(), Refusal> {
    if !body.is_object() || !body["metadata"].is_object() && !body["metadata"].is_null() {
        return Err(Refusal::bad("expected an object with metadata"));
    }
    for (field, expected) in [("apiVersion", kind.api_version()), ("kind", kind.kind.clone())] {
        // Types of Kubernetes are known by their paths.
        let may_lack = !kind.is_defined();
        match &body[field] {
            Value::String(found) if *found == expected => {}
            Value::Null if may_lack => {}
            other => return Err(Refusal::bad(format!("{field}: expected {expected}, found {other}"))),
        }
    }
    let metadata = &body["metadata"];
    if let Some(found) = text(metadata, "namespace")
        && namespace != Some(found)
    {
        return Err(Refusal::bad(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    match (name, text(metadata, "name")) {
        (Some(name), Some(found)) if name != found => Err(Refusal::bad(format!(
            "the name of the object ({found}) does not match the name on the URL ({name})"
        ))),
        _ => Ok(()),
    }
}

impl Store {
    /// Forms an object, and checks it.
    fn checked(&self, kind: &Kind, name: &str, value: &mut Value) -> Result<(), Refusal> {
        let mut errors = check_metadata(&value["metadata"]);
        errors.extend(kind.form(value).map_err(Refusal::bad)?);
        match errors.is_empty() {
            true => Ok(()),
            false => Err(Refusal::invalid(kind, name, &errors)),
        }
    }

    /// Creates an object.
    pub fn create(
        &mut self,
        kind: &Kind,
        namespace: Option<&str>,
        body: Value,
        applied: Applied,
        is_dry: bool,
    ) -> Result<Arc<Stored>, Refusal> {
        check_identity(kind, namespace, None, &body)?;
        let metadata = &body["metadata"];
        if text(metadata, "resourceVersion").is_some() {
            return Err(Refusal::bad(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let name = match (text(metadata, "name"), text(metadata, "generateName")) {
            (Some(name), _) => name.to_owned(),
            (None, Some(prefix)) => format!("{prefix}{:05x}", self.number()),
            (None, None) => {
                let error = "metadata.name: Required value: name or generateName is required".to_owned();
                return Err(Refusal::invalid(kind, "", &[error]));
            }
        };
        if !is_name(&name) {
            let error = format!("metadata.name: Invalid value: \"{name}\": a lowercase RFC 1123 subdomain is expected");
            return Err(Refusal::invalid(kind, &name, &[error]));
        }
        if let Some(namespace) = namespace
            && !self.has_namespace(namespace)
        {
            return Err(Refusal::not_found("namespaces", namespace));
        }
        let key = (namespace.unwrap_or_default().to_owned(), name.clone());
        let mut value = body.clone();
        if kind.has_status {
            value.as_object_mut().expect("an object").remove("status");
        }
        let mut fields = writable(metadata);
        fields.insert("name".to_owned(), json!(name));
        if let Some(namespace) = namespace {
            fields.insert("namespace".to_owned(), json!(namespace));
        }
        if let Some(prefix) = text(metadata, "generateName") {
            fields.insert("generateName".to_owned(), json!(prefix));
        }
        if kind.is_defined() {
            fields.insert("generation".to_owned(), json!(1));
        }
        let uid = format!("00000000-0000-4000-8000-{:012x}", self.number());
        fields.insert("uid".to_owned(), json!(uid));
        fields.insert("creationTimestamp".to_owned(), json!(now()));
        value["metadata"] = Value::Object(fields);
        self.checked(kind, &name, &mut value)?;
        if self.get(kind, &key).is_some() {
            return Err(Refusal::exists(kind, &name));
        }
        match is_dry {
            true => Ok(Arc::new(Stored::new(value, applied))),
            false => Ok(self.commit(kind, &key, Some((value, applied)))),
        }
    }

    /// Replaces an object, of which the client must have seen the last version.
    pub fn replace(&mut self, place: &Place<'_>, body: Value) -> Result<Arc<Stored>, Refusal> {
        check_identity(
            place.kind,
            Some(&*place.key.0).filter(|name| !name.is_empty()),
            Some(place.name()),
            &body,
        )?;
        if text(&body["metadata"], "name").is_none() {
            return Err(Refusal::bad("the name of the object must be set"));
        }
        let old = self.found(place)?;
        if text(&body["metadata"], "resourceVersion").is_none() {
            let error = "metadata.resourceVersion: Invalid value: 0: must be specified for an update".to_owned();
            return Err(Refusal::invalid(place.kind, place.name(), &[error]));
        }
        let applied = old.applied.without_changed(&old.value, &body);
        self.update(place, &old, body, applied)
    }

    /// Patches an object. One that does not exist is created if it is applied: the second value is `true` then.
    pub fn patch(&mut self, place: &Place<'_>, patch: Patch) -> Result<(Arc<Stored>, bool), Refusal> {
        let namespace = Some(&*place.key.0).filter(|name| !name.is_empty());
        match patch {
            Patch::Merge(patch) => {
                let old = self.found(place)?;
                if !patch.is_object() {
                    return Err(Refusal::bad("expected an object"));
                }
                let mut new = old.value.clone();
                merge(&mut new, &patch);
                check_identity(place.kind, namespace, Some(place.name()), &new)?;
                let applied = old.applied.without_changed(&old.value, &new);
                Ok((self.update(place, &old, new, applied)?, false))
            }
            Patch::Apply {
                object,
                manager,
                is_forced,
            } => {
                check_identity(place.kind, namespace, Some(place.name()), &object)?;
                if object["apiVersion"].is_null() || object["kind"].is_null() {
                    return Err(Refusal::bad("apiVersion and kind must be set"));
                }
                let Some(old) = self.get(place.kind, &place.key) else {
                    if place.is_status {
                        return Err(Refusal::not_found(&place.kind.resource(), place.name()));
                    }
                    let (mut new, mut applied) = (json!({}), Applied::default());
                    applied
                        .apply(&manager, &mut new, &object, true)
                        .expect("nothing to conflict with");
                    merge(
                        &mut new,
                        &json!({"apiVersion": object["apiVersion"], "kind": object["kind"]}),
                    );
                    new["metadata"]["name"] = json!(place.name());
                    let created = self.create(place.kind, namespace, new, applied, place.is_dry)?;
                    return Ok((created, true));
                };
                let (mut new, mut applied) = (old.value.clone(), old.applied.clone());
                applied
                    .apply(&manager, &mut new, &object, is_forced)
                    .map_err(|why| Refusal::conflict(place.kind, place.name(), &why))?;
                if let Some(version) = text(&object["metadata"], "resourceVersion") {
                    new["metadata"]["resourceVersion"] = json!(version);
                }
                Ok((self.update(place, &old, new, applied)?, false))
            }
        }
    }

    fn found(&self, place: &Place<'_>) -> Result<Arc<Stored>, Refusal> {
        let found = self.get(place.kind, &place.key);
        found.ok_or_else(|| Refusal::not_found(&place.kind.resource(), place.name()))
    }

    /// Writes the part of an object that a request may change.
    fn update(
        &mut self,
        place: &Place<'_>,
        old: &Arc<Stored>,
        new: Value,
        applied: Applied,
    ) -> Result<Arc<Stored>, Refusal> {
        let (kind, metadata) = (place.kind, &new["metadata"]);
        for field in ["resourceVersion", "uid"] {
            if text(metadata, field).is_some_and(|found| old.metadata()[field] != *found) {
                return Err(Refusal::modified(kind, place.name()));
            }
        }
        let mut next = old.value.clone();
        if place.is_status {
            set_or_remove(&mut next, "status", &new["status"]);
        } else {
            next = new.clone();
            if kind.has_status {
                set_or_remove(&mut next, "status", &old.value["status"]);
            }
            let mut fields = old.metadata().as_object().expect("metadata").clone();
            fields.retain(|name, _| !WRITABLE.contains(&&**name));
            fields.extend(writable(metadata));
            next["metadata"] = Value::Object(fields);
        }
        self.checked(kind, place.name(), &mut next)?;
        let is_going = !old.metadata()["deletionTimestamp"].is_null();
        let finalizers = |value: &Value| value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let (before, after) = (finalizers(&old.value), finalizers(&next));
        if is_going && after.iter().any(|name| !before.contains(name)) {
            let error =
                "metadata.finalizers: Forbidden: no new ones can be added to an object being deleted".to_owned();
            return Err(Refusal::invalid(kind, place.name(), &[error]));
        }
        if kind.is_defined() && content(kind, &old.value) != content(kind, &next) {
            raise_generation(&mut next);
        }
        let is_last = is_going && after.is_empty();
        if place.is_dry {
            return Ok(Arc::new(Stored::new(next, applied)));
        }
        if is_last {
            return Ok(self.commit(kind, &place.key, None));
        }
        // A write that changes nothing makes no version.
        if next == old.value && applied == old.applied {
            return Ok(Arc::clone(old));
        }
        Ok(self.commit(kind, &place.key, Some((next, applied))))
    }

    /// Removes an object, or marks it for removal if it has finalizers. `conditions` are fields that its metadata must
    /// have.
    pub fn remove(&mut self, place: &Place<'_>, conditions: &Value) -> Result<Removal, Refusal> {
        let old = self.found(place)?;
        for (field, wanted) in conditions.as_object().into_iter().flatten() {
            if old.metadata()[field] != *wanted {
                let why = format!("Precondition failed: {field} in precondition: {wanted}");
                return Err(Refusal::conflict(place.kind, place.name(), &why));
            }
        }
        let has_finalizers = !old.metadata()["finalizers"].is_null();
        if place.is_dry {
            return Ok(Removal::Removed(old));
        }
        if !has_finalizers {
            return Ok(Removal::Removed(self.commit(place.kind, &place.key, None)));
        }
        if !old.metadata()["deletionTimestamp"].is_null() {
            return Ok(Removal::Marked(old));
        }
        let mut value = old.value.clone();
        value["metadata"]["deletionTimestamp"] = json!(now());
        value["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        if place.kind.is_defined() {
            raise_generation(&mut value);
        }
        let applied = old.applied.clone();
        Ok(Removal::Marked(self.commit(
            place.kind,
            &place.key,
            Some((value, applied)),
        )))
    }
}

fn set_or_remove(object: &mut Value, field: &str, value: &Value) {
    match value {
        Value::Null => drop(object.as_object_mut().expect("an object").remove(field)),
        value => object[field] = value.clone(),
    }
}

/// Everything that raises the generation.
fn content(kind: &Kind, object: &Value) -> Value {
    let mut content = object.clone();
    let fields = content.as_object_mut().expect("an object");
    fields.remove("metadata");
    if kind.has_status {
        fields.remove("status");
    }
    content
}

fn raise_generation(object: &mut Value) {
    let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
    object["metadata"]["generation"] = json!(generation + 1);
}
