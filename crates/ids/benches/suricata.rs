//! Detection beside Suricata: the same rules (ET Open) on the same captures. One JSON line per figure on standard
//! output. Captures and rules are located by `TAILWATER_TEST_DATA`; Suricata is `suricata` in the folder
//! `SURICATA_ROOT`, run by `chroot`, or the one in the path. Without either, nothing is measured.
//!
//! - `ids/suricata/SET/precision`, `.../recall`: alerts of both over those of Tailwater, and over those of Suricata. An
//!   alert counts once per capture, connection and rule. SET is `development` or `held-out`: a third of the captures,
//!   by a hash of the name, is kept aside; only those figures are quoted.
//! - `ids/suricata/SET/evasions`: share of malformed HTTP responses with the body seen, of both; and those without any
//!   sign, of Tailwater (`SET` is `http`).
//! - `ids/suricata/SET/rate`: packets per second of processor time of both, without loading. Captures are repeated with
//!   other addresses, so that each pass has new connections.
//!
//! `--details` prints the rules that differ, `--no-rate` leaves out the rates, `--set development` restricts to one
//! set, `--keep FOLDER` keeps the files.

#[path = "../tests/common/evasions.rs"]
mod evasions;
mod suricata {
    pub mod captures;
    pub mod reference;
    pub mod tailwater;
}

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use suricata::captures::{self, Timed};
use suricata::reference::Suricata;
use suricata::tailwater;

/// Alert, compared between both: capture, connection and rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    /// Number of the capture.
    pub capture: usize,
    /// Addresses and ports (0 without ports), the smaller first.
    pub ends: [(IpAddr, u16); 2],
    /// Rule.
    pub sid: u32,
}

impl Hit {
    /// Creates a hit with its ends in order.
    pub fn new(capture: usize, mut ends: [(IpAddr, u16); 2], sid: u32) -> Hit {
        ends.sort_unstable();
        Hit { capture, ends, sid }
    }
}

/// Passes over the captures in a measurement of speed.
const PASSES: u16 = 8;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        // `cargo test --benches` has nothing to check here.
        return;
    }
    let option = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let (Some(data), Some(suricata)) = (
        std::env::var_os("TAILWATER_TEST_DATA").map(PathBuf::from),
        Suricata::find(),
    ) else {
        eprintln!(
            "no figures: TAILWATER_TEST_DATA is not set, or there is neither suricata in the path nor in SURICATA_ROOT"
        );
        return;
    };
    let folder = option("--keep").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("suricata"));
    std::fs::create_dir_all(&folder).expect("a writable folder");
    let rules = captures::rules(&data, &folder).expect("ET Open's rules");
    let details = arguments.iter().any(|argument| argument == "--details");
    let wanted = option("--set");
    let (set, load) = tailwater::compile(&rules);
    print("ids/suricata/load/tailwater", "s", load);
    let all = captures::all(&data, &folder);
    for (name, held_out) in [("development", false), ("held-out", true)] {
        if wanted.as_deref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let some: Vec<_> = all.iter().filter(|capture| capture.is_held_out() == held_out).collect();
        let packets: Vec<Timed> = captures::in_slots(&some);
        let theirs = suricata.run(&packets, &rules, &folder);
        let ours = tailwater::alerts(&set, &packets);
        compare(name, &ours, &theirs.hits, details, &|capture| {
            some[capture].name.clone()
        });
        if arguments.iter().any(|argument| argument == "--no-rate") {
            continue;
        }
        let repeated = captures::repeated(&packets, PASSES);
        let more = suricata.run(&repeated, &rules, &folder);
        let rate = |packets: usize, seconds: f64| packets as f64 / seconds / 1e6;
        let extra = repeated.len() - packets.len();
        let seconds = more.seconds - theirs.seconds;
        eprintln!(
            "{name}: {} packets, repeated {} packets, Suricata {:.1} s and {:.1} s",
            packets.len(),
            repeated.len(),
            theirs.seconds,
            more.seconds
        );
        print(
            &format!("ids/suricata/{name}/rate/suricata"),
            "Mpps",
            rate(extra, seconds),
        );
        let seconds = tailwater::seconds(&set, &repeated);
        print(
            &format!("ids/suricata/{name}/rate/tailwater"),
            "Mpps",
            rate(repeated.len(), seconds),
        );
    }
    if wanted.is_none_or(|wanted| wanted == "evasions") {
        evasions_of(&suricata, &folder, details);
    }
}

