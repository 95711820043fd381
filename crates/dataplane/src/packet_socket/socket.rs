//! Packet socket of a kernel interface (AF_PACKET): its system calls.

use super::error::{InterfaceError, Problem};
use super::ring::{RingLayout, RxRing};
use memmap2::MmapOptions;
use std::ffi::{CString, c_int, c_ulong};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicI32, Ordering};
use tailwater_net::ethernet::MacAddress;

/// Bytes of sent packets that the kernel may hold: the receiver takes them from its queue later.
const SEND_BUFFER: c_int = 4 << 20;

/// Type of a fan-out by the kernel's symmetric flow hash, with a group number that the kernel chooses, or with the
/// number in the lower half.
const FANOUT_BY_HASH: u32 = 0;
const FANOUT_NEW: u32 = 0x2000 << 16;

/// Offset at which a filter reads a packet's type, and the type of packets that leave the machine.
const PACKET_TYPE: u32 = (-0x1000 + 4_i32) as u32;
const OUTGOING: u32 = 4;

/// Open socket of an interface. The kernel ends the interface's promiscuity with the socket, also if the process dies.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    socket: OwnedFd,
    name: String,
    /// Another one, once the interface was made again.
    index: AtomicI32,
    mtu: usize,
    /// Only one of several sockets has it.
    lock: Option<OwnedFd>,
}

/// Description of an interface's sockets, for another process that gets their descriptors.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PassedInterface {
    /// Name of the interface.
    name: String,
    index: c_int,
    mtu: usize,
    /// Sizes of the receive rings; `None` if the interface only sends.
    ring: Option<RingLayout>,
    /// Number of sockets. Their descriptors come first.
    sockets: u16,
    /// The descriptor of the interface's lock follows.
    is_locked: bool,
}

impl PassedInterface {
    /// Number of descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        usize::from(self.sockets) + usize::from(self.is_locked)
    }

    /// Name of the interface.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sizes of the receive rings; `None` if the interface only sends.
    pub(crate) fn ring(&self) -> Option<RingLayout> {
        self.ring
    }
}

impl PacketSocket {
    /// Opens an interface for sending, for this process alone.
    ///
    /// # Errors
    /// The interface cannot be used, or is in use.
    pub(crate) fn open(name: &str) -> Result<PacketSocket, InterfaceError> {
        let socket = PacketSocket::find(name)?;
        let lock = lock(name).map_err(|()| socket.error(Problem::InUse))?;
        Ok(PacketSocket { lock, ..socket })
    }

    /// Opens an interface for sending, which this process uses already.
    ///
    /// # Errors
    /// The interface cannot be used.
    pub(crate) fn find(name: &str) -> Result<PacketSocket, InterfaceError> {
        let problem = |problem| InterfaceError::new(name, problem);
        if name.len() >= libc::IFNAMSIZ {
            return Err(problem(Problem::NameTooLong));
        }
        let text = CString::new(name).map_err(|_| problem(Problem::Missing))?;
        // SAFETY: the string ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
        if index == 0 {
            return Err(problem(Problem::Missing));
        }
        PacketSocket::of_index(name, &text, index as c_int)
    }

    /// Opens another socket of the interface, for another core.
    ///
    /// # Errors
    /// The interface cannot be used any more.
    pub(crate) fn another(&self) -> Result<PacketSocket, InterfaceError> {
        let text = CString::new(&*self.name).map_err(|_| self.error(Problem::Missing))?;
        PacketSocket::of_index(&self.name, &text, self.index())
    }

