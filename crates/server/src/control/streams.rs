//! Streams of events and of changes of chains.

use super::generated as message;
use super::messages;
use crate::status::{ChainStatus, Snapshot};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::Status;

/// Messages that wait for their client.
const WAITING: usize = 64;

/// Stream of messages.
#[derive(Debug)]
pub(super) struct Stream<T>(Receiver<Result<T, Status>>);

impl<T> tokio_stream::Stream for Stream<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

/// Returns a stream, and what its messages are sent by.
pub(super) fn channel_of_updates<T>() -> (Sender<Result<T, Status>>, Stream<T>) {
    let (sender, receiver) = channel(WAITING);
    (sender, Stream(receiver))
}

/// Returns the permit to follow.
///
/// # Errors
/// There are too many that follow.
pub(super) fn permit(followers: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Status> {
    let permit = Arc::clone(followers).try_acquire_owned();
    permit.map_err(|_| Status::resource_exhausted("too many clients follow events or chains"))
}

/// Returns the stream of events that a client requests.
pub(super) fn events(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    request: message::EventsRequest,
    permit: OwnedSemaphorePermit,
) -> Stream<message::Event> {
    let (sender, receiver) = channel(WAITING);
    tokio::spawn(async move {
        let mut last = request.after;
        let mut is_first = true;
        loop {
            let snapshot = Arc::clone(&snapshots.borrow_and_update());
            if !send_events(&snapshot, &request.chain, &mut last, is_first, &sender).await || !request.follow {
                break;
            }
            is_first = false;
            if snapshots.changed().await.is_err() || sender.is_closed() {
                break;
            }
        }
        drop(permit);
    });
    Stream(receiver)
}

/// Sends the events after `last`. Returns `false` if the client is gone or too slow: events that it has not been sent
/// are discarded.
async fn send_events(
    snapshot: &Snapshot,
    chain: &str,
    last: &mut u64,
    is_first: bool,
    sender: &Sender<Result<message::Event, Status>>,
) -> bool {
    for event in snapshot.events.after(*last) {
        if event.sequence > *last + 1 && !is_first {
            let message = format!(
                "events {} to {} were discarded: the client is too slow",
                *last + 1,
                event.sequence - 1
            );
            let _ = sender.send(Err(Status::data_loss(message))).await;
            return false;
        }
        *last = event.sequence;
        let is_wanted = chain.is_empty() || event.chain.as_deref() == Some(chain);
        if is_wanted && sender.send(Ok(messages::event(event))).await.is_err() {
            return false;
        }
    }
    *last = snapshot.events.last();
    true
}

/// Returns the stream of all chains' changes, or of those of the chain `name` if that is not empty. A client that is
/// slower than the changes gets the last of several.
pub(super) fn changes(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    name: String,
    permit: OwnedSemaphorePermit,
) -> Stream<message::ChainChange> {
    let (sender, receiver) = channel(WAITING);
    tokio::spawn(async move {
        let mut sent = BTreeMap::new();
        loop {
            let snapshot = Arc::clone(&snapshots.borrow_and_update());
            for change in differences(&mut sent, &snapshot, &name) {
                if sender.send(Ok(change)).await.is_err() {
                    break;
                }
            }
            if sender.is_closed() || snapshots.changed().await.is_err() {
                break;
            }
        }
        drop(permit);
    });
    Stream(receiver)
}

/// Returns the changes from what was sent to a snapshot, and records them as sent.
fn differences(
    sent: &mut BTreeMap<String, Arc<ChainStatus>>,
    snapshot: &Snapshot,
    name: &str,
) -> Vec<message::ChainChange> {
    let mut changes = Vec::new();
    sent.retain(|old, status| {
        let stays = snapshot.chains.contains_key(old);
        if !stays {
            changes.push(change(status, true));
        }
        stays
    });
    for (new, status) in &snapshot.chains {
        let is_wanted = name.is_empty() || name == new;
        if is_wanted && sent.get(new).is_none_or(|old| old.revision != status.revision) {
            sent.insert(new.clone(), Arc::clone(status));
            changes.push(change(status, false));
        }
    }
    changes
}

fn change(status: &ChainStatus, gone: bool) -> message::ChainChange {
    message::ChainChange {
        chain: Some(messages::chain(status)),
        gone,
    }
}
