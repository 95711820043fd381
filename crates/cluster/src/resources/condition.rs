//! Conditions of a resource, as Kubernetes has them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Condition of a resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Name, such as `Ready`.
    #[serde(rename = "type")]
    pub name: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word for programs.
    pub reason: String,
    /// One line for people.
    pub message: String,
    /// Generation of the resource that it was found for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Time of the last change of its status.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub last_transition_time: Time,
}

/// Sets a condition. Its time changes with its status only.
pub fn set(conditions: &mut Vec<Condition>, now: Timestamp, new: (&str, bool, &str, &str), generation: Option<i64>) {
    let (name, status, reason, message) = new;
    let status = if status { "True" } else { "False" };
    let old = conditions.iter().position(|condition| condition.name == name);
    let since = old.map(|index| &conditions[index]).filter(|old| old.status == status);
    let condition = Condition {
        name: name.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: since.map_or_else(|| Time(now), |old| old.last_transition_time.clone()),
    };
    match old {
        Some(index) => conditions[index] = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_last_change_of_status() {
        let mut conditions = Vec::new();
        let at = |second| Timestamp::from_second(second).unwrap();
        let since = |conditions: &[Condition]| conditions[0].last_transition_time.0.as_second();
        set(
            &mut conditions,
            at(10),
            ("Ready", false, "Starting", "no instance"),
            Some(1),
        );
        set(
            &mut conditions,
            at(20),
            ("Ready", false, "NoRoom", "no core is free"),
            Some(2),
        );
        assert_eq!((since(&conditions), &*conditions[0].reason), (10, "NoRoom"));
        assert_eq!(conditions[0].observed_generation, Some(2));
        set(&mut conditions, at(30), ("Ready", true, "Ready", ""), Some(2));
        assert_eq!((since(&conditions), conditions.len()), (30, 1));
        set(&mut conditions, at(40), ("Accepted", true, "Valid", ""), Some(2));
        assert_eq!(conditions.len(), 2);
    }
}
