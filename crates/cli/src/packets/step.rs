//! Steps as text and JSON.

use serde::Serialize;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tailwater_net::Nanos;
use tailwater_server::control::generated as message;

/// Addresses, ports and protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    ends: [(IpAddr, u32); 2],
    protocol: u32,
}

impl From<&message::TracedStep> for Flow {
    fn from(step: &message::TracedStep) -> Flow {
        Flow {
            ends: [
                (address(&step.source), step.source_port),
                (address(&step.destination), step.destination_port),
            ],
            protocol: step.protocol,
        }
    }
}

/// Address of 4 or 16 bytes; unspecified if it is neither.
fn address(bytes: &[u8]) -> IpAddr {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return IpAddr::from(bytes);
    }
    let bytes = <[u8; 16]>::try_from(bytes);
    bytes.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |bytes| {
        IpAddr::V6(Ipv6Addr::from(bytes))
    })
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            1 => f.write_str("icmp ")?,
            6 => f.write_str("tcp ")?,
            17 => f.write_str("udp ")?,
            58 => f.write_str("icmp6 ")?,
            132 => f.write_str("sctp ")?,
            other => write!(f, "protocol {other} ")?,
        }
        for (at, (address, port)) in self.ends.into_iter().enumerate() {
            if at == 1 {
                f.write_str(" > ")?;
            }
            match (address, port) {
                (address, 0) => write!(f, "{address}")?,
                (IpAddr::V4(address), port) => write!(f, "{address}:{port}")?,
                (IpAddr::V6(address), port) => write!(f, "[{address}]:{port}")?,
            }
        }
        Ok(())
    }
}

/// All steps of a packet, the one in front of the chain first.
pub fn paragraph(steps: &[message::TracedStep]) -> String {
    let Some(first) = steps.first() else {
        return String::new();
    };
    let flow = flow_entry(first);
    let mut text = format!(
        "packet {}: {}, {} bytes, core {}{}{flow}\n",
        first.packet,
        Flow::from(first),
        first.length,
        first.core,
        role(first)
    );
    let width = steps
        .iter()
        .filter_map(|step| step.function.as_ref())
        .map(|name| name.chars().count())
        .max()
        .unwrap_or(0);
    let after = |nanos: u64| format!("+{}", Nanos(nanos.saturating_sub(first.arrival_nanos)));
    let _ = writeln!(
        text,
        "  {:>12}  in a batch of {}",
        after(first.ended_nanos),
        first.batch
    );
    for (before, step) in steps.iter().zip(steps.iter().skip(1)) {
        let name = step.function.as_deref().unwrap_or_default();
        let took = Nanos(step.ended_nanos.saturating_sub(step.began_nanos)).to_string();
        let core = if step.core == before.core {
            String::new()
        } else {
            format!(" on core {}{}", step.core, role(step))
        };
        let _ = writeln!(
            text,
            "  {:>12}  {name:width$}  {took:>9}{core}  {}",
            after(step.ended_nanos),
            change(before, step)
        );
        if !step.explanation.is_empty() {
            let _ = writeln!(
                text,
                "  {:>12}  {:width$}  {:>9}  {}",
                "",
                "",
                "",
                printable(&step.explanation)
            );
        }
    }
    text
}

/// Role of a core other than the chain's dedicated ones.
pub fn role(step: &message::TracedStep) -> &'static str {
    match step.role() {
        message::TraceRole::Auxiliary => " (auxiliary)",
        message::TraceRole::Leased => " (auxiliary, leases the bucket)",
        message::TraceRole::Dedicated | message::TraceRole::Unspecified => "",
    }
}

/// State of a packet's flow.
pub fn flow_entry(step: &message::TracedStep) -> String {
    let Some(entry) = step.flow_entry else {
        return format!(", bucket {}, no flow entry", step.bucket);
    };
    let opens = if step.opens_flow {
        ", opens its flow"
    } else {
        ", known flow"
    };
    let against = if step.reversed { ", against its direction" } else { "" };
    format!(", bucket {}{opens} (entry {entry}{against})", step.bucket)
}

/// Text without control characters, which names of files may have.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Says what a function has done to a packet.
fn change(before: &message::TracedStep, step: &message::TracedStep) -> String {
    if let Some(reason) = &step.dropped {
        return format!("dropped: {reason}");
    }
    let mut parts = Vec::new();
    let flow = Flow::from(step);
    if flow != Flow::from(before) {
        parts.push(format!("now {flow}"));
    }
    if step.length != before.length {
        parts.push(format!("now {} bytes", step.length));
    } else if let Some(changed) = changed_bytes(&before.frame, &step.frame) {
        parts.push(changed);
    }
    match parts.is_empty() {
        true => "passed".to_owned(),
        false => parts.join("; "),
    }
}

