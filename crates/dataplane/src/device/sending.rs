//! Transmit side of a device port.

use crate::capture::CaptureTap;
use crate::clock::Clock;
use crate::port::PortSender;
use tailwater_chain::batch::Batch;

/// Transmit queue of a device, owned by the thread that uses it.
pub trait Sender: Send {
    /// Sends the packets of the batch, as [`PortSender::transmit`] does.
    fn transmit(&mut self, batch: &mut Batch) -> usize;

    /// Like [`PortSender::transmit_back`].
    fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        self.transmit(batch)
    }
}

/// Device sender of a worker or an auxiliary core.
#[derive(Debug)]
pub struct DeviceSender<S> {
    pub(super) sender: S,
    pub(super) capture: Option<CaptureTap>,
    pub(super) clock: Clock,
}

impl<S: Sender> DeviceSender<S> {
    #[inline]
    fn record(&mut self, batch: &Batch) {
        if let Some(capture) = &mut self.capture {
            let now = self.clock.now();
            (0..batch.len()).for_each(|i| capture.record(now, batch.frame(i)));
        }
    }
}

impl<S: Sender> PortSender for DeviceSender<S> {
    #[inline]
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        self.record(batch);
        self.sender.transmit(batch)
    }

    fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        self.record(batch);
        self.sender.transmit_back(batch)
    }

    fn capture(&mut self, tap: CaptureTap) {
        self.capture = Some(tap);
    }
}
