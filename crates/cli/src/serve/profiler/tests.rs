//! Measurements by programs that measure nothing.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicU32;

/// Folder with a job whose program is a shell script. The script's last argument is the file to write.
struct Rig {
    folder: PathBuf,
    job: Job,
}

impl Rig {
    fn new(script: &str, time: Nanos) -> Rig {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tailwater-profiler-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("program");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let yaml = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: edge}\nspec:\n  slo: {latency: \
                    1ms}\n  functions: [{forward: }]\n";
        let core = cores::default_core();
        let written = folder.join(".edge.measuring");
        let job = Job {
            program,
            arguments: vec![written.clone().into()],
            yaml: yaml.to_owned(),
            base_dir: folder.clone(),
            core,
            time,
            written,
            file: folder.join("edge.curves.yaml"),
            profiles: Arc::new(ServerProfiles::new(&folder, core)),
            spec: ChainSpec::parse(yaml, "edge.yaml", &folder).unwrap(),
        };
        Rig { folder, job }
    }

    fn error(&self, cancel: bool) -> String {
        let error = self.job.run(&AtomicBool::new(cancel)).unwrap_err();
        assert!(!self.job.written.exists() && !self.job.file.exists(), "{error}");
        error
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn the_reason_of_a_process_that_fails_is_its_last_error() {
    let rig = Rig::new(
        "echo 'error: first' >&2; echo 'error: no such traffic' >&2; exit 2",
        Nanos::from_secs(60),
    );
    assert_eq!(rig.error(false), "no such traffic");
    let rig = Rig::new("exit 3", Nanos::from_secs(60));
    assert_eq!(rig.error(false), "its process ended with exit status: 3");
    let mut rig = Rig::new("exit 0", Nanos::from_secs(60));
    rig.job.program = rig.folder.join("nothing");
    assert!(rig.error(false).starts_with("its process cannot be started"));
}

#[test]
fn a_process_is_ended_when_its_time_is_over_or_it_is_cancelled() {
    // It has written something by then, and would run for a minute.
    let script = "cat > /dev/null; echo x > \"$1\"; echo $$ > pid; exec sleep 60";
    let rig = Rig::new(script, Nanos::from_secs(1));
    assert_eq!(rig.error(false), "not measured within 1s (spec.admission.measure.time)");
    let pid = fs::read_to_string(rig.folder.join("pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
    let rig = Rig::new(script, Nanos::from_secs(60));
    assert_eq!(rig.error(true), "cancelled");
}

#[test]
fn a_file_that_is_no_profile_of_the_chain_is_not_kept() {
    let rig = Rig::new("cat > /dev/null; echo x > \"$1\"", Nanos::from_secs(60));
    assert!(rig.error(false).contains(".edge.measuring"));
    let rig = Rig::new("cat > /dev/null", Nanos::from_secs(60));
    assert!(rig.error(false).contains(".edge.measuring"));
}

#[test]
fn files_of_measurements_that_did_not_end_are_removed() {
    let rig = Rig::new("", Nanos::from_secs(60));
    let kept = ["edge.curves.yaml", ".hidden", "x.measuring"];
    let removed = [".edge-1.measuring", "..edge-1.measuring.tmp"];
    for name in kept.iter().chain(&removed) {
        fs::write(rig.folder.join(name), "").unwrap();
    }
    remove_unfinished(&rig.folder);
    assert!(kept.iter().all(|name| rig.folder.join(name).exists()));
    assert!(!removed.iter().any(|name| rig.folder.join(name).exists()));
}
