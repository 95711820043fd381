//! Use of a server's auxiliary cores by its chains.

use crate::error::CliError;
use crate::run::profiles;
use tailwater_api::server::ServerSpec;
use tailwater_baselines::catalog::Policy;
use tailwater_functions::spec::ChainSpec;
use tailwater_server::live::MakeOffloading;

/// Policies by which chains of a server can use auxiliary cores.
const POLICIES: [(&str, Policy); 3] = [
    ("tailwater", Policy::Tailwater),
    ("netblaze", Policy::NetBlaze),
    ("static", Policy::Static),
];

/// Returns the policy of the server's spec.
///
/// # Errors
/// There is none of this name, or none that a server uses.
pub fn policy(spec: &ServerSpec) -> Result<Policy, CliError> {
    let Some(name) = &spec.policy else {
        return Ok(Policy::Tailwater);
    };
    let found = POLICIES.iter().find(|(known, _)| known == name);
    found.map(|(_, policy)| *policy).ok_or_else(|| {
        let names = POLICIES.map(|(name, _)| name).join(", ");
        CliError::Input(format!("spec.policy: expected one of {names}, found {name:?}"))
    })
}

/// Returns the factory of the chains' mappers. A chain's profile is the one beside its file, if it is there and the
/// functions are not isolated.
pub fn offloading(policy: Policy) -> MakeOffloading {
    Box::new(move |spec: &ChainSpec, is_isolated: bool| {
        // A profile is of functions in one process. Tailwater's mapper learns the costs of others.
        if is_isolated && policy != Policy::Tailwater {
            return Ok(None);
        }
        let file = spec.source.file();
        let file = file.filter(|_| !is_isolated);
        let profile = file.and_then(|file| profiles::found(file, spec, None));
        if profile.is_none() && policy == Policy::NetBlaze {
            let chain = file.map_or("CHAIN.yaml".to_owned(), |file| file.display().to_string());
            return Err(format!(
                "policy netblaze expects a profile of the chain beside its file: tailwater profile capacity {chain}"
            ));
        }
        let made = policy.mappers(spec.slo.budget(), &profile.unwrap_or_default());
        made.map_err(|error| error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tailwater_api::document::Document;
    use tailwater_api::server::DESCRIPTION;

    fn server(policy: &str) -> ServerSpec {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {{name: s}}\nspec:\n  \
             cores: 0\n  ports: [{{name: a, traffic: bursty}}]\n{policy}"
        );
        ServerSpec::new(&Document::parse(&text, "s.yaml", DESCRIPTION).unwrap(), Path::new("")).unwrap()
    }

    #[test]
    fn policies_have_names() {
        assert_eq!(policy(&server("")).unwrap(), Policy::Tailwater);
        assert_eq!(policy(&server("  policy: static\n")).unwrap(), Policy::Static);
        let error = policy(&server("  policy: metron\n")).unwrap_err().to_string();
        assert!(
            error.ends_with("spec.policy: expected one of tailwater, netblaze, static, found \"metron\""),
            "{error}"
        );
    }

    /// Without a profile, Tailwater's mapper learns what packets take; NetBlaze's needs one.
    #[test]
    fn a_profile_is_optional_for_tailwater() {
        let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: c}\n\
                    spec: {slo: {latency: 200us}, functions: [{accounting: {}}]}";
        let spec = ChainSpec::parse(text, "c", Path::new(".")).unwrap();
        assert!(offloading(Policy::Tailwater)(&spec, false).unwrap().is_some());
        assert!(offloading(Policy::Static)(&spec, false).unwrap().is_none());
        // None is measured of isolated functions.
        assert!(offloading(Policy::Tailwater)(&spec, true).unwrap().is_some());
        assert!(offloading(Policy::NetBlaze)(&spec, true).unwrap().is_none());
        let error = offloading(Policy::NetBlaze)(&spec, false).map(drop).unwrap_err();
        assert!(error.contains("tailwater profile capacity"), "{error}");
    }
}
