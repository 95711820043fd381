//! Names as DNS has them (RFC 1035 §3.1): labels, each behind its length.

/// The longest name, in bytes.
pub const LONGEST: usize = 255;
const LONGEST_LABEL: usize = 63;
/// Bytes in front of a message's first question.
const HEADER: usize = 12;

/// A name such as `example.com` as it stands in messages, without the empty label at its end, in lower case.
pub fn wire_name(text: &str) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    for label in text.strip_suffix('.').unwrap_or(text).split('.') {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=LONGEST_LABEL).contains(&label.len()) || !label.bytes().all(plain) {
            return None;
        }
        name.push(label.len() as u8);
        name.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
    }
    (name.len() < LONGEST).then_some(name)
}

/// Puts the name that a query asks for into `name`, in lower case. Whether the message is a query with one.
pub fn question(message: &[u8], name: &mut Vec<u8>) -> bool {
    name.clear();
    let [_, _, flags, _, high, low, ..] = *message else {
        return false;
    };
    if flags & 0x80 != 0 || (high, low) == (0, 0) {
        return false;
    }
    let mut rest = message.get(HEADER..).unwrap_or_default();
    while let [length, after @ ..] = rest {
        let length = usize::from(*length);
        if length == 0 {
            return !name.is_empty();
        }
        let Some((label, after)) = after.split_at_checked(length) else {
            return false;
        };
        // Longer ones are pointers, of which a first question has none.
        if length > LONGEST_LABEL || name.len() + 1 + length >= LONGEST {
            return false;
        }
        name.push(length as u8);
        name.extend(label.iter().map(u8::to_ascii_lowercase));
        rest = after;
    }
    false
}
