//! Third-party functions, as libraries and as programs: they behave equally in all modes, and anything that is not a
//! function is refused in one line. No third-party code runs in `tailwater` if functions are isolated.

use crate::common::*;
use crate::same::assert_as;
use crate::{TRUSTED, alone, can_confine, reason, run_isolated, ways};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tailwater_dataplane::cores::available;

fn of_project(path: &str) -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    project.join(path).canonicalize().unwrap()
}

/// Runs a program, and asserts success.
fn works(command: &mut Command) {
    let output = command.output().unwrap();
    let told = [&output.stdout[..], &output.stderr].concat();
    assert!(output.status.success(), "{command:?}: {}", text(&told));
}

fn cc(arguments: &[&str], sources: &[&Path], to: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]);
    cc.arg(of_project("crates/sdk/include"));
    works(cc.args(arguments).arg("-o").arg(to).args(sources));
}

/// Builds C sources as a program.
fn program(sources: &[&Path], to: &Path) {
    let library = libtailwater_nf().join("libtailwater_nf.a");
    let sources = [sources, &[&library]].concat();
    cc(&["-pthread"], &sources, to);
}

fn library(source: &Path, to: &Path) {
    cc(&["-fPIC", "-shared"], &[source], to);
}

/// Builds a Rust project offline, without optimisations, which takes a third of the time.
fn cargo(project: &Path, target: &Path) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--offline", "--quiet"]);
    cargo
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    works(cargo.current_dir(project).env("CARGO_TARGET_DIR", target));
}

fn copy(from: PathBuf, to: PathBuf) {
    std::fs::copy(from, to).unwrap();
}

/// Writes DNS queries of two clients, half of them for a listed name, and much other traffic.
fn queries(folder: &Folder) -> PathBuf {
    let query = |name: &str, client_number: u8| {
        let mut message = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            message.push(label.len() as u8);
            message.extend(label.bytes());
        }
        message.extend([0, 0, 1, 0, 1]);
        let key = tailwater_net::FlowKey::v4(client(client_number), SERVER, 17, 5000, 53);
        let frame = tailwater_net::builder::FrameBuilder::new(&key);
        frame.payload(&message).to_vec().unwrap()
    };
    let mut packets: Vec<(u64, Vec<u8>)> = (0..1000u64)
        .map(|i| match i % 4 {
            0 => query("ads.example.com", (i % 7) as u8 + 1),
            1 => query("example.org", (i % 5) as u8 + 1),
            2 => udp(client((i % 3) as u8 + 100), 1000, SERVER, 4000),
            _ => tcp(client((i % 50) as u8 + 150), i as u16, SERVER, 80),
        })
        .enumerate()
        .map(|(i, frame)| (i as u64 * 100_000, frame))
        .collect();
    // Non-IP packets bypass all functions.
    packets.push((50_000_001, [&[0xff; 12][..], &[0x08, 0x06], &[0; 46]].concat()));
    packets.sort_by_key(|(time, _)| *time);
    folder.capture("queries.pcap", &packets)
}

