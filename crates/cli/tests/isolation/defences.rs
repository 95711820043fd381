//! Confinement of functions: they can access what they require, and each defence can be left out.

use crate::common::*;
use crate::{TRUSTED, alone, can_confine, ways};
use serde_json::{Value, json};
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

/// A file that only root may read is available to the function that requires it, whatever the umask of `tailwater`.
#[test]
fn keys_of_root_s_are_read_by_the_function_that_needs_them() {
    let _alone = alone();
    if !can_confine() {
        return;
    }
    let folder = Folder::new();
    let key = folder.write("key", format!("{}\n", "0123456789abcdef".repeat(4)));
    let rules = folder.write("edge.rules", "@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00\n");
    let kept = folder.path("kept");
    std::fs::create_dir(&kept).unwrap();
    for file in [&key, &rules] {
        std::fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
        // Reached by a link in a directory that only root may access.
        symlink(file, kept.join(file.file_name().unwrap())).unwrap();
    }
    std::fs::set_permissions(&kept, Permissions::from_mode(0o700)).unwrap();
    let functions = "[{acl: {rulesFile: kept/edge.rules, matchAction: allow, default: deny}}, \
                     {encrypt: {keyFile: kept/key, midstream: encrypt}}]";
    let chain = folder.spec("chain.yaml", functions, "");
    std::fs::set_permissions(&chain, Permissions::from_mode(0o600)).unwrap();
    for way in ways().into_iter().filter(|way| *way != TRUSTED) {
        let run = Command::new("sh")
            .current_dir(&folder.0)
            .args(["-c", "umask 077; exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_tailwater"))
            .args(["run", "chain.yaml", "--duration", "50ms", "--output", "json"])
            .args(["--isolation", way])
            .output()
            .unwrap();
        assert!(run.status.success(), "{way}: {}", text(&run.stderr));
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        assert!(count(&report, "delivered") > 0, "{way}: {report}");
    }
}

#[test]
fn each_defence_can_be_left_out_and_that_is_told() {
    let _alone = alone();
    if !can_confine() {
        return;
    }
    let folder = Folder::new();
    let chain = folder.acl_nat();
    let traffic = folder.capture("in.pcap", &mixture(60));
    for way in ways().into_iter().filter(|way| *way != TRUSTED) {
        for defence in ["filter", "groups", "limits", "namespaces", "root", "server", "user"] {
            let run = run(&[
                &"run",
                &chain,
                &"--traffic",
                &traffic,
                &"--isolation",
                &way,
                &"--isolation-without",
                &defence,
                &"--output",
                &"json",
            ]);
            let told = text(&run.stderr);
            assert!(run.status.success(), "{way} without {defence}: {told}");
            let warning = format!("warning: functions are confined without {defence} ");
            assert!(told.contains(&warning), "{told}");
            let report: Value = serde_json::from_slice(&run.stdout).unwrap();
            assert_eq!(report["isolation"]["without"], json!([defence]));
            assert!(count(&report, "delivered") > 0, "{report}");
        }
    }
}
