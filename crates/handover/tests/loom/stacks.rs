//! Stacks of the modelled threads, mapped once. loom maps a stack for each thread of each interleaving, guards its last
//! page, and unmaps it: for these small models the kernel would take longer than the checks.
//!
//! The functions below take the C library's place in this program. A stack that is unmapped is kept, with its guard
//! page and its pages in memory, and is what the next request for one of its size returns.

use std::cell::RefCell;

use libc::{MAP_STACK, PROT_NONE, c_int, c_void, off_t, size_t};

/// Maximum number of stacks that a thread keeps. A model has a few threads.
const KEPT: usize = 16;

/// Stack mapped here: address and size in bytes.
#[derive(Clone, Copy)]
struct Stack {
    address: usize,
    size: usize,
    /// `true`: its last page can be neither read nor written.
    guarded: bool,
}

/// Stacks of this thread, in use and not. A model runs in one thread.
struct Stacks {
    used: Vec<Stack>,
    free: Vec<Stack>,
}

thread_local! {
    static STACKS: RefCell<Stacks> = const { RefCell::new(Stacks { used: Vec::new(), free: Vec::new() }) };
}

/// Calls `act` with this thread's stacks. Returns `None` while the thread ends, and within such a call.
fn with_stacks<T>(act: impl FnOnce(&mut Stacks) -> Option<T>) -> Option<T> {
    STACKS
        .try_with(|stacks| act(&mut *stacks.try_borrow_mut().ok()?))
        .ok()
        .flatten()
}

/// # Safety
/// As `mmap(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    size: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    let is_stack = address.is_null() && flags & MAP_STACK != 0;
    let take = |stacks: &mut Stacks| {
        let index = stacks.free.iter().position(|free| free.size == size)?;
        let stack = stacks.free.swap_remove(index);
        stacks.used.push(stack);
        Some(stack.address as *mut c_void)
    };
    if is_stack && let Some(stack) = with_stacks(take) {
        return stack;
    }
    // SAFETY: the caller's arguments, unchanged.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, address, size, protection, flags, file, offset) };
    if is_stack && mapped != -1 {
        with_stacks(|stacks| {
            stacks.used.push(Stack {
                address: mapped as usize,
                size,
                guarded: false,
            });
            Some(())
        });
    }
    mapped as *mut c_void
}

/// # Safety
/// As `munmap(2)`. A stack that is kept stays mapped; its owner does not use it any more, by the function's contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, size: size_t) -> c_int {
    let keep = |stacks: &mut Stacks| {
        let is_it = |used: &Stack| (used.address, used.size) == (address as usize, size);
        let index = stacks.used.iter().position(is_it)?;
        let stack = stacks.used.swap_remove(index);
        if stacks.free.len() == KEPT {
            return None;
        }
        stacks.free.push(stack);
        Some(())
    };
    if with_stacks(keep).is_some() {
        return 0;
    }
    // SAFETY: the caller's arguments, unchanged.
    unsafe { libc::syscall(libc::SYS_munmap, address, size) as c_int }
}

/// # Safety
/// As `mprotect(2)`. The guard page of a stack that was kept is one already.
#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(address: *mut c_void, size: size_t, protection: c_int) -> c_int {
    let guard = |stacks: &mut Stacks| {
        let is_it = |used: &&mut Stack| used.address == address as usize;
        let stack = stacks.used.iter_mut().find(is_it)?;
        Some(std::mem::replace(&mut stack.guarded, true))
    };
    if protection == PROT_NONE && with_stacks(guard) == Some(true) {
        return 0;
    }
    // SAFETY: the caller's arguments, unchanged.
    unsafe { libc::syscall(libc::SYS_mprotect, address, size, protection) as c_int }
}
