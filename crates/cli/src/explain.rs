//! `tailwater explain`: observations and decisions of a recorded run's mappers.

mod args;
pub(crate) mod document;

pub use args::{EXPLAIN_EXAMPLES, ExplainArgs};
pub use document::{Document, Replayed, ServerDocument, ServerReplayed};

use crate::error::CliError;
use crate::output::{ReportOutput, complain, json, print};
use crate::table;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;
use tailwater_api::files::argument_name;
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::scaling::record::{
    Entry, Explainer, Header, Problem, Reader, Replayer, ServerExplainer, ServerReplayer,
};
use tailwater_files::InputFile;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::server::MakeServerMapper;

/// Maximum number of printed differences of a replay.
const MOST_DIFFERENCES: usize = 10;

/// Explains a file.
///
/// # Errors
/// The file cannot be read or is invalid, the other policy requires a profile that is missing, or the result cannot be
/// printed.
pub fn explain(args: &ExplainArgs) -> Result<ExitCode, CliError> {
    let name = argument_name(&args.file);
    let wrong = |error: &dyn std::fmt::Display| CliError::Input(format!("{name}: {error}"));
    let file = InputFile::named(&args.file).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    let mut reader = Reader::new(BufReader::new(file)).map_err(|error| wrong(&error))?;
    let profile = profile(reader.header(), &args.file)?;
    let profile = profile.unwrap_or_default();
    let mut other = args.policy.map(|policy| Other {
        policy,
        slo: reader.header().slo,
        profile: &profile,
        core: None,
        server: None,
    });
    let most = usize::from(args.late);
    let mut explainer = Explainer::new(reader.header(), profile.frontier.clone(), most);
    let mut server = ServerExplainer::new(most);
    let cut_short = loop {
        match reader.next_entry() {
            Ok(Some(entry)) => {
                match entry {
                    Entry::Core(decision) => explainer.add(decision),
                    Entry::Server(decision) => server.add(decision),
                }
                if let Some(other) = &mut other {
                    other.add(entry).map_err(|error| wrong(&error))?;
                }
            }
            Ok(None) => break false,
            // The run was killed: explain the part that exists.
            Err(error) if matches!(error.problem, Problem::Cut) => {
                complain(
                    "notice",
                    &format!("{name}: {error}: explaining the decisions before that"),
                );
                break true;
            }
            Err(error) => return Err(wrong(&error)),
        }
    };
    let (replay, server_replay) = match other {
        Some(other) => other.finish().map_err(|error| wrong(&error))?,
        None => (None, None),
    };
    let document = Document {
        explanation: explainer.finish(),
        cut_short,
        lost: reader.lost(),
        replay,
        server: server.finish().map(|explanation| ServerDocument {
            explanation,
            replay: server_replay,
        }),
    };
    print(&match args.output {
        ReportOutput::Table => table::explanation(&document),
        ReportOutput::Json => json(&document)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the profile of the recorded policy.
fn profile(header: &Header, file: &Path) -> Result<Option<CapacityProfile>, CliError> {
    if header.profile.is_empty() {
        return Ok(None);
    }
    let name = format!("{}: recorded profile", file.display());
    let profile = CapacityProfile::parse(header.profile.as_bytes(), &name);
    profile.map(Some).map_err(|error| CliError::Input(error.to_string()))
}

/// Another policy to which the record is replayed. Its mappers are created with the first observation, since the
/// profile may lack what an unused one requires.
struct Other<'a> {
    policy: Policy,
    slo: Nanos,
    profile: &'a CapacityProfile,
    core: Option<Replayer>,
    server: Option<ServerReplayer>,
}

impl Other<'_> {
    fn add(&mut self, entry: Entry<'_>) -> Result<(), String> {
        match entry {
            Entry::Core(decision) if self.policy.scales() => self.core()?.add(decision),
            Entry::Server(decision) => {
                if self.server.is_none()
                    && let Some(make) = self.server_mappers()?
                {
                    self.server = Some(ServerReplayer::new(&make));
                }
                if let Some(server) = &mut self.server {
                    server.add(decision);
                }
            }
            Entry::Core(_) => {}
        }
        Ok(())
    }

    fn core(&mut self) -> Result<&mut Replayer, String> {
        let replayer = match self.core.take() {
            Some(replayer) => replayer,
            None => {
                let make = self.policy.mappers(self.slo, self.profile);
                let make = make.map_err(|error| error.to_string())?;
                Replayer::new(make.ok_or_else(|| self.nothing())?, MOST_DIFFERENCES)
            }
        };
        Ok(self.core.insert(replayer))
    }

    fn server_mappers(&self) -> Result<Option<MakeServerMapper>, String> {
        let make = self.policy.server_mappers(self.slo, self.profile, false);
        make.map_err(|error| error.to_string())
    }

    fn nothing(&self) -> String {
        format!(
            "--policy {} makes no decisions of the recorded kinds",
            self.policy.name()
        )
    }

    fn finish(mut self) -> Result<(Option<Replayed>, Option<ServerReplayed>), String> {
        if self.core.is_none() && self.server.is_none() {
            // Without decisions the result is the same, provided that the policy makes such decisions at all.
            match self.policy.scales() {
                true => self.core().map(drop)?,
                false => return Err(self.nothing()),
            }
        }
        let policy = self.policy.name();
        let core = self.core.map(|replayer| Replayed {
            policy,
            outcome: replayer.finish(),
        });
        let server = self.server.map(|replayer| ServerReplayed {
            policy,
            outcome: replayer.finish(),
        });
        Ok((core, server))
    }
}
