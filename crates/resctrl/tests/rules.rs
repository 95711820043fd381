//! Checks that the model follows the kernel's rules: the examples of its documentation, word for word.

mod model;

use libc::{EBUSY, EINVAL, ENODEV, ENOSPC, EPERM, ESRCH};
use model::kernel::{Kernel, Machine, Ways};

fn status(kernel: &Kernel) -> String {
    kernel.read("info/last_cmd_status").unwrap().trim().to_owned()
}

/// Checks that a command is rejected with this error and message.
fn refused(kernel: &mut Kernel, path: &str, text: &str, errno: i32, said: &str) {
    let before = kernel.snapshot();
    assert_eq!(kernel.write(path, text, 1), Err(errno), "{path} {text}");
    assert_eq!(status(kernel), said, "{path} {text}");
    assert_eq!(kernel.snapshot(), before, "{path} {text}");
}

/// "On a two socket machine (one L3 cache per socket) with just four bits for cache bit masks, minimum b/w of 10% with
/// a memory bandwidth granularity of 10%."
fn example_1() -> Kernel {
    let mut machine = Machine::xeon();
    machine.caches[0] = Ways {
        length: 4,
        shareable: 0,
        closids: 4,
        ..machine.caches[0].clone()
    };
    Kernel::new(machine)
}

/// "a L2 CAT system with two L2 cache instances that can be configured with an 8-bit capacity bitmask"
fn example_4() -> Kernel {
    let l2 = Ways {
        name: "L2",
        length: 8,
        shareable: 0,
        size: 1 << 20,
        ..Machine::xeon().caches[0].clone()
    };
    Kernel::new(Machine {
        caches: vec![l2],
        memory: None,
        rmids: None,
        cores: 4,
    })
}

#[test]
fn example_1_two_groups() {
    let mut kernel = example_1();
    kernel.mkdir("p0").unwrap();
    kernel.mkdir("p1").unwrap();
    kernel.write("p0/schemata", "L3:0=3;1=c\nMB:0=50;1=50\n", 1).unwrap();
    kernel.write("p1/schemata", "L3:0=3;1=3\nMB:0=50;1=50\n", 1).unwrap();
    assert_eq!(
        kernel.read("p0/schemata").unwrap(),
        "    L3:0=3;1=c\n    MB:0=  50;1=  50\n"
    );
    // "The default resource group is unmodified".
    assert!(kernel.read("schemata").unwrap().starts_with("    L3:0=f;1=f\n"));
    // "Intermediate values are rounded to the next control step".
    kernel.write("p1/schemata", "MB:1=41\n", 1).unwrap();
    assert!(kernel.read("p1/schemata").unwrap().ends_with("MB:0=  50;1=  50\n"));
}

#[test]
fn example_4_exclusive_groups() {
    let mut kernel = example_4();
    assert_eq!(kernel.read("schemata").unwrap().trim(), "L2:0=ff;1=ff");
    kernel.mkdir("p0").unwrap();
    kernel.write("p0/schemata", "L2:0=0x3;1=0x3\n", 1).unwrap();
    assert_eq!(kernel.read("p0/mode").unwrap(), "shareable\n");
    refused(&mut kernel, "p0/mode", "exclusive\n", EINVAL, "Schemata overlaps");
    kernel.write("schemata", "L2:0=0xfc;1=0xfc\n", 1).unwrap();
    kernel.write("p0/mode", "exclusive\n", 1).unwrap();
    assert_eq!(kernel.read("p0/mode").unwrap(), "exclusive\n");
    assert_eq!(kernel.read("p0/size").unwrap().trim(), "L2:0=262144;1=262144");
    // "A new resource group will on creation not overlap with an exclusive resource group".
    kernel.mkdir("p1").unwrap();
    assert_eq!(kernel.read("p1/schemata").unwrap().trim(), "L2:0=fc;1=fc");
    assert_eq!(kernel.read("p1/size").unwrap().trim(), "L2:0=786432;1=786432");
    assert_eq!(kernel.read("info/L2/bit_usage").unwrap(), "0=SSSSSSEE;1=SSSSSSEE\n");
    // "A resource group cannot be forced to overlap with an exclusive resource group".
    refused(
        &mut kernel,
        "p1/schemata",
        "L2:0=0x1;1=0x1\n",
        EINVAL,
        "Overlaps with exclusive group",
    );
    refused(
        &mut kernel,
        "p0/schemata",
        "L2:0=7\n",
        EINVAL,
        "Overlaps with other group",
    );
    // "Ensure that there are bits available".
    kernel.rmdir("p1").unwrap();
    kernel.rmdir("p0").unwrap();
    assert_eq!(kernel.read("info/L2/bit_usage").unwrap(), "0=SSSSSS00;1=SSSSSS00\n");
}

