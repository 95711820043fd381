//! What all workers of an IPsec function share: keys, sequence numbers, windows and policies, ready to be used.

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
use tailwater_chain::commons::Commons;
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
    /// Sequence numbers of a key that was in use were to begin otherwise.
    #[error(
        "association {0} has a key that was in use with other sequence numbers, or another window: give it a new key"
    )]
    Numbers(String),
    /// Packets come out of tunnels, and did not before, or the other way round.
    #[error("inbound associations cannot be the first, or the last to go, while it runs")]
    Decapsulates,
}

/// How sequence numbers are counted: the first, whether they have 64 bits, and the window of those that come.
type Counting = (u64, bool, Option<u32>);

/// What is counted for each key that was ever in use: a key that comes back goes on with its numbers, so that no nonce is
/// used twice and no replay is taken.
#[derive(Clone, Default)]
struct Numbers {
    leaving: HashMap<Vec<u8>, (Counting, Arc<Sequence>, u64)>,
    coming: HashMap<Vec<u8>, (Counting, Option<Arc<Window>>)>,
}

impl Numbers {
    /// The numbers of packets that leave, and what makes their initialisation vectors.
    fn leaving(
        &mut self,
        outbound: &Outbound,
        (iv, commons): (u64, &Commons),
    ) -> Result<(Arc<Sequence>, u64), IpsecError> {
        let association = &outbound.association;
        let counting = (outbound.first, association.extended, None);
        let known = self.leaving.entry(association.keying.secret().to_vec());
        let (before, sequence, iv_base) = known.or_insert_with(|| {
            let sequence = Sequence::new(outbound.first, association.extended, commons);
            let iv_base = sequence.iv_base(iv.wrapping_sub(outbound.first));
            (counting, Arc::new(sequence), iv_base)
        });
        match *before == counting {
            true => Ok((Arc::clone(sequence), *iv_base)),
            false => Err(IpsecError::Numbers(association.name.clone())),
        }
    }

    /// The window of packets that come.
    fn coming(&mut self, inbound: &Inbound, commons: &Commons) -> Result<Option<Arc<Window>>, IpsecError> {
        let association = &inbound.association;
        let counting = (inbound.first, association.extended, inbound.window);
        let known = self.coming.entry(association.keying.secret().to_vec());
        let (before, window) = known.or_insert_with(|| {
            let new = |size| Window::new(size, association.extended, inbound.first, commons);
            (counting, inbound.window.map(new).map(Arc::new))
        });
        match *before == counting {
            true => Ok(window.clone()),
            false => Err(IpsecError::Numbers(association.name.clone())),
        }
    }
}

/// An association that packets leave by, in use.
pub(super) struct Leaving {
    pub(super) spi: u32,
    pub(super) sealer: Sealer,
    pub(super) sequence: Arc<Sequence>,
    pub(super) outer: Outer,
    /// What is added to a sequence number to make an initialisation vector.
    pub(super) iv_base: u64,
}

/// An association that packets come by, in use.
pub(super) struct Coming {
    pub(super) sealer: Sealer,
    pub(super) destination: IpAddr,
    pub(super) udp: Option<u16>,
    pub(super) window: Option<Arc<Window>>,
    allow: Vec<Rule>,
}

impl Coming {
    /// Whether a packet with this key may come out.
    #[inline]
    pub(super) fn allows(&self, key: &FlowKey) -> bool {
        self.allow.is_empty() || linear::classify(&self.allow, key).is_some()
    }
}

/// The time since 1970 in nanoseconds.
fn now() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |time| time.as_nanos() as u64)
}

/// Up to so many policies are tried in turn: fewer instructions than the classifier takes for any number.
const FEW: usize = 8;

/// What policies match.
enum Matching {
    InTurn(Vec<Rule>),
    Classified(Classifier),
}

/// One version of associations and policies, ready to be used; shared by all workers.
pub struct IpsecTable {
    /// Of this version and those before.
    numbers: Numbers,
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
        IpsecTable::starting_at(rules, now())
    }

    /// As [`new`](IpsecTable::new), for one of several processes: all of them have `commons` of
    /// [these bytes](IpsecTable::shared_bytes), in which sequence numbers and windows are, and initialisation vectors
    /// begin as they do for the first of them.
    ///
    /// # Errors
    /// As [`new`](IpsecTable::new).
    pub fn sharing(rules: &IpsecRules, commons: &Commons) -> Result<IpsecTable, IpsecError> {
        IpsecTable::with_numbers(rules, now(), Numbers::default(), commons)
    }

    /// The bytes of what processes share that have these rules: those that have one key twice share less.
    pub fn shared_bytes(rules: &IpsecRules) -> usize {
        let leaving = rules.outbound.len() * Commons::bytes_of(Sequence::SHARED);
        let sizes = rules.inbound.iter().filter_map(|inbound| inbound.window);
        let coming = sizes.map(|size| Window::shared(size).map(Commons::bytes_of));
        leaving + coming.flatten().sum::<usize>()
    }

    /// The version that follows this one. Associations that keep their key keep their sequence numbers and windows.
    ///
    /// # Errors
    /// As [`new`](IpsecTable::new); if a key that was in use is to count otherwise; if packets come out of tunnels where
    /// none did, or none where they did, which the chain must know of before it runs.
    pub fn succeed(&self, rules: &IpsecRules) -> Result<IpsecTable, IpsecError> {
        if rules.inbound.is_empty() == self.decapsulates() {
            return Err(IpsecError::Decapsulates);
        }
        let commons = Commons::of_this_process();
        IpsecTable::with_numbers(rules, now(), self.numbers.clone(), &commons)
    }

    /// As [`new`](IpsecTable::new), with the initialisation vector of each association's first packet.
    pub(super) fn starting_at(rules: &IpsecRules, iv: u64) -> Result<IpsecTable, IpsecError> {
        let commons = Commons::of_this_process();
        IpsecTable::with_numbers(rules, iv, Numbers::default(), &commons)
    }

    fn with_numbers(
        rules: &IpsecRules,
        iv: u64,
        mut numbers: Numbers,
        commons: &Commons,
    ) -> Result<IpsecTable, IpsecError> {
        let matching: Vec<Rule> = rules.policies.iter().map(|policy| policy.rule.clone()).collect();
        let mut leaving = |outbound: &Outbound| {
            let association = &outbound.association;
            let sealer = Sealer::new(&association.keying, association.extended);
            let (sequence, iv_base) = numbers.leaving(outbound, (iv, commons))?;
            Ok(Leaving {
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
            Ok(Coming {
                sealer: sealer.ok_or_else(|| IpsecError::Key(association.name.clone()))?,
                destination: inbound.destination,
                udp: inbound.udp,
                window: numbers.coming(inbound, commons)?,
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
