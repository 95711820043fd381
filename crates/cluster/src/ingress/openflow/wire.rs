//! Reading and writing of fields in network byte order, with lengths checked.

/// Longest OpenFlow message in bytes: its length field has 16 bits.
pub const MAX_MESSAGE: usize = u16::MAX as usize;
/// Bytes of a message's header.
pub const HEADER: usize = 8;

/// Defect of a message, with the field that has it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenFlowError {
    /// The message ends within a field.
    #[error("{field}: expected {expected} bytes, found {found}")]
    Truncated {
        /// Field, such as `port_status.desc`.
        field: &'static str,
        /// Bytes of the field.
        expected: usize,
        /// Bytes left in the message.
        found: usize,
    },
    /// A field has a value that the protocol excludes.
    #[error("{field}: expected {expected}, found {found}")]
    Value {
        /// Field, such as `header.version`.
        field: &'static str,
        /// Values that it can have.
        expected: &'static str,
        /// Its value.
        found: u64,
    },
    /// The peer sent more of something than is accepted.
    #[error("{field}: expected {limit} at most")]
    TooMany {
        /// Name of the things, such as `flow statistics`.
        field: &'static str,
        /// Largest accepted number.
        limit: usize,
    },
    /// The peer did not answer in time.
    #[error("no answer to {request} within {milliseconds} ms")]
    Silent {
        /// Unanswered request.
        request: &'static str,
        /// Time waited.
        milliseconds: u64,
    },
    /// The switch refused a request that the ingress cannot do without.
    #[error("the switch refused {request}: error type {kind}, code {code}")]
    Refused {
        /// Refused request.
        request: &'static str,
        /// Type of the error, `OFPET_*`.
        kind: u16,
        /// Code of the error.
        code: u16,
    },
}

/// Bytes of a message that have not been read yet.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Begins to read.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// Returns `true` if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns all bytes left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// Returns the next `length` bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn take(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], OpenFlowError> {
        let Some((taken, rest)) = self.bytes.split_at_checked(length) else {
            return Err(OpenFlowError::Truncated {
                field,
                expected: length,
                found: self.bytes.len(),
            });
        };
        self.bytes = rest;
        Ok(taken)
    }

    /// Returns the next `length` bytes, to be read on their own.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn part(&mut self, length: usize, field: &'static str) -> Result<Reader<'a>, OpenFlowError> {
        self.take(length, field).map(Reader::new)
    }

    /// Skips bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn skip(&mut self, length: usize, field: &'static str) -> Result<(), OpenFlowError> {
        self.take(length, field).map(|_| ())
    }

    /// Returns the next bytes as an array.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], OpenFlowError> {
        let taken = self.take(N, field)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    /// Returns the next byte.
    ///
    /// # Errors
    /// If none is left.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, OpenFlowError> {
        self.array(field).map(u8::from_be_bytes)
    }

    /// Returns the next two bytes as a number.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, OpenFlowError> {
        self.array(field).map(u16::from_be_bytes)
    }

    /// Returns the next four bytes as a number.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, OpenFlowError> {
        self.array(field).map(u32::from_be_bytes)
    }

    /// Returns the next eight bytes as a number.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, OpenFlowError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// Returns the next element of a list whose elements begin with a type and their own length, both 16 bits. The
    /// length counts these four bytes, and `padded` rounds it up to a multiple of eight.
    ///
    /// # Errors
    /// If the length is less than four, or more than is left.
    pub fn element(&mut self, padded: bool, field: &'static str) -> Result<(u16, Reader<'a>), OpenFlowError> {
        let kind = self.u16(field)?;
        let length = usize::from(self.u16(field)?);
        let Some(body) = length.checked_sub(4) else {
            return Err(OpenFlowError::Value {
                field,
                expected: "a length of 4 or more",
                found: length as u64,
            });
        };
        let part = self.part(body, field)?;
        if padded {
            self.skip(length.next_multiple_of(8) - length, field)?;
        }
        Ok((kind, part))
    }
}

/// Appends zeros up to a multiple of eight bytes since `begin`.
pub fn pad(out: &mut Vec<u8>, begin: usize) {
    let length = out.len() - begin;
    out.resize(begin + length.next_multiple_of(8), 0);
}

/// Writes the number of bytes since `begin` to the two bytes at `at`.
pub fn set_length(out: &mut [u8], begin: usize, at: usize) {
    // Messages that do not fit are never built: rules and frames are bounded.
    let length = u16::try_from(out.len() - begin).unwrap_or(u16::MAX);
    out[at..at + 2].copy_from_slice(&length.to_be_bytes());
}
