//! `libtailwater_nf`, static and shared: what `tailwater_nf.h` declares for functions that are programs of their own.
//!
//! One of the few modules with `unsafe` code: the pointers are C's.

use std::ffi::{c_char, c_int};
use tailwater_sdk::abi;
use tailwater_sdk::program;

/// `tailwater_nf_run`: the whole `main` of a program that is this function. The program's exit code.
///
/// # Safety
/// As the header says: `function` is null or points to a `struct tw_function` that stays as it is, with all that it points to;
/// `argc` and `argv` are those of `main`.
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
    // SAFETY: the caller's word.
    unsafe { program::main(function, arguments) }.into()
}
