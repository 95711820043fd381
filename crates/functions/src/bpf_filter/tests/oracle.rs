//! Bindings to libpcap's own verifier and interpreter.

use super::super::libpcap::symbol;
use crate::bpf_filter::Instruction;
use std::ffi::{c_int, c_uint, c_void};

type Run = unsafe extern "C" fn(*const Instruction, *const u8, c_uint, c_uint) -> c_uint;
type Validate = unsafe extern "C" fn(*const Instruction, c_int) -> c_int;

pub struct Oracle {
    run: Run,
    validate: Validate,
}

impl Oracle {
    /// Loads libpcap. Returns `None` and prints a message if it is missing.
    pub fn load() -> Option<Oracle> {
        let (run, validate) = match (symbol(c"bpf_filter"), symbol(c"bpf_validate")) {
            (Ok(run), Ok(validate)) => (run, validate),
            (Err(why), _) | (_, Err(why)) => {
                eprintln!("skipped: libpcap: {why}");
                return None;
            }
        };
        // SAFETY: libpcap's functions of these names have these types (bpf.h).
        unsafe {
            Some(Oracle {
                run: std::mem::transmute::<*mut c_void, Run>(run),
                validate: std::mem::transmute::<*mut c_void, Validate>(validate),
            })
        }
    }

    pub fn accepts(&self, program: &[Instruction]) -> bool {
        // SAFETY: the slice has `program.len()` instructions.
        unsafe { (self.validate)(program.as_ptr(), program.len() as c_int) != 0 }
    }

    /// Runs a program. It must be [accepted](Oracle::accepts) and must not read memory that it has not written.
    pub fn run(&self, program: &[Instruction], packet: &[u8]) -> u32 {
        let length = packet.len() as c_uint;
        // SAFETY: libpcap accepts the program, and the packet has `length` bytes.
        unsafe { (self.run)(program.as_ptr(), packet.as_ptr(), length, length) }
    }
}
