//! Reconfiguration of functions while their chain runs. The spec and the files that it names are read again, and a new
//! version is built off the data path for each function that has changed. If all of them can be built, all are applied.
//! Workers adopt a version between two batches.

use super::{ChainBuilder, Shared, classifier_rules, mirror_rules, nat_rules, route_table, tunnel_rules};
use crate::acl::AclRules;
use crate::bpf_filter::BpfRules;
use crate::count::Counters;
use crate::nat::NatTable;
use crate::reload::Reload;
use crate::spec::{ChainSpec, DnsGuardConfig, FunctionConfig, FunctionSpec};
use crate::synthetic::Work;
use crate::upf::UpfTable;
use crate::url_filter::UrlTable;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tailwater_api::SpecError;
use tailwater_chain::live::Live;

/// Prepared version of a function.
struct Ready {
    /// Summary for a user: a number and a noun.
    what: String,
    /// Applies the version. Returns its number, and a note on parts that are left out, if any.
    put: Box<dyn FnOnce() -> (u32, Option<String>)>,
}

impl Ready {
    /// Prepares the next value of a [`Live`] in `holder`.
    fn new<H: 'static, T: 'static>(what: String, (holder, value): (&Arc<H>, T), live: fn(&H) -> &Live<T>) -> Ready {
        let holder = Arc::clone(holder);
        live(&holder).free_unused();
        let put = Box::new(move || (live(&holder).replace(value), None));
        Ready { what, put }
    }
}

/// Formats a number with its noun.
fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// Formats the reason why a configuration is rejected, on one line.
fn refused(error: impl Display) -> String {
    error.to_string()
}