#[test]
fn the_examples_are_the_same_as_libraries_and_programs() {
    let folder = Folder::new();
    let traffic = queries(&folder);
    let core = available().pop().unwrap().to_string();
    let [source, main] =
        ["rate_limit.c", "main.c"].map(|file| of_project(&format!("examples/functions/rate-limit/{file}")));
    library(&source, &folder.path("rate.so"));
    program(&[&source, &main], &folder.path("rate"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dns-filter");
    cargo(&of_project("examples/functions/dns-filter"), &target);
    let built = target.join("release");
    copy(built.join("libdns_filter.so"), folder.path("dns.so"));
    copy(built.join("dns-filter"), folder.path("dns"));
    let _alone = alone();
    // A function in front redirects flows, one behind counts packets.
    let chain = |kind: &str, rate: &str, dns: &str| {
        let functions = format!(
            "[{{nat: {{external: [203.0.113.0/28]}}}}, \
              {{{kind}: {{file: {rate}, config: {{packetsPerSecond: 2000, burst: 4}}}}}}, \
              {{{kind}: {{file: {dns}, config: {{names: [ads.example.com]}}}}}}, {{accounting: }}]"
        );
        folder.spec(&format!("{kind}.yaml"), &functions, "")
    };
    let libraries = chain("library", "rate.so", "dns.so");
    let programs = chain("program", "rate", "dns");
    let (in_process, sent) = run_isolated(&libraries, &traffic, "none", &core);
    assert_eq!(reason(&in_process, "dns-filter/listed"), 250);
    assert!(reason(&in_process, "rate-limit/flows") > 100);
    let same = (&in_process, &sent[..]);
    for way in ways() {
        assert_as(same, &libraries, &traffic, (&core, way));
        assert_as(same, &programs, &traffic, (&core, way));
    }
}

#[test]
fn new_functions_are_programs_too() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(2000));
    let core = available().pop().unwrap().to_string();
    let library = format!("TAILWATER_LIB={}", libtailwater_nf().display());
    for (name, lang) in [("my-limit", "c"), ("match", "rust")] {
        let mut new = tailwater();
        new.args(["new-function", name, "--lang", lang]);
        works(new.current_dir(&folder.0));
        let place = folder.path(name);
        match lang {
            "c" => works(Command::new("make").arg("-C").arg(&place).arg(&library)),
            _ => cargo(&place, &place.join("target")),
        }
        let _alone = alone();
        let chain = place.join("chain.yaml");
        lenient(&chain);
        let spec = std::fs::read_to_string(&chain).unwrap();
        let (in_process, sent) = run_isolated(&chain, &traffic, "none", &core);
        // Ten flows of 200 packets each, with a limit of 100.
        assert_eq!(reason(&in_process, &format!("{name}/too-many")), 1000);
        for way in ways() {
            assert_as((&in_process, &sent[..]), &chain, &traffic, (&core, way));
        }
        // Without its library it cannot run in this process.
        let lines = spec.lines().filter(|line| !line.contains("library:"));
        std::fs::write(&chain, lines.collect::<Vec<_>>().join("\n")).unwrap();
        let refused = run(&[&"run", &chain, &"--traffic", &traffic]);
        assert_refused(
            &refused,
            "spec.functions[0].program.file: a program runs only as an isolated function",
        );
    }
}

/// Returns the error of a chain with this function in this isolation mode: one line.
fn refused(folder: &Folder, function: &str, way: &str) -> String {
    let chain = folder.spec("chain.yaml", &format!("[{function}]"), "");
    let mut command = tailwater();
    command.args(["run", "--duration", "20ms", "--isolation"]);
    let Output { status, stdout, stderr } = command.args(way.split(' ')).arg(chain).output().unwrap();
    let told = text(&stderr);
    assert_eq!(status.code(), Some(2), "{way}: {function}: {told}");
    assert!(stdout.is_empty());
    let errors: Vec<&str> = told.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{way}: {told}");
    errors[0].to_owned()
}

