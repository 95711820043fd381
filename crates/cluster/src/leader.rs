//! One of several controllers leads, by a lease of the API server.
//!
//! As in Kubernetes' own components, nobody compares clocks: a lease has expired when its record has not changed for
//! its duration, by the clock of the one who waits. A leader that cannot renew its lease stops leading after two thirds
//! of the duration, before anybody else starts. Two that write at the same time are told apart by the version of the
//! record: the second write is refused.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Longest time between renewals: they also show that the API server lives.
const MOST_PERIOD: Duration = Duration::from_secs(1);

/// Election of a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// Unique name of this candidate, such as that of its pod.
    pub identity: String,
    /// Time after which a leader that does not renew its lease is replaced. Whole seconds.
    pub duration: Duration,
}

impl ElectionConfig {
    /// Time between renewals, and between looks of those who wait.
    pub fn period(&self) -> Duration {
        (self.duration / 5).min(MOST_PERIOD)
    }

    /// Time without a renewal after which a leader stops leading.
    fn deadline(&self) -> Duration {
        self.duration * 2 / 3
    }
}

/// Next step of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Write the lease with this candidate as its holder.
    Write,
    /// Somebody else leads.
    Wait,
}

/// Candidate, with the lease as it has seen it, and when.
#[derive(Clone, Debug, Default)]
struct Candidate {
    identity: String,
    /// Record, and the time since when it has been the same.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Candidate {
    /// Decides by the lease as it is now.
    fn step(&mut self, lease: Option<&LeaseSpec>, now: Instant) -> Step {
        let Some(lease) = lease else {
            return Step::Write;
        };
        let holder = lease.holder_identity.as_deref().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if seen == lease => *since,
            _ => {
                self.seen = Some((lease.clone(), now));
                now
            }
        };
        let duration = Duration::from_secs(lease.lease_duration_seconds.unwrap_or_default().max(0) as u64);
        match holder.is_empty() || holder == self.identity || now.duration_since(since) >= duration {
            true => Step::Write,
            false => Step::Wait,
        }
    }
}

/// Record with this candidate as its holder.
fn held(config: &ElectionConfig, before: Option<&LeaseSpec>, now: Timestamp) -> LeaseSpec {
    let is_renewal = before.is_some_and(|spec| spec.holder_identity.as_deref() == Some(&config.identity));
    let acquired = before.and_then(|spec| spec.acquire_time.clone()).filter(|_| is_renewal);
    let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(config.identity.clone()),
        lease_duration_seconds: Some(config.duration.as_secs() as i32),
        acquire_time: Some(acquired.unwrap_or(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions + i32::from(before.is_some() && !is_renewal)),
        ..LeaseSpec::default()
    }
}

/// Takes part in the election until `stop` is set, and gives the lease back then. `leading` tells if this candidate
/// leads.
pub async fn campaign(
    client: Client,
    config: &ElectionConfig,
    leading: &watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
) {
    let api: Api<Lease> = Api::namespaced(client, &config.namespace);
    let mut candidate = Candidate {
        identity: config.identity.clone(),
        seen: None,
    };
    let mut renewed = None::<Instant>;
    let set = |is_leading: bool| {
        leading.send_if_modified(|leading| std::mem::replace(leading, is_leading) != is_leading);
    };
    while !*stop.borrow() {
        let began = Instant::now();
        // A call that hangs must not outlast the deadline of a leader.
        match timeout(config.period(), attempt(&api, config, &mut candidate)).await {
            Ok(Ok(true)) => {
                renewed = Some(began);
                set(true);
            }
            Ok(Ok(false)) => {
                renewed = None;
                set(false);
            }
            Ok(Err(_)) | Err(_) => {
                if renewed.is_none_or(|renewed| renewed.elapsed() + config.period() >= config.deadline()) {
                    set(false);
                }
            }
        }
        tokio::select! {
            () = sleep(config.period().saturating_sub(began.elapsed())) => {}
            changed = stop.changed() => if changed.is_err() { break },
        }
    }
    if *leading.borrow() {
        set(false);
        // Without an answer the lease expires by itself.
        let _ = timeout(config.period(), give_back(&api, config)).await;
    }
}

