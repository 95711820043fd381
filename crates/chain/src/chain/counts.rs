//! Counts of a chain's packets by reason.

use super::Chain;
use super::stage::{Outcome, Reason, Stage};
use tailwater_api::PacketAction;
use tailwater_net::parse::Malformed;

impl Chain {
    /// All reasons under which the chain counts packets.
    pub fn reasons(&self) -> Vec<Reason> {
        let outcome = |fate| match fate {
            PacketAction::Drop => Outcome::Dropped,
            PacketAction::Pass => Outcome::Passed,
        };
        let malformed = Malformed::ALL.iter().map(|reason| Reason {
            function: None,
            name: format!("malformed/{}", reason.name()),
            outcome: outcome(self.input.malformed),
        });
        let non_ip = Reason {
            function: None,
            name: "non-ip".to_owned(),
            outcome: outcome(self.input.non_ip),
        };
        let lost_unavailable = self.external_state.as_ref().map(|_| "state-unavailable");
        let lost = ["flow-table-full", "bucket-not-held"].into_iter();
        let lost = lost.chain(lost_unavailable).map(|name| Reason {
            function: None,
            name: name.to_owned(),
            outcome: Outcome::Lost,
        });
        let functions = self.stages.iter().flat_map(Stage::reasons);
        malformed.chain([non_ip]).chain(lost).chain(functions).collect()
    }

    /// Packets counted so far under each of the [`reasons`](Chain::reasons), in their order.
    pub fn reason_counts(&self) -> impl Iterator<Item = u64> {
        let functions = self.stages.iter().flat_map(Stage::reason_counts);
        let own = [self.non_ip, self.flow_table_full, self.bucket_not_owned];
        let lost_unavailable = self.external_state.as_ref().map(|keep| keep.lost_unavailable);
        let own = own.into_iter().chain(lost_unavailable);
        self.malformed.iter().copied().chain(own).chain(functions)
    }

    /// Packets lost so far: sum over all reasons whose outcome is [`Outcome::Lost`].
    #[inline]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}
