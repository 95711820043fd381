//! JSON form of a part of a spec that third-party code reads, and look-up of its fields by name.

use super::{Located, is_number_or_bool};
use crate::error::SpecError;
use crate::yaml::Value;

impl<'a> Located<'a> {
    /// Converts this node to JSON. Numbers keep their spelling. Numbers that are valid in YAML but not in JSON, such as
    /// `0x10` or `.5`, are rejected.
    ///
    /// # Errors
    /// If a number is not valid in JSON, or a map is invalid.
    pub fn json(&self) -> Result<String, SpecError> {
        let mut text = String::new();
        self.write_json(&mut text)?;
        Ok(text)
    }

    // The recursion is bounded by the maximum nesting of YAML.
    fn write_json(&self, text: &mut String) -> Result<(), SpecError> {
        match &self.node.value {
            Value::Null => text.push_str("null"),
            Value::Scalar { text: scalar, plain } => {
                if !*plain || !is_number_or_bool(scalar) {
                    text.push_str(&quote(scalar));
                } else if scalar.bytes().all(|byte| byte.is_ascii_alphabetic()) {
                    text.push_str(&scalar.to_lowercase());
                } else if let Ok(serde_json::Value::Number(_)) = serde_json::from_str(scalar) {
                    text.push_str(scalar);
                } else {
                    return Err(self.expected("a JSON number such as 16 or 0.5, or a string in quotes"));
                }
            }
            Value::List(items) => {
                text.push('[');
                // An empty list is valid, too.
                for (i, item) in self.items(items).enumerate() {
                    text.push_str(if i > 0 { "," } else { "" });
                    item.write_json(text)?;
                }
                text.push(']');
            }
            Value::Map(_) => {
                text.push('{');
                for (i, (name, value)) in self.entries("fields")?.into_iter().enumerate() {
                    text.push_str(if i > 0 { "," } else { "" });
                    text.push_str(&quote(name));
                    text.push(':');
                    value.write_json(text)?;
                }
                text.push('}');
            }
        }
        Ok(())
    }

    /// Returns the descendant at a path such as `limits[2].rate`, or the deepest one that exists.
    pub fn descendant(&self, path: &str) -> Located<'a> {
        let mut found = self.clone();
        for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
            let next = match &found.node.value {
                Value::List(items) => {
                    let index = part.strip_suffix(']').and_then(|index| index.parse().ok());
                    index.and_then(|index| found.items(items).nth(index))
                }
                Value::Map(entries) => entries.iter().find_map(|(key, value)| match &key.value {
                    Value::Scalar { text, .. } if **text == *part => Some(found.field(text, value)),
                    _ => None,
                }),
                _ => None,
            };
            let Some(next) = next else {
                break;
            };
            found = next;
        }
        found
    }
}

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use crate::located::Located;
    use crate::yaml;

    const TEXT: &str = "limits:\n  - {rate: 5, on: True}\n  - rate: 0x10\n\"a\\\"b\": 'x: 1'\n\
                        plain: 200us\nnone:\nempty: []\nmore: {1.5: -2e3, quoted: \"7\"}\n";

    #[test]
    fn numbers_stay_and_texts_are_quoted() {
        let text = TEXT.replace("0x10", "0.25");
        let root = yaml::parse(&text, "test").unwrap().unwrap();
        let json = Located::root("test", &root).json().unwrap();
        let expected = r#"{"limits":[{"rate":5,"on":true},{"rate":0.25}],"a\"b":"x: 1","#.to_owned()
            + r#""plain":"200us","none":null,"empty":[],"more":{"1.5":-2e3,"quoted":"7"}}"#;
        assert_eq!(json, expected);
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    }

    #[test]
    fn what_json_cannot_say_is_refused_where_it_stands() {
        let root = yaml::parse(TEXT, "test").unwrap().unwrap();
        let error = Located::root("test", &root).json().unwrap_err().to_string();
        assert_eq!(
            error,
            "test:3:11: limits[1].rate: expected a JSON number such as 16 or 0.5, or a string in quotes, found 0x10"
        );
    }

    #[test]
    fn paths_lead_as_far_as_there_is_something() {
        let root = yaml::parse(TEXT, "test").unwrap().unwrap();
        let root = Located::root("test", &root);
        for (path, line, expected) in [
            ("", 1, ""),
            ("limits[1].rate", 3, "limits[1].rate"),
            ("limits[7].rate", 2, "limits"),
            ("limits[0].burst", 2, "limits[0]"),
            ("limits[x", 2, "limits"),
            ("plain.deeper", 5, "plain"),
            ("nothing", 1, ""),
        ] {
            let found = root.descendant(path);
            let error = found.error("here");
            assert_eq!((error.line, &*error.path), (line, expected), "{path}");
        }
    }
}
