//! Bodies of requests and responses that watch their clients.

use super::clients::Activity;
use http_body::{Body, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Sleep, sleep};

/// Body of a request, which its client sends within a given time.
pub(super) struct TimedBody {
    inner: Incoming,
    end: Pin<Box<Sleep>>,
}

/// Error of a request that was not sent in time.
#[derive(Debug)]
pub(super) struct TooSlow;

impl TimedBody {
    pub(super) fn new(inner: Incoming, longest: Duration) -> TimedBody {
        TimedBody {
            inner,
            end: Box::pin(sleep(longest)),
        }
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(Into::into))),
            Poll::Pending => match self.end.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Some(Err(TooSlow.into()))),
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request was not sent in time")
    }
}

impl Error for TooSlow {}

/// Call of a client, which ends when this is dropped.
pub(super) struct Call {
    activity: Activity,
    number: u64,
}

impl Call {
    pub(super) fn new(activity: &Activity) -> Call {
        Call {
            activity: activity.clone(),
            number: activity.begin(),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.activity.end(self.number, Instant::now());
    }
}

/// Body of a response, which records whether its client takes what is sent: the next part is requested only when there
/// is room in the client's window.
pub(super) struct TrackedBody {
    inner: tonic::body::Body,
    call: Call,
}

impl TrackedBody {
    pub(super) fn new(inner: tonic::body::Body, call: Call) -> TrackedBody {
        // The client has not taken the head of the response.
        call.activity.sent(call.number, Some(Instant::now()));
        TrackedBody { inner, call }
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        let since = polled.is_ready().then(Instant::now);
        self.call.activity.sent(self.call.number, since);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