/// Compares the alerts of both.
fn compare(set: &str, ours: &BTreeSet<Hit>, theirs: &BTreeSet<Hit>, details: bool, name: &dyn Fn(usize) -> String) {
    let both = ours.intersection(theirs).count() as f64;
    eprintln!(
        "{set}: {} of Tailwater, {} of Suricata, {both} of both",
        ours.len(),
        theirs.len()
    );
    print(
        &format!("ids/suricata/{set}/precision"),
        "share",
        both / ours.len().max(1) as f64,
    );
    print(
        &format!("ids/suricata/{set}/recall"),
        "share",
        both / theirs.len().max(1) as f64,
    );
    if !details {
        return;
    }
    for (title, one, other) in [("only of Suricata", theirs, ours), ("only of Tailwater", ours, theirs)] {
        let mut by_rule: BTreeMap<u32, Vec<&Hit>> = BTreeMap::new();
        one.difference(other)
            .for_each(|hit| by_rule.entry(hit.sid).or_default().push(hit));
        let mut by_rule: Vec<_> = by_rule.into_iter().collect();
        by_rule.sort_by_key(|(_, hits)| std::cmp::Reverse(hits.len()));
        for (sid, hits) in by_rule {
            let hit = hits[0];
            eprintln!(
                "{title}: {:4} of {sid}, as in {} {:?}",
                hits.len(),
                name(hit.capture),
                hit.ends
            );
        }
    }
}

/// Compares both on malformed HTTP responses.
fn evasions_of(suricata: &Suricata, folder: &std::path::Path, details: bool) {
    let rule = format!(
        "alert http any any -> any any (msg:\"evasion\"; flow:established,to_client; file.data; content:\"{}\"; sid:1;)\n",
        evasions::MARKER
    );
    let rules = folder.join("evasions.rules");
    std::fs::write(&rules, rule).expect("a writable folder");
    let all = evasions::responses();
    let packets = captures::conversations(all.iter().map(|(_, response)| &response[..]));
    let theirs = suricata.run(&packets, &rules, folder).hits;
    let (set, _) = tailwater::compile(&rules);
    let ours = tailwater::alerts(&set, &packets);
    let signs = tailwater::anomalies(&set, &packets, all.len());
    let seen = |hits: &BTreeSet<Hit>| hits.iter().map(|hit| hit.capture).collect::<BTreeSet<_>>();
    let (ours, theirs) = (seen(&ours), seen(&theirs));
    let hidden: Vec<_> = (0..all.len()).filter(|i| !ours.contains(i) && !signs[*i]).collect();
    let share = |count: usize| count as f64 / all.len() as f64;
    eprintln!("http: {} responses", all.len());
    print("ids/suricata/http/evasions/suricata", "share", share(theirs.len()));
    print("ids/suricata/http/evasions/tailwater", "share", share(ours.len()));
    print(
        "ids/suricata/http/evasions/without-a-sign",
        "share",
        share(hidden.len()),
    );
    if details {
        theirs
            .difference(&ours)
            .for_each(|i| eprintln!("only of Suricata: {}", all[*i].0));
        ours.difference(&theirs)
            .for_each(|i| eprintln!("only of Tailwater: {}", all[*i].0));
    }
}

/// Returns the processor time of this process, and of its children that have ended, in seconds. The kernel counts in
/// hundredths.
pub fn processor_seconds() -> [f64; 2] {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = text.rsplit(')').next().unwrap_or_default();
    let fields = behind_name.split_whitespace().skip(11).take(4);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    match ticks[..] {
        [user, system, of_children, system_of_children] => {
            [user + system, of_children + system_of_children].map(|ticks| ticks / 100.0)
        }
        _ => [0.0; 2],
    }
}

fn print(name: &str, unit: &str, value: f64) {
    println!("{{\"name\": \"{name}\", \"value\": {value:.4}, \"unit\": \"{unit}\"}}");
}
