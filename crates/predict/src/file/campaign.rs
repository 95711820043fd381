//! Files of campaigns.

use super::values::{self, KEY, check, checksum, fields, key, list, numbers, positive, schema, with_head};
use crate::campaign::{Campaign, MAX_COMPETITORS, MAX_OBSERVATIONS, Observation};
use crate::metric::{Schema, Vector};
use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use tailwater_api::SpecError;
use tailwater_api::document::{Document, Located};

pub(super) const KIND: &str = "ContentionCampaign";
/// Name of the file type, in errors.
const WHAT: &str = "a campaign of co-runs";

impl Campaign {
    /// Reads a file.
    ///
    /// # Errors
    /// The first error, with its position.
    pub fn read(path: &Path) -> Result<Campaign, SpecError> {
        campaign(&Document::read(path, WHAT)?)
    }

    /// Parses the text of a file. `name` is the file's name in errors.
    ///
    /// # Errors
    /// The first error, with its position.
    pub fn parse(text: &str, name: &str) -> Result<Campaign, SpecError> {
        campaign(&Document::parse(text, name, WHAT)?)
    }

    /// Returns the checksum of the values, as the campaign's file has it.
    pub fn checksum(&self) -> String {
        checksum(&text(self))
    }
}

/// The text of a file.
impl fmt::Display for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_head(KIND, &self.key().function, &text(self)))
    }
}

pub(super) fn campaign(document: &Document) -> Result<Campaign, SpecError> {
    let known = ["version", "checksum", "source", "metrics", "observations"];
    let (_, fields) = fields(document, KIND, &[&known[..], &KEY[..]].concat())?;
    let schema = schema(&fields)?;
    let mut campaign = Campaign::new(key(&fields)?, schema.clone());
    // A campaign that was interrupted before its first observation has none.
    if let Some(nodes) = fields.optional("observations") {
        for node in nodes.list("observations", MAX_OBSERVATIONS)? {
            let observation = observation(&node, &schema)?;
            campaign
                .push(observation)
                .map_err(|error| node.error(error.to_string()))?;
        }
    }
    check(&fields, &campaign.checksum())?;
    Ok(campaign)
}

fn observation(node: &Located<'_>, schema: &Arc<Schema>) -> Result<Observation, SpecError> {
    let fields = node.fields(&[
        "group",
        "competitors",
        "throughput",
        "p99Microseconds",
        "flagged",
        "competition",
        "own",
    ])?;
    let whole = |name, most: u32| {
        let node = fields.required(name, "a whole number")?;
        Ok::<u32, SpecError>(node.whole(0..=u64::from(most))? as u32)
    };
    let vector = |node: &Located<'_>| {
        let values = numbers(node, schema.metrics().len())?;
        Vector::new(schema.clone(), values).map_err(|error| node.error(error.to_string()))
    };
    let flagged = fields.optional("flagged");
    Ok(Observation {
        group: whole("group", u32::MAX)?,
        competitors: whole("competitors", MAX_COMPETITORS)?,
        competition: vector(&fields.required("competition", "the competitors' vector")?)?,
        throughput: positive(&fields.required("throughput", "packets per second")?)?,
        p99_us: fields
            .optional("p99Microseconds")
            .map(|node| positive(&node))
            .transpose()?,
        own: fields.optional("own").map(|node| vector(&node)).transpose()?,
        flagged: flagged.map_or(Ok(false), |node| node.word(&[("true", true), ("false", false)]))?,
    })
}

/// Returns the values of a file, without its head.
fn text(campaign: &Campaign) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = write(&mut text, campaign);
    text
}

fn write(text: &mut String, campaign: &Campaign) -> fmt::Result {
    values::write_scope(text, campaign.key(), campaign.schema())?;
    writeln!(
        text,
        "  # packets per second, microseconds; vectors in the order of the metrics"
    )?;
    if !campaign.observations().is_empty() {
        writeln!(text, "  observations:")?;
    }
    for of in campaign.observations() {
        let (group, competitors, throughput) = (of.group, of.competitors, of.throughput);
        write!(
            text,
            "    - {{group: {group}, competitors: {competitors}, throughput: {throughput:e}"
        )?;
        if let Some(p99) = of.p99_us {
            write!(text, ", p99Microseconds: {p99:e}")?;
        }
        if of.flagged {
            write!(text, ", flagged: true")?;
        }
        write!(text, ", competition: {}", list(of.competition.values().iter().copied()))?;
        if let Some(own) = &of.own {
            write!(text, ", own: {}", list(own.values().iter().copied()))?;
        }
        writeln!(text, "}}")?;
    }
    Ok(())
}
