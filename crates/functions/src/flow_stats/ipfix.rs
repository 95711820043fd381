//! IPFIX messages (RFC 7011) of flow records. Information elements have their numbers from IANA's registry.

use super::record::FlowRecord;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use tailwater_net::Nanos;

/// Allowed sizes of a message in bytes. The minimum is what every IPv4 host accepts. The maximum fits the length field
/// and a datagram over IPv6.
pub const MESSAGE_BYTES: RangeInclusive<u64> = 512..=65_000;

const VERSION: u16 = 10;
const HEADER: usize = 16;
const SET_HEADER: usize = 4;
/// Offsets in the header of the fields that are filled in last.
const LENGTH_AT: usize = 2;
const TIME_AT: usize = 4;
const SEQUENCE_AT: usize = 8;

const TEMPLATES: u16 = 2;
const OPTIONS_TEMPLATES: u16 = 3;

/// Information element: its number and its length in bytes.
type Field = (u16, u16);

const COMMON: [Field; 8] = [
    (4, 1),   // protocolIdentifier
    (5, 1),   // ipClassOfService
    (6, 1),   // tcpControlBits, reduced to the eight flag bits
    (136, 1), // flowEndReason
    (1, 8),   // octetDeltaCount
    (2, 8),   // packetDeltaCount
    (152, 8), // flowStartMilliseconds
    (153, 8), // flowEndMilliseconds
];
const ADDRESSES_V4: [Field; 2] = [(8, 4), (12, 4)];
const ADDRESSES_V6: [Field; 2] = [(27, 16), (28, 16)];
const PORTS: &[Field] = &[(7, 2), (11, 2)];
const ICMP_V4: &[Field] = &[(32, 2)];
const ICMP_V6: &[Field] = &[(139, 2)];

/// Templates of flows by their numbers. ICMP flows have a type and code instead of ports.
const FLOWS: [(u16, [Field; 2], &[Field]); 4] = [
    (256, ADDRESSES_V4, PORTS),
    (257, ADDRESSES_V6, PORTS),
    (258, ADDRESSES_V4, ICMP_V4),
    (259, ADDRESSES_V6, ICMP_V6),
];

/// Systematic count-based sampling (RFC 5477): one packet is counted, then a space of others is skipped. It applies to
/// the whole domain and names no selector, so nfdump understands it as well.
const SAMPLING: u16 = 260;
const SAMPLING_FIELDS: [Field; 3] = [
    (149, 4), // observationDomainId, the scope
    (305, 4), // samplingPacketInterval
    (306, 4), // samplingPacketSpace
];

/// Loss counters of the exporter (RFC 7011 §4.3).
const RELIABILITY: u16 = 261;
const RELIABILITY_FIELDS: [Field; 4] = [
    (144, 4), // exportingProcessId, the scope
    (166, 8), // notSentFlowTotalCount
    (167, 8), // notSentPacketTotalCount
    (168, 8), // notSentOctetTotalCount
];

/// Counters of records that could not be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NotSent {
    pub(super) records: u64,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl From<&FlowRecord> for NotSent {
    fn from(record: &FlowRecord) -> NotSent {
        NotSent {
            records: 1,
            packets: record.packets,
            bytes: record.bytes,
        }
    }
}

/// IPFIX message under construction.
#[derive(Debug)]
pub(super) struct Message {
    bytes: Vec<u8>,
    limit: usize,
    domain: u32,
    /// Sampling interval: one packet in `every` is counted.
    every: u32,
    /// Number and start offset of the set to which records are added.
    set: Option<(u16, usize)>,
    /// Number of data records in the message.
    records: u32,
}

impl Message {
    /// Creates an empty message of at most `limit` bytes, within [`MESSAGE_BYTES`]. One packet in `every` is counted.
    pub(super) fn new(limit: usize, domain: u32, every: u32) -> Message {
        let mut message = Message {
            bytes: Vec::with_capacity(limit),
            limit,
            domain,
            every,
            set: None,
            records: 0,
        };
        message.clear();
        message
    }

