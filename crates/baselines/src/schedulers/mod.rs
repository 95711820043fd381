//! Schedulers of ResQ's evaluation: its own ([`ResqGreedy`]), and those without isolation (ResQ §6): SLOs packed by
//! what their chains do alone, the cache shared by all or split evenly; instances added where they are missed; a
//! predictor.
//!
//! What instances do that share a cache is not measured here but modelled: see
//! [`contention`](tailwater_placement::contention). All schedulers without isolation place one instance a core, on
//! servers of one kind with one NUMA node.

mod greedy;

pub use greedy::ResqGreedy;

use tailwater_placement::cluster::ServerKind;
use tailwater_placement::contention::{Shared, rates};
use tailwater_placement::slo::{Curves, ISOLATED};

/// Violations count above this part of the target (Figure 8).
pub const ERROR: f64 = 0.05;
/// Rounds of adding instances before it is given up.
const MOST_ROUNDS: usize = 100;

/// An SLO whose instances share caches.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant<'a> {
    /// What was measured of its chain alone.
    pub curves: &'a Curves,
    /// References to the cache for each packet.
    pub references: f64,
    /// Packets per second that it was promised.
    pub target: f64,
}

/// Tenants' instances on servers: of each server the tenants, by number, once for each instance.
pub type Servers = Vec<Vec<usize>>;

/// As many instances of each tenant as its chain alone would need, each on the first server with a core.
pub fn agnostic(tenants: &[Tenant<'_>], server: &ServerKind) -> Servers {
    let mut servers = Servers::new();
    for (number, tenant) in tenants.iter().enumerate() {
        let alone = (tenant.target / tenant.curves.cache.most()).ceil().max(1.0);
        for _ in 0..alone as usize {
            add(&mut servers, server, number);
        }
    }
    servers
}

/// The part of the tenants that get less than promised, each instance with an even part of the ways.
pub fn violated_evenly(tenants: &[Tenant<'_>], server: &ServerKind, servers: &Servers) -> f64 {
    let bytes = u64::from(server.ways / server.cores) * server.way_bytes;
    let rate = |tenant: &Tenant<'_>| tenant.curves.cache.rate(bytes) * ISOLATED;
    let mut got = vec![0.0; tenants.len()];
    for &tenant in servers.iter().flatten() {
        got[tenant] += rate(&tenants[tenant]);
    }
    violated(tenants, &got)
}

/// The part of the tenants that get less than promised, while all instances share `bytes` of cache.
pub fn violated_sharing(tenants: &[Tenant<'_>], bytes: u64, servers: &Servers) -> f64 {
    violated(tenants, &sharing(tenants, bytes, servers))
}

/// E2: begins as [`agnostic`], and adds an instance to each tenant that gets too little, until none does; each
/// instance is offered an even part of the tenant's traffic. `None` if that does not end.
pub fn elastic(tenants: &[Tenant<'_>], server: &ServerKind, bytes: u64) -> Option<Servers> {
    let mut servers = agnostic(tenants, server);
    for _ in 0..MOST_ROUNDS {
        let got = sharing(tenants, bytes, &servers);
        let missing = (0..tenants.len()).filter(|&i| got[i] < tenants[i].target * (1.0 - 1e-9));
        let missing: Vec<usize> = missing.collect();
        if missing.is_empty() {
            return Some(servers);
        }
        for tenant in missing {
            add(&mut servers, server, tenant);
        }
    }
    None
}

/// Dobrescu et al.: an instance goes to the first server where, as predicted, neither it nor any that is there gets
/// too little. What an instance gets is predicted from the references to the cache that its neighbours make when
/// they run alone, as measured against synthetic competitors with as many. If no server will do, its tenant gets
/// half on each of two, and so on.
pub fn predictor(tenants: &[Tenant<'_>], server: &ServerKind, bytes: u64) -> Servers {
    let alone = |t: &Tenant<'_>| t.references * t.curves.cache.most();
    // What an instance does against so many references a second.
    let predicted = |t: &Tenant<'_>, competing: f64| {
        let part = alone(t) / (alone(t) + competing).max(f64::MIN_POSITIVE);
        t.curves.cache.extended(bytes as f64 * part)
    };
    let mut servers = Servers::new();
    // What each instance on each server must do, and all references there.
    let mut needs: Vec<Vec<f64>> = Vec::new();
    for (number, tenant) in tenants.iter().enumerate() {
        let mut count = 1;
        while tenant.target / f64::from(count) > tenant.curves.cache.most() {
            count += 1;
        }
        let need = tenant.target / f64::from(count);
        for _ in 0..count {
            let fits = |(there, needs): &(&Vec<usize>, &Vec<f64>)| {
                let all: f64 = there.iter().map(|&i| alone(&tenants[i])).sum();
                let all = all + alone(tenant);
                let met = |i: usize, need: f64| predicted(&tenants[i], all - alone(&tenants[i])) >= need;
                there.len() < usize::from(server.cores)
                    && met(number, need)
                    && there.iter().zip(*needs).all(|(&i, &need)| met(i, need))
            };
            let place = servers.iter().zip(&needs).position(|pair| fits(&pair));
            let place = place.unwrap_or_else(|| {
                servers.push(Vec::new());
                needs.push(Vec::new());
                servers.len() - 1
            });
            servers[place].push(number);
            needs[place].push(need);
        }
    }
    servers
}

/// Packets per second of each tenant.
fn sharing(tenants: &[Tenant<'_>], bytes: u64, servers: &Servers) -> Vec<f64> {
    let mut instances = vec![0_u32; tenants.len()];
    servers.iter().flatten().for_each(|&i| instances[i] += 1);
    let mut got = vec![0.0; tenants.len()];
    for there in servers {
        let shared: Vec<Shared<'_>> = there
            .iter()
            .map(|&i| Shared {
                cache: &tenants[i].curves.cache,
                references: tenants[i].references,
                offered: tenants[i].target / f64::from(instances[i]),
            })
            .collect();
        for (&tenant, rate) in there.iter().zip(rates(&shared, bytes)) {
            got[tenant] += rate;
        }
    }
    got
}

fn violated(tenants: &[Tenant<'_>], got: &[f64]) -> f64 {
    let pairs = tenants.iter().zip(got);
    let less = pairs.filter(|(tenant, got)| **got < tenant.target * (1.0 - ERROR));
    less.count() as f64 / tenants.len().max(1) as f64
}

/// An instance on the first server with a core.
fn add(servers: &mut Servers, server: &ServerKind, tenant: usize) {
    let free = |there: &&mut Vec<usize>| there.len() < usize::from(server.cores);
    match servers.iter_mut().find(free) {
        Some(there) => there.push(tenant),
        None => servers.push(vec![tenant]),
    }
}
