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
use tokio::sync::{Notify, watch};

/// Objects of a kind, as the API server had them last.
#[derive(Clone)]
pub struct Watched<K: Lookup<DynamicType: Hash + Eq + Clone> + 'static> {
    store: Store<K>,
    /// Status with which the API server last refused to list them.
    refused: watch::Receiver<Option<u16>>,
}

impl<K: Lookup<DynamicType: Hash + Eq + Clone> + Clone + 'static> Watched<K> {
    /// Waits until all have been seen once.
    pub async fn ready(&self) {
        // An error means that the program ends.
        let _ = self.store.wait_until_ready().await;
    }

    /// Waits until all have been seen once, or the API server says that it does not know the kind.
    pub async fn ready_or_undefined(&self) {
        self.ready_or_refused(&[404]).await;
    }

    /// Waits until all have been seen once, or the API server says that it does not know the kind, or does not permit
    /// to list them.
    pub async fn ready_or_unavailable(&self) {
        self.ready_or_refused(&[404, 403]).await;
    }

    async fn ready_or_refused(&self, statuses: &[u16]) {
        let mut refused = self.refused.clone();
        tokio::select! {
            () = self.ready() => {}
            // An error means that the program ends.
            _ = refused.wait_for(|status| status.is_some_and(|status| statuses.contains(&status))) => {}
        }
    }

    /// Returns `true` if all have been seen once.
    pub fn is_ready(&self) -> bool {
        matches!(self.store.wait_until_ready().now_or_never(), Some(Ok(())))
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.store.state()
    }
}

/// Returns the status with which the API server refused to list objects, if it did.
fn refusal(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
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
    let (refusing, refused) = watch::channel(None);
    let store = Watched {
        store: writer.as_reader(),
        refused,
    };
    let (changed, notices) = (Arc::clone(changed), notices.clone());
    let kind = K::plural(&K::DynamicType::default()).into_owned();
    let stream = reflector::reflector(writer, watcher(api, config).default_backoff());
    let watching = stream.for_each(move |event| {
        match event {
            Ok(_) => changed.notify_one(),
            Err(error) => {
                notices.warn(&format!("{kind} are not up to date: {error}"));
                refusing.send_replace(refusal(&error));
            }
        }
        std::future::ready(())
    });
    (store, watching.boxed())
}
