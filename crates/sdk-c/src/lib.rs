//! `libtailwater_nf`, static and shared: the functions that `tailwater_nf.h` declares for network functions built as
//! programs.
//!
//! One of the few modules with `unsafe` code: its pointers come from C.

use std::ffi::{c_char, c_int};
use tailwater_sdk::abi;
use tailwater_sdk::program;

/// `tailwater_nf_run`: the whole `main` of a program that is this function. Returns the program's exit code.
///
/// # Safety
/// As stated in the header: `function` is null or points to a `struct tw_function` that does not change, nor does the
/// data it points to. `argc` and `argv` are those of `main`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_nf_run(
    function: *const abi::Function,
    argc: c_int,
    _argv: *const *const c_char,
) -> c_int {
    if function.is_null() || !function.is_aligned() {
        eprintln!("tailwater_nf_run: expected a struct tw_function, found none");
        return 2;
    }
    let arguments = usize::try_from(argc).unwrap_or(0).saturating_sub(1);
    // SAFETY: guaranteed by the caller.
    unsafe { program::main(function, arguments) }.into()
}
