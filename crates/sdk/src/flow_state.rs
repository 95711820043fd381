//! Types of flow state.

/// Type that can be a flow's state. [`state!`](crate::state) declares structs that implement it.
///
/// # Safety
/// Every bit pattern is a valid value, including zeros. There is no padding, and the alignment is at most 8.
pub unsafe trait State: Copy + 'static {}

macro_rules! plain {
    ($($plain:ty),*) => {
        $(
            // SAFETY: every bit pattern is a valid integer, and its alignment is at most 8.
            unsafe impl State for $plain {}
        )*
    };
}
plain!(u8, u16, u32, u64, i8, i16, i32, i64);
// SAFETY: it has no bytes.
unsafe impl State for () {}
// SAFETY: the elements are `State` and follow each other without gaps.
unsafe impl<T: State, const N: usize> State for [T; N] {}

/// Declares a struct of integers, arrays of them, and other such structs as a flow's [`State`]. It must have no gaps
/// between its fields, so that every byte has a meaning: place large fields first.
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
                0 $(+ ::std::mem::size_of::<$type>())* == ::std::mem::size_of::<$name>(),
                "flow state has gaps between its fields: put large ones first, and a field of the rest last"
            );
        };
        // SAFETY: every field is `State`, and there are no gaps between fields. The lines above do not compile
        // otherwise.
        unsafe impl $crate::State for $name {}
    };
}
