//! The `Classifier` network function.

use super::rules::{ClassifierRules, ClassifierTable, Scratch};
use std::sync::Arc;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{Explanation, FlowStates, FunctionProperties, NetworkFunction, NewFlow, TracedPacket};
use tailwater_chain::live::Version;

/// Sends packets to branches of the chain by the first rule that matches their 5-tuple. The decision is either made on
/// a flow's first packet and stored with the flow, or made for every packet.
pub struct Classifier {
    table: Arc<ClassifierTable>,
    cached_rules: Arc<Version<ClassifierRules>>,
    /// `true` if decisions are stored with the flows.
    in_flow: bool,
    /// Packets sent to each target.
    counts: Vec<u64>,
    scratch: Box<Scratch>,
    /// Target of each packet whose flow is new, by index in the batch.
    by_index: Box<[u8; MAX_BATCH]>,
}

/// Target stored in a flow's state.
type Target = u32;

impl Classifier {
    /// Creates a worker's instance that stores decisions with the flows.
    pub fn new(table: Arc<ClassifierTable>) -> Classifier {
        Classifier {
            cached_rules: table.live().current(),
            in_flow: true,
            counts: vec![0; table.targets()],
            scratch: Box::default(),
            by_index: Box::new([0; MAX_BATCH]),
            table,
        }
    }

    /// Creates a worker's instance that decides for every packet and needs no flow state.
    pub fn without_flows(table: Arc<ClassifierTable>) -> Classifier {
        Classifier {
            in_flow: false,
            ..Classifier::new(table)
        }
    }

    /// Assigns each packet the path to its target.
    #[inline]
    fn send(&mut self, batch: &mut Batch, mut target_of: impl FnMut(&Packet, usize, &Scratch) -> usize) {
        for (at, packet) in batch.iter_mut().enumerate() {
            let target = target_of(packet, at, &self.scratch);
            packet.path = self.table.next_path(packet.path, target);
            self.counts[target] += 1;
        }
    }
}

impl NetworkFunction for Classifier {
    fn kind(&self) -> &'static str {
        "Classifier"
    }

    fn can_restart(&self) -> bool {
        true
    }

    fn counters(&self) -> &'static [&'static str] {
        self.table.counters()
    }

    fn counter_values(&self) -> &[u64] {
        &self.counts
    }

    fn state_bytes(&self) -> usize {
        match self.in_flow {
            true => size_of::<Target>(),
            false => 0,
        }
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties::HEADERS_ONLY
    }

    fn version(&self) -> u32 {
        self.table.live().number()
    }

    fn prepare(&mut self, batch: &Batch, new: &[u16]) {
        self.table.live().refresh(&mut self.cached_rules);
        for (key, at) in self.scratch.keys.iter_mut().zip(new) {
            *key = batch.packet(usize::from(*at)).headers.key;
        }
        self.cached_rules.value.find(&mut self.scratch, new.len());
        for (target, at) in self.scratch.targets.iter().zip(new) {
            self.by_index[usize::from(*at)] = *target;
        }
    }

    fn new_flow(&mut self, _packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        *flow.state::<Target>() = Target::from(self.by_index[flow.batch_index()]);
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        if self.in_flow {
            self.send(batch, |packet, _, _| *flows.state::<Target>(packet) as usize);
            return;
        }
        self.table.live().refresh(&mut self.cached_rules);
        for (key, packet) in self.scratch.keys.iter_mut().zip(batch.iter()) {
            *key = packet.headers.key;
        }
        self.cached_rules.value.find(&mut self.scratch, batch.len());
        self.send(batch, |_, at, scratch| usize::from(scratch.targets[at]));
    }

    fn explain(&self, traced: &TracedPacket<'_>, flows: &mut FlowStates<'_>, text: &mut Explanation) {
        let rules = &self.cached_rules.value;
        let rule = rules.rule(&traced.key);
        match rule {
            Some(rule) => text.add(format_args!("rule {}", rule + 1)),
            None => text.add(format_args!("no rule, default")),
        }
        let target = match self.in_flow {
            true => *flows.state::<Target>(traced.packet()) as usize,
            false => rules.target(rule),
        };
        if let Some(name) = self.table.counters().get(target) {
            text.add_part(format_args!("{name}"));
        }
    }
}
