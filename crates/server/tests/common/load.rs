//! Numbered packets under which chains change, and a port that checks what is sent.
#![allow(dead_code, reason = "each test uses a part")]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::parcel::PacketStore;
use tailwater_dataplane::capture::CaptureTap;
use tailwater_dataplane::port::{OpenError, Port, PortQueue, PortRequirements, PortSender, Reta, RetaError};
use tailwater_dataplane::report::PortReport;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// Flows to each network.
const FLOWS: u32 = 20;

/// Traffic of equal spacing: packet `n` goes to `10.N.0.0/16`, where N is the remainder of its number.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Number of networks.
    pub networks: u32,
    /// Time between packets.
    pub spacing: Nanos,
    /// Packets until it is repeated.
    pub period: u32,
}

impl Load {
    /// Trace of one period.
    pub fn trace(self) -> Trace {
        let mut source = Numbered {
            load: self,
            next: 0,
            frame: Vec::new(),
        };
        Trace::load(&mut source, &LoadOptions::default()).unwrap()
    }

    /// Flow of a packet of this number.
    fn flow(self, number: u32) -> usize {
        (number % (self.networks * FLOWS)) as usize
    }
}

struct Numbered {
    load: Load,
    next: u32,
    frame: Vec<u8>,
}

impl PacketSource for Numbered {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let number = self.next;
        if number == self.load.period {
            return Ok(None);
        }
        self.next += 1;
        let flow = number / self.load.networks % FLOWS;
        let destination = Ipv4Addr::new(10, (number % self.load.networks) as u8, 0, 1);
        let source = Ipv4Addr::new(192, 0, 2, flow as u8);
        let key = FlowKey::v4(source, destination, protocol::UDP, 1000 + flow as u16, 53);
        self.frame = FrameBuilder::new(&key)
            .payload(&number.to_be_bytes())
            .to_vec()
            .expect("a short frame");
        Ok(Some(Packet {
            timestamp: Nanos(u64::from(number) * self.load.spacing.0),
            data: &self.frame,
            wire_length: self.frame.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "numbered"
    }
}

/// Packets that a port has sent.
#[derive(Debug)]
pub struct Sent {
    load: Load,
    /// Arrival of the last packet of each flow.
    last: Vec<AtomicU64>,
    /// Packets sent.
    pub packets: AtomicU64,
    /// Packets that came after a later one of their flow, or twice.
    pub disordered: AtomicU64,
}

impl Sent {
    fn check(&self, batch: &Batch) {
        for i in 0..batch.len() {
            let number = batch.frame(i)[42..46]
                .try_into()
                .map(u32::from_be_bytes)
                .expect("a payload");
            // Numbers begin again with each repetition of the trace, arrivals do not.
            let arrival = batch.packet(i).arrival.0;
            let last = self.last[self.load.flow(number)].swap(arrival, Ordering::AcqRel);
            if arrival <= last {
                self.disordered.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.packets.fetch_add(batch.len() as u64, Ordering::Relaxed);
    }
}

/// Port that checks the order of each flow's packets when they are sent.
pub struct CheckedPort {
    port: Box<dyn Port>,
    sent: Arc<Sent>,
}

impl CheckedPort {
    /// Port of this traffic. Returns it with what it will have sent.
    pub fn new(port: Box<dyn Port>, load: Load) -> (CheckedPort, Arc<Sent>) {
        let sent = Arc::new(Sent {
            load,
            last: (0..load.networks * FLOWS).map(|_| AtomicU64::new(0)).collect(),
            packets: AtomicU64::new(0),
            disordered: AtomicU64::new(0),
        });
        let port = CheckedPort {
            port,
            sent: Arc::clone(&sent),
        };
        (port, sent)
    }
}

impl Port for CheckedPort {
    fn traffic(&self) -> &str {
        self.port.traffic()
    }

    fn duration(&self) -> Option<Nanos> {
        self.port.duration()
    }

    fn open(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        self.port.open(need)
    }

    fn open_shared(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        self.port.open_shared(need)
    }

    fn queues(&mut self, start: Nanos) -> Vec<Box<dyn PortQueue>> {
        self.port.queues(start)
    }

    fn sender(&mut self) -> Box<dyn PortSender> {
        Box::new(CheckedSender {
            sender: self.port.sender(),
            sent: Arc::clone(&self.sent),
        })
    }

    fn reta_delay(&self) -> Option<Nanos> {
        self.port.reta_delay()
    }

    fn packet_store(&self) -> Option<PacketStore> {
        self.port.packet_store()
    }

    fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        self.port.set_reta(reta)
    }

    fn report(&self) -> Vec<PortReport> {
        self.port.report()
    }
}

struct CheckedSender {
    sender: Box<dyn PortSender>,
    sent: Arc<Sent>,
}

impl PortSender for CheckedSender {
    fn complete(&mut self, batch: &mut Batch) {
        self.sender.complete(batch);
    }

    fn transmit(&mut self, batch: &mut Batch) -> usize {
        self.sent.check(batch);
        self.sender.transmit(batch)
    }

    fn capture(&mut self, tap: CaptureTap) {
        self.sender.capture(tap);
    }
}