impl Shared {
    /// Builds this function's version for the configuration `new`; `old` is the current one. `kept` is `true` if flow
    /// state is stored externally.
    fn prepare(&self, old: &FunctionConfig, new: &FunctionConfig, kept: bool) -> Result<Ready, String> {
        use FunctionConfig as Of;
        let fixed = |what: &str| {
            Err(format!(
                "expected {what} as it was when the run began: such a change takes a new run"
            ))
        };
        Ok(match (self, old, new) {
            (Shared::Acl(table, _), Of::Acl(old), Of::Acl(new)) => {
                if old.cached != new.cached {
                    return fixed("cache");
                }
                let rules = AclRules::new(&new.rules, new.default).map_err(refused)?;
                let what = count(new.rules.len(), "rule");
                Ready::new(what, (table, rules), |table| table.live())
            }
            (Shared::Classifier(table, _), Of::Classifier(old), Of::Classifier(new)) => {
                let kept = (&old.branches, old.sends(), old.cached);
                if kept != (&new.branches, new.sends(), new.cached) {
                    return fixed("cache, branches, and whether rules send packets out of the chain");
                }
                let rules = classifier_rules(new).map_err(refused)?;
                let what = count(new.rules.len(), "rule");
                Ready::new(what, (table, rules), |table| table.live())
            }
            (Shared::Nat(live, rss), Of::Nat(_), Of::Nat(new)) => {
                if kept {
                    // Redis was queried for free ports of the old pool.
                    return fixed("the pool of a chain whose state is kept outside");
                }
                let table = NatTable::new(nat_rules(new), rss.clone());
                let addresses = new.external.iter().flat_map(super::addresses).count();
                let what = format!("{addresses} external address(es)");
                Ready::new(what, (live, table), |live| live)
            }
            (Shared::LoadBalancer(table), Of::LoadBalancer(old), Of::LoadBalancer(new)) => {
                if (old.table_size, old.no_service) != (new.table_size, new.no_service) {
                    return fixed("tableSize and noService");
                }
                let choices = table.prepare(&new.services).map_err(refused)?;
                let what = count(new.services.len(), "service");
                Ready::new(what, (table, choices), |table| table.live())
            }
            (Shared::UrlFilter(table), Of::UrlFilter(old), Of::UrlFilter(new)) => {
                if old.filter != new.filter {
                    return fixed("everything but patterns");
                }
                let patterns = UrlTable::new(&new.patterns).map_err(refused)?;
                let what = count(new.patterns.len(), "pattern");
                Ready::new(what, (table, patterns), |table| table.live())
            }
            (Shared::Encrypt(live, _), Of::Encrypt(_), Of::Encrypt(new)) => {
                let what = "key and options".to_owned();
                Ready::new(what, (live, new.rules.clone()), |live| live)
            }
            (Shared::IpForward(live, _), Of::IpForward(old), Of::IpForward(new)) => {
                if (old.cached, old.local) != (new.cached, new.local) {
                    return fixed("cache and local");
                }
                let table = route_table(new).map_err(refused)?;
                let what = count(new.routes.len(), "route");
                Ready::new(what, (live, table), |live| live)
            }
            (Shared::Tunnel(live, _), Of::Tunnel(old), Of::Tunnel(new)) => {
                if old.cached != new.cached {
                    return fixed("cache");
                }
                let what = count(new.rules.len(), "rule");
                Ready::new(what, (live, tunnel_rules(new)), |live| live)
            }
            (Shared::Count(table), Of::Count(_), Of::Count(new)) => {
                let counters = Counters::new(new.counters.clone());
                if !table.has_names_of(&counters) {
                    return fixed("counters of the same names in the same order");
                }
                let what = count(new.counters.len(), "counter");
                Ready::new(what, (table, counters), |table| table.live())
            }
            (Shared::Policer(live), Of::Policer(_), Of::Policer(new)) => {
                let now = live.current();
                let next = now.value.next_version(new.limits.clone(), new.default);
                if next.need_missing_flow_state() {
                    return fixed("one limit for all packets, and none of flows");
                }
                let what = count(next.limits().len(), "limit");
                Ready::new(what, (live, next), |live| live)
            }
            (Shared::BpfFilter(live), Of::BpfFilter(old), Of::BpfFilter(new)) => {
                if old.rules.len() != new.rules.len() {
                    return fixed("the number of rules");
                }
                let rules = BpfRules::new(&new.rules, new.default);
                let rules = rules.map_err(|(rule, why)| format!("rule {}: {why}", rule + 1))?;
                let what = count(new.rules.len(), "rule");
                Ready::new(what, (live, rules), |live| live)
            }
            (Shared::Mirror(table), Of::Mirror(old), Of::Mirror(new)) => {
                if old.options != new.options {
                    return fixed("to and buffer");
                }
                let rules = mirror_rules(new).map_err(refused)?;
                let what = "what is copied".to_owned();
                Ready::new(what, (table, rules), |table| table.live())
            }
            (Shared::DnsGuard(table), Of::DnsGuard(old), Of::DnsGuard(new)) => {
                let kept = |config: &DnsGuardConfig| {
                    let rules = &config.rules;
                    (config.sizes, rules.mode, rules.amplification.is_some())
                };
                if kept(old) != kept(new) {
                    return fixed("accounts, queries, mode, and whether there is an amplification");
                }
                let (table, rules) = (Arc::clone(table), new.rules.clone());
                let put = Box::new(move || (table.replace(rules), None));
                let what = "limits".to_owned();
                Ready { what, put }
            }
            (Shared::Synthetic(live, memory), Of::Synthetic(old), Of::Synthetic(new)) => {
                let with_flows = |work: &Work| work.new_flow_cycles > 0;
                if *memory != new.memory || with_flows(&old.work) != with_flows(&new.work) {
                    return fixed("workingSet, pattern, stride, per, and whether newFlowCycles is 0");
                }
                let what = count(new.work.cycles as usize, "cycle");
                Ready::new(what, (live, new.work), |live| live)
            }
            (Shared::Ipsec(live), Of::Ipsec(_), Of::Ipsec(new)) => {
                let rules = &new.rules;
                let next = live.current().value.next_version(rules).map_err(refused)?;
                let what = count(rules.outbound.len() + rules.inbound.len(), "association");
                Ready::new(what, (live, next), |live| live)
            }
            (Shared::Firewall(table), Of::Firewall(old), Of::Firewall(new)) => {
                let kept = (&old.zones, old.default, old.options);
                if kept != (&new.zones, new.default, new.options) {
                    return fixed("everything but rules");
                }
                let rules = table.prepare(&new.rules).map_err(refused)?;
                let what = count(new.rules.len(), "rule");
                let table = Arc::clone(table);
                let put = Box::new(move || (table.activate(rules), None));
                Ready { what, put }
            }
            (Shared::Ids(table), Of::Ids(old), Of::Ids(new)) => {
                if old.options != new.options || old.sources.classes != new.sources.classes {
                    return fixed("everything but rules, variables and what drops");
                }
                let rules = table.prepare(&new.loaded).map_err(refused)?;
                let what = count(new.loaded.rules.len(), "rule");
                let table = Arc::clone(table);
                let put = Box::new(move || (table.put(rules), None));
                Ready { what, put }
            }
            (Shared::Upf(table, _), Of::Upf(old), Of::Upf(new)) => {
                let kept = (&old.options, &old.profiles, &old.usage, &old.api);
                if kept != (&new.options, &new.profiles, &new.usage, &new.api) {
                    return fixed("everything but sessions");
                }
                let sessions = UpfTable::prepare(table, &new.sessions).map_err(|refused| {
                    let lines = refused.iter().map(|(at, why)| {
                        let session = new.sessions.get(*at).map_or(0, |session| session.id);
                        format!("session {session}: {why}")
                    });
                    let (more, first) = (refused.len().saturating_sub(1), lines.take(1));
                    let more = (more > 0).then(|| format!("and {more} more"));
                    first.chain(more).collect::<Vec<_>>().join("; ")
                })?;
                let what = count(new.sessions.len(), "session");
                let put = Box::new(move || {
                    let put = sessions.put();
                    (put.version, put.message())
                });
                Ready { what, put }
            }
            (Shared::WanOptimizer(table), Of::WanOptimizer(old), Of::WanOptimizer(new)) => {
                if old.options != new.options {
                    return fixed("everything but destinations");
                }
                let destinations = new.destinations.clone();
                let what = count(destinations.len(), "destination");
                Ready::new(what, (table, destinations), |table| table.destinations())
            }
            _ => return fixed("this function"),
        })
    }
}

