//! Objects, their versions, and those who watch them.

use super::apply::Applied;
use super::kinds::{Kind, built_ins};
use super::query::Selector;
use super::refusal::Refusal;
use hyper::body::Bytes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Changes that can be watched afterwards.
const LOG: usize = 20_000;
/// Lists of several pages that can be read on.
const PAGES: usize = 64;
/// Time between bookmarks, as in Kubernetes.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// Namespace, possibly empty, and name.
pub type Key = (String, String);

/// Object at one version.
pub struct Stored {
    pub value: Value,
    /// The same as JSON.
    pub text: Bytes,
    /// Fields that were applied.
    pub applied: Applied,
}

impl Stored {
    pub fn new(value: Value, applied: Applied) -> Stored {
        let text = serde_json::to_vec(&value).unwrap().into();
        Stored { value, text, applied }
    }

    /// Version, finalizers and other fields.
    pub fn metadata(&self) -> &Value {
        &self.value["metadata"]
    }
}

/// Change of an object.
struct Change {
    version: u64,
    resource: String,
    before: Option<Arc<Stored>>,
    after: Option<Arc<Stored>>,
}

/// Request for changes.
struct Watcher {
    kind: Arc<Kind>,
    resource: String,
    selector: Selector,
    has_bookmarks: bool,
    bookmark_at: Instant,
    ends_at: Instant,
    lines: UnboundedSender<Bytes>,
}

/// Start of a watch.
pub struct WatchFrom {
    /// Version after which changes are sent. `None`: all objects, then changes.
    pub version: Option<u64>,
    /// The end of the objects that are there is marked.
    pub marks_end: bool,
    pub has_bookmarks: bool,
    pub timeout: Duration,
}

/// Part of a list.
pub struct Page {
    pub version: u64,
    pub objects: Vec<Arc<Stored>>,
    /// Token of the next part.
    pub next: Option<String>,
}

/// All objects.
pub struct Store {
    version: u64,
    /// Changes after this version can be watched.
    oldest: u64,
    kinds: Vec<Arc<Kind>>,
    objects: HashMap<String, BTreeMap<Key, Arc<Stored>>>,
    log: VecDeque<Change>,
    watchers: Vec<Watcher>,
    /// Rest of lists, by their tokens.
    pages: VecDeque<(String, u64, Vec<Arc<Stored>>)>,
    numbers: u64,
}

