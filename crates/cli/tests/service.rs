//! For the machine around the program: signs for systemd, completions, man pages, and the version.

mod common;

use common::*;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn a_server_tells_systemd_that_it_is_ready_lives_and_ends() {
    let folder = Folder::new();
    folder.spec("forward.yaml", "[{forward: }]", "  match: {sources: [0.0.0.0/0]}\n");
    let server = "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {name: notified}\nspec:\n  \
                  cores: \"0\"\n  ports: [{name: north, traffic: backbone, repeat: true, rate: 1kpps}]\n  \
                  chains: [forward.yaml]\n  stateDirectory: state\n  control: {socket: control.sock}\n";
    let server = folder.write("server.yaml", server);
    let socket = UnixDatagram::bind(folder.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut child = tailwater()
        .arg("serve")
        .arg(&server)
        .args(["--duration", "1500ms"])
        .env("NOTIFY_SOCKET", folder.path("notify"))
        .env("WATCHDOG_USEC", "400000")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = Vec::new();
    while !told
        .last()
        .is_some_and(|message: &String| message.contains("STOPPING=1"))
    {
        let mut message = [0; 1024];
        match socket.recv(&mut message) {
            Ok(length) => told.push(text(&message[..length])),
            Err(error) => panic!("{error}: {told:?}, {}", text(&child.wait_with_output().unwrap().stderr)),
        }
    }
    assert!(child.wait().unwrap().success(), "{told:?}");
    // A start that takes long is alive before it is ready.
    let at = told.iter().position(|message| message.contains("READY=1"));
    let (ready, after) = told[at.expect("a message")..].split_first().unwrap();
    assert!(ready.contains(&format!("MAINPID={}", child.id())), "{ready}");
    assert!(ready.contains("STATUS=server notified on cores 0"), "{ready}");
    let alive = after.iter().filter(|message| message.contains("WATCHDOG=1")).count();
    // About seven in a second and a half; a busy machine has fewer.
    assert!((2..=9).contains(&alive), "{told:?}");
}

#[test]
fn shells_and_man_know_every_command() {
    let folder = Folder::new();
    let pages = folder.path("man");
    let output = run(&[&"man-pages", &pages]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&run(&[&"completions", &shell]).stdout);
        for command in ["run", "serve", "profile", "explain-spec"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let page = std::fs::read_to_string(pages.join("tailwater-run.1")).unwrap();
    assert!(page.contains("check\\-slo"), "{page}");
    assert!(pages.join("tailwater-profile-capacity.1").exists());
    assert!(!pages.join("tailwater-function-process.1").exists(), "a hidden command");
    assert_refused(&run(&[&"completions", &"basch"]), "'basch'");
    // A file that cannot be written is not left half: here files have at most 512 bytes.
    let small = folder.path("small");
    let limited = "ulimit -f 1; trap '' XFSZ; exec \"$0\" man-pages \"$1\"";
    let output = std::process::Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_tailwater")])
        .arg(&small)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).starts_with("error: cannot write "), "{output:?}");
    assert_eq!(std::fs::read_dir(&small).unwrap().count(), 0);
}

#[test]
fn a_long_version_tells_the_parts() {
    let long = text(&run(&[&"--version"]).stdout);
    for line in ["commit", "with", "without", "baseline", "machine"] {
        assert!(long.lines().any(|it| it.starts_with(line)), "{long}");
    }
    let short = text(&run(&[&"-V"]).stdout);
    assert_eq!(short.lines().count(), 1, "{short}");
    assert_eq!(long.lines().next(), short.lines().next());
}

/// Without its compression, which takes long.
#[test]
fn the_package_has_all_its_files() {
    let folder = Folder::new();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tailwater"), folder.path("tailwater")).unwrap();
    folder.write("libtailwater_nf.a", "");
    let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools");
    let filled = std::process::Command::new("python3")
        .args([
            "-B",
            "-c",
            "import debian, pathlib, sys; debian.fill(*map(pathlib.Path, sys.argv[1:]))",
        ])
        .args([folder.path("package"), folder.0.clone()])
        .env("PYTHONPATH", tools)
        .output()
        .unwrap();
    assert!(filled.status.success(), "{}", text(&filled.stderr));
    for file in [
        "bin/tailwater",
        "include/tailwater_nf.h",
        "share/man/man1/tailwater-run.1.gz",
        "share/doc/tailwater/examples/nat.yaml",
        "share/doc/tailwater/docs/reference/chain-spec.md",
        "share/doc/tailwater/docs/how-to/use-ports.md",
        "lib/systemd/system/tailwater.service",
    ] {
        assert!(folder.path("package/usr").join(file).is_file(), "{file}");
    }
}
