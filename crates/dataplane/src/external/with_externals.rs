//! Combination of a port with external functions on other ports.

use super::attachment::Attached;
use crate::port::{OpenError, Port, PortQueue, PortRequirements, PortSender, Reta, RetaError};
use crate::report::PortReport;
use tailwater_chain::buffer::BufferPool;
use tailwater_net::Nanos;

/// Ports of a chain's external functions, which open together with a port of type `P`.
pub trait Functions<P>: Send + Sync {
    /// Buffers that their ports need, in addition to those of packets the worker processes.
    fn buffers(&self) -> u32 {
        0
    }

    /// Opens the ports, after the chain's own, and returns those of each worker.
    ///
    /// # Errors
    /// If a port refuses.
    fn open(&mut self, beside: &P) -> Result<Vec<Attached>, OpenError>;

    /// Like [`Port::monitor`]. These ports cannot end the run.
    fn monitor(&self, tell: &mut dyn FnMut(String)) {
        let _ = tell;
    }

    /// Like [`Port::report`].
    fn report(&self) -> Vec<PortReport> {
        Vec::new()
    }
}

impl<P> Functions<P> for Box<dyn Functions<P>> {
    fn buffers(&self) -> u32 {
        (**self).buffers()
    }

    fn open(&mut self, beside: &P) -> Result<Vec<Attached>, OpenError> {
        (**self).open(beside)
    }

    fn monitor(&self, tell: &mut dyn FnMut(String)) {
        (**self).monitor(tell);
    }

    fn report(&self) -> Vec<PortReport> {
        (**self).report()
    }
}

/// Port with external functions.
#[derive(Debug)]
pub struct WithExternals<P, F> {
    port: P,
    functions: F,
    attached: Vec<Attached>,
}

impl<P: Port, F: Functions<P>> WithExternals<P, F> {
    /// Combines the chain's port with its external functions'.
    pub fn new(port: P, functions: F) -> WithExternals<P, F> {
        WithExternals {
            port,
            functions,
            attached: Vec::new(),
        }
    }
}

impl<P: Port, F: Functions<P>> Port for WithExternals<P, F> {
    fn traffic(&self) -> &str {
        self.port.traffic()
    }

    fn duration(&self) -> Option<Nanos> {
        self.port.duration()
    }

    fn open(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        let need = PortRequirements {
            buffers: need.buffers + self.functions.buffers(),
            ..*need
        };
        let pools = self.port.open(&need)?;
        self.attached = self.functions.open(&self.port)?;
        Ok(pools)
    }

    fn goes_back(&self) -> bool {
        self.port.goes_back()
    }

    fn queues(&mut self, start: Nanos) -> Vec<Box<dyn PortQueue>> {
        self.port.queues(start)
    }

    fn sender(&mut self) -> Box<dyn PortSender> {
        self.port.sender()
    }

    fn reta_delay(&self) -> Option<Nanos> {
        self.port.reta_delay()
    }

    fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        self.port.set_reta(reta)
    }

    fn attached(&mut self) -> Vec<Attached> {
        std::mem::take(&mut self.attached)
    }

    fn monitor(&self, tell: &mut dyn FnMut(String)) {
        self.port.monitor(tell);
        self.functions.monitor(tell);
    }

    fn report(&self) -> Vec<PortReport> {
        let mut reports = self.port.report();
        reports.extend(self.functions.report());
        reports
    }
}