#[test]
fn masks_that_are_refused() {
    let mut kernel = Kernel::new(Machine::xeon());
    kernel.mkdir("p0").unwrap();
    for (text, said) in [
        ("L3:0=5\n", "The mask 5 has non-consecutive 1-bits"),
        ("L3:0=100000\n", "Mask out of range"),
        ("L3:0=0\n", "Mask out of range"),
        ("L3:0=xyz\n", "Non-hex character in the mask xyz"),
        ("L3:0=f;0=f\n", "Duplicate domain 0"),
        ("L3:zero=f\n", "Missing '=' or non-numeric domain"),
        ("L3\n", "Missing ':'"),
        ("L3:\n", "Missing 'L3' value"),
        ("L4:0=f\n", "Unknown or unsupported resource name 'L4'"),
        ("L3:2=f\n", "ok"),
        ("MB:0=5\n", "MB value 5 out of range [10,100]"),
        ("MB:0=f\n", "Invalid MB value f"),
        // All lines apply, or none.
        ("L3:0=f\nMB:0=7\n", "MB value 7 out of range [10,100]"),
    ] {
        refused(&mut kernel, "p0/schemata", text, EINVAL, said);
    }
    // Without a trailing newline there is no message.
    assert_eq!(kernel.write("p0/schemata", "L3:0=f", 1), Err(EINVAL));
    // "L3DATA:2=3c0;" is accepted.
    kernel.write("p0/schemata", "L3:1=3c0;\n", 1).unwrap();
    assert_eq!(status(&kernel), "ok");

    let mut haswell = Machine::xeon();
    haswell.caches[0].min = 2;
    let mut kernel = Kernel::new(haswell);
    refused(
        &mut kernel,
        "schemata",
        "L3:0=1\n",
        EINVAL,
        "Need at least 2 bits in the mask",
    );
    let mut sparse = Machine::xeon();
    sparse.caches[0].sparse = true;
    Kernel::new(sparse).write("schemata", "L3:0=5\n", 1).unwrap();
}

#[test]
fn code_and_data() {
    let mut machine = Machine::xeon();
    machine.caches[0].cdp = true;
    machine.memory = None;
    let mut kernel = Kernel::new(machine);
    // Each class takes two hardware classes.
    assert_eq!(kernel.read("info/L3CODE/num_closids").unwrap(), "8\n");
    kernel.mkdir("p0").unwrap();
    kernel.write("p0/schemata", "L3DATA:0=3c0;\n", 1).unwrap();
    assert_eq!(
        kernel.read("p0/schemata").unwrap(),
        "L3CODE:0=fffff;1=fffff\nL3DATA:0=3c0;1=fffff\n"
    );
    // Ways that are exclusive for code are not available for another group's data either.
    kernel
        .write("p0/schemata", "L3CODE:0=f;1=f\nL3DATA:0=f0;1=f0\n", 1)
        .unwrap();
    kernel
        .write("schemata", "L3CODE:0=fff00;1=fff00\nL3DATA:0=fff00;1=fff00\n", 1)
        .unwrap();
    kernel.write("p0/mode", "exclusive\n", 1).unwrap();
    refused(
        &mut kernel,
        "schemata",
        "L3DATA:0=f\n",
        EINVAL,
        "Overlaps with exclusive group",
    );
}

#[test]
fn classes_and_identities_run_out() {
    let mut machine = Machine::xeon();
    machine.rmids = Some(6);
    let mut kernel = Kernel::new(machine);
    // "The kernel uses the smallest number of CLOSIDs of all enabled resources as limit": memory's 8. Each group uses
    // an RMID.
    for turn in 0..4 {
        kernel.mkdir(&format!("p{turn}")).unwrap();
    }
    kernel.mkdir("p0/mon_groups/m").unwrap();
    assert_eq!(kernel.mkdir("p4"), Err(ENOSPC));
    assert_eq!(status(&kernel), "Out of RMIDs");
    // "If there is a time when system has a lot of limbo RMIDs but which are not ready to be used, user may see an
    // -EBUSY during mkdir."
    kernel.cache_stays_full = true;
    // "Removing one of the created CTRL_MON groups will automatically remove all MON groups below it."
    kernel.rmdir("p0").unwrap();
    assert_eq!(kernel.mkdir("p4"), Err(EBUSY));

    let mut kernel = Kernel::new(Machine::xeon());
    (1..8).for_each(|turn| kernel.mkdir(&format!("p{turn}")).unwrap());
    assert_eq!(kernel.mkdir("p8"), Err(ENOSPC));
    assert_eq!(status(&kernel), "Out of CLOSIDs");
    kernel.rmdir("p3").unwrap();
    kernel.mkdir("p8").unwrap();
}

