//! State shared by all workers of an IPsec function: keys, sequence numbers, windows and policies, ready for use.

use super::association::{Inbound, IpsecRules, Outbound, PolicyAction};
use super::headers::Outer;
use super::sealer::Sealer;
use super::sequence::{Sequence, Window};
use super::spi_table::SpiTable;
use crate::acl::classifier::{Classifier, ClassifierError};
use crate::acl::{Rule, linear};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_chain::shared_counters::SharedCounters;
use tailwater_net::FlowKey;

/// Reasons rules cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpsecError {
    /// The policies need too much memory.
    #[error("policies: {0}")]
    Policies(#[from] ClassifierError),
    /// A key does not fit its cipher.
    #[error("the key of association {0} does not fit its cipher")]
    Key(String),
    /// A key that was in use has other sequence number parameters.
    #[error(
        "association {0} has a key that was in use with other sequence numbers or another window: expected a new key"
    )]
    Numbers(String),
    /// Decapsulation would start or cease, which is fixed while the function runs.
    #[error("adding the first or removing the last inbound association requires a restart")]
    Decapsulates,
}

/// Sequence number parameters: first number, 64-bit flag, and size of the inbound window.
type Counting = (u64, bool, Option<u32>);

/// Sequence number state of every key ever in use. A key that returns continues its numbers, so that no nonce is used
/// twice and no replay is accepted.
#[derive(Clone, Default)]
struct Numbers {
    leaving: HashMap<Vec<u8>, (Counting, Arc<Sequence>, u64)>,
    coming: HashMap<Vec<u8>, (Counting, Option<Arc<Window>>)>,
}

impl Numbers {
    /// Returns the outbound sequence numbers, and the base of their initialisation vectors.
    fn outbound_sa(
        &mut self,
        outbound: &Outbound,
        (iv, shared_counters): (u64, &SharedCounters),
    ) -> Result<(Arc<Sequence>, u64), IpsecError> {
        let association = &outbound.association;
        let counting = (outbound.first, association.extended, None);
        let known = self.leaving.entry(association.keying.secret().to_vec());
        let (before, sequence, iv_base) = known.or_insert_with(|| {
            let sequence = Sequence::new(outbound.first, association.extended, shared_counters);
            let iv_base = sequence.iv_base(iv.wrapping_sub(outbound.first));
            (counting, Arc::new(sequence), iv_base)
        });
        match *before == counting {
            true => Ok((Arc::clone(sequence), *iv_base)),
            false => Err(IpsecError::Numbers(association.name.clone())),
        }
    }

    /// Returns the inbound window, if any.
    fn add_inbound_sa(
        &mut self,
        inbound: &Inbound,
        shared_counters: &SharedCounters,
    ) -> Result<Option<Arc<Window>>, IpsecError> {
        let association = &inbound.association;
        let counting = (inbound.first, association.extended, inbound.window);
        let known = self.coming.entry(association.keying.secret().to_vec());
        let (before, window) = known.or_insert_with(|| {
            let new = |size| Window::new(size, association.extended, inbound.first, shared_counters);
            (counting, inbound.window.map(new).map(Arc::new))
        });
        match *before == counting {
            true => Ok(window.clone()),
            false => Err(IpsecError::Numbers(association.name.clone())),
        }
    }
}

/// Outbound association, ready for use.
pub(super) struct OutboundSa {
    pub(super) spi: u32,
    pub(super) sealer: Sealer,
    pub(super) sequence: Arc<Sequence>,
    pub(super) outer: Outer,
    /// Value added to a sequence number to make its initialisation vector.
    pub(super) iv_base: u64,
}

/// Inbound association, ready for use.
pub(super) struct InboundSa {
    pub(super) sealer: Sealer,
    pub(super) destination: IpAddr,
    pub(super) udp: Option<u16>,
    pub(super) window: Option<Arc<Window>>,
    allow: Vec<Rule>,
}

impl InboundSa {
    /// Returns `true` if an inner packet with this key is allowed.
    #[inline]
    pub(super) fn allows(&self, key: &FlowKey) -> bool {
        self.allow.is_empty() || linear::classify(&self.allow, key).is_some()
    }
}

/// Returns the time since 1970, in nanoseconds.
fn now() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |time| time.as_nanos() as u64)
}

/// Up to this many policies are scanned linearly, which takes fewer instructions than the classifier.
const FEW: usize = 8;

/// Matching strategy of the policies.
enum Matching {
    InTurn(Vec<Rule>),
    Classified(Classifier),
}

/// One version of associations and policies, ready for use; shared by all workers.
pub struct IpsecTable {
    /// Sequence number state of this and earlier versions.
    numbers: Numbers,
    pub(super) leaving: Vec<OutboundSa>,
    coming: Vec<InboundSa>,
    by_spi: SpiTable,
    /// This endpoint's addresses, each with its UDP port if ESP is in UDP; sorted.
    ends: Vec<(IpAddr, Option<u16>)>,
    policies: Matching,
    actions: Vec<PolicyAction>,
    default: PolicyAction,
    pub(super) mtu: usize,
    pub(super) pass_ike: bool,
    pub(super) pass_keep_alives: bool,
}

impl IpsecTable {
    /// Builds a table from rules. Initialisation vectors start from the current time, so that reusing the same rules
    /// does not reuse vectors.
    ///
    /// # Errors
    /// The policies need too much memory, or a key does not fit its cipher.
    pub fn new(rules: &IpsecRules) -> Result<IpsecTable, IpsecError> {
        IpsecTable::starting_at(rules, now())
    }

