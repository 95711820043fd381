//! The attacks.

use crate::calls::{Outcome, c, call, loot, number};

/// Attack, called with its arguments.
pub(crate) type Attack = fn(&[String]) -> Outcome;

/// Returns the attack of that name.
pub(crate) fn by_name(name: &str) -> Option<Attack> {
    Some(match name {
        "nothing" => |_| Ok(String::new()),
        "read-memory" => read_memory,
        "write-memory" => write_memory,
        "trace" => trace,
        "read-file-at" => read_file_at,
        "read-file" => read_file,
        "write-file" => write_file,
        "spin" => spin,
        "fork" => fork,
        "thread" => thread,
        "outlive" => outlive,
        "allocate" => allocate,
        "priority" => priority,
        "leave-core" => leave_core,
        "kill" => kill,
        "internet" => internet,
        "abstract-socket" => abstract_socket,
        "netlink" => netlink,
        "mount" => mount,
        "bpf" => bpf,
        "perf" => perf,
        "userfaultfd" => userfaultfd,
        "io-uring" => io_uring,
        "user-namespace" => user_namespace,
        "write-code" => write_code,
        "shared-code" => shared_code,
        "inherited" => inherited,
        "set-user-id" => set_user_id,
        "shared-memory" => shared_memory,
        "foreign-call" => foreign_call,
        "crash" => crash,
        _ => return None,
    })
}

const SECRET: usize = 32;

/// Returns a local and a remote I/O vector for `process_vm_readv`.
fn vectors(mine: *mut u8, theirs: usize) -> [libc::iovec; 2] {
    [mine as usize, theirs].map(|base| libc::iovec {
        iov_base: base as *mut libc::c_void,
        iov_len: SECRET,
    })
}

/// PID ADDRESS: reads another process's memory.
fn read_memory(arguments: &[String]) -> Outcome {
    let mut bytes = [0u8; SECRET];
    let [mine, theirs] = vectors(bytes.as_mut_ptr(), number(arguments, 1));
    let (mine, theirs) = (&raw const mine as usize, &raw const theirs as usize);
    let given = [number(arguments, 0), mine, 1, theirs, 1, 0];
    call(libc::SYS_process_vm_readv, given)?;
    Ok(loot(&bytes))
}

/// PID ADDRESS: overwrites another process's memory with `x`.
fn write_memory(arguments: &[String]) -> Outcome {
    let mut bytes = [b'x'; SECRET];
    let [mine, theirs] = vectors(bytes.as_mut_ptr(), number(arguments, 1));
    let (mine, theirs) = (&raw const mine as usize, &raw const theirs as usize);
    let given = [number(arguments, 0), mine, 1, theirs, 1, 0];
    call(libc::SYS_process_vm_writev, given)?;
    Ok(loot(&bytes))
}

/// PID: attaches to another process as its debugger.
fn trace(arguments: &[String]) -> Outcome {
    let given = [libc::PTRACE_SEIZE as usize, number(arguments, 0), 0, 0, 0, 0];
    call(libc::SYS_ptrace, given)?;
    Ok(String::new())
}

fn open(path: &str, flags: i32) -> Result<usize, i32> {
    let path = c(path);
    let at = libc::AT_FDCWD as usize;
    call(
        libc::SYS_openat,
        [at, path.as_ptr() as usize, flags as usize, 0o600, 0, 0],
    )
}

/// PATH OFFSET: reads a file at an offset.
fn read_file_at(arguments: &[String]) -> Outcome {
    let file = open(&arguments[0], libc::O_RDONLY)?;
    let mut bytes = [0u8; SECRET];
    let given = [file, bytes.as_mut_ptr() as usize, SECRET, number(arguments, 1), 0, 0];
    call(libc::SYS_pread64, given)?;
    Ok(loot(&bytes))
}

/// PATH: reads a file.
fn read_file(arguments: &[String]) -> Outcome {
    read_file_at(&[arguments[0].clone(), "0".into()])
}

