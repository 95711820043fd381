//! Parts into which external functions cut a chain.

use super::attachment::Attached;
use super::own_buckets::OwnBuckets;
use super::stage::ExternalStage;
use crate::meter::Counting;
use crate::worker::context::CountedChain;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, FunctionTotals, Reason};
use tailwater_functions::spec::ChainSpec;

/// Parts of a chain, and the external functions between them.
pub(crate) struct Parts {
    pub(super) chains: Vec<CountedChain>,
    /// External functions: one fewer than parts.
    pub(super) stages: Vec<ExternalStage>,
}

impl Parts {
    /// Parts of `spec` with its external functions' ports, and the buffers of packets that come back. `buckets` are
    /// those of the worker.
    pub(crate) fn new(
        spec: &ChainSpec,
        chains: Vec<Chain>,
        attached: Attached,
        (seed, buckets): (u64, OwnBuckets),
    ) -> (Parts, BufferPool) {
        let slo = spec.slo.budget();
        let functions = spec.externals().zip(attached.attachments);
        let stages = functions.zip(seed..);
        let stages = stages.map(|((function, attachment), seed)| {
            ExternalStage::new(function, attachment, (spec.rss(), buckets.clone(), seed), slo)
        });
        let parts = Parts {
            chains: chains.into_iter().map(CountedChain::new).collect(),
            stages: stages.collect(),
        };
        (parts, attached.pool)
    }

    /// All reasons for which packets are counted. A part's reasons that belong to no function are qualified by the
    /// external function in front.
    pub(crate) fn reasons<'c>(spec: &ChainSpec, mut chains: impl Iterator<Item = &'c Chain>) -> Vec<Reason> {
        let mut reasons = chains.next().map(Chain::reasons).unwrap_or_default();
        let parts = spec.parts();
        let behind = chains.zip(&parts[1..]);
        for (function, (chain, part)) in spec.externals().zip(behind) {
            reasons.extend(ExternalStage::reasons(function));
            let of_function = |name: &str| {
                let function = name.split_once('/').map(|(function, _)| function);
                let mut functions = part.functions.iter();
                functions.any(|other| Some(other.name.as_str()) == function)
            };
            reasons.extend(chain.reasons().into_iter().map(|reason| {
                if of_function(&reason.name) {
                    return reason;
                }
                Reason {
                    name: format!("after-{}/{}", function.0, reason.name),
                    ..reason
                }
            }));
        }
        reasons
    }
}

impl Counting for Parts {
    fn count(&self, counts: &mut Vec<u64>) {
        let mut stages = self.stages.iter();
        for chain in &self.chains {
            counts.extend(chain.reason_counts());
            counts.extend(stages.next().into_iter().flat_map(ExternalStage::reason_counts));
        }
    }

    fn count_functions(&self, totals: &mut Vec<FunctionTotals>) {
        totals.extend(self.chains.iter().flat_map(|chain| chain.function_totals()));
    }

    fn flows(&self) -> u64 {
        self.chains.iter().map(|chain| Chain::flows(chain) as u64).sum()
    }
}
