//! Requests, and their answers.

use super::kinds::Kind;
use super::query::{Query, Selector};
use super::refusal::Refusal;
use super::store::{Page, Store, Stored, WatchFrom};
use super::writes::{Patch, Place, Removal};
use super::{super::api_server::ADMIN, apply::Applied};
use http::request::Parts;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// Time from the creation of a definition until its kind is there.
const ESTABLISHED: Duration = Duration::from_millis(50);
/// Time after which a watch ends that has no time of its own.
const WATCH_SECONDS: u64 = 1800;

/// Body of an answer.
pub enum Reply {
    Whole(Option<Bytes>),
    /// Events of a watch.
    Lines(UnboundedReceiver<Bytes>),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Reply::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Reply::Lines(lines) => lines
                .poll_recv(context)
                .map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Reply::Lines(_) => SizeHint::default(),
        }
    }
}

fn reply(code: u16, media_type: &str, body: Reply) -> Response<Reply> {
    let response = Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, media_type);
    response.body(body).unwrap()
}

fn json_reply(code: u16, body: impl Into<Bytes>) -> Response<Reply> {
    reply(code, "application/json", Reply::Whole(Some(body.into())))
}

/// Answers a request.
pub async fn respond(store: &Arc<Mutex<Store>>, request: Request<Incoming>) -> Response<Reply> {
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return refused(&Refusal::bad("the body ends too early"));
    };
    if let Err(refusal) = admit(&parts) {
        return refused(&refusal);
    }
    if parts.uri.path() == "/readyz" {
        return reply(200, "text/plain", Reply::Whole(Some(Bytes::from_static(b"ok"))));
    }
    answer(store, &parts, &body.to_bytes()).unwrap_or_else(|refusal| refused(&refusal))
}

fn refused(refusal: &Refusal) -> Response<Reply> {
    json_reply(refusal.code, refusal.status().to_string())
}

/// The administrator may do everything, and nobody else anything.
fn admit(parts: &Parts) -> Result<(), Refusal> {
    let token = parts.headers.get(header::AUTHORIZATION);
    if token.is_none_or(|token| token != &format!("Bearer {ADMIN}")) {
        return Err(Refusal::unauthorized());
    }
    match parts.headers.contains_key("impersonate-user") {
        true => Err(Refusal::forbidden("the model of the API server has no rights")),
        false => Ok(()),
    }
}

/// Objects or object that a path names.
struct Target {
    kind: Arc<Kind>,
    namespace: Option<String>,
    name: Option<String>,
    is_status: bool,
}

