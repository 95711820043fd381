//! Lower bound on the number of cores, from the frontier's convex hull.

use tailwater_policy::capacity::EpochFrontier;
use tailwater_policy::core::Load;

/// Straight line that no group inside the frontier crosses: `packet_weight * packets + flow_weight * flows <=
/// capacity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    packet_weight: u128,
    flow_weight: u128,
    pub capacity: u128,
}

impl Line {
    pub fn weight(&self, load: Load) -> u128 {
        self.packet_weight * u128::from(load.packets) + self.flow_weight * u128::from(load.flows)
    }
}

/// Returns the edges of the frontier's convex hull. Weights along an edge add up. So a set of flows that weighs more
/// than the capacities of some cores together does not fit on them, however it is cut.
pub(super) fn hull(frontier: &EpochFrontier) -> Vec<Line> {
    // Each flow has at least one packet, so no group has more flows than packets.
    let mut corners = frontier.corners().to_vec();
    corners.push(Load {
        flows: frontier.any(),
        packets: frontier.any(),
    });
    let mut hull = vec![Load {
        flows: 0,
        packets: frontier.largest(),
    }];
    for corner in corners {
        let corner = Load {
            flows: corner.flows.min(corner.packets),
            packets: corner.packets,
        };
        let last = hull[hull.len() - 1];
        if corner.flows <= last.flows {
            continue;
        }
        // Drop corners that lie on or below the line to this one.
        while let [.., before, middle] = hull[..] {
            let across = |a: u32, b: u32| i128::from(a) - i128::from(b);
            let rise = across(middle.packets, before.packets);
            let full_rise = across(corner.packets, before.packets);
            let run = across(middle.flows, before.flows);
            let full_run = across(corner.flows, before.flows);
            if rise * full_run > full_rise * run {
                break;
            }
            hull.pop();
        }
        hull.push(corner);
    }
    let mut lines: Vec<Line> = hull
        .windows(2)
        .map(|pair| {
            let line = Line {
                packet_weight: u128::from(pair[1].flows - pair[0].flows),
                flow_weight: u128::from(pair[0].packets - pair[1].packets),
                capacity: 0,
            };
            Line {
                capacity: line.weight(pair[0]),
                ..line
            }
        })
        .collect();
    lines.push(Line {
        packet_weight: 0,
        flow_weight: 1,
        capacity: u128::from(hull[hull.len() - 1].flows),
    });
    lines
}