/// Chain that can be reconfigured while it runs.
pub struct Reconfigure {
    spec: ChainSpec,
    functions: Vec<(String, Arc<Shared>)>,
    /// Current configuration of the functions, with the files it comes from.
    present: Mutex<Vec<FunctionSpec>>,
    kept: bool,
}

impl Reconfigure {
    /// Collects the functions of these builders, which were created from parts of one spec. Returns `None` if no part
    /// of it comes from a file.
    pub fn of<'b>(builders: impl Iterator<Item = &'b ChainBuilder>) -> Option<Reconfigure> {
        let (mut functions, mut present, mut first) = (Vec::new(), Vec::new(), None);
        let mut kept = false;
        for builder in builders {
            // Functions created elsewhere cannot be reconfigured from here.
            let own = |spec: &&FunctionSpec| {
                builder.functions.iter().any(|(name, _)| *name == spec.name)
                    && !matches!(spec.config, FunctionConfig::Own(_))
            };
            present.extend(builder.read.functions.iter().filter(own).cloned());
            functions.extend(builder.functions.iter().cloned());
            kept |= builder.origin.is_some();
            first.get_or_insert(&builder.read);
        }
        let reconfigure = Reconfigure {
            spec: first?.clone(),
            functions,
            present: Mutex::new(present),
            kept,
        };
        (!reconfigure.files().is_empty()).then_some(reconfigure)
    }
}

fn lines(error: &SpecError) -> Vec<String> {
    error.to_string().lines().map(str::to_owned).collect()
}

/// Prepared versions of functions, none applied yet. They block other changes until they are applied or dropped.
pub struct Changes<'r> {
    /// Current configuration.
    present: MutexGuard<'r, Vec<FunctionSpec>>,
    ready: Vec<Next>,
}

/// Pending update of a function.
struct Next {
    /// Index of the function in the current configuration.
    at: usize,
    new: FunctionSpec,
    version: Ready,
    /// Warnings about the new configuration.
    warnings: Vec<String>,
}

/// Applied update. It also holds the replaced parts of the spec, which may take a while to drop.
pub struct Put {
    /// Changes, as lines for a user; empty if nothing changed.
    pub news: Vec<String>,
    _replaced: Vec<FunctionSpec>,
}

