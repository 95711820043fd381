//! Objects of the API server, kept up to date.

use crate::notices::Notices;
use futures::{FutureExt, StreamExt};
use kube::runtime::reflector::{self, Lookup, Store, store::Writer};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use tokio::sync::Notify;

/// Objects of a kind, as the API server had them last.
#[derive(Clone)]
pub struct Watched<K: Lookup<DynamicType: Hash + Eq + Clone> + 'static>(Store<K>);

impl<K: Lookup<DynamicType: Hash + Eq + Clone> + Clone + 'static> Watched<K> {
    /// Waits until all have been seen once.
    pub async fn ready(&self) {
        // An error means that the program ends.
        let _ = self.0.wait_until_ready().await;
    }

    /// Returns `true` if all have been seen once.
    pub fn is_ready(&self) -> bool {
        matches!(self.0.wait_until_ready().now_or_never(), Some(Ok(())))
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.0.state()
    }
}

/// Returns the objects of an API, and the future that keeps them up to date. Each change notifies.
pub fn watch_into<K>(
    api: Api<K>,
    config: watcher::Config,
    changed: &Arc<Notify>,
    notices: &Notices,
) -> (Watched<K>, impl Future<Output = ()> + Send + use<K>)
where
    K: Resource<DynamicType: Hash + Eq + Clone + Default> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Send + Sync,
{
    let writer = Writer::new(K::DynamicType::default());
    let store = Watched(writer.as_reader());
    let (changed, notices) = (Arc::clone(changed), notices.clone());
    let kind = K::plural(&K::DynamicType::default()).into_owned();
    let stream = reflector::reflector(writer, watcher(api, config).default_backoff());
    let watching = stream.for_each(move |event| {
        match event {
            Ok(_) => changed.notify_one(),
            Err(error) => notices.warn(&format!("{kind} are not up to date: {error}")),
        }
        std::future::ready(())
    });
    (store, watching.boxed())
}
