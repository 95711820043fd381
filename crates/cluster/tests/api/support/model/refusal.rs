//! Refused requests, as the API server answers them.

use super::kinds::Kind;
use serde_json::{Value, json};

/// Refused request.
#[derive(Debug)]
pub struct Refusal {
    /// Status code of HTTP.
    pub code: u16,
    reason: &'static str,
    message: String,
}

impl Refusal {
    fn new(code: u16, reason: &'static str, message: String) -> Refusal {
        Refusal { code, reason, message }
    }

    pub fn bad(message: impl Into<String>) -> Refusal {
        Refusal::new(400, "BadRequest", message.into())
    }

    pub fn unauthorized() -> Refusal {
        Refusal::new(401, "Unauthorized", "Unauthorized".to_owned())
    }

    pub fn forbidden(message: &str) -> Refusal {
        Refusal::new(403, "Forbidden", message.to_owned())
    }

    pub fn no_such_path() -> Refusal {
        let message = "the server could not find the requested resource";
        Refusal::new(404, "NotFound", message.to_owned())
    }

    pub fn not_found(resource: &str, name: &str) -> Refusal {
        Refusal::new(404, "NotFound", format!("{resource} \"{name}\" not found"))
    }

    pub fn method() -> Refusal {
        let message = "the server does not allow this method on the requested resource";
        Refusal::new(405, "MethodNotAllowed", message.to_owned())
    }

    pub fn exists(kind: &Kind, name: &str) -> Refusal {
        let message = format!("{} \"{name}\" already exists", kind.resource());
        Refusal::new(409, "AlreadyExists", message)
    }

    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Refusal {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.resource());
        Refusal::new(409, "Conflict", message)
    }

    pub fn modified(kind: &Kind, name: &str) -> Refusal {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Refusal::conflict(kind, name, why)
    }

    pub fn expired(message: String) -> Refusal {
        Refusal::new(410, "Expired", message)
    }

    pub fn media_type() -> Refusal {
        let message = "the body of the request was in an unknown format";
        Refusal::new(415, "UnsupportedMediaType", message.to_owned())
    }

    /// Fields with wrong values.
    pub fn invalid(kind: &Kind, name: &str, errors: &[String]) -> Refusal {
        let all = match errors {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        let message = format!("{} \"{name}\" is invalid: {all}", kind.qualified());
        Refusal::new(422, "Invalid", message)
    }

    pub fn timeout(message: String) -> Refusal {
        Refusal::new(504, "Timeout", message)
    }

    /// Object `Status`.
    pub fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        })
    }
}
