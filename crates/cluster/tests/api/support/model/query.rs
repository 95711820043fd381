//! Queries of requests, and the selectors in them.

use super::kinds::Kind;
use super::refusal::Refusal;
use serde_json::Value;

/// Query of a request.
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        });
        Query(pairs.collect())
    }

    /// Value of a parameter that is not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    /// Returns `true` if a parameter is `true`.
    pub fn is_set(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// Returns `true` if nothing is to be changed.
    pub fn is_dry_run(&self) -> Result<bool, Refusal> {
        match self.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => Err(Refusal::bad(format!("dryRun: Unsupported value: \"{other}\""))),
        }
    }

    /// Number of a parameter, if it has one.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let parse = |text: &str| {
            text.parse()
                .map_err(|_| Refusal::bad(format!("{name}: expected a number, found {text}")))
        };
        self.get(name).map(parse).transpose()
    }
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'+', _) => bytes.push(b' '),
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: u8| (byte as char).to_digit(16).expect("a hexadecimal digit") as u8;
                bytes.push(digit(*high) << 4 | digit(*low));
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// Objects that a request is about.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    /// All namespaces without one.
    namespace: Option<String>,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    path: Vec<String>,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    Is(String),
    IsNot(String),
    Exists,
    IsMissing,
}

impl Selector {
    /// Reads the selectors of a query.
    pub fn parse(kind: &Kind, namespace: Option<&str>, query: &Query) -> Result<Selector, Refusal> {
        let mut rules = Vec::new();
        for text in parts(query.get("fieldSelector")) {
            let (field, test) = comparison(text).ok_or_else(|| Refusal::bad(format!("invalid selector: {text}")))?;
            let of_all = ["metadata.name", "metadata.namespace"].contains(&&*field);
            if !of_all && !kind.fields.contains(&field) {
                return Err(Refusal::bad(format!("field label not supported: {field}")));
            }
            let path = field.split('.').map(str::to_owned).collect();
            rules.push(Rule { path, test });
        }
        for text in parts(query.get("labelSelector")) {
            if text.contains([' ', '(', ')']) {
                return Err(Refusal::bad(format!("the model has no selectors of sets: {text}")));
            }
            let (label, test) = match (comparison(text), text.strip_prefix('!')) {
                (Some(comparison), _) => comparison,
                (None, Some(label)) => (label.to_owned(), Test::IsMissing),
                (None, None) => (text.to_owned(), Test::Exists),
            };
            let path = ["metadata".to_owned(), "labels".to_owned(), label].into();
            rules.push(Rule { path, test });
        }
        let namespace = namespace.map(str::to_owned);
        Ok(Selector { namespace, rules })
    }

    /// Returns `true` if it selects an object.
    pub fn matches(&self, object: &Value) -> bool {
        let is_there = |namespace: &String| object["metadata"]["namespace"] == **namespace;
        self.namespace.as_ref().is_none_or(is_there)
            && self.rules.iter().all(|rule| {
                let value = rule.path.iter().fold(object, |value, field| &value[field.as_str()]);
                match &rule.test {
                    Test::Is(wanted) => value.as_str().unwrap_or_default() == wanted,
                    Test::IsNot(unwanted) => value.as_str() != Some(unwanted),
                    Test::Exists => !value.is_null(),
                    Test::IsMissing => value.is_null(),
                }
            })
    }
}

fn parts(selector: Option<&str>) -> impl Iterator<Item = &str> {
    selector.into_iter().flat_map(|text| text.split(','))
}

fn comparison(text: &str) -> Option<(String, Test)> {
    if let Some((field, value)) = text.split_once("!=") {
        return Some((field.to_owned(), Test::IsNot(value.to_owned())));
    }
    let (field, value) = text.split_once("==").or_else(|| text.split_once('='))?;
    Some((field.to_owned(), Test::Is(value.to_owned())))
}
