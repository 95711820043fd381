//! Messages of a take-over: JSON behind its length, and a memory file of which the descriptor is passed.

use super::fields::{FinalCounts, HandedOver, MachineOffer};
use crate::generation::StoredGeneration;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Version of the messages. A server of another version refuses.
pub const PROTOCOL: u32 = 1;

/// Longest message in bytes: a generation of the longest file has less.
pub const MOST_MESSAGE: usize = 1 << 30;

/// Most bytes of flows.
pub(super) const MOST_FLOWS: u64 = 64 << 30;

/// Descriptors in one message; the kernel's limit is 253.
const AT_ONCE: usize = 64;

/// Most descriptors of a port.
const MOST_DESCRIPTORS: usize = 4096;

/// Message of a take-over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "camelCase")]
pub enum Message {
    /// First message of the new server.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Name of the server.
        server: String,
    },
    /// Answer: everything that the new server needs to prepare. The descriptors of the ports' sockets follow.
    Offer {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Number of the running process.
        process: u32,
        /// Its state folder, without links.
        state: PathBuf,
        /// Applied configuration.
        generation: Box<StoredGeneration>,
        /// Machine.
        machine: Box<MachineOffer>,
    },
    /// The running server refuses, and goes on.
    Refused {
        /// Reason in one line.
        reason: String,
        /// The same may succeed if it is repeated. Older versions do not say so.
        #[serde(default)]
        again: bool,
    },
    /// The new server is prepared for this generation.
    Commit {
        /// Number of the generation.
        generation: u64,
    },
    /// The running server is paused. The memory file follows.
    Handed {
        /// Flows and positions.
        machine: Box<HandedOver>,
    },
    /// The new server has everything and polls from now on.
    Taken {
        /// Number of the new process.
        process: u32,
    },
    /// The old server has ended.
    Counts {
        /// Its counts.
        counts: Box<FinalCounts>,
    },
}

impl Message {
    /// Reads a message without its length.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`]: it is none.
    pub fn decode(bytes: &[u8]) -> io::Result<Message> {
        serde_json::from_slice(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error.to_string()))
    }

    /// Writes a message behind its length.
    ///
    /// # Errors
    /// It is too long.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 4];
        serde_json::to_writer(&mut bytes, self)?;
        let length = bytes.len() - 4;
        if length > MOST_MESSAGE {
            return Err(io::Error::other(format!("a message of {length} bytes is too long")));
        }
        bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
        Ok(bytes)
    }
}

/// Sends a message.
pub(super) fn send(stream: &UnixStream, message: &Message, timeout: Duration) -> io::Result<()> {
    stream.set_write_timeout(Some(timeout))?;
    let mut stream = stream;
    stream.write_all(&message.encode()?)
}

/// Stream that is read until some time, however slowly its bytes come.
struct UntilTime<'s> {
    stream: &'s UnixStream,
    end: Instant,
}

impl Read for UntilTime<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