    fn of_index(name: &str, text: &CString, index: c_int) -> Result<PacketSocket, InterfaceError> {
        let problem = |problem| InterfaceError::new(name, problem);
        // With protocol 0 the socket receives nothing until it is bound.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call passes no memory.
        let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if socket < 0 {
            let error = io::Error::last_os_error();
            return Err(problem(match error.kind() {
                io::ErrorKind::PermissionDenied => Problem::Permission,
                _ => Problem::Open(error),
            }));
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let open = |error| problem(Problem::Open(error));
        let [flags, kind, mtu] = [libc::SIOCGIFFLAGS, libc::SIOCGIFHWADDR, libc::SIOCGIFMTU]
            .map(|request| interface_request(&socket, Query::Name(text), request as c_ulong));
        // SAFETY: the kernel has filled in this member of the union for this request; in zeroed memory, any is valid.
        let [flags, kind, mtu] = unsafe {
            [
                flags.map_err(open)?.ifr_ifru.ifru_flags.into(),
                kind.map_err(open)?.ifr_ifru.ifru_hwaddr.sa_family.into(),
                mtu.map_err(open)?.ifr_ifru.ifru_mtu,
            ]
        };
        if kind != c_int::from(libc::ARPHRD_ETHER) {
            return Err(problem(Problem::NotEthernet));
        }
        if flags & libc::IFF_UP == 0 {
            return Err(problem(Problem::Down));
        }
        let socket = PacketSocket {
            socket,
            name: name.to_owned(),
            index: AtomicI32::new(index),
            mtu: mtu as usize,
            lock: None,
        };
        socket.bind(0).map_err(open)?;
        // Frames go to the interface at once, past its traffic control.
        socket
            .set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1)
            .map_err(open)?;
        // Beyond the system's limit with CAP_NET_ADMIN only.
        socket
            .set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER)
            .or_else(|_| socket.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER))
            .map_err(open)?;
        Ok(socket)
    }

    /// Describes an interface's sockets for another process, and copies their descriptors. All have rings of this
    /// layout, if there is one.
    ///
    /// # Errors
    /// If this process has too many descriptors.
    pub(crate) fn pass(
        sockets: &[&PacketSocket],
        ring: Option<RingLayout>,
    ) -> io::Result<(PassedInterface, Vec<OwnedFd>)> {
        let Some(first) = sockets.first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let own = sockets.iter().map(|socket| &socket.socket);
        let copies = own.chain(&first.lock).map(OwnedFd::try_clone);
        let passed = PassedInterface {
            name: first.name.clone(),
            index: first.index(),
            mtu: first.mtu,
            ring,
            sockets: sockets.len() as u16,
            is_locked: first.lock.is_some(),
        };
        Ok((passed, copies.collect::<io::Result<_>>()?))
    }

    /// Takes over the sockets of another process: the first descriptors of `descriptors`, which are removed.
    ///
    /// # Errors
    /// The descriptors are too few, or others.
    pub(crate) fn adopt(
        passed: &PassedInterface,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<Vec<PacketSocket>, InterfaceError> {
        let refused = |text: &str| InterfaceError::new(&passed.name, Problem::Passed(text.to_owned()));
        if passed.sockets == 0 || descriptors.len() < passed.descriptors() {
            return Err(refused("descriptors are missing"));
        }
        if passed.ring.is_some_and(|ring| !ring.is_plausible()) {
            return Err(refused("expected the sizes of a ring"));
        }
        let rest = descriptors.split_off(passed.descriptors());
        let mut own = std::mem::replace(descriptors, rest);
        let mut lock = own.split_off(usize::from(passed.sockets));
        let mut sockets = Vec::with_capacity(own.len());
        for socket in own {
            if !is_packet_socket(&socket) {
                return Err(refused("expected packet sockets"));
            }
            sockets.push(PacketSocket {
                socket,
                name: passed.name.clone(),
                index: AtomicI32::new(passed.index),
                mtu: passed.mtu,
                lock: lock.pop(),
            });
        }
        Ok(sockets)
    }

    /// Name of the interface.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn index(&self) -> c_int {
        self.index.load(Ordering::Relaxed)
    }

    /// Lets another socket take this one's descriptor: all uses of this one are of the other one from now on. The old
    /// one exists as long as its ring is mapped. The name, the MTU and the lock stay.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn replace_by(&self, other: &PacketSocket) -> io::Result<()> {
        let (from, to) = (other.socket.as_raw_fd(), self.socket.as_raw_fd());
        // SAFETY: the call passes no memory. Both descriptors are open and owned by the two sockets. The number stays
        // open and `self`'s: it is exchanged at once for a socket of the same kind, and a system call that uses the old
        // one meanwhile keeps it.
        checked(unsafe { libc::dup3(from, to, libc::O_CLOEXEC) })?;
        self.index.store(other.index(), Ordering::Relaxed);
        Ok(())
    }

    /// MAC address of the interface; `None` if it has disappeared.
    pub(crate) fn mac(&self) -> Option<MacAddress> {
        let name = CString::new(&*self.name).ok()?;
        let found = interface_request(&self.socket, Query::Name(&name), libc::SIOCGIFHWADDR as c_ulong).ok()?;
        // SAFETY: the kernel has filled in this member of the union for this request.
        let address = unsafe { found.ifr_ifru.ifru_hwaddr.sa_data };
        Some(MacAddress(std::array::from_fn(|byte| address[byte] as u8)))
    }

    /// Maximum payload of a frame in bytes, at the start.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Error of this interface.
    pub(crate) fn error(&self, problem: Problem) -> InterfaceError {
        InterfaceError::new(&self.name, problem)
    }

    /// Creates a ring, into which nothing is received yet.
    ///
    /// # Errors
    /// If the kernel has no memory for the ring.
    pub(crate) fn create_ring(&self, layout: RingLayout) -> io::Result<RxRing> {
        let version = libc::tpacket_versions::TPACKET_V2 as c_int;
        self.set(libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let request = libc::tpacket_req {
            tp_block_size: layout.block_bytes as u32,
            tp_block_nr: (layout.bytes() / layout.block_bytes) as u32,
            tp_frame_size: layout.slot_bytes as u32,
            tp_frame_nr: layout.slots as u32,
        };
        self.set(libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        self.map_ring(layout)
    }

    /// Maps the ring of a socket of another process.
    ///
    /// # Errors
    /// The ring has another size.
    pub(crate) fn map_ring(&self, layout: RingLayout) -> io::Result<RxRing> {
        let memory = MmapOptions::new().len(layout.bytes()).map_raw(&self.socket)?;
        Ok(RxRing::new(memory, layout))
    }

    /// Starts reception of all frames that arrive at the interface, or of those for its MAC address unless
    /// `promiscuous`, but not of those that leave through it.
    ///
    /// # Errors
    /// If the interface has disappeared.
    pub(crate) fn receive_all(&self, promiscuous: bool) -> io::Result<()> {
        self.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
        self.bind(libc::ETH_P_ALL as u16)?;
        self.set_promiscuous(promiscuous)
    }

    /// Starts reception by all sockets of an interface.
    ///
    /// # Errors
    /// As of [`receive_all`](Self::receive_all) and [`share_all`](Self::share_all).
    pub(crate) fn start(sockets: &[&PacketSocket], promiscuous: bool) -> io::Result<()> {
        match sockets {
            [only] => only.receive_all(promiscuous),
            all => PacketSocket::share_all(all, promiscuous),
        }
    }

    /// Same for several sockets: each frame goes to one of them by its flow, in both directions to the same.
    ///
    /// # Errors
    /// As of [`receive_all`](Self::receive_all), or the kernel refuses so many.
    pub(crate) fn share_all(sockets: &[&PacketSocket], promiscuous: bool) -> io::Result<()> {
        let mut group = None;
        for socket in sockets {
            // Until all are in the group, a frame would go to several of them, or its flow to another one.
            socket.filter(&[statement(libc::BPF_RET | libc::BPF_K, 0)])?;
            socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
            socket.bind(libc::ETH_P_ALL as u16)?;
            let number = group.unwrap_or(FANOUT_NEW) | FANOUT_BY_HASH << 16;
            socket.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &number)?;
            if group.is_none() {
                let number: u32 = socket.get(libc::SOL_PACKET, libc::PACKET_FANOUT)?;
                group = Some(number & 0xffff);
            }
        }
        if let Some(first) = sockets.first() {
            first.set_promiscuous(promiscuous)?;
        }
        // A group does not ignore what leaves, as a single socket does.
        let mut is_outgoing = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, OUTGOING);
        is_outgoing.jt = 1;
        let filter = [
            statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, PACKET_TYPE),
            is_outgoing,
            statement(libc::BPF_RET | libc::BPF_K, u32::MAX),
            statement(libc::BPF_RET | libc::BPF_K, 0),
        ];
        sockets.iter().try_for_each(|socket| socket.filter(&filter))
    }

    fn set_promiscuous(&self, promiscuous: bool) -> io::Result<()> {
        if !promiscuous {
            return Ok(());
        }
        let membership = libc::packet_mreq {
            mr_ifindex: self.index(),
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
    }

    /// Sets the filter that decides which frames the socket receives.
    fn filter(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_ptr().cast_mut(),
        };
        // The kernel copies the statements, which outlive the call.
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// Returns `true` if the interface is up and so is its peer; `None` if it has left this network namespace.
    pub(crate) fn is_running(&self) -> Option<bool> {
        // It may have been renamed.
        let named = interface_request(&self.socket, Query::Index(self.index()), libc::SIOCGIFNAME as c_ulong).ok()?;
        let name: Vec<u8> = named
            .ifr_name
            .iter()
            .map(|byte| *byte as u8)
            .take_while(|byte| *byte != 0)
            .collect();
        let name = CString::new(name).ok()?;
        let flags = interface_request(&self.socket, Query::Name(&name), libc::SIOCGIFFLAGS as c_ulong).ok()?;
        // SAFETY: the kernel has filled in this member of the union for this request.
        let flags = c_int::from(unsafe { flags.ifr_ifru.ifru_flags });
        let both = libc::IFF_UP | libc::IFF_RUNNING;
        Some(flags & both == both)
    }

    /// Returns the packets that found the ring full since the last call, of any process that has the socket.
    pub(crate) fn take_missed(&self) -> u64 {
        let counts = self.get::<[u32; 2]>(libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // Packets, and of these the dropped ones (`struct tpacket_stats`).
        counts.map_or(0, |[_, dropped]| dropped.into())
    }

    /// Binds the socket to its interface, to receive frames of an EtherType, or none if it is 0.
    fn bind(&self, ethertype: u16) -> io::Result<()> {
        // SAFETY: the structure holds only integers, for which all zeros is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ethertype.to_be();
        address.sll_ifindex = self.index();
        let size = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address has this size and outlives the call.
        checked(unsafe { libc::bind(self.socket.as_raw_fd(), (&raw const address).cast(), size) })
    }

    /// Sets an option, whose value has the type that the kernel expects.
    fn set<T>(&self, level: c_int, option: c_int, value: &T) -> io::Result<()> {
        let size = size_of::<T>() as libc::socklen_t;
        // SAFETY: the value has this size and outlives the call, which only reads it.
        let set = unsafe { libc::setsockopt(self.socket.as_raw_fd(), level, option, (&raw const *value).cast(), size) };
        checked(set)
    }
}

impl PacketSocket {
    /// Reads an option, whose value has the type that the kernel writes.
    fn get<T: Number>(&self, level: c_int, option: c_int) -> io::Result<T> {
        read_option(&self.socket, level, option)
    }
}

/// Types for which any bytes are a valid value.
trait Number: Copy + Default {}
impl Number for u32 {}
impl Number for [u32; 2] {}

fn read_option<T: Number>(socket: &OwnedFd, level: c_int, option: c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value has this size, may hold any bytes, and outlives the call.
    checked(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut size,
        )
    })?;
    Ok(value)
}

