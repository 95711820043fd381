//! The compiled filter agrees with its rules.

use proptest::prelude::*;

use super::*;

/// Interpreter of the kernel's BPF machine, for the instructions that occur.
pub(super) fn run(program: &[Instruction], architecture: u32, call: u32, arguments: &[u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(call.to_le_bytes());
    data.extend(architecture.to_le_bytes());
    data.extend(0u64.to_le_bytes());
    for argument in arguments {
        data.extend(argument.to_le_bytes());
    }
    let mut accumulator = 0u32;
    let mut at = 0;
    loop {
        let instruction = &program[at];
        at += 1;
        let k = instruction.k;
        let mut branch = |taken: bool| {
            let over = if taken { instruction.jt } else { instruction.jf };
            at += over as usize;
        };
        match instruction.code {
            0x20 => {
                let k = k as usize;
                accumulator = u32::from_le_bytes(data[k..k + 4].try_into().unwrap());
            }
            0x54 => accumulator &= k,
            0x15 => branch(accumulator == k),
            0x45 => branch(accumulator & k != 0),
            0x06 => return k,
            code => panic!("instruction {code:#x}"),
        }
    }
}

/// Random calls, mostly those with rules, with arguments at the edges of conditions.
fn call() -> impl Strategy<Value = (u32, [u64; 6])> {
    let calls: Vec<u32> = Filter::function(&[3, 4]).always.iter().map(|rule| rule.call).collect();
    let call = prop_oneof![3 => prop::sample::select(calls), 1 => 0u32..500];
    let argument = prop_oneof![
        4 => 0u64..8,
        1 => Just(1 << 32),
        1 => Just((1 << 32) | 3),
        1 => Just(libc::SIGABRT as u64),
        1 => any::<u64>(),
    ];
    (call, prop::array::uniform6(argument))
}

proptest! {
    #[test]
    fn the_kernel_decides_as_the_rules_do((call, arguments) in call()) {
        let filter = Filter::function(&[3, 4]);
        let expected = if filter.allows_always(call, &arguments) { bpf::ALLOW } else { bpf::ASK };
        prop_assert_eq!(run(&filter.program(), bpf::X86_64, call, &arguments), expected);
    }
}

#[test]
fn calls_by_other_numbers_kill() {
    let program = Filter::function(&[3]).program();
    let i386 = 0x4000_0003;
    assert_eq!(run(&program, i386, 24, &[0; 6]), bpf::KILL);
    let x32 = 0x4000_0000 | libc::SYS_sched_yield as u32;
    assert_eq!(run(&program, bpf::X86_64, x32, &[0; 6]), bpf::KILL);
    assert!(program.len() < 4096, "the kernel takes no longer ones");
}

#[test]
fn memory_is_never_executable_once_sealed_and_never_also_writable_before() {
    let filter = Filter::function(&[3]);
    let mmap = libc::SYS_mmap as u32;
    let map = |protection: i32| [0, 4096, protection as u64, libc::MAP_PRIVATE as u64, 3, 0];
    let (read, write, execute) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
    assert!(filter.allows_always(mmap, &map(read | write)));
    assert!(!filter.allows_always(mmap, &map(read | execute)));
    assert!(filter.allows_loading(mmap, &map(read | execute)));
    assert!(!filter.allows_loading(mmap, &map(read | write | execute)));
    assert!(!filter.allows_loading(libc::SYS_mprotect as u32, &map(read | execute)));
    // Memory that is mapped twice, once for writing and once as code, would be both.
    let with_flags = |flags: i32| [0, 4096, (read | execute) as u64, flags as u64, 3, 0];
    assert!(filter.allows_loading(mmap, &with_flags(libc::MAP_PRIVATE | libc::MAP_DENYWRITE)));
    for flags in [
        libc::MAP_SHARED,
        libc::MAP_SHARED_VALIDATE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    ] {
        assert!(!filter.allows_loading(mmap, &with_flags(flags)), "{flags:#x}");
    }
}

#[test]
fn only_given_descriptors_carry_messages() {
    let filter = Filter::function(&[3]);
    let send = libc::SYS_sendmsg as u32;
    assert!(filter.allows_always(send, &[3, 0, 0, 0, 0, 0]));
    assert!(!filter.allows_always(send, &[4, 0, 0, 0, 0, 0]));
    let to = libc::SYS_sendto as u32;
    assert!(!filter.allows_always(to, &[3, 0, 0, 0, 0x1000, 16]));
    assert!(!filter.allows_loading(libc::SYS_socket as u32, &[1, 1, 0, 0, 0, 0]));
}

#[test]
fn files_are_opened_for_reading_only_and_only_while_loading() {
    let filter = Filter::function(&[3]);
    let open = libc::SYS_openat as u32;
    let flags = |flags: i32| [libc::AT_FDCWD as u64, 0x1000, flags as u64, 0, 0, 0];
    assert!(!filter.allows_always(open, &flags(libc::O_RDONLY)));
    assert!(filter.allows_loading(open, &flags(libc::O_RDONLY | libc::O_CLOEXEC)));
    for written in [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT] {
        assert!(!filter.allows_loading(open, &flags(written)));
    }
}

#[test]
fn container_runtimes_read_the_same_rules() {
    let oci = Filter::function(&[3]).oci("/run/x");
    assert_eq!(oci["defaultAction"], "SCMP_ACT_NOTIFY");
    let yields = &oci["syscalls"][0];
    assert_eq!(yields["names"][0], "sched_yield");
    let rules = oci["syscalls"].as_array().unwrap();
    let mmap = rules.iter().find(|rule| rule["names"][0] == "mmap");
    let check = &mmap.unwrap()["args"][0];
    assert_eq!(check["index"], 2);
    assert_eq!(check["value"], libc::PROT_EXEC);
    assert_eq!(check["valueTwo"], 0);
}
