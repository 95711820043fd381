//! Packets of chains, the same for all policies, shared between runs with equal traffic.

use crate::error::CliError;
use crate::input::Traffic;
use crate::output::complain;
use crate::signals::unless_stopped;
use crate::timed::Timed;
use crate::values::LONGEST;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tailwater_net::Nanos;
use tailwater_sim::spec::{RackSpec, TrafficSource};
use tailwater_sim::{FlowOptions, Recording, Workload};
use tailwater_traffic::TrafficError;
use tailwater_traffic::bursts::Arrivals;

/// Default duration of presets.
const DEFAULT_DURATION: Nanos = Nanos::from_secs(1);

/// Memory limit for packets of all chains of a run: 32 million packets. Larger traffic is generated or read anew for
/// each run.
const MEMORY: u64 = 512 << 20;

/// Memory use above which loading waits until other packets are released. So the peak is at most one and a half times
/// this.
const ENOUGH: u64 = 1 << 30;

/// Number of packets whose mean length stands for that of all, if not all are in memory.
const SAMPLE: usize = 1 << 16;

/// Interval between checks of the stop flag while waiting for memory.
const PAUSE: Duration = Duration::from_millis(50);

/// Source of a chain's packets, which can be opened repeatedly.
#[derive(Debug)]
pub struct Source {
    traffic: Traffic,
    seed: u64,
    /// Length of the generated traffic of a preset.
    generated: Nanos,
    speed: f64,
    until: Nanos,
    /// Duration to assume if it is unknown.
    length: Nanos,
    /// Memory limit for its packets.
    memory: u64,
    stop: Arc<AtomicBool>,
}

impl Source {
    /// Returns the source of a rack's chain, by its index; `instead` replaces its traffic.
    ///
    /// # Errors
    /// The traffic is unknown, does not last longer than the warm-up, or cannot be scaled.
    pub fn new(
        spec: &RackSpec,
        number: usize,
        instead: Option<&OsStr>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Source, CliError> {
        let chain = &spec.chains[number];
        let named = match (instead, &chain.traffic.source) {
            (Some(name), _) => Traffic::named(name)?,
            (None, TrafficSource::Preset(name)) => Traffic::named(OsStr::new(name))?,
            (None, TrafficSource::File(path)) => Traffic::File(path.clone()),
        };
        let length = spec.duration.unwrap_or(DEFAULT_DURATION);
        // The duration of a whole capture is known only after reading it.
        let is_known = spec.duration.is_some() || matches!(named, Traffic::Preset(_));
        if is_known && length <= spec.warm_up {
            return Err(CliError::Input(format!(
                "spec.warmUp: expected less than the {length} in which packets arrive, found {}",
                spec.warm_up
            )));
        }
        let speed = chain.traffic.rate_scale;
        // Lower bound, since a preset takes some time until its first packets.
        let generated = Nanos::from_secs_f64(length.as_secs_f64() * speed);
        let generated = generated.clamp(Nanos::from_micros(100), LONGEST);
        // Chains with the same preset get different packets.
        let own = spec.seed.wrapping_add(number as u64);
        let source = |traffic, seed, generated, until| Source {
            traffic,
            seed,
            generated,
            speed,
            until,
            length,
            memory: MEMORY / spec.chains.len() as u64,
            stop: Arc::clone(stop),
        };
        Ok(match named {
            Traffic::Preset(preset) => {
                let preset = preset.scaled(chain.traffic.flows_scale);
                let seed = chain.traffic.seed.unwrap_or(own);
                let traffic = Traffic::Preset(Box::new(preset));
                source(traffic, seed, generated, Nanos::MAX)
            }
            Traffic::File(_) if chain.traffic.flows_scale != 1.0 => {
                return Err(CliError::Input(format!(
                    "--traffic: expected a preset, since chain \"{}\" has a flowsScale",
                    chain.name
                )));
            }
            // A capture has no seed.
            file => {
                let until = spec.duration.unwrap_or(Nanos::MAX);
                source(file, 0, Nanos::ZERO, until)
            }
        })
    }

    /// Returns a key; sources with equal keys have equal packets.
    pub fn key(&self) -> String {
        let Source {
            traffic,
            seed,
            generated,
            speed,
            until,
            length,
            memory,
            stop: _,
        } = self;
        format!("{traffic:?} {seed} {generated:?} {speed:?} {until:?} {length:?} {memory}")
    }

    /// Returns the capture file, if it is one.
    pub fn capture(&self) -> Option<&Path> {
        match &self.traffic {
            Traffic::File(path) => Some(path),
            Traffic::Preset(_) => None,
        }
    }

    fn open(&self) -> Result<Timed, TrafficError> {
        let source = self.traffic.arrivals((self.seed, self.generated), false)?;
        Ok(Timed::new(source, self.speed).within(self.until, &self.stop))
    }
}

/// The packets of a chain.
#[derive(Debug)]
pub struct Packets {
    source: Source,
    /// The packets in memory, if there are not too many.
    recording: Option<Arc<Recording>>,
    /// Mean length of a frame, bytes.
    pub mean_bytes: f64,
    /// Time from the first packet to the last, approximately.
    pub duration: Nanos,
    /// Notices for the user.
    notices: Vec<String>,
}

impl Packets {
    fn load(source: Source) -> Result<Packets, CliError> {
        let options = FlowOptions::default();
        match Recording::load(Box::new(source.open()?), options, source.memory) {
            Ok(recording) => Packets::recorded(source, recording),
            Err(TrafficError::MemoryLimit { .. }) => Packets::streamed(source),
            Err(error) => Err(error.into()),
        }
    }

