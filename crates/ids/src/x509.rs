//! Certificate fields (RFC 5280) in the form rules use.

/// ASN.1 tags (X.690).
const INTEGER: u8 = 0x02;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// Tag of the optional version.
const VERSION: u8 = 0xa0;

/// Short names of attributes, by encoded object identifier.
const ATTRIBUTES: [(&[u8], &str); 9] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "emailAddress"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
];

/// Parses an element: tag, content, and remaining bytes.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, first, rest @ ..] = bytes else {
        return None;
    };
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let join = |length, byte: &u8| length << 8 | usize::from(*byte);
            (digits.iter().fold(0, join), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// Parses the next element, which must have the tag `wanted`, and advances past it.
fn expect<'a>(bytes: &mut &'a [u8], wanted: u8) -> Option<&'a [u8]> {
    let (tag, content, rest) = element(bytes)?;
    *bytes = rest;
    (tag == wanted).then_some(content)
}

/// Text fields of a certificate.
#[derive(Debug)]
pub(crate) struct Texts {
    pub(crate) subject: Vec<u8>,
    pub(crate) issuer: Vec<u8>,
    pub(crate) serial: Vec<u8>,
}

impl Texts {
    /// Allocates room for certificates of this many bytes.
    pub(crate) fn with_room(bytes: usize) -> Texts {
        Texts {
            subject: Vec::with_capacity(2 * bytes),
            issuer: Vec::with_capacity(2 * bytes),
            serial: Vec::with_capacity(3 * bytes),
        }
    }

    /// Parses a certificate; returns `false` if it is malformed.
    pub(crate) fn read(&mut self, certificate: &[u8]) -> bool {
        for text in [&mut self.subject, &mut self.issuer, &mut self.serial] {
            text.clear();
        }
        self.fill(certificate).is_some()
    }

    fn fill(&mut self, mut bytes: &[u8]) -> Option<()> {
        let mut certificate = expect(&mut bytes, SEQUENCE)?;
        let mut rest = expect(&mut certificate, SEQUENCE)?;
        if rest.first() == Some(&VERSION) {
            expect(&mut rest, VERSION)?;
        }
        for byte in expect(&mut rest, INTEGER)? {
            if !self.serial.is_empty() {
                self.serial.push(b':');
            }
            let digit = |value: u8| b"0123456789ABCDEF"[usize::from(value)];
            self.serial.extend([digit(byte >> 4), digit(byte & 15)]);
        }
        // Signature algorithm, issuer, validity, subject.
        expect(&mut rest, SEQUENCE)?;
        name(expect(&mut rest, SEQUENCE)?, &mut self.issuer);
        expect(&mut rest, SEQUENCE)?;
        name(expect(&mut rest, SEQUENCE)?, &mut self.subject);
        Some(())
    }
}

/// Writes a name: `C=US, O=Example, CN=a.example`.
fn name(mut sets: &[u8], out: &mut Vec<u8>) {
    while let Some(mut set) = expect(&mut sets, SET) {
        while let Some(mut pair) = expect(&mut set, SEQUENCE) {
            let Some(object) = expect(&mut pair, OBJECT) else {
                return;
            };
            let known = ATTRIBUTES.iter().find(|(known, _)| *known == object);
            if let (Some((_, short)), Some((_, value, _))) = (known, element(pair)) {
                if !out.is_empty() {
                    out.extend_from_slice(b", ");
                }
                out.extend_from_slice(short.as_bytes());
                out.push(b'=');
                out.extend_from_slice(value);
            }
        }
    }
}
