//! What all workers of an IPsec function share: keys, sequence numbers, windows and policies, ready to be used.

use super::association::{Inbound, IpsecRules, Outbound, PolicyAction};
use super::cipher::Sealer;
use super::headers::Outer;
use super::sequence::{Sequence, Window};
use super::spi_table::SpiTable;
use crate::acl::classifier::{Classifier, ClassifierError};
use crate::acl::{Rule, linear};
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_net::FlowKey;

/// Why rules cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpsecError {
    /// The policies take too much.
    #[error("policies: {0}")]
    Policies(#[from] ClassifierError),
    /// A key is not one of its cipher's.
    #[error("the key of association {0} does not fit its cipher")]
    Key(String),
}

/// An association that packets leave by, in use.
pub(super) struct Leaving {
    pub(super) spi: u32,
    pub(super) sealer: Sealer,
    pub(super) sequence: Sequence,
    pub(super) outer: Outer,
    /// What is added to a sequence number to make an initialisation vector.
    pub(super) iv_base: u64,
}

/// An association that packets come by, in use.
pub(super) struct Coming {
    pub(super) sealer: Sealer,
    pub(super) destination: IpAddr,
    pub(super) udp: Option<u16>,
    pub(super) window: Option<Window>,
    allow: Vec<Rule>,
}

impl Coming {
    /// Whether a packet with this key may come out.
    #[inline]
    pub(super) fn allows(&self, key: &FlowKey) -> bool {
        self.allow.is_empty() || linear::classify(&self.allow, key).is_some()
    }
}

/// Up to so many policies are tried in turn: fewer instructions than the classifier takes for any number.
const FEW: usize = 8;

/// What policies match.
enum Matching {
    InTurn(Vec<Rule>),
    Classified(Classifier),
}

/// Associations and policies ready to be used; shared by all workers.
pub struct IpsecTable {
    pub(super) leaving: Vec<Leaving>,
    coming: Vec<Coming>,
    by_spi: SpiTable,
    /// This end's addresses, each with the port where ESP is in UDP; sorted.
    ends: Vec<(IpAddr, Option<u16>)>,
    policies: Matching,
    actions: Vec<PolicyAction>,
    default: PolicyAction,
    pub(super) mtu: usize,
    pub(super) pass_ike: bool,
    pub(super) pass_keep_alives: bool,
}

impl IpsecTable {
    /// From rules. Initialisation vectors start with the time, so that they do not come again if the same rules
    /// are used once more.
    ///
    /// # Errors
    /// If the policies take too much memory, or a key does not fit its cipher.
    pub fn new(rules: &IpsecRules) -> Result<IpsecTable, IpsecError> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        IpsecTable::starting_at(rules, since_epoch.map_or(0, |time| time.as_nanos() as u64))
    }

    /// As [`new`](IpsecTable::new), with the initialisation vector of each association's first packet.
    pub(super) fn starting_at(rules: &IpsecRules, iv: u64) -> Result<IpsecTable, IpsecError> {
        let matching: Vec<Rule> = rules
            .policies
            .iter()
            .map(|policy| policy.rule.clone())
            .collect();
        let leaving = |outbound: &Outbound| {
            let association = &outbound.association;
            let sealer = Sealer::new(&association.keying, association.extended);
            Ok(Leaving {
                spi: association.spi,
                sealer: sealer.ok_or_else(|| IpsecError::Key(association.name.clone()))?,
                sequence: Sequence::new(outbound.first, association.extended),
                outer: Outer::new(outbound),
                iv_base: iv.wrapping_sub(outbound.first),
            })
        };
        let coming = |inbound: &Inbound| {
            let association = &inbound.association;
            let sealer = Sealer::new(&association.keying, association.extended);
            Ok(Coming {
                sealer: sealer.ok_or_else(|| IpsecError::Key(association.name.clone()))?,
                destination: inbound.destination,
                udp: inbound.udp,
                window: inbound
                    .window
                    .map(|size| Window::new(size, association.extended, inbound.first)),
                allow: inbound.allow.clone(),
            })
        };
        let indices: Vec<u32> = rules
            .inbound
            .iter()
            .map(|inbound| inbound.association.spi)
            .collect();
        let mut ends: Vec<_> = rules
            .inbound
            .iter()
            .map(|inbound| (inbound.destination, inbound.udp))
            .collect();
        ends.sort_unstable();
        ends.dedup();
        Ok(IpsecTable {
            leaving: rules
                .outbound
                .iter()
                .map(leaving)
                .collect::<Result<_, IpsecError>>()?,
            coming: rules
                .inbound
                .iter()
                .map(coming)
                .collect::<Result<_, IpsecError>>()?,
            by_spi: SpiTable::new(&indices),
            ends,
            policies: match matching.len() {
                ..=FEW => Matching::InTurn(matching),
                _ => Matching::Classified(Classifier::new(&matching)?),
            },
            actions: rules.policies.iter().map(|policy| policy.action).collect(),
            default: rules.default,
            mtu: rules.mtu.into(),
            pass_ike: rules.pass_ike,
            pass_keep_alives: rules.pass_keep_alives,
        })
    }

    /// Whether packets come by any association.
    pub fn decapsulates(&self) -> bool {
        !self.coming.is_empty()
    }

    /// Whether ESP to this address, and perhaps UDP port, is for this end.
    #[inline]
    pub(super) fn is_end(&self, address: IpAddr, port: Option<u16>) -> bool {
        match port {
            Some(_) => self.ends.binary_search(&(address, port)).is_ok(),
            // An address at which ESP comes in UDP only is one of ours, too.
            None => {
                let at = self.ends.partition_point(|end| *end < (address, None));
                self.ends.get(at).is_some_and(|end| end.0 == address)
            }
        }
    }

    /// The association of an index, if it is for this address and port.
    #[inline]
    pub(super) fn coming(&self, spi: u32, address: IpAddr, port: Option<u16>) -> Option<&Coming> {
        let found = self.coming.get(self.by_spi.find(spi)?)?;
        (found.destination == address && found.udp == port).then_some(found)
    }

    /// Writes to each of `found` the first policy that matches the key at its place.
    #[inline]
    pub(super) fn find_policies(&self, keys: &[FlowKey], found: &mut [Option<u32>]) {
        match &self.policies {
            Matching::Classified(classifier) => classifier.classify_batch(keys, found),
            Matching::InTurn(rules) => {
                for (key, found) in keys.iter().zip(found) {
                    *found = linear::classify(rules, key);
                }
            }
        }
    }

    /// The action of a policy, or the default.
    #[inline]
    pub(super) fn action_of(&self, policy: Option<u32>) -> PolicyAction {
        let found = policy.and_then(|policy| self.actions.get(policy as usize));
        found.copied().unwrap_or(self.default)
    }
}
