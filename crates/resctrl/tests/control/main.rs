//! Partitions on a model of the kernel, mounted as a file system.

mod failures;
mod machine_limits;
#[path = "../model/mod.rs"]
mod model;
mod neighbours;
mod ways;

use std::process::{Child, Command, Stdio};

use model::fuse::Mounted;
use tailwater_resctrl::{Error, Resctrl, Settings};

/// Returns the settings for a test.
fn settings(mounted: &Mounted) -> Settings {
    Settings {
        mount_point: mounted.root(),
        mount: false,
        file_system: "fuse".to_owned(),
        state: mounted.folder.join("state"),
        cores: mounted.folder.join("cores"),
        ..Settings::default()
    }
}

fn open(mounted: &Mounted) -> Resctrl {
    Resctrl::open(settings(mounted)).unwrap()
}

/// Task of another process, ended when dropped.
struct Task(Child);

impl Task {
    fn new() -> Task {
        let mut sleep = Command::new("sleep");
        Task(
            sleep
                .arg("1000")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    fn number(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn error<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("it was done"),
        Err(error) => error.to_string(),
    }
}