fn target(store: &Store, path: &str) -> Option<Target> {
    let segments: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    let (group, version, rest) = match &*segments {
        ["api", "v1", rest @ ..] => ("", "v1", rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let (namespace, plural, rest) = match rest {
        ["namespaces", namespace, plural, rest @ ..] => (Some((*namespace).to_owned()), plural, rest),
        [plural, rest @ ..] => (None, plural, rest),
        [] => return None,
    };
    let kind = store.kind(group, version, plural)?;
    let (name, is_status) = match rest {
        [] => (None, false),
        [name] => (Some((*name).to_owned()), false),
        [name, "status"] if kind.has_status => (Some((*name).to_owned()), true),
        _ => return None,
    };
    let fits = match kind.is_namespaced {
        true => namespace.is_some() || name.is_none(),
        false => namespace.is_none(),
    };
    fits.then_some(Target {
        kind,
        namespace,
        name,
        is_status,
    })
}

fn answer(shared: &Arc<Mutex<Store>>, parts: &Parts, body: &Bytes) -> Result<Response<Reply>, Refusal> {
    let mut store = shared.lock().unwrap();
    let target = target(&store, parts.uri.path()).ok_or_else(Refusal::no_such_path)?;
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let (kind, namespace) = (&*target.kind, target.namespace.as_deref());
    let is_dry = query.is_dry_run()?;
    let Some(name) = &target.name else {
        return match parts.method {
            Method::GET if query.is_set("watch") => watch(&mut store, &target, &query),
            Method::GET => list(&mut store, &target, &query),
            // Objects in all namespaces are not written at once; custom resources have no such path then.
            _ if kind.is_namespaced != namespace.is_some() => match kind.is_defined() {
                true => Err(Refusal::no_such_path()),
                false => Err(Refusal::method()),
            },
            Method::PUT | Method::PATCH if kind.is_defined() => Err(Refusal::bad("name must be provided")),
            Method::POST => {
                let created = store.create(kind, namespace, read(parts, body)?, Applied::default(), is_dry)?;
                if kind.plural == "customresourcedefinitions" && !is_dry {
                    establish(shared, &created);
                }
                Ok(json_reply(201, created.text.clone()))
            }
            Method::DELETE if kind.is_deletable() => {
                let selector = Selector::parse(kind, namespace, &query)?;
                let (options, objects) = (DeleteOptions::read(body)?, store.select(kind, &selector));
                for object in &objects {
                    let place = place(
                        &target,
                        object.metadata()["name"].as_str().unwrap(),
                        options.is_dry || is_dry,
                    );
                    store.remove(&place, &Value::Null)?;
                }
                let page = store.list(kind, &selector, None);
                Ok(json_reply(200, list_text(kind, &Page { objects, ..page })))
            }
            _ => Err(Refusal::method()),
        };
    };
    let mut place = place(&target, name, is_dry);
    match parts.method {
        Method::GET => match store.get(kind, &place.key) {
            Some(found) => Ok(json_reply(200, found.text.clone())),
            None => Err(Refusal::not_found(&kind.resource(), name)),
        },
        Method::PUT => {
            let replaced = store.replace(&place, read(parts, body)?)?;
            Ok(json_reply(200, replaced.text.clone()))
        }
        Method::PATCH => {
            let (patched, is_new) = store.patch(&place, patch(parts, body, &target, &query)?)?;
            Ok(json_reply(if is_new { 201 } else { 200 }, patched.text.clone()))
        }
        Method::DELETE if kind.is_deletable() && !target.is_status => {
            let options = DeleteOptions::read(body)?;
            place.is_dry |= options.is_dry;
            Ok(match store.remove(&place, &options.conditions)? {
                Removal::Marked(marked) => json_reply(200, marked.text.clone()),
                Removal::Removed(removed) => json_reply(200, success(kind, &removed)),
            })
        }
        _ => Err(Refusal::method()),
    }
}

fn place<'t>(target: &'t Target, name: &str, is_dry: bool) -> Place<'t> {
    Place {
        kind: &target.kind,
        key: (target.namespace.clone().unwrap_or_default(), name.to_owned()),
        is_status: target.is_status,
        is_dry,
    }
}

fn success(kind: &Kind, removed: &Stored) -> String {
    let metadata = removed.metadata();
    let details = json!({
        "name": metadata["name"], "group": kind.group, "kind": kind.plural, "uid": metadata["uid"],
    });
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}).to_string()
}

/// Lets the kind of a definition be there in a moment.
fn establish(store: &Arc<Mutex<Store>>, definition: &Stored) {
    let name = definition.metadata()["name"].as_str().unwrap().to_owned();
    let store = Arc::clone(store);
    tokio::spawn(async move {
        tokio::time::sleep(ESTABLISHED).await;
        store.lock().unwrap().establish(&name);
    });
}

fn media_type(parts: &Parts) -> &str {
    let found = parts
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    found.unwrap_or_default()
}

fn parse(body: &Bytes) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::bad(error.to_string()))
}

fn read(parts: &Parts, body: &Bytes) -> Result<Value, Refusal> {
    match media_type(parts) {
        "application/json" => parse(body),
        _ => Err(Refusal::media_type()),
    }
}

