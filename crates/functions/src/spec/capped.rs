//! Chains with a cap: a policer in front of their functions.

use super::chain::ChainSpec;
use super::function::FunctionSpec;
use crate::policer::{ExceedAction, Limit, Meter, PolicerConfig, Rate, Scope};
use tailwater_api::chain::OnFailure;

/// Name of the policer that caps a chain.
pub const CAP: &str = "cap";

impl ChainSpec {
    /// Returns the chain with a policer named [`CAP`] in front, which drops packets beyond this rate, in packets per
    /// second, and burst, in packets. It is there, too, in what is [read again](ChainSpec::read_again).
    ///
    /// # Panics
    /// If the rate is 0.
    #[must_use]
    pub fn capped(mut self, rate: u64, burst: u64) -> ChainSpec {
        let limit = Limit {
            source: None,
            destination: None,
            protocol: None,
            scope: Scope::All,
            committed: Meter::new(Rate::Packets(rate), burst),
            peak: None,
            conforming: ExceedAction::Pass,
            exceeding: ExceedAction::Pass,
            violating: ExceedAction::Drop,
        };
        let config = PolicerConfig {
            limits: vec![limit],
            default: ExceedAction::Pass,
        };
        let policer = FunctionSpec {
            name: CAP.to_owned(),
            config: config.into(),
            files: Vec::new(),
            branch: None,
            on_failure: OnFailure::default(),
        };
        self.functions.insert(0, policer);
        self.source = self.source.with_parts(&self.settings, &self.functions, &self.branches);
        self.source.set_cap((rate, burst));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_cap_is_the_first_function_also_when_the_spec_is_read_again() {
        let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: a}\nspec:\n  slo: {latency: 1ms}\n  \
                    functions: [{forward: }]\n";
        let spec = ChainSpec::parse(text, "a.yaml", Path::new(".")).unwrap();
        let capped = spec.clone().capped(1000, 32);
        let names = |spec: &ChainSpec| -> Vec<String> {
            let functions = spec.functions.iter();
            functions.map(|function| function.name.clone()).collect()
        };
        assert_eq!(names(&capped), ["cap", "forward"]);
        assert!(spec.check_unchanged(&capped).is_err());
        assert!(capped.check_unchanged(&spec.clone().capped(2000, 32)).is_ok());
        let again = capped.read_again().unwrap();
        assert_eq!(names(&again), ["cap", "forward"]);
        assert_eq!(again.functions[0].config, capped.functions[0].config);
    }
}
