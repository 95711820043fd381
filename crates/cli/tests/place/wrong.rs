//! Invalid states and files.

use super::*;

#[test]
fn a_state_cut_off_anywhere_is_refused_and_left_alone() {
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let state = folder.path("state.json");
    document(&slos, &cluster, &state);
    let whole = std::fs::read(&state).expect("the state");
    let text = whole.trim_ascii_end();
    let more = ["--state", state.to_str().expect("a name in UTF-8")];
    for part in 1..8 {
        let cut = &text[..text.len() * part / 8];
        std::fs::write(&state, cut).expect("a state");
        let (status, stdout, stderr) = place(&slos, &cluster, &more);
        assert_eq!((status, &*stdout), (Some(2), ""), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert_eq!(std::fs::read(&state).expect("the state"), cut);
    }
}

#[test]
fn a_state_of_another_version_or_kind_is_refused_and_left_alone() {
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let state = folder.path("state.json");
    document(&slos, &cluster, &state);
    let whole = std::fs::read_to_string(&state).expect("the state");
    let more = ["--state", state.to_str().expect("a name in UTF-8")];
    for (from, to, expected) in [
        (
            "dev/v1alpha1",
            "dev/v2",
            "apiVersion: expected tailwater.dev/v1alpha1, found",
        ),
        (
            "\"Placement\"",
            "\"Cluster\"",
            "kind: expected Placement, found \"Cluster\"",
        ),
    ] {
        let other = whole.replace(from, to);
        assert_ne!(other, whole);
        std::fs::write(&state, &other).expect("a state");
        let (status, stdout, stderr) = place(&slos, &cluster, &more);
        assert_eq!((status, &*stdout), (Some(2), ""));
        assert!(stderr.contains(expected), "{stderr}");
        assert_eq!(std::fs::read_to_string(&state).expect("the state"), other);
    }
}

#[test]
fn one_command_at_a_time_has_a_state() {
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let state = folder.path("state.json");
    document(&slos, &cluster, &state);
    let before = std::fs::read(&state).expect("the state");
    let beside = folder.path("state.json.new");
    let other = std::fs::File::create(&beside).expect("a file");
    other.lock().expect("a lock");
    let name = state.to_str().expect("a name in UTF-8");
    let more = ["--state", name];
    let (status, stdout, stderr) = place(&slos, &cluster, &more);
    assert_eq!((status, &*stdout), (Some(2), ""));
    assert!(
        stderr.contains("state.json: another `tailwater place` is using it"),
        "{stderr}"
    );
    assert_eq!(std::fs::read(&state).expect("the state"), before);
    // A killed command leaves only the file.
    std::fs::write(&beside, "x".repeat(1 << 16)).expect("a file");
    drop(other);
    let (status, _, stderr) = place(&slos, &cluster, &more);
    assert_eq!((status, &*stderr), (Some(0), ""));
    assert_eq!(std::fs::read(&state).expect("the state"), before);
    assert!(!beside.exists());
}

/// A pipe in place of the new file, which anybody can put into a folder for all, held the command up for ever.
#[test]
fn a_pipe_beside_the_state_holds_no_command_up() {
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let beside = folder.path("state.json.new");
    let made = Command::new("mkfifo").arg(&beside).status().expect("mkfifo");
    assert!(made.success());
    let state = folder.path("state.json");
    let more = ["--state", state.to_str().expect("a name in UTF-8")];
    let (status, stdout, stderr) = place(&slos, &cluster, &more);
    assert_eq!((status, &*stdout), (Some(2), ""));
    let found = format!("--state: expected a file, found {}", beside.display());
    assert!(stderr.contains(&found), "{stderr}");
}

#[test]
fn commands_at_the_same_time_lose_nothing() {
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let state = folder.path("state.json");
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        command.arg("place").arg(&slos).arg("--cluster").arg(&cluster);
        command.arg("--state").arg(&state).args(["--output", "json"]);
        let (stdout, stderr) = (std::process::Stdio::piped(), std::process::Stdio::piped());
        let command = command.stdout(stdout).stderr(stderr);
        command.spawn().expect("the program runs")
    };
    let all: Vec<_> = (0..12).map(|_| run()).collect();
    let (mut new, mut kept) = (0, 0);
    for child in all {
        let output = child.wait_with_output().expect("the program ends");
        match output.status.code() {
            Some(0) => {
                let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
                match found["slos"][0]["course"].as_str() {
                    Some("new") => new += 1,
                    _ => kept += 1,
                }
            }
            status => {
                let stderr = text(&output.stderr);
                assert!(stderr.contains("is using it"), "{status:?} {stderr}");
            }
        }
    }
    // Exactly one command placed them.
    assert_eq!(new, 1, "{kept}");
    let (_, found) = document(&slos, &cluster, &state);
    assert_eq!(found["slos"][0]["course"], "kept");
    assert!(!folder.path("state.json.new").exists());
}

#[test]
fn a_state_that_does_not_fit_on_the_disk_leaves_the_old_one() {
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let state = folder.path("state.json");
    document(&slos, &cluster, &state);
    let before = std::fs::read(&state).expect("the state");
    let fewer = changed(&folder, "cluster.yaml", "count: 4", "count: 3");
    // Limits files of this process to 512 bytes, as a full disk would.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_tailwater"))
        .arg("place")
        .args([&slos, Path::new("--cluster"), &fewer])
        .arg("--state")
        .arg(&state)
        .output()
        .expect("a shell");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot write "), "{stderr}");
    // Nothing is printed unless it is stored.
    assert_eq!(text(&output.stdout), "");
    assert_eq!(std::fs::read(&state).expect("the state"), before);
    assert!(!folder.path("state.json.new").exists());
}
