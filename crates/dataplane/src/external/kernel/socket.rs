//! Packet socket of a kernel interface (AF_PACKET): its system calls.

use super::error::{InterfaceError, Problem};
use super::ring::{RingLayout, RxRing};
use memmap2::MmapOptions;
use std::ffi::{CString, c_int, c_ulong};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Bytes of sent packets that the kernel may hold: the receiver takes them from its queue later.
const SEND_BUFFER: c_int = 4 << 20;

/// Open socket of an interface. The kernel ends the interface's promiscuity with the socket, also if the process dies.
#[derive(Debug)]
pub(super) struct PacketSocket {
    socket: OwnedFd,
    name: String,
    index: c_int,
    mtu: usize,
    _lock: Option<UnixDatagram>,
}

impl PacketSocket {
    /// Opens an interface for sending.
    ///
    /// # Errors
    /// The interface cannot be used, or is in use.
    pub(super) fn open(name: &str) -> Result<PacketSocket, InterfaceError> {
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
            .map(|request| interface_request(&socket, Query::Name(&text), request as c_ulong));
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
            index: index as c_int,
            mtu: mtu as usize,
            _lock: lock(name).map_err(|()| problem(Problem::InUse))?,
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

    /// Name of the interface.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Maximum payload of a frame in bytes, at the start.
    pub(super) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Error of this interface.
    pub(super) fn error(&self, problem: Problem) -> InterfaceError {
        InterfaceError::new(&self.name, problem)
    }

    /// Starts reception of all frames that arrive at the interface, of up to `frame_bytes` bytes, but not of those that
    /// leave through it.
    ///
    /// # Errors
    /// If the kernel has no memory for the ring, or the interface has disappeared.
    pub(super) fn receive_into_ring(&self, frame_bytes: usize) -> io::Result<RxRing> {
        let layout = RingLayout::new(frame_bytes);
        let version = libc::tpacket_versions::TPACKET_V2 as c_int;
        self.set(libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let request = libc::tpacket_req {
            tp_block_size: layout.block_bytes as u32,
            tp_block_nr: (layout.bytes() / layout.block_bytes) as u32,
            tp_frame_size: layout.slot_bytes as u32,
            tp_frame_nr: layout.slots as u32,
        };
        self.set(libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let memory = MmapOptions::new().len(layout.bytes()).map_raw(&self.socket)?;
        self.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
        self.bind(libc::ETH_P_ALL as u16)?;
        let membership = libc::packet_mreq {
            mr_ifindex: self.index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
        Ok(RxRing::new(memory, layout))
    }

    /// Returns `true` if the interface is up and so is its peer; `None` if it has left this network namespace.
    pub(super) fn is_running(&self) -> Option<bool> {
        // It may have been renamed.
        let named = interface_request(&self.socket, Query::Index(self.index), libc::SIOCGIFNAME as c_ulong).ok()?;
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

    /// Returns the packets that found the ring full since the last call.
    pub(super) fn take_missed(&self) -> u64 {
        let mut counts = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut size = size_of_val(&counts) as libc::socklen_t;
        // SAFETY: the structure has this size, may hold any values, and outlives the call.
        let read = unsafe {
            let to = (&raw mut counts).cast();
            let socket = self.socket.as_raw_fd();
            libc::getsockopt(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, to, &raw mut size)
        };
        if read == 0 { counts.tp_drops.into() } else { 0 }
    }

    /// Binds the socket to its interface, to receive frames of an EtherType, or none if it is 0.
    fn bind(&self, ethertype: u16) -> io::Result<()> {
        // SAFETY: the structure holds only integers, for which all zeros is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ethertype.to_be();
        address.sll_ifindex = self.index;
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
fn lock(interface: &str) -> Result<Option<UnixDatagram>, ()> {
    let address = SocketAddr::from_abstract_name(format!("tailwater/{interface}"));
    match address.and_then(|address| UnixDatagram::bind_addr(&address)) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(()),
        Err(_) => Ok(None),
    }
}
