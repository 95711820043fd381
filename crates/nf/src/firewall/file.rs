//! A firewall's rules in a file that is read again.

use super::overlap::shadowed;
use super::table::FirewallTable;
use crate::reload::Reload;
use crate::spec::{describe_shadowed, parse_firewall_rules, read_text};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that a firewall's rules are in.
#[derive(Debug)]
pub struct RulesFile {
    table: Arc<FirewallTable>,
    path: PathBuf,
}

impl RulesFile {
    /// The file of this firewall's rules.
    pub fn new(table: Arc<FirewallTable>, path: PathBuf) -> RulesFile {
        RulesFile { table, path }
    }
}

impl Reload for RulesFile {
    fn file(&self) -> &Path {
        &self.path
    }

    fn reload(&self) -> Result<Vec<String>, Vec<String>> {
        let name = self.path.display().to_string();
        let lines = |error: crate::spec::SpecError| -> Vec<String> {
            error.to_string().lines().map(str::to_owned).collect()
        };
        let text = read_text(&self.path, &name).map_err(lines)?;
        let rules = parse_firewall_rules(&text, &name, self.table.zones()).map_err(lines)?;
        let number = self.table.replace(&rules);
        let number = number.map_err(|error| vec![format!("{name}: {error}")])?;
        let count = rules.len();
        let mut news = vec![format!(
            "{count} rules of {name} are in force (version {number})"
        )];
        news.extend(describe_shadowed(&shadowed(&rules), &name));
        Ok(news)
    }
}
