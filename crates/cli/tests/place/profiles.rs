//! Curves from files of profiles: selection of the profile, and the error if there is none.

use super::*;

const PROFILE: &str = "acl-nat.curves.yaml";

/// Returns the examples with one change in one of the files; all three are in a separate directory.
fn with(name: &str, from: &str, to: &str) -> (Folder, PathBuf, PathBuf) {
    let folder = Folder::new();
    for file in ["measured.yaml", "measured-cluster.yaml", PROFILE] {
        let text = std::fs::read_to_string(example(file)).expect("an example");
        let text = match file == name {
            true => {
                assert!(text.contains(from), "{from}");
                text.replace(from, to)
            }
            false => text,
        };
        folder.write(file, text);
    }
    let (slos, cluster) = (folder.path("measured.yaml"), folder.path("measured-cluster.yaml"));
    (folder, slos, cluster)
}

fn json(slos: &Path, cluster: &Path, more: &[&str]) -> serde_json::Value {
    let more = [&["--output", "json"], more].concat();
    let (status, stdout, stderr) = place(slos, cluster, &more);
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

#[test]
fn the_example_is_admitted_by_what_was_measured() {
    let (slos, cluster) = (example("measured.yaml"), example("measured-cluster.yaml"));
    let (status, stdout, stderr) = place(&slos, &cluster, &[]);
    assert_eq!((status, &*stderr), (Some(0), ""), "{stdout}");
    assert!(stdout.contains("2 admitted, 0 denied"), "{stdout}");
    // `profile curves` prints the same curves, which give the same result.
    let curves = tailwater()
        .args(["profile", "curves", "--machine", "epyc"])
        .arg(example(PROFILE))
        .output()
        .expect("the program runs");
    let chains = text(&curves.stdout).replace('\n', "\n  ");
    let spec = std::fs::read_to_string(&slos).expect("an example");
    let (_, promised) = spec.split_once("  slos:\n").expect("SLOs");
    let folder = Folder::new();
    let pasted = folder.write(
        "slos.yaml",
        format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: SloSet\nmetadata: {{name: pasted}}\n\
             spec:\n  {chains}\n  slos:\n{}",
            promised.replace(", percentile: 99", "")
        ),
    );
    assert_eq!(place(&pasted, &cluster, &[]).1, stdout);
}

#[test]
fn a_measurement_that_is_not_repeatable_admits_nothing() {
    let (_folder, slos, cluster) = with(PROFILE, "[10, 8.639, 4.552, 5]", "[10, 8.639, 632.2, 5]");
    let (status, stdout, stderr) = place(&slos, &cluster, &[]);
    assert_eq!((status, &*stdout), (Some(2), ""));
    let expected = "acl-nat.curves.yaml: chain acl-nat with traffic \"backbone, seed 1\" has a measurement that is not \
                    repeatable: latency at load 0.10 (± 7318 %, 5 runs); measure it again";
    assert!(stderr.contains(expected), "{stderr}");
}

/// SLOs were admitted by values that other programs had disturbed, without a notice.
#[test]
fn a_measurement_with_interference_is_told_and_one_of_nothing_else_admits_nothing() {
    let (_folder, slos, cluster) = with(PROFILE, "[2, 7392000, 720000, 7]", "[2, 7392000, 720000, 7, 7]");
    let (status, stdout, stderr) = place(&slos, &cluster, &[]);
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    let expected = "was measured with CPU interference: 7 runs of 1 value";
    assert!(stderr.contains(expected), "{stderr}");
    let points = "[10, 8.639, 4.552, 5], [32, 20.607, 7.360000000000001, 5], [55, 24.575, 12.032, 5], \
                  [100, 210.943, 65.024, 5]";
    let (_folder, slos, cluster) = with(PROFILE, points, &points.replace(", 5]", ", 5, 5]"));
    let (status, stdout, stderr) = place(&slos, &cluster, &[]);
    assert_eq!((status, &*stdout), (Some(2), ""));
    let expected = "CPU interference disturbed all runs of latency over load, so the profile is all noise";
    assert!(stderr.contains(expected), "{stderr}");
}

#[test]
fn a_folder_is_as_its_files_and_others_in_it_are_not_read() {
    let (folder, slos, cluster) = with("measured.yaml", "[acl-nat.curves.yaml]", "[measured]");
    let inside = folder.path("measured");
    std::fs::create_dir(&inside).expect("a folder");
    let (status, _, stderr) = place(&slos, &cluster, &[]);
    assert_eq!(status, Some(2));
    assert!(
        stderr.contains("spec.profiles[0]: expected files *.curves.yaml in folder"),
        "{stderr}"
    );
    std::fs::copy(folder.path(PROFILE), inside.join(PROFILE)).expect("a file");
    std::fs::write(inside.join("chain.yaml"), "no profile").expect("a file");
    assert_eq!(json(&slos, &cluster, &[])["admitted"], 2);
}