/// PATH: writes `x` to a new file.
fn write_file(arguments: &[String]) -> Outcome {
    let file = open(&arguments[0], libc::O_WRONLY | libc::O_CREAT)?;
    call(libc::SYS_write, [file, c"x".as_ptr() as usize, 1, 0, 0, 0])?;
    Ok(String::new())
}

/// Spins and never yields.
fn spin(_: &[String]) -> Outcome {
    loop {
        std::hint::spin_loop();
    }
}

/// Forks three children, which exit at once; a fork bomb would go on.
fn fork(_: &[String]) -> Outcome {
    for _ in 0..3 {
        let child = call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0])?;
        if child == 0 {
            let _ = call(libc::SYS_exit_group, [0; 6]);
        }
    }
    Ok(String::new())
}

/// Leaves a child behind that never ends, in its own session.
fn outlive(_: &[String]) -> Outcome {
    let child = call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0])?;
    if child == 0 {
        let _ = call(libc::SYS_setsid, [0; 6]);
        loop {
            let _ = call(libc::SYS_pause, [0; 6]);
        }
    }
    Ok(String::new())
}

/// Starts three more threads at once.
fn thread(_: &[String]) -> Outcome {
    let mut threads = Vec::new();
    for _ in 0..3 {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let begun = std::thread::Builder::new().spawn(move || wait.recv().is_ok());
        begun.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        threads.push(end);
    }
    Ok(String::new())
}

/// BYTES: allocates that amount of memory and touches it.
fn allocate(arguments: &[String]) -> Outcome {
    let length = number(arguments, 0);
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let base = call(libc::SYS_mmap, [0, length, protection, flags, usize::MAX, 0])?;
    for page in (0..length).step_by(4096) {
        // SAFETY: the kernel has just mapped `bytes` bytes there, for this process alone.
        unsafe { ((base + page) as *mut u8).write_volatile(1) };
    }
    Ok(length.to_string())
}

/// Sets its own real-time priority to 50, more than it was granted.
fn priority(_: &[String]) -> Outcome {
    let priority = 50i32;
    let given = [0, libc::SCHED_FIFO as usize, &raw const priority as usize, 0, 0, 0];
    call(libc::SYS_sched_setscheduler, given)?;
    Ok(String::new())
}

/// CORE: moves to another core.
fn leave_core(arguments: &[String]) -> Outcome {
    let core = number(arguments, 0);
    let mut cores = [0u64; 16];
    cores[core / 64] = 1 << (core % 64);
    let given = [0, size_of_val(&cores), cores.as_ptr() as usize, 0, 0, 0];
    call(libc::SYS_sched_setaffinity, given)?;
    let mut core = 0u32;
    call(libc::SYS_getcpu, [&raw mut core as usize, 0, 0, 0, 0, 0])?;
    Ok(core.to_string())
}

/// PID: kills another process.
fn kill(arguments: &[String]) -> Outcome {
    let given = [number(arguments, 0), libc::SIGKILL as usize, 0, 0, 0, 0];
    call(libc::SYS_kill, given)?;
    Ok(String::new())
}

fn socket(family: i32, kind: i32) -> Result<usize, i32> {
    call(libc::SYS_socket, [family as usize, kind as usize, 0, 0, 0, 0])
}

/// Reads from a connected socket.
fn listen_to(socket: usize) -> Outcome {
    let mut bytes = [0u8; SECRET];
    let given = [socket, bytes.as_mut_ptr() as usize, SECRET, 0, 0, 0];
    call(libc::SYS_read, given)?;
    Ok(loot(&bytes))
}

/// PORT: connects to 127.0.0.1.
fn internet(arguments: &[String]) -> Outcome {
    let socket = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let mut address = [0u8; 16];
    address[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&(number(arguments, 0) as u16).to_be_bytes());
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    let given = [socket, address.as_ptr() as usize, address.len(), 0, 0, 0];
    call(libc::SYS_connect, given)?;
    listen_to(socket)
}

