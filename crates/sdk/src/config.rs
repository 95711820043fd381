//! Configuration of a function: the chain spec's `config`, which the runtime passes as JSON.

use std::fmt;

/// Maximum nesting depth.
const MAX_DEPTH: usize = 64;

/// Error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Field, such as `limits[2].rate`; empty for the whole configuration.
    pub field: String,
    /// Expected and found value.
    pub message: String,
}

impl ConfigError {
    /// Creates an error about a field.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> ConfigError {
        ConfigError {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.field {
            "" => f.write_str(&self.message),
            field => write!(f, "{field}: {}", self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Value of a configuration, with its path.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    path: String,
    value: Value,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Null,
    Bool(bool),
    /// Number as written.
    Number(String),
    Text(String),
    List(Vec<Config>),
    Map(Vec<(String, Config)>),
}

impl Config {
    /// Parses a JSON text.
    ///
    /// # Errors
    /// The text is not valid JSON, or is nested too deeply.
    pub fn parse(json: &str) -> Result<Config, ConfigError> {
        let mut reader = Reader { rest: json };
        let config = reader.value(String::new(), 0)?;
        match reader.peek() {
            None => Ok(config),
            Some(_) => Err(reader.error()),
        }
    }

    /// Creates an error about this value.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        ConfigError::new(&*self.path, message)
    }

    fn expected(&self, what: &str) -> ConfigError {
        let found = match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(truth) => truth.to_string(),
            Value::Number(number) => number.clone(),
            Value::Text(text) => format!("{text:?}"),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        };
        self.error(format!("expected {what}, found {found}"))
    }

    /// Checks that this is a map without fields other than `fields`.
    ///
    /// # Errors
    /// It is not a map, or has another field.
    pub fn only(&self, fields: &[&str]) -> Result<(), ConfigError> {
        let entries = match &self.value {
            Value::Map(entries) => entries,
            _ => return Err(self.expected(&format!("a map of {}", fields.join(", ")))),
        };
        let unknown = entries.iter().find(|(name, _)| !fields.contains(&name.as_str()));
        match unknown {
            None => Ok(()),
            Some((_, value)) => Err(value.error(format!("expected one of the fields {}", fields.join(", ")))),
        }
    }

    /// Returns a field of a map, or `None` if it is missing or null.
    pub fn get(&self, field: &str) -> Option<&Config> {
        let entries = match &self.value {
            Value::Map(entries) => entries,
            _ => return None,
        };
        let found = entries.iter().find(|(name, _)| name == field);
        found.map(|(_, value)| value).filter(|value| value.value != Value::Null)
    }

    /// Returns a required field, described by `what`.
    ///
    /// # Errors
    /// The field is missing.
    pub fn require(&self, field: &str, what: &str) -> Result<&Config, ConfigError> {
        let missing = || self.error(format!("expected {field}: {what}, found none"));
        self.get(field).ok_or_else(missing)
    }

    /// Returns a non-negative integer.
    ///
    /// # Errors
    /// The value is not a non-negative integer.
    pub fn u64(&self) -> Result<u64, ConfigError> {
        let number = match &self.value {
            Value::Number(number) => number.parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| self.expected("a whole number of at least 0"))
    }

    /// Returns a number.
    ///
    /// # Errors
    /// The value is not a number.
    pub fn f64(&self) -> Result<f64, ConfigError> {
        let number = match &self.value {
            Value::Number(number) => number.parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| self.expected("a number"))
    }

    /// Returns a boolean.
    ///
    /// # Errors
    /// The value is not a boolean.
    pub fn bool(&self) -> Result<bool, ConfigError> {
        match self.value {
            Value::Bool(truth) => Ok(truth),
            _ => Err(self.expected("true or false")),
        }
    }

    /// Returns a string.
    ///
    /// # Errors
    /// The value is not a string.
    pub fn text(&self) -> Result<&str, ConfigError> {
        match &self.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.expected("a text")),
        }
    }

    /// Returns the items of a list.
    ///
    /// # Errors
    /// The value is not a list.
    pub fn list(&self) -> Result<&[Config], ConfigError> {
        match &self.value {
            Value::List(items) => Ok(items),
            _ => Err(self.expected("a list")),
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn error(&self) -> ConfigError {
        let shown: String = self.rest.chars().take(20).collect();
        ConfigError::new("", format!("expected JSON, found {shown:?}"))
    }

    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
        self.rest.chars().next()
    }

    /// Consumes `text` if it comes next.
    fn take(&mut self, text: &str) -> bool {
        self.peek();
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, path: String, depth: usize) -> Result<Config, ConfigError> {
        if depth > MAX_DEPTH {
            return Err(ConfigError::new(
                path,
                format!("expected at most {MAX_DEPTH} levels of nesting, found more"),
            ));
        }
        let value = match self.peek() {
            Some('{') => {
                let mut entries = Vec::new();
                self.items('}', |reader| {
                    let name = reader.string()?;
                    let dot = if path.is_empty() { "" } else { "." };
                    let path = format!("{path}{dot}{name}");
                    if !reader.take(":") {
                        return Err(reader.error());
                    }
                    entries.push((name, reader.value(path, depth + 1)?));
                    Ok(())
                })?;
                Value::Map(entries)
            }
            Some('[') => {
                let mut items = Vec::new();
                self.items(']', |reader| {
                    let path = format!("{path}[{}]", items.len());
                    items.push(reader.value(path, depth + 1)?);
                    Ok(())
                })?;
                Value::List(items)
            }
            Some('"') => Value::Text(self.string()?),
            _ if self.take("true") => Value::Bool(true),
            _ if self.take("false") => Value::Bool(false),
            _ if self.take("null") => Value::Null,
            _ => {
                let other = |c: char| !c.is_ascii_digit() && !"+-.eE".contains(c);
                let end = self.rest.find(other).unwrap_or(self.rest.len());
                let (number, rest) = self.rest.split_at(end);
                if number.parse::<f64>().is_err() {
                    return Err(self.error());
                }
                self.rest = rest;
                Value::Number(number.to_owned())
            }
        };
        Ok(Config { path, value })
    }

    /// Reads items up to the closing bracket, after the opening one.
    fn items(
        &mut self,
        end: char,
        mut item: impl FnMut(&mut Self) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        self.rest = &self.rest[1..];
        if self.peek() == Some(end) {
            self.rest = &self.rest[1..];
            return Ok(());
        }
        loop {
            item(self)?;
            match self.peek() {
                Some(',') => self.rest = &self.rest[1..],
                Some(c) if c == end => {
                    self.rest = &self.rest[1..];
                    return Ok(());
                }
                _ => return Err(self.error()),
            }
        }
    }

    fn string(&mut self) -> Result<String, ConfigError> {
        if !self.take("\"") {
            return Err(self.error());
        }
        let mut text = String::new();
        let mut units: Vec<u16> = Vec::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            if c != '\\' || !self.rest[at..].starts_with("\\u") {
                // Escaped UTF-16 code units; two may form one character.
                text.push_str(&String::from_utf16_lossy(&units));
                units.clear();
            }
            match c {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                '\\' => match chars.next() {
                    Some((_, 'u')) => {
                        let digits = self.rest.get(at + 2..at + 6);
                        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
                        units.push(unit.ok_or_else(|| self.error())?);
                        chars.nth(3);
                    }
                    Some((_, c)) => text.push(match c {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        other => other,
                    }),
                    None => break,
                },
                other => text.push(other),
            }
        }
        Err(self.error())
    }
}
