//! Hand-made capture files: every byte is written here, by the formats' specifications and not by the crate's own
//! writer.

use std::io::Write;

/// Byte order of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Little,
    Big,
}

pub const ORDERS: [Order; 2] = [Order::Little, Order::Big];

impl Order {
    pub fn u16(self, value: u16) -> [u8; 2] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }

    pub fn u32(self, value: u32) -> [u8; 4] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }

    pub fn i64(self, value: i64) -> [u8; 8] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }
}

/// A pcap file.
pub struct PcapFile {
    pub order: Order,
    pub bytes: Vec<u8>,
}

impl PcapFile {
    pub fn new(order: Order, nanoseconds: bool, link: u32) -> Self {
        let magic = if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        let mut bytes = order.u32(magic).to_vec();
        bytes.extend(order.u16(2));
        bytes.extend(order.u16(4));
        bytes.extend([0; 8]);
        bytes.extend(order.u32(262_144));
        bytes.extend(order.u32(link));
        PcapFile { order, bytes }
    }

    pub fn record(mut self, seconds: u32, fraction: u32, data: &[u8], wire: u32) -> Self {
        for field in [seconds, fraction, data.len() as u32, wire] {
            self.bytes.extend(self.order.u32(field));
        }
        self.bytes.extend(data);
        self
    }
}

/// A pcapng file.
pub struct PcapNgFile {
    pub order: Order,
    pub bytes: Vec<u8>,
}

impl PcapNgFile {
    /// Creates a file with one section header.
    pub fn new(order: Order) -> Self {
        PcapNgFile {
            order,
            bytes: Vec::new(),
        }
        .section(order)
    }

    pub fn block(mut self, kind: u32, body: &[u8]) -> Self {
        let padded = body.len().next_multiple_of(4);
        let length = self.order.u32(padded as u32 + 12);
        self.bytes.extend(self.order.u32(kind));
        self.bytes.extend(length);
        self.bytes.extend(body);
        self.bytes.resize(self.bytes.len() + padded - body.len(), 0xee);
        self.bytes.extend(length);
        self
    }

    pub fn section(mut self, order: Order) -> Self {
        self.order = order;
        let mut body = order.u32(0x1a2b_3c4d).to_vec();
        body.extend(order.u16(1));
        body.extend(order.u16(0));
        body.extend(order.i64(-1));
        self.block(0x0a0d_0d0a, &body)
    }

    fn option(&self, code: u16, value: &[u8]) -> Vec<u8> {
        let mut option = self.order.u16(code).to_vec();
        option.extend(self.order.u16(value.len() as u16));
        option.extend(value);
        option.resize(option.len().next_multiple_of(4), 0xee);
        option
    }

    pub fn interface(self, link: u16, snap: u32, resolution: Option<u8>, offset: i64) -> Self {
        let mut body = self.order.u16(link).to_vec();
        body.extend([0; 2]);
        body.extend(self.order.u32(snap));
        body.extend(self.option(2, b"eth0"));
        if let Some(resolution) = resolution {
            body.extend(self.option(9, &[resolution]));
        }
        if offset != 0 {
            body.extend(self.option(14, &self.order.i64(offset)));
        }
        body.extend(self.option(0, &[]));
        self.block(1, &body)
    }

    pub fn enhanced(self, interface: u32, ticks: u64, data: &[u8], wire: u32) -> Self {
        let body = self.enhanced_body(interface, ticks, data, wire);
        self.block(6, &body)
    }

    /// Adds a packet with a flags option and a comment.
    pub fn enhanced_options(self, interface: u32, ticks: u64, data: &[u8], wire: u32) -> Self {
        let mut body = self.enhanced_body(interface, ticks, data, wire);
        body.resize(body.len().next_multiple_of(4), 0xee);
        body.extend(self.option(2, &self.order.u32(1)));
        body.extend(self.option(1, b"a comment"));
        body.extend(self.option(0, &[]));
        self.block(6, &body)
    }

    fn enhanced_body(&self, interface: u32, ticks: u64, data: &[u8], wire: u32) -> Vec<u8> {
        let mut body = Vec::new();
        let (high, low) = ((ticks >> 32) as u32, ticks as u32);
        for field in [interface, high, low, data.len() as u32, wire] {
            body.extend(self.order.u32(field));
        }
        body.extend(data);
        body
    }

    pub fn simple(self, data: &[u8], wire: u32) -> Self {
        let mut body = self.order.u32(wire).to_vec();
        body.extend(data);
        self.block(3, &body)
    }

    pub fn obsolete(self, interface: u16, ticks: u64, data: &[u8], wire: u32) -> Self {
        let mut body = self.order.u16(interface).to_vec();
        body.extend(self.order.u16(7));
        let (high, low) = ((ticks >> 32) as u32, ticks as u32);
        for field in [high, low, data.len() as u32, wire] {
            body.extend(self.order.u32(field));
        }
        body.extend(data);
        self.block(2, &body)
    }
}

/// Compression of a file.
#[derive(Clone, Copy, Debug)]
pub enum Packing {
    Plain,
    Gzip,
    /// Two gzip members, as from `cat a.gz b.gz`.
    GzipTwice,
    Zstd,
    /// One skippable frame and two frames.
    ZstdTwice,
}

pub const PACKINGS: [Packing; 5] = [
    Packing::Plain,
    Packing::Gzip,
    Packing::GzipTwice,
    Packing::Zstd,
    Packing::ZstdTwice,
];

pub fn pack(bytes: &[u8], packing: Packing) -> Vec<u8> {
    let gzip = |bytes: &[u8]| {
        let level = flate2::Compression::default();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = |bytes: &[u8]| ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest);
    let (first, second) = bytes.split_at(bytes.len() / 3);
    match packing {
        Packing::Plain => bytes.to_vec(),
        Packing::Gzip => gzip(bytes),
        Packing::GzipTwice => [gzip(first), gzip(second)].concat(),
        Packing::Zstd => zstd(bytes),
        Packing::ZstdTwice => {
            let skippable = [0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
            [&skippable[..], &zstd(first), &skippable, &zstd(second)].concat()
        }
    }
}
