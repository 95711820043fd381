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
    /// The API server has no definition of the kind.
    is_undefined: watch::Receiver<bool>,
}

impl<K: Lookup<DynamicType: Hash + Eq + Clone> + Clone + 'static> Watched<K> {
    /// Waits until all have been seen once.
    pub async fn ready(&self) {
        // An error means that the program ends.
        let _ = self.store.wait_until_ready().await;
    }

    /// Waits until all have been seen once, or the API server says that it does not know the kind.
    pub async fn ready_or_undefined(&self) {
        let mut is_undefined = self.is_undefined.clone();
        tokio::select! {
            () = self.ready() => {}
            // An error means that the program ends.
            _ = is_undefined.wait_for(|is_undefined| *is_undefined) => {}
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

/// Returns `true` if the API server does not know the kind.
fn is_not_found(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
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
    let (undefined, is_undefined) = watch::channel(false);
    let store = Watched {
        store: writer.as_reader(),
        is_undefined,
    };
    let (changed, notices) = (Arc::clone(changed), notices.clone());
    let kind = K::plural(&K::DynamicType::default()).into_owned();
    let stream = reflector::reflector(writer, watcher(api, config).default_backoff());
    let watching = stream.for_each(move |event| {
        match event {
            Ok(_) => changed.notify_one(),
            Err(error) => {
                notices.warn(&format!("{kind} are not up to date: {error}"));
                undefined.send_replace(is_not_found(&error));
            }
        }
        std::future::ready(())
    });
    (store, watching.boxed())
}