#[test]
fn what_is_no_program_is_told_with_its_place() {
    let folder = Folder::new();
    let write = |name: &str, content: &[u8], mode: u32| {
        std::fs::write(folder.path(name), content).unwrap();
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(name), permissions).unwrap();
    };
    write("script", b"#!/bin/sh\nsleep 100\n", 0o755);
    write("empty", b"", 0o755);
    write("closed", b"\x7fELF", 0o644);
    write("broken", b"\x7fELF and nothing of one", 0o755);
    std::fs::create_dir(folder.path("folder")).unwrap();
    let compile = |name: &str, source: &str| {
        let file = folder.write(&format!("{name}.c"), source);
        cc(&[], &[&file], &folder.path(name));
    };
    compile(
        "silent",
        "#include <unistd.h>\nint main(void) { char c; return read(0, &c, 1) != 1; }\n",
    );
    compile("ends", "int main(void) { return 7; }\n");
    compile("crashes", "int main(void) { __builtin_trap(); }\n");
    compile(
        "babbles",
        "#include <unistd.h>\nint main(void) { char c; return write(0, \"hello\", 5) < 0 || read(0, &c, 1) != 1; }\n",
    );
    // The first version of the protocol, and a future one: such programs may support this one, too.
    let hello = |version: &str| {
        format!(
            "#include <sys/socket.h>\n#include <unistd.h>\n\
             int main(void) {{ char c[99]; send(0, \"\\1TWNF{version}\", 7, 0); recv(0, c, 99, 0); return 9; }}\n"
        )
    };
    compile("older", &hello("\\0\\0"));
    compile("newer", &hello("\\xff\\xff"));
    let main = of_project("examples/functions/rate-limit/main.c");
    let function = |name: &str, source: &str| {
        let source = format!("#include <tailwater_nf.h>\n{source}");
        let file = folder.write(&format!("{name}.c"), source);
        program(&[&file, &main], &folder.path(name));
    };
    let process = "static int process(void *i, struct tw_batch *b) { (void)i; (void)b; return 0; }\n";
    function(
        "version",
        &format!(
            "{process}const struct tw_function tailwater_function = {{7, sizeof tailwater_function, .name = \"x\", .process = process}};\n"
        ),
    );
    function(
        "nameless",
        &format!("{process}const struct tw_function tailwater_function = {{TW_FUNCTION_HEAD, .process = process}};\n"),
    );
    function(
        "instanceless",
        &format!(
            "{process}static void *start(const void *s) {{ (void)s; return 0; }}\nconst struct tw_function tailwater_function = {{TW_FUNCTION_HEAD, .name = \"x\", .start = start, .process = process}};\n"
        ),
    );
    let limit = of_project("examples/functions/rate-limit/rate_limit.c");
    program(&[&limit, &main], &folder.path("rate"));
    let file = |name: &str| format!("spec.functions[0].program.file: {}", folder.path(name).display());
    for way in ways() {
        for (name, expected) in [
            (
                "script",
                "expected an executable (ELF), found a script or something else",
            ),
            (
                "empty",
                "expected an executable (ELF), found a script or something else",
            ),
            (
                "closed",
                "expected an executable, found a file that may not be executed (chmod +x)",
            ),
            ("folder", "expected an executable, found a folder or device"),
            ("missing", "cannot be read: No such file or directory (os error 2)"),
            ("broken", ""),
            ("silent", "no message within 5 s"),
            ("ends", "but it ended with exit code 7"),
            ("crashes", "signal"),
            ("babbles", "it sent an invalid message"),
            ("older", "found 0"),
            ("newer", "but it ended with exit code 9"),
            (
                "version",
                "of tailwater_nf.h, found version 7: build it again with version",
            ),
            ("nameless", "tailwater_function: name: expected a name"),
            (
                "instanceless",
                "tailwater_function: start: expected an instance, found NULL",
            ),
        ] {
            // It takes five seconds.
            if name == "silent" && way != TRUSTED {
                continue;
            }
            // A container runtime reports some exits in its own words, or not at all.
            if way == "container" && ["broken", "ends", "crashes", "newer"].contains(&name) {
                let told = refused(&folder, &format!("{{program: {{file: {name}}}}}"), way);
                assert!(told.contains(&file(name)), "{way}: {told}");
                continue;
            }
            let told = refused(&folder, &format!("{{program: {{file: {name}}}}}"), way);
            assert!(told.contains("chain.yaml:5:"), "{way}: {told}");
            assert!(told.contains(&file(name)), "{way}: {told}");
            assert!(told.contains(expected), "{way}: {name}: {told}");
        }
        // The function's own message, with its own field.
        let wrong = "{program: {file: rate, config: {packetsPerSecond: 1, burst: many}}}";
        let told = refused(&folder, wrong, way);
        let expected = "spec.functions[0].program.config.burst: expected a whole number from 1 to 1000000";
        assert!(told.contains(expected), "{way}: {told}");
    }
    let lost = refused(&folder, "{program: {config: {}}}", TRUSTED);
    assert!(lost.contains("file"), "{lost}");
}

