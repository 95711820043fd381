//! A migration that an operator executes step by step.

use super::*;

/// Returns a state of the first example in which `lab` is being moved from `server-0` to `server-3`.
fn migrating(folder: &Folder) -> PathBuf {
    let state = folder.path("state.json");
    document(&example("slos.yaml"), &example("cluster.yaml"), &state);
    let text = std::fs::read_to_string(&state).expect("the state");
    let mut kept: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let slos = kept["spec"]["slos"].as_array().expect("SLOs");
    let lab = slos.iter().find(|slo| slo["name"] == "lab").expect("lab");
    assert_eq!(lab["instances"][0]["server"], "server-0");
    let ways = lab["instances"][0]["ways"].clone();
    let step = |step: &str, server: &str| {
        let mut step = serde_json::json!({"step": step, "slo": "lab", "server": server, "node": 0});
        step["ways"] = ways.clone();
        step
    };
    let mut resize = step("resize", "server-3");
    resize["to"] = 3.into();
    let steps = [step("start", "server-3"), step("drain", "server-0"), resize];
    kept["spec"]["migration"] = serde_json::json!({"done": 0, "told": 0, "first": 1, "steps": steps});
    std::fs::write(&state, kept.to_string()).expect("the state");
    state
}

fn servers(found: &serde_json::Value) -> Vec<String> {
    let instances = found["slos"][4]["instances"].as_array().expect("instances");
    let server = |i: &serde_json::Value| i["server"].as_str().expect("a name").to_owned();
    instances.iter().map(server).collect()
}

fn run(state: &Path, cluster: &Path, more: &[&str]) -> serde_json::Value {
    let state = state.to_str().expect("a name in UTF-8");
    let more = [&["--state", state, "--output", "json"], more].concat();
    let (status, stdout, stderr) = place(&example("slos.yaml"), cluster, &more);
    assert_eq!((status, &*stderr), (Some(0), ""), "{stdout}");
    serde_json::from_str(&stdout).expect("JSON")
}

#[test]
fn the_next_run_goes_on_from_what_is_done() {
    let folder = Folder::new();
    let (state, cluster) = (migrating(&folder), example("cluster.yaml"));
    let found = run(&state, &cluster, &[]);
    assert_eq!(found["migration"]["done"], 0);
    assert_eq!(found["migration"]["steps"].as_array().map(Vec::len), Some(3));
    assert_eq!(servers(&found), ["server-0"]);
    // Repeating it changes nothing.
    for _ in 0..2 {
        let found = run(&state, &cluster, &["--done", "1"]);
        assert_eq!(found["migration"]["done"], 1);
        assert_eq!(found["migration"]["steps"][0]["step"], "drain");
        assert_eq!(servers(&found), ["server-0", "server-3"]);
        assert_eq!(found["slos"][4]["course"], "kept");
    }
    let name = state.to_str().expect("a name in UTF-8");
    let (_, text, _) = place(&example("slos.yaml"), &cluster, &["--state", name]);
    assert!(text.contains("migration: 1 step done, 2 left"), "{text}");
    assert!(text.contains("   2. drain  lab at server-0/0 (1 way)"), "{text}");
    for (wrong, expected) in [
        ("0", "--done: expected one of the remaining steps, 2 to 3, found 0"),
        ("4", "--done: expected one of the remaining steps, 2 to 3, found 4"),
    ] {
        let before = std::fs::read(&state).expect("the state");
        let more = ["--state", name, "--done", wrong];
        let (status, _, stderr) = place(&example("slos.yaml"), &cluster, &more);
        assert_eq!(status, Some(2));
        assert!(stderr.contains(expected), "{stderr}");
        assert_eq!(std::fs::read(&state).expect("the state"), before);
    }
    let found = run(&state, &cluster, &["--done", "3"]);
    assert_eq!(
        found["migration"],
        serde_json::json!({"done": 3, "steps": [], "stopped": []})
    );
    assert_eq!(servers(&found), ["server-3"]);
    assert_eq!(found["slos"][4]["instances"][0]["ways"], 3);
    // The migration is over; the last `--done` may be repeated, in case its response was lost.
    assert_eq!(run(&state, &cluster, &[]).get("migration"), None);
    let again = run(&state, &cluster, &["--done", "3"]);
    assert_eq!(again["migration"], found["migration"]);
    for more in [&["--done", "2"][..], &["--done", "4"], &["--abandon"]] {
        let more = [&["--state", name], more].concat();
        let (status, _, stderr) = place(&example("slos.yaml"), &cluster, &more);
        assert_eq!(status, Some(2));
        assert!(stderr.contains("expected a migration in the state"), "{stderr}");
    }
}

#[test]
fn a_step_of_an_older_list_is_refused_and_none_of_its_numbers_is_used_again() {
    let folder = Folder::new();
    let (state, cluster) = (migrating(&folder), example("cluster.yaml"));
    let name = state.to_str().expect("a name in UTF-8");
    run(&state, &cluster, &["--done", "1"]);
    // Another operator abandons a part of it: the first operator's list ends with 3.
    let found = run(&state, &cluster, &["--abandon"]);
    let steps = found["migration"]["steps"].as_array().expect("steps");
    assert_eq!((steps.len(), &steps[0]["number"]), (1, &4.into()));
    assert_eq!(steps[0]["step"], "drain");
    let before = std::fs::read(&state).expect("the state");
    for old in ["2", "3"] {
        let more = ["--state", name, "--done", old];
        let (status, stdout, stderr) = place(&example("slos.yaml"), &cluster, &more);
        assert_eq!((status, &*stdout), (Some(2), ""));
        let expected = format!(
            "--done: expected one of the remaining steps, 4 to 4, found {old}, which is done or from an earlier \
             migration"
        );
        assert!(stderr.contains(&expected), "{stderr}");
        assert_eq!(std::fs::read(&state).expect("the state"), before);
    }
    // The last completed step is still accepted.
    let found = run(&state, &cluster, &["--done", "1"]);
    assert_eq!(found["migration"]["steps"][0]["number"], 4);
    let (_, text, _) = place(&example("slos.yaml"), &cluster, &["--state", name]);
    assert!(text.contains("   4. drain  lab at server-0/0 (1 way)"), "{text}");
    let found = run(&state, &cluster, &["--done", "4"]);
    assert_eq!(found["migration"]["done"], 2);
    assert_eq!(servers(&found), ["server-3"]);
}

#[test]
fn a_server_that_vanishes_ends_what_was_to_be_on_it() {
    let folder = Folder::new();
    let state = migrating(&folder);
    let three = changed(&folder, "cluster.yaml", "count: 4", "count: 3");
    let found = run(&state, &three, &[]);
    let why = serde_json::json!([{"slo": "lab", "why": "server server-3 is no longer in the cluster"}]);
    assert_eq!(found["migration"]["stopped"], why);
    assert_eq!(found["migration"]["steps"], serde_json::json!([]));
    assert_eq!(servers(&found), ["server-0"]);
    assert_eq!(run(&state, &three, &[]).get("migration"), None);
}

#[test]
fn an_abandoned_migration_leaves_the_drains_of_what_has_its_successor() {
    let folder = Folder::new();
    let (state, cluster) = (migrating(&folder), example("cluster.yaml"));
    let found = run(&state, &cluster, &["--done", "1", "--abandon"]);
    assert_eq!(found["migration"]["steps"].as_array().map(Vec::len), Some(1));
    assert_eq!(found["migration"]["steps"][0]["step"], "drain");
    let found = run(&state, &cluster, &["--done", "4"]);
    assert_eq!(servers(&found), ["server-3"]);
}