#[test]
fn tasks_and_cores_move() {
    let me = std::process::id() as i32;
    let mine = format!("{me}\n");
    let has = |kernel: &Kernel, path: &str| kernel.read(path).unwrap().lines().any(|line| line == me.to_string());
    let mut kernel = Kernel::new(Machine::xeon());
    kernel.mkdir("p0").unwrap();
    kernel.mkdir("p1").unwrap();
    kernel.mkdir("p1/mon_groups/m").unwrap();
    assert!(has(&kernel, "tasks"));
    let none = format!("No task {}\nError while processing task {0}", i32::MAX);
    refused(&mut kernel, "p0/tasks", &format!("{}\n", i32::MAX), ESRCH, &none);
    refused(&mut kernel, "p0/tasks", "a\n", EINVAL, "Task list parsing error pid a");
    refused(&mut kernel, "p0/tasks", "-5\n", EINVAL, "Invalid pid -5");
    // "A single failure encountered [...] will cause the operation to abort and already added tasks before the failure
    // will remain in the group."
    assert_eq!(kernel.write("p0/tasks", &format!("{me},{}\n", i32::MAX), 1), Err(ESRCH));
    assert!(has(&kernel, "p0/tasks") && !has(&kernel, "tasks"));
    // "If the group is a MON group, then the task must already belong to the CTRL_MON parent of this group."
    let said = format!("Can't move task to different control group\nError while processing task {me}");
    refused(&mut kernel, "p1/mon_groups/m/tasks", &mine, EINVAL, &said);
    kernel.write("p1/tasks", "0\n", me).unwrap();
    assert!(has(&kernel, "p1/tasks") && !has(&kernel, "p0/tasks"));
    kernel.write("p1/mon_groups/m/tasks", &mine, 1).unwrap();
    assert!(has(&kernel, "p1/tasks") && has(&kernel, "p1/mon_groups/m/tasks"));

    kernel.write("p1/cpus_list", "0-2,5\n", 1).unwrap();
    assert_eq!(kernel.read("cpus_list").unwrap(), "3-4,6-7\n");
    assert_eq!(kernel.read("p1/cpus").unwrap(), "27\n");
    kernel.write("p1/mon_groups/m/cpus_list", "1\n", 1).unwrap();
    // "MON groups may only include CPUs owned by the parent CTRL_MON group."
    let said = "Can only add CPUs to mongroup that belong to parent";
    refused(&mut kernel, "p1/mon_groups/m/cpus_list", "3\n", EINVAL, said);
    kernel.write("p0/cpus", "6\n", 1).unwrap();
    assert_eq!(kernel.read("p1/cpus_list").unwrap(), "0,5\n");
    refused(
        &mut kernel,
        "cpus_list",
        "0\n",
        EINVAL,
        "Can't drop CPUs from default group",
    );
    refused(
        &mut kernel,
        "p0/cpus_list",
        "8\n",
        EINVAL,
        "Can only assign online CPUs",
    );
    refused(&mut kernel, "p0/cpus_list", "a\n", EINVAL, "Bad CPU list/mask");
    // "Removing a directory will move all tasks and cpus owned by the group it represents to the parent."
    kernel.rmdir("p1/mon_groups/m").unwrap();
    assert!(has(&kernel, "p1/tasks"));
    kernel.rmdir("p1").unwrap();
    kernel.rmdir("p0").unwrap();
    assert!(has(&kernel, "tasks"));
    assert_eq!(kernel.read("cpus_list").unwrap(), "0-7\n");
}

#[test]
fn what_is_no_group_stays() {
    let mut kernel = Kernel::new(Machine::xeon());
    kernel.mkdir("p0").unwrap();
    for path in ["info", "mon_groups", "mon_data", "p0/mon_data", "p0/mon_groups", ""] {
        assert_eq!(kernel.rmdir(path), Err(EPERM), "{path}");
    }
    for path in ["info/new", "p0/new", "p0/mon_groups/mon_groups", "mon_data/new"] {
        assert_eq!(kernel.mkdir(path), Err(EPERM), "{path}");
    }
    assert_eq!(kernel.mkdir("a\nb"), Err(EINVAL));
    assert_eq!(kernel.write("p1/schemata", "L3:0=f\n", 1), Err(ENODEV));
    assert_eq!(kernel.write("p1/mon_groups/m/tasks", "1\n", 1), Err(ENODEV));
    refused(
        &mut kernel,
        "p0/mode",
        "pseudo-locksetup\n",
        EINVAL,
        "Pseudo-locking not supported on this platform",
    );
    refused(&mut kernel, "p0/mode", "mine\n", EINVAL, "Unknown or unsupported mode");
}
