//! System calls with arbitrary arguments, as an attacker makes them.

/// Result of an attack: the data obtained, or the kernel's error number.
pub(crate) type Outcome = Result<String, i32>;

/// Makes any system call.
pub(crate) fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, i32> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: every use in this program passes pointers to live memory of its own, of the size passed to the call, or
    // addresses in other processes, which the kernel checks.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    match result {
        ..0 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        result => Ok(result as usize),
    }
}

/// Converts a string to a C string.
pub(crate) fn c(text: &str) -> std::ffi::CString {
    std::ffi::CString::new(text).expect("arguments have no zero bytes")
}

/// Parses an argument as a number.
pub(crate) fn number(arguments: &[String], at: usize) -> usize {
    arguments[at].parse().expect("a number")
}

/// Converts stolen bytes to text.
pub(crate) fn loot(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}
