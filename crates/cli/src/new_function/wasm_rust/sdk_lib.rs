//! Network functions for Tailwater in Rust, compiled to WebAssembly: the trait [`Function`] and its types.
//!
//! The sources are those of Tailwater's crate `tailwater-sdk`, without what runs a function in a process of its own.
//! They need Rust 1.63 and nothing else.

#![warn(unsafe_op_in_unsafe_fn)]

#[allow(missing_docs)]
pub mod abi;
mod batch;
mod calls;
mod config;
mod explanation;
mod flow_state;
mod function;
mod key;
pub mod testing;

pub use batch::{Batch, Packet};
pub use calls::describe;
pub use config::{Config, ConfigError};
pub use explanation::Explanation;
pub use flow_state::State;
pub use function::{DropReason, Function, Name};
pub use key::FlowKey;

/// Exports a [`Function`] from a module, under the name that the runtime reads.
#[macro_export]
macro_rules! export {
    ($function:ty) => {
        /// Description of this module's function.
        #[no_mangle]
        #[allow(non_upper_case_globals)]
        pub static tailwater_function: $crate::abi::Function = $crate::describe::<$function>();
    };
}

/// Name as a [`CStr`](std::ffi::CStr): `c_str!("name")`, which is `c"name"` from Rust 1.77 on.
#[macro_export]
macro_rules! c_str {
    ($text:literal) => {{
        const TEXT: &str = concat!($text, "\0");
        // The name that reports show has no zero byte; the runtime refuses any other.
        const NAME: &::std::ffi::CStr = $crate::c_str(TEXT);
        NAME
    }};
}

/// Text that ends with its only zero byte.
#[doc(hidden)]
pub const fn c_str(text: &'static str) -> &'static std::ffi::CStr {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at + 1 < bytes.len() {
        assert!(bytes[at] != 0, "a name without zero bytes");
        at += 1;
    }
    // SAFETY: the last byte is zero, which `c_str!` has added, and no other is.
    unsafe { std::ffi::CStr::from_bytes_with_nul_unchecked(bytes) }
}

// Layout of a module's memory, as the runtime expects it.
#[cfg(target_arch = "wasm32")]
const _: () = {
    use std::mem::size_of;
    assert!(size_of::<abi::Packet>() == 56 && size_of::<abi::Batch>() == 16 && size_of::<abi::FlowKey>() == 40);
    assert!(size_of::<abi::Function>() == 72 && size_of::<abi::Error>() == 640 && size_of::<abi::DropReason>() == 8);
    assert!(size_of::<abi::EndedFlow>() == 8 && size_of::<abi::Explanation>() == 192);
};
