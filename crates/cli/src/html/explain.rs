//! Explanations beside the charts, and advice for each cause of late packets.

use maud::{Markup, html};

/// Returns an explanation of the chart with this id, for a reader who has never seen one, or `None`. Ids of several
/// charts of a kind end with a number.
pub fn chart(id: &str) -> Option<&'static str> {
    let kind = id.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-');
    Some(match kind {
        "latency-cdf" => {
            "Read it from left to right: at a latency, the line's height is the share of packets that took no longer. \
             The scale stretches the top, where the slow packets are. The objective is kept if the line passes above \
             the crossing of the two dashed lines."
        }
        "latency-over-time" => {
            "Each point is one step of the run. p50 is the middle packet, p99 the one that 1 in 100 exceeds, max the \
             slowest. A max that jumps alone is a single disturbance; a p99 that rises with the arrivals is a queue."
        }
        "arrivals" => {
            "The area is the load as a mean; the line above it is the busiest short moment within each step. The \
             further the line is above the area, the more the traffic comes in bursts, and the longer packets queue."
        }
        "drops" => {
            "Dropped packets are decisions of the chain, such as an access list: they do not count against the \
             objective. Lost packets had no room or no time: they count as late."
        }
        "late" => {
            "Each packet beyond the objective gets exactly one cause. Begin with the longest bar, and follow its link. \
             The bars over time show whether packets were late in bursts or all along."
        }
        "cores" => {
            "The share of time in which the cores processed packets. Near 100 %, packets queue; far below it, late \
             packets have another cause than too little processor time."
        }
        "p99-over-time" => {
            "The lower, the better: the time that 1 in 100 packets exceeds. The dashed line is the objective; a policy \
             keeps it while its line is below."
        }
        "p99-cores" => {
            "Each point is a policy: to the left it uses fewer cores, below it is faster. The best ones are at the \
             bottom left. Points above the objective do not count, however few cores they use."
        }
        "burst-waiting" => {
            "Packets that wait during the burst. A line that returns to zero quickly is a policy that absorbs the \
             burst."
        }
        "burst-cores" => {
            "Cores that the policy uses during the burst: it should rise soon after the burst, and fall after it."
        }
        "burst-arrivals" => "The load of the burst that the other charts of this row show in detail.",
        "burst-decisions" => "Each mark is a decision of the policy: when it looked, and how many cores it chose.",
        "latency" => {
            "To the right the load grows, upwards the latency. It stays flat until queues form: plan for a load to the \
             left of that bend."
        }
        "residuals" => "Measured minus predicted: points near zero are predictions that came true.",
        "model" | "curve" => "How much the chain slows down as the other programs use more of what they share.",
        _ => return None,
    })
}

/// Returns the closed line `Explain this to me` beside a chart, which opens by a click, without a script.
pub fn line(id: &str) -> Option<Markup> {
    let text = chart(id)?;
    Some(html! {
        details.explain {
            summary { "Explain this to me" }
            p { (text) }
        }
    })
}

/// Returns advice for a cause: commands and options, and the page with more.
fn advice(cause: &str) -> Option<(&'static str, &'static str)> {
    const LATE: &str = "how-to/late-lost-dropped.md";
    Some(match cause {
        "service" => (
            "The chain takes longer than the objective allows. `tailwater profile latency` shows the time of each \
             function: remove or replace the most expensive one, reduce packets.batch, or relax the objective.",
            "how-to/profile-a-chain.md",
        ),
        "queued-behind-own-flow" => (
            "One flow exceeds a core. Add auxiliary cores (--auxiliary), or limit the flow with a policer per flow.",
            LATE,
        ),
        "queued-behind-others" => (
            "The core is overloaded in bursts. Add auxiliary cores (--auxiliary) or another dedicated core (--cores \
             1,2).",
            "how-to/absorb-bursts.md",
        ),
        "descheduled" => (
            "The operating system or the hypervisor took the core away. `tailwater doctor` finds out why, and \
             `sudo tailwater doctor --fix` changes what can be changed.",
            "how-to/prepare-a-machine.md",
        ),
        "waiting-for-helper" => (
            "The auxiliary core woke up too late. --wait 50us or --wait spin avoids its sleep; `tailwater doctor` \
             checks \
             sleep-states and real-time-throttling.",
            LATE,
        ),
        "migration" => (
            "Packets were buffered while their RSS bucket moved. Use a policy that moves less: tailwater, or static.",
            LATE,
        ),
        "nic-ring-full" => (
            "The core is too slow for the offered rate, or was away for long. Reduce the load, add cores, or raise \
             --ring.",
            LATE,
        ),
        "no-resources" => (
            "A resource was missing: the reason in Drops and losses names it. flow-table-full: raise \
             spec.flows.capacity.",
            LATE,
        ),
        "external" => (
            "An external function took more than half of the objective, or did not return the packet. Check that \
             program.",
            LATE,
        ),
        _ => return None,
    })
}

/// Returns the id of a cause's advice, or `None` for a cause without one.
pub fn advice_id(cause: &str) -> Option<String> {
    advice(cause).map(|_| format!("do-{cause}"))
}

/// Returns the section with the advice for these causes. Empty without causes.
pub fn what_to_do<'c>(causes: impl Iterator<Item = &'c str>) -> Markup {
    let known: Vec<_> = causes.filter_map(|cause| Some((cause, advice(cause)?))).collect();
    html! {
        @if !known.is_empty() {
            section.card id="what-to-do" {
                h2 { "What to do about late packets" }
                dl.advice {
                    @for (cause, (text, docs)) in known {
                        dt id=[advice_id(cause)] { (cause) }
                        dd {
                            // Commands are between backquotes.
                            @for (number, part) in text.split('`').enumerate() {
                                @match number % 2 {
                                    0 => { (part) }
                                    _ => { code { (part) } }
                                }
                            }
                            " More: docs/" (docs)
                        }
                    }
                }
            }
        }
    }
}
