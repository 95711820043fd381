//! System calls that the agent itself gives up once everything is set up.

use super::bpf::{self, Instruction};

/// Calls that no thread of the agent makes after the start, nor any program that it starts, container runtimes among
/// them: other processes' memory, the kernel's code, the machine's clock, and interfaces with a history of kernel bugs.
const PROCESS: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_syslog,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_open_by_handle_at,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Calls that a thread gives up that starts no programs: mounts, namespaces, other identities, programs.
const THREAD: &[libc::c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_bpf,
    libc::SYS_keyctl,
    libc::SYS_personality,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
];

fn compiled(calls: &[libc::c_long]) -> Vec<Instruction> {
    let calls: Vec<u32> = calls.iter().map(|call| *call as u32).collect();
    bpf::compile_refusals(&calls)
}

/// Filter for all threads of the agent and for the programs that it starts.
pub(crate) fn process_refusals() -> Vec<Instruction> {
    compiled(PROCESS)
}

/// Additional filter for threads that start no programs.
pub(crate) fn thread_refusals() -> Vec<Instruction> {
    compiled(THREAD)
}

#[cfg(test)]
mod tests {
    use super::super::bpf::{ALLOW, REFUSE};
    use super::super::tests::run;
    use super::*;

    const X86_64: u32 = bpf::X86_64;

    #[test]
    fn listed_calls_are_refused_and_all_others_allowed() {
        for (list, program) in [(PROCESS, process_refusals()), (THREAD, thread_refusals())] {
            for call in 0..600 {
                let expected = match list.contains(&call) {
                    true => REFUSE,
                    false => ALLOW,
                };
                assert_eq!(run(&program, X86_64, call as u32, &[0; 6]), expected, "call {call}");
            }
            let (i386, x32) = (0x4000_0003, 0x4000_0000);
            assert_eq!(run(&program, i386, 1, &[0; 6]), REFUSE);
            assert_eq!(run(&program, X86_64, x32 | 1, &[0; 6]), REFUSE);
        }
    }
}
