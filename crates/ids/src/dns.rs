//! Names queried in DNS messages (RFC 1035).

/// Largest number of questions inspected per message.
const MAX_QUESTIONS: usize = 8;
const HEADER: usize = 12;
/// Longest name in dotted form, in bytes.
pub(crate) const MAX_NAME: usize = 255;

/// Returns `true` if bytes may be a message: the header's counts fit the length.
pub(crate) fn is_message(bytes: &[u8]) -> bool {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return false;
    };
    let questions = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let opcode = header[2] >> 3 & 0x0f;
    opcode <= 6 && questions >= 1 && bytes.len() >= HEADER + 5 * questions.min(MAX_QUESTIONS)
}

/// Returns `true` if a message is a response.
pub(crate) fn is_answer(bytes: &[u8]) -> bool {
    bytes.get(2).is_some_and(|flags| flags & 0x80 != 0)
}

/// Calls `each` with the name of every question, written with a dot before each label.
pub(crate) fn questions(bytes: &[u8], name: &mut Vec<u8>, mut each: impl FnMut(&[u8])) {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return;
    };
    let count = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let mut at = HEADER;
    for _ in 0..count.min(MAX_QUESTIONS) {
        name.clear();
        loop {
            let Some(&length) = bytes.get(at) else {
                return;
            };
            at += 1;
            match length {
                0 => break,
                1..=63 => {
                    let Some(label) = bytes.get(at..at + usize::from(length)) else {
                        return;
                    };
                    if name.len() + 1 + label.len() > MAX_NAME + 1 {
                        return;
                    }
                    name.push(b'.');
                    name.extend_from_slice(label);
                    at += label.len();
                }
                // Names in questions are never compressed.
                _ => return,
            }
        }
        // Skips type and class.
        at += 4;
        if name.is_empty() {
            name.push(b'.');
        }
        each(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(bytes: &[u8]) -> Vec<String> {
        let mut names = Vec::new();
        questions(bytes, &mut Vec::new(), |name| {
            names.push(String::from_utf8_lossy(name).into_owned());
        });
        names
    }

    #[test]
    fn questions_are_read_as_far_as_they_make_sense() {
        let mut message = b"\x12\x34\x01\x00\0\x02\0\0\0\0\0\0\x03www\x02Ex\0\0\x01\0\x01\x01a\0\0\x01\0\x01".to_vec();
        assert!(is_message(&message) && !is_answer(&message));
        assert_eq!(names(&message), [".www.Ex", ".a"]);
        for length in 0..message.len() {
            assert!(names(&message[..length]).len() <= 2);
        }
        message[12] = 0xc0;
        assert!(names(&message).is_empty());
        message[2] = 0x81;
        assert!(is_answer(&message));
        assert_eq!(names(b"\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\x01\0\x01"), ["."]);
    }
}