/// A library that reports, in a file beside the chain, which processes run its code.
const TELLTALE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <tailwater_nf.h>
#include <unistd.h>

static void tell(const char *what) {
    int file = open(FILE_OF, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file < 0) return;
    dprintf(file, "%s %d %d\n", what, (int)getpid(), (int)getuid());
    close(file);
}
#ifdef IN_CONSTRUCTOR
__attribute__((constructor)) static void loaded(void) { tell("loaded"); }
#endif
static int configure(const char *config, size_t bytes, void **shared, struct tw_error *error) {
    (void)config, (void)bytes, (void)error;
    *shared = NULL;
    tell("configured");
    return 0;
}
static int process(void *instance, struct tw_batch *batch) {
    (void)instance, (void)batch;
    return 0;
}
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "telltale", .configure = configure, .process = process};
"#;

#[test]
fn no_code_of_others_runs_in_the_server() {
    let _alone = alone();
    let folder = Folder::new();
    let source = folder.write("telltale.c", TELLTALE);
    let tale = folder.path("tale");
    let file_of = format!("-DFILE_OF=\"{}\"", tale.display());
    let main = of_project("examples/functions/rate-limit/main.c");
    for (kind, constructor) in [("library", true), ("library", false), ("program", true)] {
        let code = folder.path("telltale");
        let define = if constructor {
            "-DIN_CONSTRUCTOR"
        } else {
            "-DIN_CONFIGURE"
        };
        match kind {
            "library" => cc(&[&file_of, define, "-fPIC", "-shared"], &[&source], &code),
            _ => {
                let library = libtailwater_nf().join("libtailwater_nf.a");
                cc(&[&file_of, define, "-pthread"], &[&source, &main, &library], &code);
            }
        }
        let chain = folder.spec("chain.yaml", &format!("[{{{kind}: {{file: telltale}}}}]"), "");
        let traffic = folder.capture("in.pcap", &mixture(10));
        // Returns the reporting processes, and the output of `tailwater` with its process id.
        let run = |way: &str| {
            let _ = std::fs::remove_file(&tale);
            let mut command = tailwater();
            command.args(["run", "--ring", "1000000", "--traffic"]).arg(&traffic);
            command.args(["--isolation"]).args(way.split(' ')).arg(&chain);
            command.stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::piped());
            let child = command.spawn().unwrap();
            let id = child.id();
            let output = child.wait_with_output().unwrap();
            let told = std::fs::read_to_string(&tale).unwrap_or_default();
            let processes: Vec<u32> = told
                .lines()
                .map(|line| line.split(' ').nth(1).unwrap().parse().unwrap())
                .collect();
            (id, processes, output)
        };
        if kind == "library" {
            // In one process, it is this one.
            let (id, processes, output) = run("none");
            assert!(output.status.success(), "{}", text(&output.stderr));
            assert!(processes.contains(&id), "{processes:?}");
        }
        let (id, processes, output) = run(TRUSTED);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(!processes.is_empty() && !processes.contains(&id), "{processes:?}");
        for way in ways().into_iter().filter(|way| *way != TRUSTED) {
            // Confined, it cannot write the file.
            let (_, processes, output) = run(way);
            let told = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{way}: {told}");
            assert!(told.contains("forbidden system call"), "{way}: {told}");
            assert!(processes.is_empty(), "{way}: {processes:?}");
        }
        if can_confine() {
            // Without these defences it can.
            let (id, processes, output) = run("process --isolation-without filter,root,user,limits");
            assert!(output.status.success(), "{}", text(&output.stderr));
            assert!(!processes.is_empty() && !processes.contains(&id), "{processes:?}");
        }
    }
}