#[test]
fn what_does_not_fit_is_told_with_its_place_and_what_would() {
    let hardware = "measured-cluster.yaml";
    for (name, from, to, expected) in [
        // Missing file, missing profile.
        (
            "measured.yaml",
            "[acl-nat.curves.yaml]",
            "[none.curves.yaml]",
            "measured.yaml:7:14: spec.profiles[0]: ",
        ),
        (
            "measured.yaml",
            "  profiles: [acl-nat.curves.yaml]\n",
            "",
            "spec.chains[0].profile: expected spec.profiles, a list of files and folders",
        ),
        (
            PROFILE,
            "chain: \"acl-nat\"",
            "chain: \"acl-nats\"",
            "expected a profile of chain \"acl-nat\", found profiles of acl-nats; did you mean \"acl-nats\"?",
        ),
        // Another version.
        (
            PROFILE,
            "version: 1",
            "version: 3",
            "acl-nat.curves.yaml:5:12: spec.version: expected 1 or 2, the versions that this program reads",
        ),
        // Another machine.
        (hardware, "megahertz: 2596", "megahertz: 3500", "another machine in "),
        (
            hardware,
            "megahertz: 2596",
            "megahertz: 3500",
            "megahertz 2596 instead of 3500; `mayDiffer: [megahertz]`",
        ),
        (
            PROFILE,
            "cacheWays: 16, privateKibibytes: 1024",
            "cacheWays: 20, privateKibibytes: 2048",
            "cacheWays 20 instead of 16, privateKibibytes 2048 instead of 1024; \
             `mayDiffer: [cacheWays, privateKibibytes]`",
        ),
        (
            hardware,
            "\"AMD EPYC\", megahertz: 2596",
            "\"AMD EPYC 2\", mayDiffer: [megahertz], megahertz: 3500",
            "processor \"AMD EPYC\" instead of \"AMD EPYC 2\"",
        ),
        (
            hardware,
            "hardware: {processor: \"AMD EPYC\"",
            "hardware: {mayDiffer: [clock], processor: \"AMD EPYC\"",
            "spec.servers[0].hardware.mayDiffer[0]: expected processor or megahertz",
        ),
        (
            hardware,
            "hardware: {processor",
            "# {processor",
            "expected `hardware` for machine \"epyc\" in the cluster",
        ),
        // Another configuration, traffic, percentile.
        (
            PROFILE,
            "configuration: \"",
            "configuration: \"0",
            "spec.chains[0].profile.configuration: expected a profile of chain \"acl-nat\" with configuration",
        ),
        (
            "measured.yaml",
            "backbone, seed 1",
            "imix, seed 1",
            "spec.chains[0].profile.traffic: expected a profile of chain \"acl-nat\" with traffic \"imix, seed 1\", \
             found \"backbone, seed 1\" in ",
        ),
        (
            "measured.yaml",
            "1\", percentile: 99}",
            "1\", percentile: 99.9}",
            "spec.chains[0].profile: expected latency over load of percentile 99.9, found percentile 99 in ",
        ),
        (
            "measured.yaml",
            "latency: 100us, percentile: 99",
            "latency: 100us, percentile: 90",
            "spec.slos[0].percentile: expected the percentile of chain \"acl-nat\"'s curves, \"99\", found \"90\"",
        ),
        // No curve.
        (
            PROFILE,
            "[100, 210.943",
            "[99, 210.943",
            "has no curve of latency over load: run `tailwater profile latency`",
        ),
        // Ambiguous profile.
        (
            "measured.yaml",
            "[acl-nat.curves.yaml]",
            "[acl-nat.curves.yaml, ./acl-nat.curves.yaml]",
            "expected one profile of chain \"acl-nat\" for machine \"epyc\", found 2: ",
        ),
        (
            "measured.yaml",
            "profile: {",
            "profile: {machines: [eypc], ",
            "expected a machine of the cluster, found \"eypc\"; did you mean \"epyc\"?",
        ),
        (
            "measured.yaml",
            "profile: {",
            "profile: {spec: ../acl-nat.yaml, ",
            "expected either spec or configuration, found both",
        ),
    ] {
        let (folder, slos, cluster) = with(name, from, to);
        let state = folder.path("state.json");
        let more = ["--state", state.to_str().expect("a name in UTF-8")];
        let (status, stdout, stderr) = place(&slos, &cluster, &more);
        assert_eq!((status, &*stdout), (Some(2), ""), "{to}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{to}: {stderr}");
        assert!(stderr.contains(expected), "{to}: {stderr}");
        assert!(!state.exists(), "{to}");
    }
}

#[test]
fn another_machine_is_accepted_where_the_cluster_says_so_and_told() {
    let other = "megahertz: 3500, mayDiffer: [megahertz]";
    let (_folder, slos, cluster) = with("measured-cluster.yaml", "megahertz: 2596", other);
    let (status, stdout, stderr) = place(&slos, &cluster, &[]);
    assert_eq!(status, Some(0), "{stdout}");
    assert!(stderr.contains("notice: chain acl-nat on machine epyc"), "{stderr}");
    assert!(stderr.contains("megahertz 2596 instead of 3500"), "{stderr}");
}

