//! What can be kept of a flow.

/// What can be a flow's state. [`state!`](crate::state) makes structs that are.
///
/// # Safety
/// Any bytes are a value, zeros included, none is padding, and the alignment is at most 8.
pub unsafe trait State: Copy + 'static {}

macro_rules! plain {
    ($($plain:ty),*) => {
        $(
            // SAFETY: any bytes are an integer, aligned to 8 at the most.
            unsafe impl State for $plain {}
        )*
    };
}
plain!(u8, u16, u32, u64, i8, i16, i32, i64);
// SAFETY: it has no bytes.
unsafe impl State for () {}
// SAFETY: its items follow each other without gaps, and are `State`.
unsafe impl<T: State, const N: usize> State for [T; N] {}

/// Declares a struct of integers, arrays of them, and other such structs as a flow's [`State`]. Without gaps
/// between its fields, so that every byte of it means something: large fields first.
///
/// ```compile_fail
/// tailwater_sdk::state! { struct Gap { few: u8, many: u64 } }
/// ```
///
/// ```compile_fail
/// tailwater_sdk::state! { struct NotAnyByte { yes: bool } }
/// ```
///
/// ```
/// tailwater_sdk::state! { struct Fine { many: u64, few: [u8; 7], rest: u8 } }
/// ```
#[macro_export]
macro_rules! state {
    ($(#[$meta:meta])* $visible:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_visible:vis $field:ident: $type:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        $visible struct $name {
            $($(#[$field_meta])* $field_visible $field: $type),*
        }
        const _: () = {
            const fn is_state<T: $crate::State>() {}
            $(is_state::<$type>();)*
            assert!(
                0 $(+ size_of::<$type>())* == size_of::<$name>(),
                "flow state has gaps between its fields: put large ones first, and a field of the rest last"
            );
        };
        // SAFETY: every field is `State` and there is nothing between them, which the lines above do not compile
        // without.
        unsafe impl $crate::State for $name {}
    };
}