/// Receives a message of at most `most` bytes, the last of which comes within `timeout`.
pub(super) fn receive(stream: &UnixStream, most: usize, timeout: Duration) -> io::Result<Message> {
    let mut stream = UntilTime {
        stream,
        end: Instant::now() + timeout,
    };
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        let error = format!("expected a message of at most {most} bytes, found {length}");
        return Err(io::Error::new(ErrorKind::InvalidData, error));
    }
    // Memory grows with what has arrived, not with what was promised.
    let mut bytes = Vec::new();
    let read = stream.take(length as u64).read_to_end(&mut bytes)?;
    match read == length {
        true => Message::decode(&bytes),
        false => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// Memory file with these bytes.
pub(super) fn memory_file(parts: &[Vec<u8>]) -> io::Result<File> {
    let mut file = File::from(memfd_create("tailwater-flows", MemfdFlags::CLOEXEC)?);
    for part in parts {
        file.write_all(part)?;
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// Passes a descriptor.
pub(super) fn send_file(stream: &UnixStream, file: &File) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(stream, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Passes descriptors.
pub(super) fn send_descriptors(stream: &UnixStream, descriptors: &[OwnedFd]) -> io::Result<()> {
    for some in descriptors.chunks(AT_ONCE) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let some: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
        ancillary.push(SendAncillaryMessage::ScmRights(&some));
        sendmsg(stream, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Receives this number of descriptors.
pub(super) fn receive_descriptors(stream: &UnixStream, count: usize, timeout: Duration) -> io::Result<Vec<OwnedFd>> {
    let wrong = || io::Error::new(ErrorKind::InvalidData, format!("expected {count} descriptors"));
    if count > MOST_DESCRIPTORS {
        return Err(wrong());
    }
    let mut received = Vec::with_capacity(count);
    while received.len() < count {
        stream.set_read_timeout(Some(timeout))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut byte)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let before = received.len();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                received.extend(some);
            }
        }
        if received.len() == before || received.len() > count {
            return Err(wrong());
        }
    }
    Ok(received)
}

/// Receives a descriptor.
pub(super) fn receive_file(stream: &UnixStream, timeout: Duration) -> io::Result<File> {
    stream.set_read_timeout(Some(timeout))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    recvmsg(stream, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let file: Option<OwnedFd> = files.last();
    file.map(File::from)
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "expected a memory file with the flows"))
}

/// Reads the bytes of each chain from a memory file.
pub(super) fn read_flows(mut file: File, handed: &HandedOver) -> io::Result<Vec<(String, Vec<u8>)>> {
    let wrong = |text: String| io::Error::new(ErrorKind::InvalidData, text);
    let all = handed.chains.values();
    let all = all.fold(0u64, |sum, chain| sum.saturating_add(chain.bytes));
    let length = file.metadata()?.len();
    if all != length || all > MOST_FLOWS {
        return Err(wrong(format!("expected {all} bytes of flows, found {length}")));
    }
    file.seek(SeekFrom::Start(0))?;
    let chains = handed.chains.iter().map(|(name, chain)| {
        // The file has as many bytes.
        let mut bytes = vec![0; chain.bytes as usize];
        file.read_exact(&mut bytes)?;
        Ok((name.clone(), bytes))
    });
    chains.collect()
}

#[cfg(test)]
mod tests {
    use super::super::fields::ChainFlows;
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn messages_and_files_pass_over() {
        let (one, two) = UnixStream::pair().unwrap();
        let message = Message::Commit { generation: 7 };
        send(&one, &message, SOON).unwrap();
        assert_eq!(receive(&two, 100, SOON).unwrap(), message);
        let parts = [b"first".to_vec(), Vec::new(), b"third".to_vec()];
        send_file(&one, &memory_file(&parts).unwrap()).unwrap();
        let mut handed = HandedOver::default();
        for (name, part) in ["a", "b", "c"].into_iter().zip(&parts) {
            let bytes = part.len() as u64;
            handed.chains.insert(name.to_owned(), ChainFlows { flows: 1, bytes });
        }
        let file = receive_file(&two, SOON).unwrap();
        let again = file.try_clone().unwrap();
        let read: Vec<_> = read_flows(file, &handed)
            .unwrap()
            .into_iter()
            .map(|(_, bytes)| bytes)
            .collect();
        assert_eq!(read, parts);
        handed.chains.get_mut("b").unwrap().bytes = u64::MAX;
        let error = read_flows(again, &handed).unwrap_err();
        assert!(error.to_string().contains("bytes of flows, found 10"), "{error}");
    }

    #[test]
    fn descriptors_pass_over_in_order() {
        let (one, two) = UnixStream::pair().unwrap();
        for count in [0, 1, AT_ONCE, 2 * AT_ONCE + 3] {
            let files: Vec<OwnedFd> = (0..count)
                .map(|number| memory_file(&[vec![number as u8; number + 1]]).unwrap().into())
                .collect();
            send_descriptors(&one, &files).unwrap();
            let received = receive_descriptors(&two, count, SOON).unwrap();
            let lengths = received
                .into_iter()
                .map(|file| File::from(file).metadata().unwrap().len());
            assert!(lengths.eq(1..=count as u64), "{count}");
        }
        // Another number, or none.
        send_descriptors(&one, &[memory_file(&[]).unwrap().into()]).unwrap();
        (&one).write_all(&[0]).unwrap();
        assert!(receive_descriptors(&two, 2, SOON).is_err());
        send_descriptors(
            &one,
            &[memory_file(&[]).unwrap().into(), memory_file(&[]).unwrap().into()],
        )
        .unwrap();
        assert!(receive_descriptors(&two, 1, SOON).is_err());
        assert!(receive_descriptors(&two, MOST_DESCRIPTORS + 1, SOON).is_err());
    }

    #[test]
    fn wrong_messages_are_refused() {
        let (one, two) = UnixStream::pair().unwrap();
        (&one).write_all(&[255, 255, 255, 255]).unwrap();
        let error = receive(&two, 100, SOON).unwrap_err();
        assert!(
            error.to_string().contains("at most 100 bytes, found 4294967295"),
            "{error}"
        );
        (&one).write_all(&[9, 0, 0, 0]).unwrap();
        (&one).write_all(b"{\"a\": 1}\n").unwrap();
        assert_eq!(receive(&two, 100, SOON).unwrap_err().kind(), ErrorKind::InvalidData);
        (&one).write_all(&[0]).unwrap();
        assert!(
            receive_file(&two, SOON)
                .unwrap_err()
                .to_string()
                .contains("memory file")
        );
        // A byte now and then does not extend the time.
        let slow = std::thread::scope(|scope| {
            let drips = scope.spawn(|| {
                for byte in [100, 0, 0, 0].into_iter().chain([b'{'; 20]) {
                    std::thread::sleep(Duration::from_millis(10));
                    (&one).write_all(&[byte]).unwrap();
                }
            });
            let slow = receive(&two, 100, Duration::from_millis(60));
            drips.join().unwrap();
            slow
        });
        assert_eq!(slow.unwrap_err().kind(), ErrorKind::WouldBlock);
        let (one, two) = UnixStream::pair().unwrap();
        (&one).write_all(&[9, 0, 0, 0, b'{']).unwrap();
        drop(one);
        assert_eq!(receive(&two, 100, SOON).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
