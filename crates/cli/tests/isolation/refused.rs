//! Functions that cannot be isolated, or not on this machine, are refused in one line.

use crate::common::*;
use crate::{alone, can_confine, process, ways};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tailwater_confine::ContainerRuntime;
use tailwater_dataplane::cores::available;

#[test]
fn what_cannot_be_isolated_is_refused() {
    let _alone = alone();
    let folder = Folder::new();
    let chain = folder.spec("export.yaml", "[{accounting: {export: {file: flows.csv}}}]", "");
    if let [.., one, other] = available()[..] {
        let cores = format!("{one},{other}");
        let refused = run(&[
            &"run",
            &chain,
            &"--isolation",
            &"process",
            &"--isolation-without",
            &"all",
            &"--cores",
            &cores,
        ]);
        let refused = text(&refused.stderr);
        let expected = "export requires a single process";
        assert!(refused.contains(expected), "{refused}");
    }
    if can_confine() {
        let refused = run(&[&"run", &chain, &"--isolation", &"process"]);
        assert_refused(&refused, "which confined functions lack");
    }
    let [option, all] = ["--isolation-without", "all"];
    assert_refused(&run(&[&"run", &chain, &option, &all]), "requires --isolation");
    let overhead = "--isolation-overhead";
    assert_refused(&run(&[&"run", &chain, &overhead, &"3"]), "requires --isolation");
    let refused = run(&[&"run", &chain, &"--isolation", &"process", &overhead, &"0"]);
    assert_refused(&refused, "expected a percentage above 0");
    if ways().contains(&"container") {
        let refused = run(&[&"run", &chain, &"--isolation", &"container", &option, &all]);
        assert_refused(&refused, "container defences cannot be disabled");
    }
    // An export that may not be written is refused first.
    let told = match can_confine() {
        true => "which confined functions lack",
        false => "--isolation-except mirror",
    };
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut isolated = tailwater();
    isolated.args(["run", "--duration", "10ms", "--isolation"]);
    let refused = isolated.args(process().split(' ')).arg(examples.join("mirror.yaml"));
    let refused = refused.output().unwrap();
    let stderr = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(told), "{stderr}");
    assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
    // Each error names its function, once.
    assert!(stderr.matches("function ").count() <= 1, "{stderr}");
    for (example, except, told) in [
        ("ids.yaml", "ids", "expected at least one function to isolate"),
        ("branches.yaml", "classifier", "which is never isolated"),
        ("acl-nat.yaml", "nat", "which prevents isolation, found nat"),
        ("acl-nat.yaml", "other", "expected a function of the chain, found other"),
    ] {
        let mut tailwater = tailwater();
        tailwater.args(["run", "--duration", "10ms", "--isolation"]);
        tailwater.args(process().split(' '));
        tailwater.args(["--isolation-except", except]);
        let refused = tailwater.arg(examples.join(example)).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{except}");
        let stderr = text(&refused.stderr);
        assert!(stderr.contains(told), "{stderr}");
    }
    // Of several functions, the error names the one with state.
    let branch = "[{name: plain, forward: }, {name: counted, accounting: }, {name: last, accounting: }]";
    let uncached = folder.spec(
        "uncached.yaml",
        &format!(
            "[{{classifier: {{cache: none, rules: [{{to: some, protocol: udp}}], branches: \
             {{some: {{functions: {branch}}}}}}}}}]"
        ),
        "",
    );
    let mut tailwater = tailwater();
    tailwater.args(["run", "--duration", "10ms", "--isolation"]);
    let refused = tailwater.args(process().split(' ')).arg(&uncached);
    assert_refused(&refused.output().unwrap(), "function counted keeps state per flow");
    let except = "--isolation-except";
    assert_refused(&run(&[&"run", &chain, &except, &"accounting"]), "requires --isolation");
    let alone = run(&[&"function-process", &chain, &"0"]);
    assert_eq!(alone.status.code(), Some(2));
    assert!(text(&alone.stderr).contains("started by"), "{}", text(&alone.stderr));
}

#[test]
fn containers_without_their_runtime_are_refused() {
    if !can_confine() {
        return;
    }
    let Some(runtime) = ContainerRuntime::find() else {
        return println!("skipped: no crun, as every run in a container would say");
    };
    let folder = Folder::new();
    let chain = folder.acl_nat();
    // A substitute for the runtime that only this run sees.
    let hidden = Command::new("unshare")
        .args(["-m", "sh", "-c", "mount --bind /dev/null \"$0\" && exec \"$@\""])
        .arg(runtime.path())
        .arg(env!("CARGO_BIN_EXE_tailwater"))
        .args(["run", "--isolation", "container"])
        .arg(&chain)
        .output();
    assert_refused(&hidden.unwrap(), "--isolation container requires crun");
}

#[test]
fn who_is_not_root_is_told_that_functions_cannot_be_confined() {
    let folder = Folder::new();
    let chain = folder.acl_nat();
    std::fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&chain, Permissions::from_mode(0o644)).unwrap();
    let nobody = || {
        let mut tailwater = tailwater();
        if rustix::process::geteuid().is_root() {
            tailwater.uid(65_534);
        }
        tailwater
    };
    if let Err(error) = nobody().arg("--version").output() {
        return println!("skipped: this program cannot be run by nobody: {error}");
    }
    let run = |without: &[&str]| {
        let mut command = nobody();
        command.args(["run", "--duration", "20ms", "--isolation", "process"]);
        command.args(without).arg(&chain).output().unwrap()
    };
    assert_refused(&run(&[]), "confining functions requires root");
    let trusted = run(&["--isolation-without", "all"]);
    assert!(trusted.status.success(), "{}", text(&trusted.stderr));
    assert!(text(&trusted.stderr).contains("warning: functions are not confined"));
}

#[test]
fn who_asks_for_files_to_be_read_again_is_told_that_isolated_functions_do_not() {
    let _alone = alone();
    let folder = Folder::new();
    let chain = folder.acl_nat();
    let mut run = tailwater();
    run.args(["run", "--duration", "2s", "--isolation"]);
    run.args(process().split(' ')).arg(&chain);
    let run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let run = run.unwrap();
    // Before the handler is installed, the signal would kill the program.
    let handles = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        u64::from_str_radix(caught.unwrap().trim(), 16).unwrap() & 1 != 0
    };
    while !handles(run.id()) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut asked = Command::new("kill");
    asked.args(["-HUP", &run.id().to_string()]);
    assert!(asked.status().unwrap().success());
    let output = run.wait_with_output().unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("isolated functions read their files only once"), "{told}");
}
