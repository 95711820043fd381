//! Groups touches outside of packets and hot lines into regions, by the instructions that make them.

use crate::lines::Lines;
use std::collections::{BTreeMap, HashSet};
use tailwater_socket::PatternRegion;

/// Regions of a pattern at most, apart from `hot`. The smallest are merged.
const MAX_REGIONS: usize = 6;
/// Touches per packet below which a region is left out.
const NEGLIGIBLE: f64 = 0.002;

/// Touches by one instruction, or by several that touch the same lines. Arrays: few flows, many flows, long packets.
#[derive(Default)]
struct Group {
    lines: [HashSet<u64>; 3],
    reads: [f64; 3],
    writes: [f64; 3],
}

impl Group {
    /// `true` if four times the flows touch clearly more lines.
    fn grows(&self) -> bool {
        self.lines[1].len() as f64 > 1.5 * self.lines[0].len() as f64
    }

    /// Lines by which groups are compared: those of many flows, or of long packets.
    fn all(&self) -> &HashSet<u64> {
        if self.lines[1].is_empty() {
            &self.lines[2]
        } else {
            &self.lines[1]
        }
    }

    fn touches(&self) -> f64 {
        (self.reads[1] + self.writes[1]).max(self.reads[2] + self.writes[2])
    }

    fn absorb(&mut self, other: Group) {
        for (run, lines) in other.lines.into_iter().enumerate() {
            self.lines[run].extend(lines);
            self.reads[run] += other.reads[run];
            self.writes[run] += other.writes[run];
        }
    }

    fn region(&self, name: String, flows: [u32; 2], further_lines: f64) -> PatternRegion {
        let [few, many] = [0, 1].map(|run| self.lines[run].len() as f64 * 64.0);
        let (few_flows, many_flows) = (f64::from(flows[0]), f64::from(flows[1]));
        let (bytes_per_flow, fixed_bytes, span_bytes) = if self.grows() {
            let per_flow = (many - few) / (many_flows - few_flows);
            let lines = &self.lines[1];
            let ends = (lines.iter().min(), lines.iter().max());
            let span = ends.0.zip(ends.1).map_or(0, |(first, last)| last - first + 1) as f64 * 64.0;
            // Lines next to each other grow with the flows; those of a large table are spread over it.
            (
                per_flow,
                (few - per_flow * few_flows).max(0.0),
                if span > 8.0 * many { span } else { 0.0 },
            )
        } else {
            (0.0, (self.all().len() * 64) as f64, 0.0)
        };
        let total = |run: usize| self.reads[run] + self.writes[run];
        PatternRegion {
            name,
            fixed_bytes,
            bytes_per_flow,
            span_bytes,
            reads: self.reads[1],
            writes: self.writes[1],
            reads_per_line: ((total(2) - total(0)) / further_lines).max(0.0),
            parallel: 0.0,
        }
    }
}

/// Regions of recordings with few flows, many flows, and long packets.
pub fn regions(runs: [&Lines; 3], flows: [u32; 2], further_lines: f64) -> Vec<PatternRegion> {
    let mut by_code: BTreeMap<u64, Group> = BTreeMap::new();
    for (run, lines) in runs.iter().enumerate() {
        for touch in &lines.others {
            let group = by_code.entry(touch.code).or_default();
            group.lines[run].insert(touch.line);
            let count = if touch.is_written {
                &mut group.writes
            } else {
                &mut group.reads
            };
            count[run] += 1.0 / lines.packets;
        }
    }
    let mut instructions: Vec<Group> = by_code.into_values().collect();
    instructions.sort_by_key(|group| std::cmp::Reverse(group.all().len()));
    let mut groups: Vec<Group> = Vec::new();
    for group in instructions {
        let shares_lines = |other: &&mut Group| {
            let common = group.all().iter().filter(|line| other.all().contains(line)).count();
            common * 3 > group.all().len()
        };
        match groups.iter_mut().find(shares_lines) {
            Some(other) => other.absorb(group),
            None => groups.push(group),
        }
    }
    groups.sort_by(|a, b| b.touches().total_cmp(&a.touches()));
    while groups.len() > MAX_REGIONS {
        let Some(last) = groups.pop() else {
            break;
        };
        let same = groups.iter().rposition(|group| group.grows() == last.grows());
        groups[same.unwrap_or(MAX_REGIONS - 1)].absorb(last);
    }
    let mut numbers = [0; 2];
    let named = groups
        .iter()
        .filter(|group| group.touches() >= NEGLIGIBLE)
        .map(|group| {
            let number = &mut numbers[usize::from(group.grows())];
            *number += 1;
            let kind = if group.grows() { "flows" } else { "fixed" };
            let mut region = group.region(format!("{kind}-{number}"), flows, further_lines);
            region.parallel = runs[1].parallel;
            region
        });
    named.collect()
}
