//! System calls that a function's program may make.
//!
//! The rules are data: [`bpf`] compiles them for the kernel, [`oci`](Filter::oci) writes them for a container runtime.
//! The supervisor evaluates them itself for calls that are allowed while the program loads.

mod bpf;
mod notify;
mod refusals;
mod rule;
mod rules;
#[cfg(test)]
mod tests;

pub(crate) use bpf::Instruction;
pub(crate) use notify::{Listener, Notified};
pub(crate) use refusals::{process_refusals, thread_refusals};

use rule::Rule;
use serde_json::{Value, json};

/// Number of a system call, displayed by name in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Syscall(pub u32);

impl std::fmt::Display for Syscall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match syscalls::Sysno::new(self.0 as usize) {
            Some(call) => f.write_str(call.name()),
            None => write!(f, "system call {}", self.0),
        }
    }
}

/// System calls allowed to a program.
///
/// The kernel allows the calls in `always` by itself, before and after the program is sealed. It reports every other
/// call to the agent (`SECCOMP_RET_USER_NOTIF`), which allows the calls in `loading` until then.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    always: Vec<Rule>,
    loading: Vec<Rule>,
}

impl Filter {
    /// Filter for a program that communicates over these descriptors.
    pub(crate) fn function(descriptors: &[u32]) -> Filter {
        Filter {
            always: rules::always(descriptors),
            loading: rules::loading(),
        }
    }

    /// Also allows one call with one first argument: the child's own report before the program starts.
    pub(crate) fn and_on_descriptor(mut self, call: libc::c_long, descriptor: u32) -> Filter {
        self.always.push(Rule {
            call: call as u32,
            checks: vec![rules::descriptor(0, descriptor)],
        });
        self
    }

    /// Returns `true` if the kernel allows the call by itself. Reference for the compiled filter.
    #[cfg(test)]
    fn allows_always(&self, call: u32, arguments: &[u64; 6]) -> bool {
        self.always.iter().any(|rule| rule.allows(call, arguments))
    }

    /// Returns `true` if a reported call is allowed while the program loads.
    pub(crate) fn allows_loading(&self, call: u32, arguments: &[u64; 6]) -> bool {
        self.loading.iter().any(|rule| rule.allows(call, arguments))
    }

    /// Compiles the filter for the kernel.
    pub(crate) fn program(&self) -> Vec<Instruction> {
        bpf::compile(&self.always)
    }

    /// Writes the filter for a container runtime: `linux.seccomp` of its configuration. Calls that are not allowed are
    /// reported to the socket `listener`.
    pub(crate) fn oci(&self, listener: &str) -> Value {
        let rules: Vec<Value> = self.always.iter().map(oci_rule).collect();
        json!({
            "defaultAction": "SCMP_ACT_NOTIFY",
            "architectures": ["SCMP_ARCH_X86_64"],
            "listenerPath": listener,
            "syscalls": rules,
        })
    }

    /// As [`Filter::oci`], but allows everything: the only report is the program's start.
    pub(crate) fn oci_open(listener: &str) -> Value {
        json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            "listenerPath": listener,
            "syscalls": [{"names": ["execve"], "action": "SCMP_ACT_NOTIFY"}],
        })
    }
}

/// Writes one rule in the runtime's format, whose comparison takes the mask first.
fn oci_rule(rule: &Rule) -> Value {
    let checks: Vec<Value> = rule
        .checks
        .iter()
        .map(|check| {
            json!({
                "index": check.argument,
                "op": "SCMP_CMP_MASKED_EQ",
                "value": check.mask,
                "valueTwo": check.value,
            })
        })
        .collect();
    let name = Syscall(rule.call).to_string();
    json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": checks})
}
