//! Traffic between hosts: numbered datagrams that are answered, and others that are only received.

use crate::common::namespaces::Hosts;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Ports of hosts that answer, and of those that only receive.
const ECHO: u16 = 7;
const SINK: u16 = 9;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Unanswered datagrams of a flow.
const WINDOW: u32 = 4;

/// Socket with room for all that comes in while the receiver waits for its core.
fn socket(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    let bytes: libc::c_int = 64 << 20;
    let size = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the value has this size and outlives the call.
    let set = unsafe {
        let value = (&raw const bytes).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, value, size)
    };
    assert_eq!(set, 0);
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    socket
}

/// Sends frames as they are by an interface of this thread's namespace.
pub fn send_frames(interface: &str, frames: &[Vec<u8>]) {
    assert_eq!(try_frames(interface, frames), frames.len());
}

/// Same, whether there is such an interface or not. Returns the number of frames that were sent.
pub fn try_frames(interface: &str, frames: &[Vec<u8>]) -> usize {
    let name = std::ffi::CString::new(interface).unwrap();
    // SAFETY: the name ends with a zero byte; the other calls pass values that outlive them, with their sizes.
    unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0);
        let socket = OwnedFd::from_raw_fd(socket);
        let mut to: libc::sockaddr_ll = std::mem::zeroed();
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as libc::c_int;
        let (to, size) = ((&raw const to).cast(), size_of_val(&to) as libc::socklen_t);
        let sent = frames.iter().filter(|frame| {
            let sent = libc::sendto(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, to, size);
            sent == frame.len() as isize
        });
        sent.count()
    }
}

/// Answers datagrams to an address of a host until the test program ends: with their bytes, this number, and the
/// sender's address as the host sees it.
pub fn answer(hosts: &Hosts, host: usize, address: &str, number: u8) {
    let address: Ipv4Addr = address.parse().unwrap();
    let (ready, is_ready) = channel();
    hosts.within(host, move || {
        let socket = socket((address, ECHO).into());
        ready.send(()).unwrap();
        let mut bytes = [0; 64];
        loop {
            // A timeout, or a namespace that is gone.
            let Ok((length, from)) = socket.recv_from(&mut bytes) else {
                continue;
            };
            let answer = [&bytes[..length], &[number], from.to_string().as_bytes()].concat();
            let _ = socket.send_to(&answer, from);
        }
    });
    is_ready.recv().unwrap();
}

/// Flow of datagrams, each with its number, to a host that answers.
struct Flow {
    socket: UdpSocket,
    sent: u32,
    answered: u32,
    /// Host that answers, and the flow's address as it sees it.
    seen: Option<Vec<u8>>,
}

impl Flow {
    fn new(to: Ipv4Addr) -> Flow {
        let socket = socket((Ipv4Addr::UNSPECIFIED, 0).into());
        socket.connect((to, ECHO)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Flow {
            socket,
            sent: 0,
            answered: 0,
            seen: None,
        }
    }

    /// Receives answers. Returns `true` if there were any.
    fn receive(&mut self) -> bool {
        let (before, mut bytes) = (self.answered, [0; 64]);
        loop {
            match self.socket.recv(&mut bytes) {
                Ok(length) => {
                    let (number, seen) = bytes[..length].split_at(4);
                    let number = u32::from_be_bytes(number.try_into().unwrap());
                    assert_eq!(number, self.answered, "lost, or overtaken");
                    let first = self.seen.get_or_insert_with(|| seen.to_vec());
                    assert_eq!(first, seen, "the flow has another address or backend");
                    self.answered += 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.answered > before,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn send(&mut self) {
        while self.sent - self.answered < WINDOW {
            self.socket.send(&self.sent.to_be_bytes()).unwrap();
            self.sent += 1;
        }
    }
}

/// Datagrams from host 0, until they are ended or so many are answered.
pub struct Conversation {
    thread: JoinHandle<u64>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
}

impl Conversation {
    /// Starts so many flows to each of these addresses.
    pub fn start(hosts: &Hosts, to: &[&str], flows: usize, most: u64) -> Conversation {
        let to: Vec<Ipv4Addr> = to.iter().map(|to| to.parse().unwrap()).collect();
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&answered));
        let thread = hosts.within(0, move || {
            let mut flows: Vec<Flow> = to.iter().flat_map(|to| (0..flows).map(|_| Flow::new(*to))).collect();
            let mut last = Instant::now();
            loop {
                let all = flows.iter().map(|flow| u64::from(flow.answered)).sum();
                count.store(all, Ordering::Relaxed);
                let ends = stopped.load(Ordering::Relaxed) || all >= most;
                if ends && flows.iter().all(|flow| flow.answered == flow.sent) {
                    break all;
                }
                let mut any = false;
                for flow in &mut flows {
                    any |= flow.receive();
                    if !ends {
                        flow.send();
                    }
                }
                if any {
                    last = Instant::now();
                }
                assert!(last.elapsed() < PATIENCE, "{all} answered");
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        Conversation { thread, stop, answered }
    }

    /// Number of answers so far.
    pub fn answered(&self) -> u64 {
        assert!(
            !self.thread.is_finished() || self.stop.load(Ordering::Relaxed),
            "it has failed"
        );
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits until all are answered. Returns their number.
    pub fn finish(self) -> u64 {
        self.thread.join().expect("all datagrams are answered in order")
    }

    /// Sends no more, and waits until all are answered. Returns their number.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.finish()
    }
}

/// Datagrams of one flow from host 0 to host 1, whether they arrive or not, at about so many per millisecond.
pub struct Stream {
    sender: JoinHandle<u32>,
    receiver: JoinHandle<u32>,
    stop: Arc<AtomicBool>,
}

impl Stream {
    pub fn start(hosts: &Hosts, to: &str, rate: u32) -> Stream {
        let to: Ipv4Addr = to.parse().unwrap();
        let stop = Arc::<AtomicBool>::default();
        let (ready, is_ready) = channel();
        let (ended, is_over) = channel();
        let receiver = hosts.within(1, move || {
            let socket = socket((Ipv4Addr::UNSPECIFIED, SINK).into());
            ready.send(()).unwrap();
            let (mut next, mut bytes, mut last) = (0, [0; 64], Instant::now());
            let mut all = None;
            loop {
                all = all.or_else(|| is_over.try_recv().ok());
                if all == Some(next) {
                    break next;
                }
                assert!(last.elapsed() < PATIENCE, "{next} of {all:?} received");
                if let Ok(length) = socket.recv(&mut bytes) {
                    let number = u32::from_be_bytes(bytes[..length].try_into().unwrap());
                    assert_eq!(number, next, "lost, or overtaken");
                    (next, last) = (next + 1, Instant::now());
                }
            }
        });
        is_ready.recv().unwrap();
        let stopped = Arc::clone(&stop);
        let sender = hosts.within(0, move || {
            let socket = socket((Ipv4Addr::UNSPECIFIED, 0).into());
            socket.connect((to, SINK)).unwrap();
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..rate {
                    socket.send(&u32::to_be_bytes(sent)).unwrap();
                    sent += 1;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            ended.send(sent).unwrap();
            sent
        });
        Stream { sender, receiver, stop }
    }

    /// Sends no more, and waits until all have arrived, in order. Returns their number.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        assert_eq!(self.receiver.join().expect("all arrive in order"), sent);
        sent.into()
    }
}