/// NAME: connects to an abstract socket.
fn abstract_socket(arguments: &[String]) -> Outcome {
    let socket = socket(libc::AF_UNIX, libc::SOCK_STREAM)?;
    let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    address.push(0);
    address.extend(arguments[0].bytes());
    let given = [socket, address.as_ptr() as usize, address.len(), 0, 0, 0];
    call(libc::SYS_connect, given)?;
    listen_to(socket)
}

/// NAME: finds a network interface by netlink.
fn netlink(arguments: &[String]) -> Outcome {
    let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW)?;
    /// RTM_GETLINK for all links: a header of 16 bytes, and a `struct ifinfomsg` of zeros.
    const REQUEST: [u8; 32] = {
        let mut request = [0u8; 32];
        request[0] = 32;
        request[4] = 18;
        request[6] = 1;
        request[7] = 3;
        request
    };
    let given = [socket, REQUEST.as_ptr() as usize, REQUEST.len(), 0, 0, 0];
    call(libc::SYS_sendto, given)?;
    let mut name = arguments[0].clone().into_bytes();
    name.push(0);
    // The response has several parts; the last one has the type NLMSG_DONE.
    let mut answer = vec![0u8; 64 << 10];
    loop {
        let given = [socket, answer.as_mut_ptr() as usize, answer.len(), 0, 0, 0];
        let length = call(libc::SYS_recvfrom, given)?;
        if answer[..length].windows(name.len()).any(|part| part == name) {
            return Ok(arguments[0].clone());
        }
        if length < 16 || answer[4] == libc::NLMSG_DONE as u8 {
            return Err(libc::ENODEV);
        }
    }
}

/// Mounts a file system over its root.
fn mount(_: &[String]) -> Outcome {
    let (kind, root) = (c"tmpfs".as_ptr() as usize, c"/".as_ptr() as usize);
    call(libc::SYS_mount, [kind, root, kind, 0, 0, 0])?;
    Ok(String::new())
}

/// Creates a BPF map, the first step of any eBPF program.
fn bpf(_: &[String]) -> Outcome {
    // BPF_MAP_CREATE: an array of one entry, keys of 4 bytes, values of 8.
    let attributes: [u32; 16] = [2, 4, 8, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let size = size_of_val(&attributes);
    call(libc::SYS_bpf, [0, attributes.as_ptr() as usize, size, 0, 0, 0])?;
    Ok(String::new())
}

/// Counts events of all processes on core 0.
fn perf(_: &[String]) -> Outcome {
    // struct perf_event_attr: a software event (1) of 64 bytes, the processor's clock (0).
    let mut attributes = [0u32; 16];
    attributes[0] = 1;
    attributes[1] = 64;
    let given = [attributes.as_ptr() as usize, usize::MAX, 0, usize::MAX, 0, 0];
    call(libc::SYS_perf_event_open, given)?;
    Ok(String::new())
}

/// Creates a userfaultfd, which can stall the kernel in the middle of an access.
fn userfaultfd(_: &[String]) -> Outcome {
    call(libc::SYS_userfaultfd, [0; 6])?;
    Ok(String::new())
}

/// Sets up io_uring, whose operations bypass the system call filter.
fn io_uring(_: &[String]) -> Outcome {
    let mut parameters = [0u8; 120];
    let given = [1, parameters.as_mut_ptr() as usize, 0, 0, 0, 0];
    call(libc::SYS_io_uring_setup, given)?;
    Ok(String::new())
}

/// Creates a user namespace, in which it has all capabilities.
fn user_namespace(_: &[String]) -> Outcome {
    call(libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0, 0])?;
    Ok(String::new())
}

/// `mov eax, 42; ret`
const CODE: [u8; 6] = [0xb8, 42, 0, 0, 0, 0xc3];