fn is_packet_socket(socket: &OwnedFd) -> bool {
    let domain = read_option::<u32>(socket, libc::SOL_SOCKET, libc::SO_DOMAIN);
    domain.is_ok_and(|domain| domain == libc::AF_PACKET as u32)
}

/// Statement of a filter.
fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn checked(result: c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Interface that a request is about.
enum Query<'n> {
    Name(&'n CString),
    Index(c_int),
}

/// Requests a property of an interface.
fn interface_request(socket: &OwnedFd, interface: Query<'_>, request: c_ulong) -> io::Result<libc::ifreq> {
    // SAFETY: the structure holds only integers and pointers, for which all zeros is valid.
    let mut property: libc::ifreq = unsafe { std::mem::zeroed() };
    match interface {
        Query::Name(name) => {
            let bytes = property.ifr_name.iter_mut().zip(name.as_bytes());
            bytes
                .take(libc::IFNAMSIZ - 1)
                .for_each(|(to, from)| *to = *from as libc::c_char);
        }
        Query::Index(index) => property.ifr_ifru.ifru_ifindex = index,
    }
    // SAFETY: these requests read and write this structure, which outlives the call.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw mut property) })?;
    Ok(property)
}

/// Locks an interface for this process, as DPDK ports do: programs would receive each other's packets. The kernel
/// releases the lock when the process ends. Without abstract Unix addresses there is none.
///
/// # Errors
/// If another process has the lock, or this one.
fn lock(interface: &str) -> Result<Option<OwnedFd>, ()> {
    let address = SocketAddr::from_abstract_name(format!("tailwater/{interface}"));
    match address.and_then(|address| UnixDatagram::bind_addr(&address)) {
        Ok(socket) => Ok(Some(socket.into())),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(()),
        Err(_) => Ok(None),
    }
}
