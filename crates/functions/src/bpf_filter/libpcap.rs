//! Compiles expressions with libpcap. The library is loaded when the first expression is compiled, because nothing else
//! needs it.
//!
//! One of the few modules with `unsafe` code: calls into libpcap.

use super::program::{Instruction, SNAPLEN};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Failure to compile an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// libpcap cannot be loaded.
    #[error(
        "expected libpcap, which compiles expressions, found none ({0}): install it (Debian: apt-get install \
         libpcap0.8), or give programs in files, as `tcpdump -ddd` prints them"
    )]
    NoLibrary(String),
    /// The expression is invalid. The text is libpcap's message.
    #[error("{0}")]
    Expression(String),
}

/// `struct bpf_program`.
#[repr(C)]
struct Program {
    length: c_uint,
    instructions: *mut Instruction,
}

/// Capture handle, opaque outside libpcap.
#[repr(C)]
struct Handle {
    _private: [u8; 0],
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut Handle;
type Compile = unsafe extern "C" fn(*mut Handle, *mut Program, *const c_char, c_int, u32) -> c_int;
type Error = unsafe extern "C" fn(*mut Handle) -> *const c_char;
type Free = unsafe extern "C" fn(*mut Program);
type Close = unsafe extern "C" fn(*mut Handle);

/// Functions of the library, which stays loaded.
struct Library {
    open_dead: OpenDead,
    compile: Compile,
    error: Error,
    free: Free,
    close: Close,
}

const NAME: &CStr = c"libpcap.so.0.8";
/// Link type of frames with Ethernet headers.
const ETHERNET: c_int = 1;
/// Unknown netmask: libpcap rejects expressions about broadcasts.
const NO_NETMASK: u32 = 0xffff_ffff;

/// Returns the address of a function of the library, or a message if the library or the function is missing.
pub(super) fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the call runs the constructors of a system library, as linking it would. The handle stays open.
    let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(format!("no library {}", NAME.to_string_lossy()));
    }
    // SAFETY: the handle is open, and the name ends with a zero byte.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    match address.is_null() {
        true => Err(format!("no symbol {}", name.to_string_lossy())),
        false => Ok(address),
    }
}

impl Library {
    fn load() -> Result<Library, String> {
        // SAFETY: libpcap's functions of these names have these types in every version with this ABI (pcap.h). A
        // function's address has the size of any other pointer.
        unsafe {
            Ok(Library {
                open_dead: std::mem::transmute::<*mut c_void, OpenDead>(symbol(c"pcap_open_dead")?),
                compile: std::mem::transmute::<*mut c_void, Compile>(symbol(c"pcap_compile")?),
                error: std::mem::transmute::<*mut c_void, Error>(symbol(c"pcap_geterr")?),
                free: std::mem::transmute::<*mut c_void, Free>(symbol(c"pcap_freecode")?),
                close: std::mem::transmute::<*mut c_void, Close>(symbol(c"pcap_close")?),
            })
        }
    }
}

/// Compiles an expression as `tcpdump` does, for Ethernet frames. An empty expression matches everything.
///
/// # Errors
/// [`CompileError::NoLibrary`] if libpcap is missing; [`CompileError::Expression`] if it rejects the expression.
pub fn compile(expression: &str) -> Result<Vec<Instruction>, CompileError> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    // Before version 1.8, libpcap's parser had one state for all threads.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let library = LIBRARY.get_or_init(Library::load).as_ref();
    let library = library.map_err(|why| CompileError::NoLibrary(why.clone()))?;
    let text = CString::new(expression).map_err(|_| CompileError::Expression("expected no zero bytes".to_owned()))?;
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the call follows pcap_open_dead(3PCAP). It returns null if memory runs out.
    let handle = unsafe { (library.open_dead)(ETHERNET, SNAPLEN as c_int) };
    if handle.is_null() {
        return Err(CompileError::Expression("out of memory".to_owned()));
    }
    let mut program = Program {
        length: 0,
        instructions: std::ptr::null_mut(),
    };
    // SAFETY: the handle is open, `program` is writable, and the text ends with a zero byte. The 1 enables
    // optimisation.
    let failed = unsafe { (library.compile)(handle, &mut program, text.as_ptr(), 1, NO_NETMASK) != 0 };
    let compiled = match failed {
        true => {
            // SAFETY: the handle is open. It owns the text, which ends with a zero byte.
            let said = unsafe { CStr::from_ptr((library.error)(handle)) };
            Err(CompileError::Expression(said.to_string_lossy().into_owned()))
        }
        false => {
            // SAFETY: libpcap has written `length` instructions, with the layout of `Instruction`. They live until they
            // are freed.
            let instructions = unsafe { std::slice::from_raw_parts(program.instructions, program.length as usize) };
            let copy = instructions.to_vec();
            // SAFETY: the program was compiled successfully and is freed once.
            unsafe { (library.free)(&mut program) };
            Ok(copy)
        }
    };
    // SAFETY: the handle is open and is closed once.
    unsafe { (library.close)(handle) };
    compiled
}
