//! Isolation of a run's functions: the flags, and the chain's `spec.isolation` where they say nothing.

use crate::error::CliError;
use crate::isolation::{Request, not_in_a_file, read_file};
use crate::run::args::{Isolated, RunArgs};
use crate::run::plan::Mapping;
use std::path::Path;
use tailwater_api::chain::{ChainNode, DESCRIPTION};
use tailwater_api::document::Document;
use tailwater_api::files::{argument_name, read_argument};
use tailwater_api::{IsolationMode, IsolationSpec};
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::RunError;
use tailwater_functions::spec::ChainSpec;
use tailwater_isolation::server::IsolationConfig;

/// Reads the chain's spec, and finds the programs of its functions. Returns no programs if functions are not isolated.
///
/// # Errors
/// The spec is invalid, flags contradict each other, a function cannot be isolated, or this machine cannot confine
/// programs.
pub fn read(args: &RunArgs) -> Result<(ChainSpec, Option<IsolationConfig>), CliError> {
    let (mut spec, stream) = match args.isolation {
        Some(Isolated::None) => (IsolationSpec::default(), None),
        _ => of_chain(&args.chain)?,
    };
    if let Some(mode) = args.isolation {
        spec.mode = mode.into();
    }
    if spec.mode == IsolationMode::None {
        check_without_isolation(args)?;
        let spec = match stream {
            // A stream can be read only once.
            Some(text) => ChainSpec::parse(&text, &argument_name(&args.chain), folder(&args.chain))?,
            None => ChainSpec::read(&args.chain)?,
        };
        return Ok((spec, None));
    }
    let request = request(args, spec);
    if stream.is_some() {
        return Err(not_in_a_file(&args.chain, &request));
    }
    let (spec, config) = read_file(&args.chain, &request)?;
    Ok((spec, Some(config)))
}

/// Checks that the functions can be isolated on the run's cores.
///
/// # Errors
/// A function that writes a file would run on several cores, one that is bound to one core on auxiliary ones, or the
/// policy cannot offload them without a profile.
pub fn check_cores(config: &IsolationConfig, spec: &ChainSpec, mapping: &Mapping) -> Result<(), CliError> {
    let cores = &mapping.dedicated;
    if !mapping.auxiliary.is_empty()
        && let Some((function, reason)) = config.bound_to_one_core(spec)
    {
        return wrong(format!(
            "--auxiliary: isolated function {function} cannot run on auxiliary cores: {reason}; remove --auxiliary, or \
             set --isolation none"
        ));
    }
    if spec.state.is_some() && mapping.is_offloading() {
        return wrong(RunError::STATE_OF_ISOLATED.to_string());
    }
    if mapping.is_offloading() && mapping.profile.is_none() && mapping.policy != Policy::Tailwater {
        return wrong(format!(
            "--policy {}: expected --profile, since none is measured of isolated functions",
            mapping.policy.name()
        ));
    }
    match config.programs.iter().find(|program| program.single_instance) {
        Some(writer) if cores.len() > 1 => wrong(format!(
            "--isolation: {}: export requires a single process: remove it, or run on one core",
            writer.function
        )),
        _ => Ok(()),
    }
}

/// Isolation of a chain's spec, before any function is read. Also returns the text, if it is that of a stream.
fn of_chain(path: &Path) -> Result<(IsolationSpec, Option<String>), CliError> {
    let (text, is_stream) = read_argument(path)?;
    let document = Document::parse(&text, &argument_name(path), DESCRIPTION)?;
    let isolation = ChainNode::new(&document)?.isolation()?;
    drop(document);
    Ok((isolation, is_stream.then_some(text)))
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// The settings of the spec, except those that a flag replaces.
fn request(args: &RunArgs, spec: IsolationSpec) -> Request {
    let (without, except) = (&args.isolation_without, &args.isolation_except);
    let (without_of_spec, except_of_spec) = (!spec.without.is_empty(), !spec.except.is_empty());
    let mut request = Request {
        mode_of_spec: args.isolation.is_none(),
        without_of_spec: without_of_spec && without.is_empty(),
        except_of_spec: except_of_spec && except.is_empty(),
        spec,
    };
    let spec = &mut request.spec;
    spec.overhead = args.isolation_overhead.or(spec.overhead);
    if !without.is_empty() {
        spec.without = without.iter().map(|defence| (*defence).into()).collect();
    }
    if !except.is_empty() {
        spec.except.clone_from(except);
    }
    request
}

/// Rejects options of isolation in a run without it.
fn check_without_isolation(args: &RunArgs) -> Result<(), CliError> {
    let given = [
        ("--isolation-overhead", args.isolation_overhead.is_some()),
        ("--isolation-without", !args.isolation_without.is_empty()),
        ("--isolation-except", !args.isolation_except.is_empty()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => wrong(format!("{option} requires --isolation process or container")),
        None => Ok(()),
    }
}

fn wrong<T>(message: impl Into<String>) -> Result<T, CliError> {
    Err(CliError::Input(message.into()))
}