impl Store {
    pub fn new() -> Store {
        let mut store = Store {
            version: 1,
            oldest: 1,
            kinds: built_ins().into_iter().map(Arc::new).collect(),
            objects: HashMap::new(),
            log: VecDeque::new(),
            watchers: Vec::new(),
            pages: VecDeque::new(),
            numbers: 0,
        };
        let namespaces = store.kind("", "v1", "namespaces").unwrap();
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            let created = store.create(
                &namespaces,
                None,
                json!({"metadata": {"name": name}}),
                Applied::default(),
                false,
            );
            created.unwrap();
        }
        store
    }

    /// Forgets changes and those who watch, as a new process does.
    pub fn restart(&mut self) {
        self.watchers.clear();
        self.log.clear();
        self.oldest = self.version;
    }

    /// A number that is given once.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        let found = self
            .kinds
            .iter()
            .find(|kind| kind.group == group && kind.version == version && kind.plural == plural);
        found.cloned()
    }

    pub fn get(&self, kind: &Kind, key: &Key) -> Option<Arc<Stored>> {
        self.objects.get(&kind.resource())?.get(key).cloned()
    }

    pub fn has_namespace(&self, name: &str) -> bool {
        let namespaces = self.objects.get("namespaces");
        namespaces.is_some_and(|namespaces| namespaces.contains_key(&(String::new(), name.to_owned())))
    }

    /// Objects of a kind.
    pub fn select(&self, kind: &Kind, selector: &Selector) -> Vec<Arc<Stored>> {
        let all = self
            .objects
            .get(&kind.resource())
            .into_iter()
            .flat_map(BTreeMap::values);
        all.filter(|object| selector.matches(&object.value)).cloned().collect()
    }

    /// First part of a list, of at most some objects.
    pub fn list(&mut self, kind: &Kind, selector: &Selector, limit: Option<u64>) -> Page {
        self.page(self.version, self.select(kind, selector), limit)
    }

    /// Another part, as all objects were when the first one was read.
    pub fn list_on(&mut self, token: &str, limit: Option<u64>) -> Result<Page, Refusal> {
        let found = self.pages.iter().find(|(found, ..)| found == token);
        let Some((_, version, rest)) = found else {
            let message = "The provided continue parameter is too old to display a consistent list result.";
            return Err(Refusal::expired(message.to_owned()));
        };
        let (version, rest) = (*version, rest.clone());
        Ok(self.page(version, rest, limit))
    }

    fn page(&mut self, version: u64, mut objects: Vec<Arc<Stored>>, limit: Option<u64>) -> Page {
        let mut next = None;
        let limit = limit.map_or(usize::MAX, |limit| limit as usize);
        if limit > 0 && objects.len() > limit {
            let token = format!("page-{}", self.number());
            self.pages.push_back((token.clone(), version, objects.split_off(limit)));
            if self.pages.len() > PAGES {
                self.pages.pop_front();
            }
            next = Some(token);
        }
        Page { version, objects, next }
    }

    /// Writes the next version of an object, or removes it.
    pub fn commit(&mut self, kind: &Kind, key: &Key, new: Option<(Value, Applied)>) -> Arc<Stored> {
        self.version += 1;
        let (version, resource) = (self.version, kind.resource());
        let objects = self.objects.entry(resource.clone()).or_default();
        let before = objects.get(key).cloned();
        let is_there = new.is_some();
        let (mut value, applied) = new.unwrap_or_else(|| {
            let before = before.as_ref().expect("an object that can be removed");
            (before.value.clone(), Applied::default())
        });
        value["metadata"]["resourceVersion"] = json!(version.to_string());
        let stored = Arc::new(Stored::new(value, applied));
        match is_there {
            true => drop(objects.insert(key.clone(), Arc::clone(&stored))),
            false => drop(objects.remove(key)),
        }
        let change = Change {
            version,
            resource,
            // The last state of a removed object has the version of its removal.
            before: if is_there { before } else { Some(Arc::clone(&stored)) },
            after: is_there.then(|| Arc::clone(&stored)),
        };
        self.watchers.retain(|watcher| watcher.send(&change));
        self.log.push_back(change);
        if self.log.len() > LOG {
            self.oldest = self.log.pop_front().expect("a change").version;
        }
        stored
    }

    /// Adds the kind of a definition, and says so in its status.
    pub fn establish(&mut self, name: &str) {
        let definitions = self
            .kind("apiextensions.k8s.io", "v1", "customresourcedefinitions")
            .unwrap();
        let key = (String::new(), name.to_owned());
        let Some(stored) = self.get(&definitions, &key) else {
            return;
        };
        let mut value = stored.value.clone();
        let kind = Kind::defined(&value);
        let conditions = ["NamesAccepted", "Established"].map(|name| {
            json!({
                "type": name, "status": "True", "reason": "NoConflicts", "message": "",
                "lastTransitionTime": value["metadata"]["creationTimestamp"],
            })
        });
        value["status"] = json!({
            "acceptedNames": value["spec"]["names"], "conditions": conditions, "storedVersions": [kind.version],
        });
        self.kinds.push(Arc::new(kind));
        self.commit(&definitions, &key, Some((value, Applied::default())));
    }

    /// Begins a watch.
    pub fn watch(
        &mut self,
        kind: &Arc<Kind>,
        selector: Selector,
        from: &WatchFrom,
    ) -> Result<UnboundedReceiver<Bytes>, Refusal> {
        let (lines, receiver) = unbounded_channel();
        let now = Instant::now();
        let watcher = Watcher {
            kind: Arc::clone(kind),
            resource: kind.resource(),
            selector,
            has_bookmarks: from.has_bookmarks,
            bookmark_at: now + BOOKMARKS,
            ends_at: now + from.timeout,
            lines,
        };
        match from.version {
            None => {
                for object in self.select(kind, &watcher.selector) {
                    watcher.line("ADDED", &object.text);
                }
                if from.marks_end {
                    watcher.bookmark(self.version, json!({"k8s.io/initial-events-end": "true"}));
                }
            }
            Some(version) if version > self.version => {
                let message = format!("Too large resource version: {version}, current: {}", self.version);
                return Err(Refusal::timeout(message));
            }
            Some(version) if version < self.oldest => {
                let gone = Refusal::expired(format!("too old resource version: {version} ({})", self.oldest));
                watcher.line("ERROR", gone.status().to_string().as_bytes());
                return Ok(receiver);
            }
            Some(version) => {
                let since = self.log.partition_point(|change| change.version <= version);
                for change in self.log.range(since..) {
                    watcher.send(change);
                }
            }
        }
        self.watchers.push(watcher);
        Ok(receiver)
    }

    /// Sends bookmarks that are due, and ends watches.
    pub fn tick(&mut self, now: Instant) {
        let version = self.version;
        self.watchers.retain_mut(|watcher| {
            if watcher.has_bookmarks && watcher.bookmark_at <= now {
                watcher.bookmark_at = now + BOOKMARKS;
                watcher.bookmark(version, json!({}));
            }
            watcher.ends_at > now && !watcher.lines.is_closed()
        });
    }
}

impl Watcher {
    /// Sends a change, if it is one of those watched. Returns `false` if nobody watches any more.
    fn send(&self, change: &Change) -> bool {
        if change.resource != self.resource {
            return true;
        }
        let selects = |object: &Arc<Stored>| self.selector.matches(&object.value);
        let before = change.before.as_ref().filter(|object| selects(object));
        match (before, change.after.as_ref().filter(|object| selects(object))) {
            (None, Some(after)) => self.line("ADDED", &after.text),
            (Some(_), Some(after)) => self.line("MODIFIED", &after.text),
            (Some(before), None) if change.after.is_none() => self.line("DELETED", &before.text),
            (Some(before), None) => {
                // It is there, but not selected any more.
                let mut value = before.value.clone();
                value["metadata"]["resourceVersion"] = json!(change.version.to_string());
                self.line("DELETED", value.to_string().as_bytes())
            }
            (None, None) => true,
        }
    }

    fn bookmark(&self, version: u64, annotations: Value) {
        let object = json!({
            "apiVersion": self.kind.api_version(), "kind": self.kind.kind,
            "metadata": {"resourceVersion": version.to_string(), "annotations": annotations},
        });
        self.line("BOOKMARK", object.to_string().as_bytes());
    }

    fn line(&self, event: &str, object: &[u8]) -> bool {
        let mut line = format!("{{\"type\":\"{event}\",\"object\":").into_bytes();
        line.extend_from_slice(object);
        line.extend_from_slice(b"}\n");
        self.lines.send(line.into()).is_ok()
    }
}
