//! The `Acl` network function.

use super::{Action, Classifier};
use crate::batch::{Batch, Packet, Verdict};
use crate::function::{FlowStates, NetworkFunction, NewFlow};
use std::sync::Arc;

/// Rules ready to be applied; shared by all workers.
pub struct AclTable {
    classifier: Classifier,
    /// The action of each rule, in order.
    actions: Vec<Action>,
    default: Action,
}

impl AclTable {
    /// Rules with the action for packets that none of them matches.
    ///
    /// # Errors
    /// If there are too many, or too intricate ones.
    pub fn new(
        rules: &[super::Rule],
        default: Action,
    ) -> Result<AclTable, super::classifier::ClassifierError> {
        Ok(AclTable {
            classifier: Classifier::new(rules)?,
            actions: rules.iter().map(|rule| rule.action).collect(),
            default,
        })
    }

    fn action(&self, key: &tailwater_net::FlowKey) -> Action {
        let rule = self.classifier.classify(key);
        rule.and_then(|rule| self.actions.get(rule as usize))
            .copied()
            .unwrap_or(self.default)
    }
}

/// Lets packets pass or drops them, by the first rule that matches their 5-tuple. The decision is
/// made on a flow's first packet and kept with the flow.
pub struct Acl {
    table: Arc<AclTable>,
}

/// A flow's decision: 0 to let it pass.
type Denied = u32;

const DENIED: u8 = 0;

impl Acl {
    /// A worker's instance.
    pub fn new(table: Arc<AclTable>) -> Acl {
        Acl { table }
    }
}

impl NetworkFunction for Acl {
    fn kind(&self) -> &'static str {
        "Acl"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["denied"]
    }

    fn state_bytes(&self) -> usize {
        size_of::<Denied>()
    }

    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let action = self.table.action(&packet.headers.key);
        *flow.state::<Denied>() = Denied::from(action == Action::Deny);
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        for packet in batch.iter_mut() {
            if *flows.state::<Denied>(packet) != 0 {
                packet.verdict = Verdict::Drop(DENIED);
            }
        }
    }
}