    fn recorded(source: Source, recording: Recording) -> Result<Packets, CliError> {
        if recording.packets() == 0 && !source.stop.load(Ordering::Relaxed) {
            let file = source.open()?.name().to_owned();
            let reason = "there is none within the duration".to_owned();
            return Err(TrafficError::NoPackets { file, reason }.into());
        }
        let notices = recording.notices().iter();
        Ok(Packets {
            mean_bytes: recording.bytes() as f64 / recording.packets().max(1) as f64,
            duration: recording.duration(),
            notices: notices.map(ToString::to_string).collect(),
            recording: Some(Arc::new(recording)),
            source,
        })
    }

    fn streamed(source: Source) -> Result<Packets, CliError> {
        let mut arrivals = source.open()?.silently();
        let (mut packets, mut bytes) = (0, 0);
        while packets < SAMPLE
            && let Some(arrival) = arrivals.next_arrival()?
        {
            packets += 1;
            bytes += u64::from(arrival.bytes);
        }
        Ok(Packets {
            mean_bytes: bytes as f64 / packets.max(1) as f64,
            duration: source.length,
            notices: Vec::new(),
            recording: None,
            source,
        })
    }

    /// Returns all packets for one run.
    ///
    /// # Errors
    /// The source cannot be opened again.
    pub fn workload(&self) -> Result<Workload<'static>, CliError> {
        Ok(match &self.recording {
            Some(recording) => Workload::from(Arc::clone(recording)),
            None => {
                let source = self.source.open()?.silently();
                Workload::stream(Box::new(source), FlowOptions::default())
            }
        })
    }

    fn memory_bytes(&self) -> u64 {
        let recording = self.recording.as_ref();
        recording.map_or(0, |recording| recording.memory_bytes())
    }
}

/// Packets shared between runs. Those of all chains of a run are held together.
#[derive(Debug, Default)]
pub struct PacketCache {
    held: Mutex<Vec<Arc<Set>>>,
    /// Lock of the single loader, with the notices printed so far. It bounds memory, and nothing is loaded twice.
    loading: Mutex<HashSet<String>>,
    /// Signalled when a set is released.
    free: Condvar,
}

/// Packets of all chains of a run.
#[derive(Debug)]
struct Set {
    keys: Vec<String>,
    packets: Vec<Arc<Packets>>,
}

/// A set in use.
pub struct InUse<'s> {
    shared: &'s PacketCache,
    set: Option<Arc<Set>>,
}

impl InUse<'_> {
    /// Returns the packets of each chain.
    pub fn iter(&self) -> impl Iterator<Item = &Packets> {
        let sets = self.set.iter().flat_map(|set| &set.packets);
        sets.map(|packets| &**packets)
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.set = None;
        self.shared.free.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PacketCache {
    /// Returns the packets of a run's chains; `None` once `stop` is set.
    ///
    /// # Errors
    /// Traffic cannot be loaded.
    pub fn get(&self, sources: Vec<Source>, stop: &AtomicBool) -> Result<Option<InUse<'_>>, CliError> {
        let keys: Vec<String> = sources.iter().map(Source::key).collect();
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if let Some(set) = self.find(&keys) {
                return Ok(Some(set));
            }
            let mut told = lock(&self.loading);
            // Another thread may have loaded it meanwhile.
            if let Some(set) = self.find(&keys) {
                return Ok(Some(set));
            }
            let mut held = lock(&self.held);
            let known: Vec<_> = keys.iter().map(|key| find_packets(&held, key)).collect();
            make_room(&mut held, ENOUGH);
            if memory(&held) >= ENOUGH {
                drop(told);
                // While waiting, this thread holds no set that others wait for.
                let waited = self.free.wait_timeout(held, PAUSE);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            drop(held);
            let mut packets: Vec<Arc<Packets>> = Vec::new();
            for (known, source) in known.into_iter().zip(sources) {
                let again = packets.iter().find(|p| p.source.key() == source.key());
                packets.push(match (known, again) {
                    (Some(known), _) => known,
                    (None, Some(again)) => Arc::clone(again),
                    (None, None) => match load(source, stop)? {
                        Some(packets) => Arc::new(packets),
                        None => return Ok(None),
                    },
                });
            }
            for notice in packets.iter().flat_map(|packets| &packets.notices) {
                if told.insert(notice.clone()) {
                    complain("notice", notice);
                }
            }
            let set = Arc::new(Set { keys, packets });
            lock(&self.held).push(Arc::clone(&set));
            return Ok(Some(InUse {
                shared: self,
                set: Some(set),
            }));
        }
    }

    fn find(&self, keys: &[String]) -> Option<InUse<'_>> {
        let held = lock(&self.held);
        let set = held.iter().find(|set| set.keys == keys)?;
        Some(InUse {
            shared: self,
            set: Some(Arc::clone(set)),
        })
    }
}

