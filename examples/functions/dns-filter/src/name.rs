//! DNS names in wire format (RFC 1035 §3.1): labels, each after its length.

/// Maximum length of a name in bytes.
pub const LONGEST: usize = 255;
const LONGEST_LABEL: usize = 63;
/// Size of a message's header in bytes; the first question follows it.
const HEADER: usize = 12;

/// Converts a name such as `example.com` to wire format, without the final empty label, in lower case.
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

/// Copies the name of a query to `name`, in lower case. Returns `false` if the message is not a query with a name.
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
        // Longer labels are pointers, which a first question never has.
        if length > LONGEST_LABEL || name.len() + 1 + length >= LONGEST {
            return false;
        }
        name.push(length as u8);
        name.extend(label.iter().map(u8::to_ascii_lowercase));
        rest = after;
    }
    false
}
