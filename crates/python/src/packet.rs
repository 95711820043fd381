//! Packet as a function written in Python sees it.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::net::IpAddr;
use tailwater_chain::batch;
use tailwater_net::parse::Headers;
use tailwater_net::{FlowKey, Nanos};

/// Packet at a function written in Python: a copy, so that it may be kept.
#[pyclass(frozen, module = "tailwater")]
pub struct Packet {
    time: Nanos,
    headers: Headers,
    is_new: bool,
    data: Py<PyBytes>,
}

/// Source and destination address, source and destination port, and protocol of a flow, as Python has them.
pub type FlowFields = (String, String, u16, u16, u8);

/// Returns a flow's fields.
pub fn fields(key: &FlowKey) -> FlowFields {
    (
        key.source().to_string(),
        key.destination().to_string(),
        key.source_port(),
        key.destination_port(),
        key.protocol(),
    )
}

impl Packet {
    /// Copies a packet.
    pub fn copy(py: Python<'_>, packet: &batch::Packet, frame: &[u8]) -> Packet {
        Packet {
            time: packet.arrival,
            headers: packet.headers,
            is_new: packet.is_new(),
            data: PyBytes::new(py, frame).unbind(),
        }
    }

    fn address(address: IpAddr) -> String {
        address.to_string()
    }
}

#[pymethods]
impl Packet {
    /// Time since the first packet in nanoseconds.
    #[getter]
    fn time_ns(&self) -> u64 {
        self.time.0
    }

    /// Ethernet frame.
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    /// Bytes after the transport header, without the frame's padding.
    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let (start, end) = (self.headers.payload_offset, self.headers.end);
        let payload = self.data.as_bytes(py).get(usize::from(start)..usize::from(end));
        PyBytes::new(py, payload.unwrap_or_default())
    }

    /// Offset of the IP header in the frame.
    #[getter]
    fn network_offset(&self) -> u16 {
        self.headers.network_offset
    }

    /// Offset of the transport header in the frame.
    #[getter]
    fn transport_offset(&self) -> u16 {
        self.headers.transport_offset
    }

    /// Source address.
    #[getter]
    fn source(&self) -> String {
        Packet::address(self.headers.key.source())
    }

    /// Destination address.
    #[getter]
    fn destination(&self) -> String {
        Packet::address(self.headers.key.destination())
    }

    /// Source port; 0 without one.
    #[getter]
    fn source_port(&self) -> u16 {
        self.headers.key.source_port()
    }

    /// Destination port; 0 without one.
    #[getter]
    fn destination_port(&self) -> u16 {
        self.headers.key.destination_port()
    }

    /// IP protocol number.
    #[getter]
    fn protocol(&self) -> u8 {
        self.headers.key.protocol()
    }

    /// Addresses, ports and protocol as a tuple, to key a dictionary with.
    #[getter]
    fn flow<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        fields(&self.headers.key).into_pyobject(py)
    }

    /// `True` if the packet opened its flow in the chain's flow table; always `False` in a chain without one.
    #[getter]
    fn is_new(&self) -> bool {
        self.is_new
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.data.as_bytes(py).len()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (source, destination, from, to, protocol) = fields(&self.headers.key);
        let length = self.data.as_bytes(py).len();
        format!("Packet({source} port {from} to {destination} port {to}, protocol {protocol}, {length} bytes)")
    }
}
