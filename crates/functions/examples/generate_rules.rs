//! Makes a rule file in ClassBench form.
//!
//! The files in `examples/rules` are made by
//!
//! ```text
//! cargo run -p tailwater-functions --example generate_rules -- \
//!     1500 1 10.0.0.0/8 198.18.0.0/15,203.0.113.0/24 > examples/rules/acl-1500.rules
//! cargo run -p tailwater-functions --example generate_rules -- \
//!     8000 2 10.0.0.0/8 198.18.0.0/15,203.0.113.0/24 > examples/rules/acl-8000.rules
//! ```

use ipnet::Ipv4Net;
use std::io::Write;
use std::process::ExitCode;
use tailwater_functions::acl::classbench;
use tailwater_functions::acl::classifier::MAX_RULES;
use tailwater_functions::acl::generate::RuleSetSpec;

const USAGE: &str = "\
usage: generate_rules RULES SEED SOURCES DESTINATIONS

Writes RULES access rules in ClassBench form to standard output. They match flows from SOURCES to
DESTINATIONS, which are IPv4 prefixes separated by commas; 0.0.0.0/0 is all of IPv4. The same
arguments give the same rules.

  generate_rules 1500 1 10.0.0.0/8 198.18.0.0/15,203.0.113.0/24 > acl-1500.rules";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(text) => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("generate_rules: {error}");
                ExitCode::FAILURE
            }
        },
        Err(message) => {
            eprintln!("generate_rules: {message}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> Result<String, String> {
    let [rules, seed, sources, destinations] = arguments else {
        return Err(format!("four arguments expected, found {}", arguments.len()));
    };
    let count = rules.parse().ok().filter(|rules| *rules <= MAX_RULES);
    let spec = RuleSetSpec {
        rules: count.ok_or(format!("RULES: expected 0 to {MAX_RULES}, found {rules:?}"))?,
        seed: seed
            .parse()
            .map_err(|_| format!("SEED: expected a number, found {seed:?}"))?,
        sources: prefixes("SOURCES", sources)?,
        destinations: prefixes("DESTINATIONS", destinations)?,
    };
    let comment = format!(
        "{rules} access rules from {sources} to {destinations}, the first match decides.\n\
         Made by: generate_rules {}",
        arguments.join(" ")
    );
    Ok(classbench::write_rules(&comment, &spec.generate()))
}

fn prefixes(name: &str, text: &str) -> Result<Vec<Ipv4Net>, String> {
    text.split(',')
        .map(|prefix| {
            prefix
                .parse()
                .map_err(|_| format!("{name}: expected an IPv4 prefix, found {prefix:?}"))
        })
        .collect()
}