impl Changes<'_> {
    /// Applies all versions, one function right after the other. Workers adopt them between two batches.
    pub fn put(mut self) -> Put {
        let all = self.ready.into_iter().map(|next| {
            let (what, put) = (next.version.what, next.version.put);
            ((next.at, next.new), (what, next.warnings), put())
        });
        // Applies all versions before any further work on one of them.
        let all: Vec<_> = all.collect();
        let (mut news, mut replaced) = (Vec::new(), Vec::new());
        for ((at, new), (what, warnings), (number, left_out)) in all {
            let name = &new.name;
            let left_out = left_out.map_or(String::new(), |left_out| format!(", {left_out}"));
            news.push(format!("{name}: {what} in force (version {number}){left_out}"));
            news.extend(warnings.iter().map(|line| format!("{name}: {line}")));
            replaced.push(std::mem::replace(&mut self.present[at], new));
        }
        Put {
            news,
            _replaced: replaced,
        }
    }
}

impl Reconfigure {
    /// Reads the files again and builds a version for each changed function, off the data path. This is the slow part
    /// of a change. Nothing takes effect before it is [applied](Changes::put).
    ///
    /// # Errors
    /// If a file or configuration is invalid: one line for each problem.
    pub fn prepare(&self) -> Result<Changes<'_>, Vec<String>> {
        let spec = self.spec.source.read_again();
        let spec = spec.map_err(|error| lines(&error))?;
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut ready, mut errors) = (Vec::new(), Vec::new());
        for (at, old) in present.iter().enumerate() {
            let new = spec.functions.iter().find(|new| new.name == old.name);
            let shared = self.functions.iter().find(|(name, _)| *name == old.name);
            let (Some(new), Some((name, shared))) = (new, shared) else {
                continue;
            };
            if new.config == old.config {
                continue;
            }
            match shared.prepare(&old.config, &new.config, self.kept) {
                Ok(version) => ready.push(Next {
                    at,
                    new: new.clone(),
                    version,
                    warnings: new.config.warnings(),
                }),
                Err(error) => errors.push(format!("{name}: {error}")),
            }
        }
        match errors.is_empty() {
            true => Ok(Changes { present, ready }),
            false => Err(errors),
        }
    }
}

impl Reload for Reconfigure {
    fn files(&self) -> Vec<PathBuf> {
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let named = present.iter().flat_map(|function| function.files.clone());
        let spec = self.spec.source.file().map(PathBuf::from);
        let files: BTreeSet<PathBuf> = named.chain(spec).collect();
        files.into_iter().collect()
    }

    fn reload(&self) -> Result<Vec<String>, Vec<String>> {
        Ok(self.prepare()?.put().news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prepared versions take effect together when they are applied, and not before. Dropping them changes nothing.
    #[test]
    fn what_is_ready_waits_to_be_put() {
        let path = std::env::temp_dir().join(format!("tailwater-ready-{}", std::process::id()));
        let write = |port: u16| {
            let classifier = |name: &str| {
                format!("{{name: {name}, classifier: {{default: next, rules: [{{to: send, sourcePorts: {port}}}]}}}}")
            };
            let text = format!(
                "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: ready}}\nspec:\n  \
                 functions: [{}, {}]\n  slo: {{latency: 200us}}\n",
                classifier("one"),
                classifier("two")
            );
            std::fs::write(&path, text).unwrap();
        };
        write(1);
        let spec = ChainSpec::read(&path).unwrap();
        let builder = ChainBuilder::new(&spec, &spec.rss(), 1).unwrap();
        let numbers = || ["one", "two"].map(|name| builder.classifier(name).unwrap().live().number());
        let reconfigure = Reconfigure::of(std::iter::once(&builder)).unwrap();
        write(2);
        let changes = reconfigure.prepare().unwrap();
        assert_eq!(numbers(), [1, 1]);
        drop(changes);
        assert_eq!(numbers(), [1, 1]);
        let changes = reconfigure.prepare().unwrap();
        let told = changes.put().news;
        assert_eq!(numbers(), [2, 2]);
        let new = told.iter().filter(|line| line.contains("in force (version 2)"));
        assert_eq!(new.count(), 2, "{told:?}");
        // Nothing has changed this time.
        assert_eq!(reconfigure.prepare().unwrap().put().news, [""; 0]);
        assert_eq!(numbers(), [2, 2]);
        std::fs::remove_file(&path).unwrap();
    }
}
