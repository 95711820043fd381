//! Documents as YAML.

use serde_json::Value;
use std::fmt::Write as _;

/// Formats a document in block style. Texts that YAML could take for something else are quoted as in JSON, which YAML
/// reads in the same way.
pub fn to_yaml(document: &Value) -> String {
    let mut text = String::new();
    match document {
        Value::Object(_) | Value::Array(_) if !is_empty(document) => block(document, 0, &mut text),
        _ => text = scalar(document) + "\n",
    }
    text
}

/// Writes a map or list that is not empty. The first line is not indented.
fn block(value: &Value, indent: usize, text: &mut String) {
    let mut is_first = true;
    let mut begin = |text: &mut String| {
        if !is_first {
            let _ = write!(text, "{:indent$}", "");
        }
        is_first = false;
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                begin(text);
                let _ = write!(text, "{}:", plain_or_quoted(name));
                match is_empty(value) {
                    true => {
                        let _ = writeln!(text, " {}", scalar(value));
                    }
                    false => {
                        let _ = write!(text, "\n{:1$}", "", indent + 2);
                        block(value, indent + 2, text);
                    }
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                begin(text);
                text.push_str("- ");
                match is_empty(item) {
                    true => {
                        let _ = writeln!(text, "{}", scalar(item));
                    }
                    false => block(item, indent + 2, text),
                }
            }
        }
        _ => {}
    }
}

/// Returns `true` for everything that fits on its own line.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => plain_or_quoted(text),
        value => value.to_string(),
    }
}

/// Text as it is, if it reads as nothing but a text.
fn plain_or_quoted(text: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    let is_word = WORDS.iter().any(|word| word.eq_ignore_ascii_case(text));
    match starts && is_plain && !is_word {
        true => text.to_owned(),
        false => Value::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::to_yaml;
    use serde_json::json;

    #[test]
    fn documents_are_in_block_style_and_odd_texts_are_quoted() {
        let document = json!({
            "name": "edge", "odd": ["", "no", "12", "a: b", "x\ny", "-"], "empty": {}, "none": null,
            "list": [{"a": 1.5, "b": [true, []]}, ["c", {"d": "e"}]], "map": {"f g": {"h": "/i.j"}},
        });
        let expected = "\
name: edge
odd:
  - \"\"
  - \"no\"
  - \"12\"
  - \"a: b\"
  - \"x\\ny\"
  - \"-\"
empty: {}
none: null
list:
  - a: 1.5
    b:
      - true
      - []
  - - c
    - d: e
map:
  \"f g\":
    h: /i.j
";
        // Maps of this library are sorted by name.
        let sorted = |text: &str| {
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            lines.join("\n")
        };
        assert_eq!(sorted(&to_yaml(&document)), sorted(expected));
        assert_eq!(to_yaml(&json!("x")), "x\n");
        let node = tailwater_api::document::Document::parse(&to_yaml(&document), "x", "a document");
        assert!(node.is_ok());
    }
}
