//! Page of an ingress's software data plane.

use super::Page;
use super::exposition::counter;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use tailwater_cluster::ingress::openflow::FlowStatistics;
use tailwater_cluster::ingress::{Action, SoftwareFigures};
use tailwater_dataplane::report::PortReport;

/// Rules with counters on a page: those with the most packets.
const MOST_RULES: usize = 4096;

/// Counter of ports: its name, its help, and its value.
type PortCounter = (&'static str, &'static str, fn(&PortReport) -> u64);

const PORT_COUNTERS: [PortCounter; 3] = [
    ("ingress_port_received", "Packets received by a port", |port| {
        port.received
    }),
    ("ingress_port_sent", "Packets sent by a port", |port| port.sent),
    (
        "ingress_port_missed",
        "Packets lost because a port's receive ring was full",
        |port| port.missed,
    ),
];

/// Figures of an ingress, for scraping.
#[derive(Debug)]
pub struct IngressPage(Registry);

impl IngressPage {
    /// Page of these figures.
    pub fn new(figures: SoftwareFigures) -> IngressPage {
        let mut registry = Registry::with_prefix("tailwater");
        registry.register_collector(Box::new(Ingress(figures)));
        IngressPage(registry)
    }
}

impl Page for IngressPage {
    fn metrics(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.0)?;
        Ok(page)
    }

    fn is_ready(&self) -> bool {
        true
    }
}

/// Collector that reads the counters.
#[derive(Debug)]
struct Ingress(SoftwareFigures);

impl Collector for Ingress {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut rules = self.0.rules();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.packets));
        rules.truncate(MOST_RULES);
        let help = "Packets that matched a rule";
        let mut family = encoder.encode_descriptor("ingress_rule_packets", help, None, MetricType::Counter)?;
        rules
            .iter()
            .try_for_each(|rule| of_rule(&mut family, rule, rule.packets))?;
        let help = "Bytes of packets that matched a rule";
        let mut family = encoder.encode_descriptor("ingress_rule_bytes", help, None, MetricType::Counter)?;
        rules
            .iter()
            .try_for_each(|rule| of_rule(&mut family, rule, rule.bytes))?;
        let help = "Packets dropped, by reason";
        let mut family = encoder.encode_descriptor("ingress_drops", help, None, MetricType::Counter)?;
        for (reason, packets) in self.0.drops() {
            counter(&mut family, None, Some(("reason", reason)), packets)?;
        }
        let ports = self.0.ports();
        for (name, help, value) in PORT_COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for port in &ports {
                counter(&mut family, None, Some(("port", &port.port)), value(port))?;
            }
        }
        Ok(())
    }
}

fn of_rule(family: &mut MetricEncoder, statistics: &FlowStatistics, count: u64) -> fmt::Result {
    let rule = &statistics.rule;
    let action = match &rule.action {
        Action::Drop => "drop".to_owned(),
        Action::Normal => "normal".to_owned(),
        Action::Controller => "ingress".to_owned(),
        Action::Ports(ports) => {
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            format!("ports {}", ports.join(","))
        }
        Action::Server { mac, .. } => mac.map(|byte| format!("{byte:02x}")).join(":"),
        Action::Other => "other".to_owned(),
    };
    let (priority, matching) = (rule.priority.to_string(), rule.matching.to_string());
    let labels = [("priority", &*priority), ("match", &*matching), ("action", &*action)];
    let mut metric = family.encode_family(&labels)?;
    metric.encode_counter::<NoLabelSet, _, u64>(&count, None)
}
