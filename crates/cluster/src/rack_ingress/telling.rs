//! News in instances' statuses: whether packets are steered to them, and why not as their chain says.

use super::feed::Feed;
use crate::ingress::{Output, SwitchLimits};
use crate::notices::Notices;
use crate::resources::{ChainInstance, SteeringLimit};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tailwater_policy::server::ServerNumber;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Wait after a request to the API server has failed.
const RETRY: Duration = Duration::from_secs(1);
/// Longest time of a request to the API server.
const REQUEST: Duration = Duration::from_secs(5);

/// News of an instance. A name that is used again is another instance's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    uid: String,
    is_steered: bool,
    reason: Option<String>,
    pub(super) limit: Option<SteeringLimit>,
}

/// News, by namespace and name of the instance.
pub(super) type Steered = BTreeMap<String, Told>;

/// News that have been told.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Instances of which it said whether they can have packets.
    usable: HashMap<ServerNumber, bool>,
    /// Refused chains: why, and whether their match of before is in force.
    refused: BTreeMap<String, (String, bool)>,
    limits: SwitchLimits,
}

impl Said {
    /// Takes an output. Returns `true` if something may be to tell.
    pub(super) fn take(&mut self, output: &Output) -> bool {
        match output {
            Output::ServerUsable(server) => drop(self.usable.insert(*server, true)),
            Output::ServerDrained(server) | Output::ServerLost { server, .. } => {
                self.usable.insert(*server, false);
            }
            Output::ChainRefused { chain, why, is_steered } => {
                self.refused.insert(chain.clone(), (why.clone(), *is_steered));
            }
            Output::ChainAccepted(chain) => drop(self.refused.remove(chain)),
            Output::Limits(limits) => self.limits = limits.clone(),
            _ => return false,
        }
        true
    }

    /// Returns what is to be told of the instances that there are, and forgets others.
    pub(super) fn of(&mut self, feed: &Feed) -> Steered {
        self.refused.retain(|chain, _| feed.has_chain(chain));
        let mut usable = HashMap::new();
        let mut steered = Steered::new();
        for (name, instance) in feed.instances() {
            let is_usable = self.usable.get(&instance.number).copied();
            usable.extend(is_usable.map(|is_usable| (instance.number, is_usable)));
            let refused = self.refused.get(&instance.chain);
            if is_usable.is_none() && refused.is_none() {
                continue;
            }
            let told = Told {
                uid: instance.uid.clone(),
                is_steered: is_usable == Some(true) && refused.is_none_or(|(_, is_steered)| *is_steered),
                reason: refused.map(|(why, _)| why.clone()),
                limit: limit(&self.limits, &instance.chain),
            };
            steered.insert(name.to_owned(), told);
        }
        self.usable = usable;
        steered
    }
}

/// Limit of the switch that a chain is under: the worst one.
fn limit(limits: &SwitchLimits, chain: &str) -> Option<SteeringLimit> {
    let foreign = limits.foreign.get(chain).or_else(|| limits.foreign.get(""));
    let (reason, message) = match foreign {
        Some(rule) => (
            "ForeignRule",
            format!(
                "the switch has a rule of another owner in the place of one of the ingress, and packets follow it \
                 ({rule}): delete it, or run the ingress with a switch, or a table of it, of its own"
            ),
        ),
        None if limits.is_too_small => (
            "TableTooSmall",
            "the switch's table has no room for all rules: packets go by less specific rules, or by none. Enlarge it \
             (--table), delete rules of other owners, or shorten the lists in chains' spec.match"
                .to_owned(),
        ),
        None if limits.is_full => (
            "TableFull",
            "the switch's table is full: new prefixes share a default server. Enlarge it (--table), delete rules of \
             other owners, or let rows be of shorter prefixes (--prefix-v4, --prefix-v6)"
                .to_owned(),
        ),
        None => return None,
    };
    let reason = reason.to_owned();
    Some(SteeringLimit { reason, message })
}

/// Writes into instances' statuses what is to be told, beside the steering, which must not wait for the API server.
pub(super) async fn tell(client: Client, mut steered: watch::Receiver<Steered>, notices: Notices) {
    let mut told = Steered::new();
    loop {
        let now = steered.borrow_and_update().clone();
        let mut has_failed = false;
        for (name, tells) in &now {
            if told.get(name) == Some(tells) {
                continue;
            }
            let (namespace, short) = name.split_once('/').unwrap_or_default();
            let api: Api<ChainInstance> = Api::namespaced(client.clone(), namespace);
            let patch = json!({"status": {
                "steered": tells.is_steered, "steeringReason": tells.reason, "steeringLimit": tells.limit,
            }});
            let patch = Patch::Merge(patch);
            match timeout(REQUEST, api.patch_status(short, &PatchParams::default(), &patch)).await {
                Ok(Ok(_)) => {}
                // The instance is gone. Another one with its name has an identity of its own, and its own news.
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
                Ok(Err(error)) => {
                    notices.warn(&format!("instance {name}: {error}"));
                    has_failed = true;
                    continue;
                }
                Err(_) => {
                    notices.warn("no answer of the API server");
                    has_failed = true;
                    break;
                }
            }
            told.insert(name.clone(), tells.clone());
        }
        told.retain(|name, _| now.contains_key(name));
        if has_failed {
            sleep(RETRY).await;
        } else if steered.changed().await.is_err() {
            return;
        }
    }
}