#[test]
fn a_chains_spec_says_which_configuration() {
    let folder = Folder::new();
    let chain = folder.acl_nat();
    let spec = tailwater_functions::spec::ChainSpec::read(&chain).expect("a spec");
    let expected = tailwater_profile::fingerprint(&spec);
    let configuration = |file| {
        let text = std::fs::read_to_string(example(file)).expect("an example");
        let (_, rest) = text.split_once("configuration: \"").expect("a field");
        (text.clone(), rest[..16].to_owned())
    };
    let (profile, measured) = configuration(PROFILE);
    folder.write("right.curves.yaml", profile.replace(&measured, &expected));
    folder.write("wrong.curves.yaml", profile);
    let (slos, _) = configuration("measured.yaml");
    let name = chain.file_name().expect("a name").to_string_lossy();
    let asked = format!("spec: {name}");
    let slos = slos.replace(&format!("configuration: \"{measured}\""), &asked);
    let cluster = example("measured-cluster.yaml");
    let file = |name: &str| folder.write("slos.yaml", slos.replace("acl-nat.curves.yaml", name));
    assert_eq!(json(&file("right.curves.yaml"), &cluster, &[])["denied"], 0);
    let (status, _, stderr) = place(&file("wrong.curves.yaml"), &cluster, &[]);
    assert_eq!(status, Some(2));
    let told = format!("with configuration \"{expected}\" (of ");
    assert!(stderr.contains(&told), "{stderr}");
    assert!(stderr.contains(&format!("found \"{measured}\"")), "{stderr}");
}

#[test]
fn profiles_that_changed_since_the_state_was_written_are_told_once() {
    let (folder, slos, cluster) = with(PROFILE, "version", "version");
    let state = folder.path("state.json");
    let more = ["--state", state.to_str().expect("a name in UTF-8")];
    let none = serde_json::json!([]);
    assert_eq!(json(&slos, &cluster, &more)["changed_chains"], none);
    assert_eq!(json(&slos, &cluster, &more)["changed_chains"], none);
    // A new measurement has half the throughput.
    let profile = folder.path(PROFILE);
    let text = std::fs::read_to_string(&profile).expect("a profile");
    let mut slower = text.clone();
    for rate in ["7392000", "7504000", "7616000", "7728000", "7664000"] {
        slower = slower.replace(rate, "3500000");
    }
    // With the noise of the faster one, it would not be repeatable.
    slower = slower.replace("2184000", "218400");
    std::fs::write(&profile, slower).expect("a profile");
    let (status, stdout, _) = place(&slos, &cluster, &more);
    assert_eq!(status, Some(0), "{stdout}");
    assert!(stdout.contains("branch-office  repaired"), "{stdout}");
    assert!(
        stdout.contains("chain acl-nat: other curves than in the state"),
        "{stdout}"
    );
    let found = json(&slos, &cluster, &more);
    assert_eq!(found["changed_chains"], none);
    assert_eq!(found["slos"][0]["course"], "kept");
    // Another configuration.
    let folder = |from: &str, to: &str, file: &Path| {
        let text = std::fs::read_to_string(file).expect("a file");
        std::fs::write(file, text.replace(from, to)).expect("a file");
    };
    folder("configuration: \"", "configuration: \"0", &profile);
    folder("configuration: \"", "configuration: \"0", &slos);
    let found = json(&slos, &cluster, &more);
    let changed = serde_json::json!([{"name": "acl-nat", "curves": false, "configuration": true}]);
    assert_eq!(found["changed_chains"], changed);
}

#[test]
fn servers_give_out_no_more_cache_than_their_hardware_has() {
    for (from, to, expected) in [
        (
            "ways: 14",
            "ways: 17",
            "hardware: expected cacheWays of at least the servers' 17 ways, found 16",
        ),
        (
            "wayKibibytes: 2048",
            "wayKibibytes: 2341",
            "hardware: expected cacheKibibytes of at least the servers' 14 ways of 2341 KiB, 32774, found 32768",
        ),
    ] {
        let (_folder, slos, cluster) = with("measured-cluster.yaml", from, to);
        let (status, stdout, stderr) = place(&slos, &cluster, &[]);
        assert_eq!((status, &*stdout), (Some(2), ""));
        assert!(stderr.contains("measured-cluster.yaml:"), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
    // The whole cache is allowed, and an unknown size is not checked.
    for (from, to) in [
        ("ways: 14", "ways: 16"),
        (
            "cacheKibibytes: 32768",
            "cacheKibibytes: 0, mayDiffer: [cacheKibibytes]",
        ),
    ] {
        let (_folder, slos, cluster) = with("measured-cluster.yaml", from, to);
        let (status, stdout, stderr) = place(&slos, &cluster, &[]);
        assert_eq!(status, Some(0), "{stdout}{stderr}");
    }
}