/// Reads the lease, and writes it if this candidate may hold it. Returns `true` if it leads.
async fn attempt(api: &Api<Lease>, config: &ElectionConfig, candidate: &mut Candidate) -> kube::Result<bool> {
    let found = api.get_opt(&config.name).await?;
    let before = found.as_ref().and_then(|lease| lease.spec.as_ref());
    if candidate.step(before, Instant::now()) == Step::Wait {
        return Ok(false);
    }
    let spec = Some(held(config, before, Timestamp::now()));
    let written = match found {
        Some(lease) => {
            let lease = Lease { spec, ..lease };
            api.replace(&config.name, &PostParams::default(), &lease).await
        }
        None => {
            let metadata = ObjectMeta {
                name: Some(config.name.clone()),
                ..ObjectMeta::default()
            };
            api.create(&PostParams::default(), &Lease { metadata, spec }).await
        }
    };
    match written {
        Ok(_) => Ok(true),
        // Somebody else was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

async fn give_back(api: &Api<Lease>, config: &ElectionConfig) -> kube::Result<()> {
    if let Some(mut lease) = api.get_opt(&config.name).await?
        && let Some(spec) = &mut lease.spec
        && spec.holder_identity.as_deref() == Some(&config.identity)
    {
        spec.holder_identity = None;
        api.replace(&config.name, &PostParams::default(), &lease).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(identity: &str) -> ElectionConfig {
        ElectionConfig {
            namespace: "tailwater".to_owned(),
            name: "controller".to_owned(),
            identity: identity.to_owned(),
            duration: Duration::from_secs(10),
        }
    }

    fn candidate(identity: &str) -> Candidate {
        Candidate {
            identity: identity.to_owned(),
            seen: None,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_lease_is_taken_when_its_record_has_not_changed_for_its_duration() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut second = candidate("second");
        assert_eq!(second.step(None, start), Step::Write);
        let lease = held(&config("first"), None, at(100));
        assert_eq!(second.step(Some(&lease), start), Step::Wait);
        assert_eq!(second.step(Some(&lease), after(9)), Step::Wait);
        let renewed = held(&config("first"), Some(&lease), at(109));
        assert_eq!(second.step(Some(&renewed), after(10)), Step::Wait);
        assert_eq!(second.step(Some(&renewed), after(19)), Step::Wait);
        assert_eq!(second.step(Some(&renewed), after(20)), Step::Write);
    }

    #[test]
    fn the_holder_renews_and_a_free_lease_is_taken_at_once() {
        let now = Instant::now();
        let lease = held(&config("first"), None, at(100));
        assert_eq!(candidate("first").step(Some(&lease), now), Step::Write);
        let free = LeaseSpec {
            holder_identity: None,
            ..lease
        };
        assert_eq!(candidate("second").step(Some(&free), now), Step::Write);
    }

    #[test]
    fn transitions_are_counted_and_renewals_keep_the_time_of_acquisition() {
        let first = held(&config("first"), None, at(100));
        assert_eq!(first.lease_transitions, Some(0));
        let renewed = held(&config("first"), Some(&first), at(102));
        assert_eq!(
            (renewed.lease_transitions, renewed.acquire_time.unwrap().0),
            (Some(0), at(100))
        );
        let second = held(&config("second"), Some(&first), at(120));
        assert_eq!(
            (second.lease_transitions, second.acquire_time.unwrap().0),
            (Some(1), at(120))
        );
    }

    #[test]
    fn a_leader_stops_before_anybody_else_starts() {
        let config = config("first");
        assert!(config.deadline() < config.duration);
        assert!(config.period() * 2 < config.deadline());
    }
}