    /// Starts a new message.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.put_u16(VERSION);
        // Length, export time and sequence number.
        self.bytes.resize(HEADER - size_of::<u32>(), 0);
        self.put_u32(self.domain);
        self.set = None;
        self.records = 0;
    }

    /// Returns the number of data records in the message.
    pub(super) fn records(&self) -> u32 {
        self.records
    }

    /// Adds all templates. They fit into an empty message.
    pub(super) fn add_templates(&mut self) {
        self.begin_set(TEMPLATES);
        for (number, addresses, service) in FLOWS {
            self.put_u16(number);
            let fields = [&addresses, service, &COMMON];
            self.put_u16(fields.iter().map(|fields| fields.len()).sum::<usize>() as u16);
            fields.iter().for_each(|fields| self.put_fields(fields));
        }
        self.begin_set(OPTIONS_TEMPLATES);
        if self.every > 1 {
            self.put_options_template(SAMPLING, &SAMPLING_FIELDS);
        }
        self.put_options_template(RELIABILITY, &RELIABILITY_FIELDS);
        self.end_set();
    }

    /// Adds the options data: sampling parameters and loss counters. It fits after the templates into an empty message.
    pub(super) fn add_options(&mut self, process: u32, not_sent: NotSent) {
        if self.every > 1 {
            self.begin_set(SAMPLING);
            self.put_u32(self.domain);
            self.put_u32(1);
            self.put_u32(self.every - 1);
            self.records += 1;
        }
        self.begin_set(RELIABILITY);
        self.put_u32(process);
        self.put_u64(not_sent.records);
        self.put_u64(not_sent.packets);
        self.put_u64(not_sent.bytes);
        self.records += 1;
        self.end_set();
    }

    /// Adds a record. Returns `false` and changes nothing if there is no room. `origin` is the start of the run in
    /// wall-clock time.
    pub(super) fn add(&mut self, record: &FlowRecord, origin: Nanos) -> bool {
        let key = &record.key;
        let place = usize::from(!key.is_v4()) + 2 * usize::from(record.is_icmp());
        let (number, addresses, service) = FLOWS[place];
        let same_set = self.set.is_some_and(|(set, _)| set == number);
        let fields = addresses.iter().chain(service).chain(&COMMON);
        let length: usize = fields.map(|(_, bytes)| usize::from(*bytes)).sum();
        let header = if same_set { 0 } else { SET_HEADER };
        if self.bytes.len() + header + length > self.limit {
            return false;
        }
        if !same_set {
            self.begin_set(number);
        }
        for address in [key.source(), key.destination()] {
            match address {
                IpAddr::V4(address) => self.bytes.extend(address.octets()),
                IpAddr::V6(address) => self.bytes.extend(address.octets()),
            }
        }
        match record.is_icmp() {
            true => self.put_u16(record.icmp),
            false => {
                self.put_u16(key.source_port());
                self.put_u16(key.destination_port());
            }
        }
        let reason = record.reason as u8;
        self.bytes
            .extend([key.protocol(), record.class, record.flags.0, reason]);
        self.put_u64(record.bytes);
        self.put_u64(record.packets);
        for time in [record.first, record.last] {
            self.put_u64(origin.0.wrapping_add(time.0) / 1_000_000);
        }
        self.records += 1;
        true
    }

    /// Completes the message and returns it. `sequence` is the number of data records sent before it, `time` the export
    /// time in seconds since 1970.
    pub(super) fn finish(&mut self, sequence: u32, time: u32) -> &[u8] {
        self.end_set();
        let length = self.bytes.len() as u16;
        self.bytes[LENGTH_AT..TIME_AT].copy_from_slice(&length.to_be_bytes());
        self.bytes[TIME_AT..SEQUENCE_AT].copy_from_slice(&time.to_be_bytes());
        let end = SEQUENCE_AT + size_of::<u32>();
        self.bytes[SEQUENCE_AT..end].copy_from_slice(&sequence.to_be_bytes());
        &self.bytes
    }

    fn begin_set(&mut self, number: u16) {
        self.end_set();
        self.set = Some((number, self.bytes.len()));
        self.put_u16(number);
        // Placeholder for the length.
        self.put_u16(0);
    }

    fn end_set(&mut self) {
        if let Some((_, start)) = self.set.take() {
            let length = (self.bytes.len() - start) as u16;
            self.bytes[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
        }
    }

    fn put_options_template(&mut self, number: u16, fields: &[Field]) {
        self.put_u16(number);
        self.put_u16(fields.len() as u16);
        // Number of scope fields.
        self.put_u16(1);
        self.put_fields(fields);
    }

    fn put_fields(&mut self, fields: &[Field]) {
        for (element, bytes) in fields {
            self.put_u16(*element);
            self.put_u16(*bytes);
        }
    }

    fn put_u16(&mut self, value: u16) {
        self.bytes.extend(value.to_be_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.bytes.extend(value.to_be_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.bytes.extend(value.to_be_bytes());
    }
}