/// `shared` or `private`: writes code into memory that it was passed as descriptor 3, maps it a second time, as code,
/// and executes it.
fn shared_code(arguments: &[String]) -> Outcome {
    let map = |protection: i32, flags: i32| {
        let given = [0, 4096, protection as usize, flags as usize, 3, 0];
        call(libc::SYS_mmap, given)
    };
    let flags = match &*arguments[0] {
        "shared" => libc::MAP_SHARED,
        _ => libc::MAP_PRIVATE,
    };
    let writable = map(libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
    // SAFETY: the kernel has just mapped a writable page there.
    unsafe { std::ptr::copy_nonoverlapping(CODE.as_ptr(), writable as *mut u8, CODE.len()) };
    let executable = map(libc::PROT_READ | libc::PROT_EXEC, flags)?;
    // SAFETY: the page is executable; the code is a function without arguments that returns a number.
    let answer = unsafe {
        let code: extern "C" fn() -> i32 = std::mem::transmute(executable);
        code()
    };
    Ok(answer.to_string())
}

/// Writes code into memory and executes it.
fn write_code(_: &[String]) -> Outcome {
    let protection = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let base = call(libc::SYS_mmap, [0, 4096, protection, flags, usize::MAX, 0])?;
    // SAFETY: the kernel has just mapped a writable and executable page there; the code is a function without arguments
    // that returns a number.
    let answer = unsafe {
        std::ptr::copy_nonoverlapping(CODE.as_ptr(), base as *mut u8, CODE.len());
        let code: extern "C" fn() -> i32 = std::mem::transmute(base);
        code()
    };
    Ok(answer.to_string())
}

/// Reads all descriptors that were not passed to it.
fn inherited(_: &[String]) -> Outcome {
    let mut last = libc::EBADF;
    for descriptor in 4..64 {
        let mut bytes = [0u8; SECRET];
        let given = [descriptor, bytes.as_mut_ptr() as usize, SECRET, 0, 0, 0];
        match call(libc::SYS_pread64, given) {
            Ok(SECRET) => return Ok(loot(&bytes)),
            Ok(_) => {}
            Err(errno) => last = errno,
        }
    }
    Err(last)
}

/// PATH: executes a copy of this program with the set-user-ID bit.
fn set_user_id(arguments: &[String]) -> Outcome {
    let path = c(&arguments[0]);
    let name = c("who-am-i");
    let given = [path.as_ptr(), name.as_ptr(), std::ptr::null()];
    let none = [std::ptr::null::<libc::c_char>()];
    let given = [
        path.as_ptr() as usize,
        given.as_ptr() as usize,
        none.as_ptr() as usize,
        0,
        0,
        0,
    ];
    call(libc::SYS_execve, given)?;
    Err(libc::EIO)
}

/// KEY: reads a System V shared memory segment.
fn shared_memory(arguments: &[String]) -> Outcome {
    let segment = call(libc::SYS_shmget, [number(arguments, 0), 0, 0, 0, 0, 0])?;
    let read_only = libc::SHM_RDONLY as usize;
    let base = call(libc::SYS_shmat, [segment, 0, read_only, 0, 0, 0])?;
    // SAFETY: the kernel has just mapped a page there.
    let bytes = unsafe { std::slice::from_raw_parts(base as *const u8, SECRET) };
    Ok(loot(bytes))
}

/// Calls `getpid` by its 32-bit number, which a filter by number may mistake for another call.
fn foreign_call(_: &[String]) -> Outcome {
    let mut number: u64 = 20;
    // SAFETY: the call only returns a number; the old entry clobbers only its result and r8 to r11.
    unsafe {
        std::arch::asm!("int 0x80", inout("rax") number, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    match number as i32 {
        error @ ..0 => Err(-error),
        pid => Ok(pid.to_string()),
    }
}

/// Reads an unmapped address.
fn crash(_: &[String]) -> Outcome {
    // SAFETY: none; the invalid access is the attack. The first page is never mapped, so the process ends here.
    unsafe { std::ptr::without_provenance::<u8>(8).read_volatile() };
    Ok(String::new())
}
