//! Configuration of `count`.

use crate::acl::Action;
use crate::acl::rule_list::{DESTINATION, DESTINATION_PORTS, IP_PROTOCOL, SOURCE, SOURCE_PORTS, conditions};
use crate::count::{Counter, MAX_COUNTERS};
use crate::kind::Context;
use crate::tunnel::{VLAN_OR_UNTAGGED, vlan};
use std::collections::HashMap;
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;
use tailwater_api::schema::{Field, LABEL, Map, Type};
use tailwater_api::values::label;

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[Field::new(
        "counters",
        Type::List(&Type::Map(&COUNTER), 1, MAX_COUNTERS),
        "Counters.",
    )
    .required()
    .example("[{name: dns, destinationPorts: 53}]")],
    nullable: true,
    ..Map::PLAIN
};
static COUNTER: Map = Map {
    fields: &[
        Field::new(
            "name",
            Type::Text(&LABEL),
            "Name of the counter; unique, also against the `-bytes` names.",
        )
        .required()
        .example("dns"),
        SOURCE,
        DESTINATION,
        SOURCE_PORTS,
        DESTINATION_PORTS,
        IP_PROTOCOL,
        Field::new(
            "vlan",
            Type::Text(&VLAN_OR_UNTAGGED),
            "VLAN identifier of the outer tag.",
        )
        .otherwise("any"),
    ],
    ..Map::PLAIN
};

/// Packet and byte counters by rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountConfig {
    /// Counters, at least one, with unique names.
    pub counters: Vec<Counter>,
}

impl CountConfig {
    pub(super) fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let list = fields.required("counters", "a list of counters")?;
        let mut counters = Vec::new();
        // Byte counters have names of their own.
        let mut names: HashMap<String, usize> = HashMap::new();
        for (at, node) in list.list("counters", MAX_COUNTERS)?.iter().enumerate() {
            let counter = counter(node)?;
            for name in [counter.name.clone(), format!("{}-bytes", counter.name)] {
                if let Some(other) = names.insert(name, at) {
                    let message = format!(
                        "expected a unique name for each counter and its -bytes counter, found {} in conflict with \
                         counters[{other}]",
                        counter.name
                    );
                    return Err(node.error(message));
                }
            }
            counters.push(counter);
        }
        Ok(CountConfig { counters })
    }
}

fn counter(node: &Located<'_>) -> Result<Counter, SpecError> {
    let fields = node.fields_of(&COUNTER)?;
    let name = label(&fields.required("name", "a name")?)?;
    Ok(Counter {
        name,
        rule: conditions(node, &fields, Action::Allow)?,
        vlan: fields.optional("vlan").map(|node| vlan(&node)).transpose()?,
    })
}
