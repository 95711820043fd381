//! Splitting of a rule's options.

use super::problem::Problem;

/// Option of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opt<'a> {
    /// Keyword.
    pub(super) name: &'a str,
    /// Text after the colon, if any.
    pub(super) value: Option<&'a str>,
    /// Byte offset of the keyword in the rule.
    pub(super) at: usize,
}

/// Splits the options between the parenthesis at offset `open` and the one at the rule's end.
pub(super) fn split(text: &str, open: usize) -> Result<Vec<Opt<'_>>, Problem> {
    let Some(inside) = text[open + 1..].trim_end().strip_suffix(')') else {
        return Err(Problem::at(text.len(), "expected \")\" at the rule's end"));
    };
    let mut options = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, byte) in inside.bytes().enumerate() {
        if escaped {
            escaped = false;
            continue;
        }
        match byte {
            b'\\' => escaped = true,
            // Splits within quotation marks, too: there a semicolon must be escaped, while inner quotation marks need
            // not be.
            b';' => {
                if let Some(option) = option(&inside[start..i], open + 1 + start) {
                    options.push(option);
                }
                start = i + 1;
            }
            _ => {}
        }
    }
    let rest = inside[start..].trim();
    if !rest.is_empty() {
        let at = open + 1 + inside.len();
        return Err(Problem::at(at, "expected \";\" behind the last option"));
    }
    Ok(options)
}

/// Parses one option; `None` if there is only white space.
fn option(text: &str, at: usize) -> Option<Opt<'_>> {
    let indent = text.len() - text.trim_start().len();
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    let (name, value) = match text.split_once(':') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (text, None),
    };
    Some(Opt {
        name,
        value,
        at: at + indent,
    })
}

/// Returns the rule's `sid`, if it has one.
pub(super) fn sid(options: &[Opt<'_>]) -> Option<u32> {
    let sid = options.iter().find(|option| option.name == "sid")?;
    sid.value?.parse().ok()
}

/// Parses an optionally negated quoted value, and returns the text between the marks with its escapes.
pub(super) fn quotation(value: &str) -> Option<(bool, &str)> {
    let (negated, value) = match value.strip_prefix('!') {
        Some(rest) => (true, rest.trim_start()),
        None => (false, value),
    };
    let inside = value.strip_prefix('"')?.strip_suffix('"')?;
    Some((negated, inside))
}

/// Parses the bytes of a content: text, escapes, and hexadecimal digits between bars.
pub(super) fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'|' => {
                let mut high = None;
                loop {
                    let Some(digit) = rest.next() else {
                        return Err("expected \"|\" after the hexadecimal digits, found the end".to_owned());
                    };
                    match (digit, high) {
                        (b'|', None) => break,
                        (b'|', Some(_)) => {
                            return Err(
                                "expected pairs of hexadecimal digits between bars, found a single digit".to_owned(),
                            );
                        }
                        (b' ', _) => {}
                        _ => {
                            let Some(value) = char::from(digit).to_digit(16) else {
                                let found = char::from(digit).escape_debug();
                                return Err(format!("expected hexadecimal digits between bars, found \"{found}\""));
                            };
                            high = match high {
                                None => Some(value),
                                Some(high) => {
                                    bytes.push((high * 16 + value) as u8);
                                    None
                                }
                            };
                        }
                    }
                }
            }
            b'\\' => match rest.next() {
                Some(byte @ (b'"' | b';' | b':' | b'\\' | b'|')) => bytes.push(byte),
                Some(other) => {
                    let found = char::from(other).escape_debug();
                    return Err(format!(
                        "expected one of \" ; : \\ | behind a backslash, found \"{found}\""
                    ));
                }
                None => return Err("expected a character after the backslash, found the end".to_owned()),
            },
            _ => bytes.push(byte),
        }
    }
    Ok(bytes)
}

/// Removes the escapes of quotation marks, semicolons, colons and backslashes.
pub(super) fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut escaped = false;
    for character in text.chars() {
        match character {
            '\\' if !escaped => escaped = true,
            _ => {
                if escaped && !matches!(character, '"' | ';' | ':' | '\\') {
                    out.push('\\');
                }
                escaped = false;
                out.push(character);
            }
        }
    }
    out
}