/// Ranges of bytes that differ; `None` without one.
fn changed_bytes(before: &[u8], now: &[u8]) -> Option<String> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (at, _) in before
        .iter()
        .zip(now)
        .enumerate()
        .filter(|(_, (before, now))| before != now)
    {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == at => *last = at,
            _ => ranges.push((at, at)),
        }
    }
    const SHOWN: usize = 6;
    let more = if ranges.len() > SHOWN { ", ..." } else { "" };
    let shown = ranges.iter().take(SHOWN).map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    let shown: Vec<String> = shown.collect();
    (!shown.is_empty()).then(|| format!("bytes {}{more} changed", shown.join(", ")))
}

/// Step, as `--output json` prints it. Field names are stable.
#[derive(Debug, Serialize)]
pub struct JsonStep<'s> {
    packet: u32,
    function: Option<&'s str>,
    core: u32,
    arrival_nanoseconds: u64,
    began_nanoseconds: u64,
    ended_nanoseconds: u64,
    batch: u32,
    dropped: Option<&'s str>,
    source: IpAddr,
    destination: IpAddr,
    source_port: u32,
    destination_port: u32,
    protocol: u32,
    opens_flow: bool,
    length: u32,
    frame: String,
    explanation: Option<&'s str>,
    flow_entry: Option<u32>,
    reversed: bool,
    bucket: u32,
    role: &'static str,
}

impl<'s> From<&'s message::TracedStep> for JsonStep<'s> {
    fn from(step: &'s message::TracedStep) -> JsonStep<'s> {
        JsonStep {
            packet: step.packet,
            function: step.function.as_deref(),
            core: step.core,
            arrival_nanoseconds: step.arrival_nanos,
            began_nanoseconds: step.began_nanos,
            ended_nanoseconds: step.ended_nanos,
            batch: step.batch,
            dropped: step.dropped.as_deref(),
            source: address(&step.source),
            destination: address(&step.destination),
            source_port: step.source_port,
            destination_port: step.destination_port,
            protocol: step.protocol,
            opens_flow: step.opens_flow,
            length: step.length,
            frame: step.frame.iter().fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            }),
            explanation: Some(&*step.explanation).filter(|text| !text.is_empty()),
            flow_entry: step.flow_entry,
            reversed: step.reversed,
            bucket: step.bucket,
            role: match step.role() {
                message::TraceRole::Auxiliary => "auxiliary",
                message::TraceRole::Leased => "leased",
                message::TraceRole::Dedicated | message::TraceRole::Unspecified => "dedicated",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(function: Option<&str>, ended: u64) -> message::TracedStep {
        message::TracedStep {
            packet: 3,
            function: function.map(str::to_owned),
            core: 1,
            arrival_nanos: 1000,
            began_nanos: ended - 200,
            ended_nanos: ended,
            batch: 32,
            source: vec![10, 0, 0, 1],
            destination: vec![192, 0, 2, 1],
            source_port: 5000,
            destination_port: 443,
            protocol: 6,
            opens_flow: true,
            flow_entry: Some(17),
            bucket: 300,
            length: 20,
            frame: (0..20).collect(),
            ..message::TracedStep::default()
        }
    }

    #[test]
    fn a_paragraph_says_what_each_function_did() {
        let first = step(None, 2000);
        let passed = step(Some("acl"), 2500);
        let mut translated = step(Some("nat"), 3000);
        translated.source = vec![198, 19, 255, 1];
        for at in [3, 4, 5, 9] {
            translated.frame[at] ^= 1;
        }
        let mut longer = translated.clone();
        longer.function = Some("encrypt".to_owned());
        longer.core = 2;
        longer.role = message::TraceRole::Leased.into();
        longer.explanation = "rule 3 (a.rules:7)".to_owned();
        longer.length = 60;
        let mut dropped = longer.clone();
        dropped.explanation = String::new();
        dropped.dropped = Some("denied".to_owned());
        dropped.function = Some("firewall".to_owned());
        dropped.ended_nanos = 9000;
        let text = paragraph(&[first, passed, translated, longer, dropped]);
        let lines: Vec<_> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "packet 3: tcp 10.0.0.1:5000 > 192.0.2.1:443, 20 bytes, core 1, bucket 300, opens its flow (entry 17)",
                "+1us in a batch of 32",
                "+1.5us acl 200ns passed",
                "+2us nat 200ns now tcp 198.19.255.1:5000 > 192.0.2.1:443; bytes 3-5, 9 changed",
                "+2us encrypt 200ns on core 2 (auxiliary, leases the bucket) now 60 bytes",
                "rule 3 (a.rules:7)",
                "+8us firewall 6.2us dropped: denied",
            ]
        );
        assert_eq!(paragraph(&[]), "");
    }

    #[test]
    fn flows_are_written_as_tcpdump_does() {
        let mut six = step(None, 2000);
        six.source = vec![0; 16];
        six.protocol = 17;
        assert_eq!(Flow::from(&six).to_string(), "udp [::]:5000 > 192.0.2.1:443");
        (six.source_port, six.destination_port, six.protocol) = (0, 0, 50);
        assert_eq!(Flow::from(&six).to_string(), "protocol 50 :: > 192.0.2.1");
    }
}
