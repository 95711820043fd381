//! Minimal reader of IPFIX messages (RFC 7011), which interprets flows only by their templates.

use std::collections::{BTreeMap, HashMap};

/// Elements of a record by number.
pub type Record = BTreeMap<u16, Vec<u8>>;

/// IPFIX message.
pub struct Message {
    /// Number of data records in front of it in its session, as the message states.
    pub sequence: u32,
    pub domain: u32,
    /// Number of templates in the message.
    pub templates: usize,
    pub flows: Vec<Record>,
    /// Records of options templates.
    pub options: Vec<Record>,
}

/// Element of a record as a number.
pub fn number(record: &Record, element: u16) -> u64 {
    let bytes = record.get(&element).unwrap_or_else(|| panic!("no {element}"));
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

struct Template {
    fields: Vec<(u16, usize)>,
    is_option: bool,
}

/// Reader of one session.
#[derive(Default)]
pub struct Reader {
    templates: HashMap<u16, Template>,
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    assert!(count <= bytes.len(), "{count} bytes of {}", bytes.len());
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

fn word(bytes: &mut &[u8]) -> u16 {
    let bytes = take(bytes, 2);
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn double(bytes: &mut &[u8]) -> u32 {
    u32::from(word(bytes)) << 16 | u32::from(word(bytes))
}

impl Reader {
    /// Reads the next message, and removes it from `bytes`.
    pub fn read(&mut self, bytes: &mut &[u8]) -> Message {
        assert_eq!(word(bytes), 10, "the version");
        let length = usize::from(word(bytes));
        let mut rest = take(bytes, length - 4);
        let time = double(&mut rest);
        assert!(time > 1_600_000_000, "exported at {time}");
        let mut message = Message {
            sequence: double(&mut rest),
            domain: double(&mut rest),
            templates: 0,
            flows: Vec::new(),
            options: Vec::new(),
        };
        while !rest.is_empty() {
            let (set, length) = (word(&mut rest), usize::from(word(&mut rest)));
            let set_of = take(&mut rest, length - 4);
            match set {
                2 | 3 => self.learn(set == 3, set_of, &mut message),
                _ => self.records(set, set_of, &mut message),
            }
        }
        message
    }

    fn learn(&mut self, is_option: bool, mut set: &[u8], message: &mut Message) {
        while !set.is_empty() {
            let (number, count) = (word(&mut set), word(&mut set));
            if is_option {
                assert_eq!(word(&mut set), 1, "fields of the scope");
            }
            let fields = (0..count).map(|_| (word(&mut set), usize::from(word(&mut set))));
            let fields = fields.collect();
            self.templates.insert(number, Template { fields, is_option });
            message.templates += 1;
        }
    }

    fn records(&self, set: u16, mut bytes: &[u8], message: &mut Message) {
        let template = self.templates.get(&set);
        let Template { fields, is_option } = template.unwrap_or_else(|| panic!("no template {set}"));
        while !bytes.is_empty() {
            let fields = fields.iter();
            let record = fields.map(|(element, length)| (*element, take(&mut bytes, *length).to_vec()));
            let record: Record = record.collect();
            match is_option {
                true => message.options.push(record),
                false => message.flows.push(record),
            }
        }
    }
}

/// Returns the complete messages at the beginning of a stream.
pub fn whole(mut bytes: &[u8]) -> Vec<Message> {
    let (mut reader, mut messages) = (Reader::default(), Vec::new());
    while let [_, _, high, low, ..] = bytes
        && bytes.len() >= usize::from(u16::from_be_bytes([*high, *low]))
    {
        messages.push(reader.read(&mut bytes));
    }
    messages
}

/// Asserts that each message of a session states the number of data records in the messages before it.
pub fn assert_in_sequence(messages: &[Message]) {
    let mut before = 0;
    for message in messages {
        assert_eq!(message.sequence, before);
        before += (message.flows.len() + message.options.len()) as u32;
    }
}