fn patch(parts: &Parts, body: &Bytes, target: &Target, query: &Query) -> Result<Patch, Refusal> {
    let of_options = |error: &str| {
        let message = format!("PatchOptions.meta.k8s.io \"\" is invalid: {error}");
        Refusal::bad(message)
    };
    match media_type(parts) {
        "application/merge-patch+json" if query.is_set("force") => Err(of_options("force: only for apply patches")),
        "application/merge-patch+json" => Ok(Patch::Merge(parse(body)?)),
        // Its lists have keys, which definitions here do not give: they are replaced as a whole.
        "application/apply-patch+yaml" if target.kind.is_defined() => Err(Refusal::bad(
            "the model of the API server applies objects of Kubernetes' own kinds only",
        )),
        "application/apply-patch+yaml" => Ok(Patch::Apply {
            object: parse(body)?,
            manager: query
                .get("fieldManager")
                .ok_or_else(|| of_options("fieldManager: Required value"))?
                .to_owned(),
            is_forced: query.is_set("force"),
        }),
        _ => Err(Refusal::media_type()),
    }
}

/// Body of a request that removes objects.
struct DeleteOptions {
    is_dry: bool,
    conditions: Value,
}

impl DeleteOptions {
    fn read(body: &Bytes) -> Result<DeleteOptions, Refusal> {
        let mut options = DeleteOptions {
            is_dry: false,
            conditions: Value::Null,
        };
        if body.is_empty() {
            return Ok(options);
        }
        let body = parse(body)?;
        for (field, value) in body.as_object().ok_or_else(|| Refusal::bad("expected DeleteOptions"))? {
            match (&**field, value) {
                // Without nodes, everything goes at once.
                ("apiVersion" | "kind" | "gracePeriodSeconds", _) => {}
                ("propagationPolicy", value) if value == "Background" => {}
                ("dryRun", value) if *value == json!(["All"]) => options.is_dry = true,
                ("preconditions", value) => options.conditions = value.clone(),
                (field, value) => {
                    return Err(Refusal::bad(format!(
                        "the model of the API server has no {field}: {value}"
                    )));
                }
            }
        }
        Ok(options)
    }
}

fn list(store: &mut Store, target: &Target, query: &Query) -> Result<Response<Reply>, Refusal> {
    let selector = Selector::parse(&target.kind, target.namespace.as_deref(), query)?;
    if query.get("resourceVersionMatch") == Some("Exact") {
        return Err(Refusal::bad(
            "the model of the API server has no lists of exact versions",
        ));
    }
    let limit = query.number("limit")?.filter(|limit| *limit > 0);
    let page = match query.get("continue") {
        Some(token) => store.list_on(token, limit)?,
        None => store.list(&target.kind, &selector, limit),
    };
    Ok(json_reply(200, list_text(&target.kind, &page)))
}

fn list_text(kind: &Kind, page: &Page) -> Vec<u8> {
    let metadata =
        json!({"resourceVersion": page.version.to_string(), "continue": page.next.clone().unwrap_or_default()});
    let (version, kind) = (kind.api_version(), &kind.kind);
    let start = format!(r#"{{"apiVersion":"{version}","kind":"{kind}List","metadata":{metadata},"items":["#);
    let mut text = start.into_bytes();
    for (index, object) in page.objects.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        text.extend_from_slice(&object.text);
    }
    text.extend_from_slice(b"]}");
    text
}

fn watch(store: &mut Store, target: &Target, query: &Query) -> Result<Response<Reply>, Refusal> {
    let selector = Selector::parse(&target.kind, target.namespace.as_deref(), query)?;
    let version = query.number("resourceVersion")?.filter(|version| *version > 0);
    let (has_bookmarks, marks_end) = (query.is_set("allowWatchBookmarks"), query.is_set("sendInitialEvents"));
    let is_match = query.get("resourceVersionMatch") == Some("NotOlderThan");
    if marks_end && !(has_bookmarks && is_match && version.is_none()) {
        return Err(Refusal::bad(
            "sendInitialEvents: expected allowWatchBookmarks, resourceVersionMatch=NotOlderThan and no version",
        ));
    }
    let from = WatchFrom {
        version,
        marks_end,
        has_bookmarks,
        timeout: Duration::from_secs(query.number("timeoutSeconds")?.unwrap_or(WATCH_SECONDS)),
    };
    let lines = store.watch(&target.kind, selector, &from)?;
    Ok(reply(200, "application/json", Reply::Lines(lines)))
}