    /// Like [`new`](IpsecTable::new), for one of several processes. All of them map `shared_counters`, of [these
    /// bytes](IpsecTable::shared_bytes), which holds sequence numbers and windows. Initialisation vectors start from
    /// the first process's base.
    ///
    /// # Errors
    /// As [`new`](IpsecTable::new).
    pub fn sharing(rules: &IpsecRules, shared_counters: &SharedCounters) -> Result<IpsecTable, IpsecError> {
        IpsecTable::with_numbers(rules, now(), Numbers::default(), shared_counters)
    }

    /// Returns the bytes processes with these rules share. Rules that use one key twice share less.
    pub fn shared_bytes(rules: &IpsecRules) -> usize {
        let leaving = rules.outbound.len() * SharedCounters::bytes_of(Sequence::SHARED);
        let sizes = rules.inbound.iter().filter_map(|inbound| inbound.window);
        let coming = sizes.map(|size| Window::shared(size).map(SharedCounters::bytes_of));
        leaving + coming.flatten().sum::<usize>()
    }

    /// Builds the version that follows this one. Associations that keep their key keep sequence numbers and windows.
    ///
    /// # Errors
    /// As [`new`](IpsecTable::new). Also if a key that was in use has other sequence number parameters. Also if
    /// decapsulation would start or cease, which the chain must know before it runs.
    pub fn next_version(&self, rules: &IpsecRules) -> Result<IpsecTable, IpsecError> {
        if rules.inbound.is_empty() == self.decapsulates() {
            return Err(IpsecError::Decapsulates);
        }
        let shared_counters = SharedCounters::of_this_process();
        IpsecTable::with_numbers(rules, now(), self.numbers.clone(), &shared_counters)
    }

    /// Like [`new`](IpsecTable::new), with the given initialisation vector for each association's first packet.
    pub(super) fn starting_at(rules: &IpsecRules, iv: u64) -> Result<IpsecTable, IpsecError> {
        let shared_counters = SharedCounters::of_this_process();
        IpsecTable::with_numbers(rules, iv, Numbers::default(), &shared_counters)
    }

    fn with_numbers(
        rules: &IpsecRules,
        iv: u64,
        mut numbers: Numbers,
        shared_counters: &SharedCounters,
    ) -> Result<IpsecTable, IpsecError> {
        let matching: Vec<Rule> = rules.policies.iter().map(|policy| policy.rule.clone()).collect();
        let mut leaving = |outbound: &Outbound| {
            let association = &outbound.association;
            let sealer = Sealer::new(&association.keying, association.extended);
            let (sequence, iv_base) = numbers.outbound_sa(outbound, (iv, shared_counters))?;
            Ok(OutboundSa {
                spi: association.spi,
                sealer: sealer.ok_or_else(|| IpsecError::Key(association.name.clone()))?,
                sequence,
                outer: Outer::new(outbound),
                iv_base,
            })
        };
        let leaving = rules
            .outbound
            .iter()
            .map(&mut leaving)
            .collect::<Result<_, IpsecError>>()?;
        let mut coming = |inbound: &Inbound| {
            let association = &inbound.association;
            let sealer = Sealer::new(&association.keying, association.extended);
            Ok(InboundSa {
                sealer: sealer.ok_or_else(|| IpsecError::Key(association.name.clone()))?,
                destination: inbound.destination,
                udp: inbound.udp,
                window: numbers.add_inbound_sa(inbound, shared_counters)?,
                allow: inbound.allow.clone(),
            })
        };
        let coming = rules
            .inbound
            .iter()
            .map(&mut coming)
            .collect::<Result<_, IpsecError>>()?;
        let indices: Vec<u32> = rules.inbound.iter().map(|inbound| inbound.association.spi).collect();
        let mut ends: Vec<_> = rules
            .inbound
            .iter()
            .map(|inbound| (inbound.destination, inbound.udp))
            .collect();
        ends.sort_unstable();
        ends.dedup();
        Ok(IpsecTable {
            numbers,
            leaving,
            coming,
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

    /// Returns `true` if there is an inbound association.
    pub fn decapsulates(&self) -> bool {
        !self.coming.is_empty()
    }

    /// Returns `true` if ESP to this address, and UDP port if any, is for this endpoint.
    #[inline]
    pub(super) fn is_end(&self, address: IpAddr, port: Option<u16>) -> bool {
        match port {
            Some(_) => self.ends.binary_search(&(address, port)).is_ok(),
            // An address that receives ESP only in UDP belongs to this endpoint, too.
            None => {
                let at = self.ends.partition_point(|end| *end < (address, None));
                self.ends.get(at).is_some_and(|end| end.0 == address)
            }
        }
    }

    /// Returns the inbound association with this SPI, if it belongs to this address and port.
    #[inline]
    pub(super) fn inbound_sa(&self, spi: u32, address: IpAddr, port: Option<u16>) -> Option<&InboundSa> {
        let found = self.coming.get(self.by_spi.find(spi)?)?;
        (found.destination == address && found.udp == port).then_some(found)
    }

    /// Writes to each element of `found` the first policy that matches the key at the same index.
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

    /// Returns the action of a policy, or the default.
    #[inline]
    pub(super) fn action_of(&self, policy: Option<u32>) -> PolicyAction {
        let found = policy.and_then(|policy| self.actions.get(policy as usize));
        found.copied().unwrap_or(self.default)
    }
}