/// Loads packets; `None` once `stop` is set. A preset may take seconds until its first packet, and cannot be stopped
/// meanwhile.
fn load(source: Source, stop: &AtomicBool) -> Result<Option<Packets>, CliError> {
    unless_stopped(stop, || Packets::load(source)).transpose()
}

fn find_packets(held: &[Arc<Set>], key: &str) -> Option<Arc<Packets>> {
    let chains = held.iter().flat_map(|set| set.keys.iter().zip(&set.packets));
    let mut chains = chains.filter(|(other, _)| *other == key);
    chains.next().map(|(_, packets)| Arc::clone(packets))
}

/// Returns the memory of all held packets; those shared between sets count once.
fn memory(held: &[Arc<Set>]) -> u64 {
    let mut seen = HashSet::new();
    let packets = held.iter().flat_map(|set| &set.packets);
    let distinct = packets.filter(|packets| seen.insert(Arc::as_ptr(packets)));
    distinct.map(|packets| packets.memory_bytes()).sum()
}

/// Releases unused sets, the oldest first, until there is room.
fn make_room(held: &mut Vec<Arc<Set>>, enough: u64) {
    while memory(held) >= enough
        && let Some(unused) = held.iter().position(|set| Arc::strong_count(set) == 1)
    {
        held.remove(unused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Returns two chains, of which the second has the same packets with every seed.
    fn sources(seed: u64, stop: &Arc<AtomicBool>) -> Vec<Source> {
        let chain = |name, seed| {
            format!(
                "    - {{name: {name}, slo: 1ms, costs: {{packetNanoseconds: 1}}, traffic: {{source: \
                 bursty{seed}}}}}\n"
            )
        };
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Rack\nmetadata: {{name: test}}\nspec:\n  \
             servers: [{{cores: 2}}]\n  duration: 1ms\n  seed: {seed}\n  chains:\n{}{}",
            chain("a", ""),
            chain("b", ", seed: 9"),
        );
        let spec = RackSpec::parse(&text, "rack.yaml", Path::new("")).unwrap();
        let source = |number| Source::new(&spec, number, None, stop).unwrap();
        (0..2).map(source).collect()
    }

    #[test]
    fn equal_packets_are_in_memory_once_and_as_long_as_there_is_room() {
        let (shared, stop) = (PacketCache::default(), Arc::new(AtomicBool::new(false)));
        let get = |seed| shared.get(sources(seed, &stop), &stop).unwrap().unwrap();
        let places = |set: &InUse<'_>| -> Vec<*const Packets> { set.iter().map(std::ptr::from_ref).collect() };
        let (first, again, other) = (get(1), get(1), get(2));
        assert_eq!(places(&first), places(&again));
        assert_ne!(places(&first)[0], places(&other)[0]);
        assert_eq!(places(&first)[1], places(&other)[1]);
        let all = memory(&lock(&shared.held));
        let each = |set: &InUse<'_>| set.iter().map(Packets::memory_bytes).sum::<u64>();
        let common = first.iter().nth(1).unwrap().memory_bytes();
        assert_eq!(all, each(&first) + each(&other) - common);
        // Sets in use stay.
        drop((first, other));
        make_room(&mut lock(&shared.held), 1);
        let held = lock(&shared.held).len();
        assert_eq!(held, 1);
        assert!(shared.find(&again.set.as_ref().unwrap().keys).is_some());
        drop(again);
        make_room(&mut lock(&shared.held), 1);
        assert!(lock(&shared.held).is_empty());
        stop.store(true, Ordering::Relaxed);
        assert!(shared.get(sources(1, &stop), &stop).unwrap().is_none());
    }
}
