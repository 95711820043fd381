//! Schedulers without isolation, for comparison (ResQ §6). They pack SLOs by the rates of their chains alone, with the
//! cache shared by all or split evenly. Others add instances where SLOs are violated, or use a predictor.
//!
//! The performance of instances that share a cache is not measured here but modelled: see
//! [`contention`](tailwater_placement::contention). All of these schedulers place one instance per core, on servers of
//! one kind with one NUMA node.

mod greedy;

pub use greedy::ResqGreedy;

use tailwater_placement::cluster::ServerKind;
use tailwater_placement::contention::{Shared, rates};
use tailwater_placement::slo::{Curves, ISOLATED};

/// Violations beyond this share of the target count (Figure 8).
pub const ERROR: f64 = 0.05;
/// Maximum rounds of adding instances.
const MOST_ROUNDS: usize = 100;

/// SLO whose instances share caches.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant<'a> {
    /// Curves of its chain alone.
    pub curves: &'a Curves,
    /// References to the cache per packet.
    pub references: f64,
    /// Guaranteed packets per second.
    pub target: f64,
}

/// Instances on servers: for each server the numbers of the tenants, once per instance.
pub type Servers = Vec<Vec<usize>>;

/// Places as many instances of each tenant as its chain would need alone, each on the first server with a free core.
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

/// Returns the share of tenants below their target, if the ways are split evenly among instances.
pub fn violated_evenly(tenants: &[Tenant<'_>], server: &ServerKind, servers: &Servers) -> f64 {
    let bytes = u64::from(server.ways / server.cores) * server.way_bytes;
    let rate = |tenant: &Tenant<'_>| tenant.curves.cache.rate(bytes) * ISOLATED;
    let mut got = vec![0.0; tenants.len()];
    for &tenant in servers.iter().flatten() {
        got[tenant] += rate(&tenants[tenant]);
    }
    violated(tenants, &got)
}

/// Returns the share of tenants below their target, if all instances share `bytes` of cache.
pub fn violated_sharing(tenants: &[Tenant<'_>], bytes: u64, servers: &Servers) -> f64 {
    violated(tenants, &sharing(tenants, bytes, servers))
}

/// E2: starts like [`agnostic`], and adds an instance to each tenant below its target, until there is none. Each
/// instance gets an even part of the tenant's traffic. Returns `None` if that does not terminate.
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

/// Dobrescu et al.: an instance goes to the first server where neither it nor any other instance is predicted to fall
/// below its target. The prediction uses the references to the cache that its neighbours make when they run alone, and
/// measurements against synthetic competitors with as many. If no server suffices, the tenant's load is halved over two
/// servers, and so on.
pub fn predictor(tenants: &[Tenant<'_>], server: &ServerKind, bytes: u64) -> Servers {
    let alone = |t: &Tenant<'_>| t.references * t.curves.cache.most();
    // Rate of an instance against this many competing references per second.
    let predicted = |t: &Tenant<'_>, competing: f64| {
        let part = alone(t) / (alone(t) + competing).max(f64::MIN_POSITIVE);
        t.curves.cache.extended(bytes as f64 * part)
    };
    let mut servers = Servers::new();
    // Required rate of each instance on each server, and the total references there.
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

/// Returns the packets per second of each tenant.
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

/// Adds an instance on the first server with a free core.
fn add(servers: &mut Servers, server: &ServerKind, tenant: usize) {
    let free = |there: &&mut Vec<usize>| there.len() < usize::from(server.cores);
    match servers.iter_mut().find(free) {
        Some(there) => there.push(tenant),
        None => servers.push(vec![tenant]),
    }
}
