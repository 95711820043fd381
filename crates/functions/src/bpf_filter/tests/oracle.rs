//! libpcap's own verifier and interpreter.

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
    /// `None`, which is told, where there is no libpcap.
    pub fn load() -> Option<Oracle> {
        let (run, validate) = match (symbol(c"bpf_filter"), symbol(c"bpf_validate")) {
            (Ok(run), Ok(validate)) => (run, validate),
            (Err(why), _) | (_, Err(why)) => {
                eprintln!("skipped: libpcap: {why}");
                return None;
            }
        };
        // SAFETY: libpcap's functions of these names are of these types (bpf.h).
        unsafe {
            Some(Oracle {
                run: std::mem::transmute::<*mut c_void, Run>(run),
                validate: std::mem::transmute::<*mut c_void, Validate>(validate),
            })
        }
    }

    pub fn accepts(&self, program: &[Instruction]) -> bool {
        // SAFETY: so many instructions are there.
        unsafe { (self.validate)(program.as_ptr(), program.len() as c_int) != 0 }
    }

    /// The program must be [accepted](Oracle::accepts), and read no memory that it has not written.
    pub fn run(&self, program: &[Instruction], packet: &[u8]) -> u32 {
        let length = packet.len() as c_uint;
        // SAFETY: a program that libpcap accepts, and so many bytes.
        unsafe { (self.run)(program.as_ptr(), packet.as_ptr(), length, length) }
    }
}
