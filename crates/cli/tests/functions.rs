//! Functions from shared libraries: built examples, working skeletons, and errors.

mod common;

use common::*;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Returns the directory of examples.
fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// Runs a program successfully, and returns its output.
fn works(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = format!("{command:?}:\n{}\n{}", text(&stdout), text(&stderr));
    assert!(status.success(), "{said}");
    text(&stdout)
}

fn make(folder: &Path, target: &str) -> String {
    works(Command::new("make").arg("-C").arg(folder).arg(target))
}

/// Runs cargo for a separate project, offline.
fn cargo(arguments: &[&dyn AsRef<OsStr>], folder: &Path, target: &Path) -> String {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).args(["--offline", "--quiet"]);
    works(command.current_dir(folder).env("CARGO_TARGET_DIR", target))
}

/// Returns `true` if the standard library is installed for a target.
fn has_rust_target(target: &str) -> bool {
    let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", target])
        .output();
    output.is_ok_and(|output| Path::new(text(&output.stdout).trim()).is_dir())
}

/// Copies the files of a directory, without subdirectories.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

fn reason(report: &serde_json::Value, name: &str) -> u64 {
    report["packets"]["reasons"][name].as_u64().unwrap_or(0)
}

#[test]
fn the_example_in_c() {
    let folder = Folder::new();
    let place = folder.path("functions/rate-limit");
    copy(&examples().join("functions/rate-limit"), &place);
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/include");
    let build = |target: &str| {
        let header = format!("TAILWATER={}", headers.canonicalize().unwrap().display());
        works(Command::new("make").arg("-C").arg(&place).args([target, &header]))
    };
    assert!(build("test").contains("all tests passed"));
    build("rate_limit.so");
    let chain = folder.path("chain.yaml");
    std::fs::copy(examples().join("rate-limit.yaml"), &chain).unwrap();
    lenient(&chain);
    // The spec's limit is 2,000 packets per second with a burst of 16. One flow sends 1,000 packets in 100 ms, one a
    // few.
    let mut packets: Vec<_> = (0..1000)
        .map(|i| (i * 100_000, udp(client(1), 1000, SERVER, 53)))
        .collect();
    packets.extend((0..10).map(|i| (i * 10_000_000, udp(client(2), 1000, SERVER, 53))));
    packets.sort_by_key(|(time, _)| *time);
    let traffic = folder.capture("in.pcap", &packets);
    let report = report(&chain, &traffic, &[]);
    assert_identity(&report);
    // Packets allowed in 99.9 ms at that rate, and the burst.
    let sent = 16 + 199;
    assert_eq!(reason(&report, "rate-limit/over-rate"), 1000 - sent);
    assert_eq!(count(&report, "delivered"), sent + 10);
    assert_eq!(reason(&report, "rate-limit/flows"), 2);
    assert_eq!(reason(&report, "rate-limit/limited-flows"), 1);
    // The same source as a WebAssembly module.
    let module = examples().join("programs/wasm/rate_limit.wasm");
    let module = module.canonicalize().unwrap();
    let module = format!(
        "[{{wasm: {{file: {}, config: {{packetsPerSecond: 2000, burst: 16}}}}}}]",
        module.display()
    );
    let wasm = folder.spec("wasm.yaml", &module, "");
    let in_wasm = common::report(&wasm, &traffic, &[]);
    assert_identity(&in_wasm);
    assert_eq!(count(&in_wasm, "delivered"), count(&report, "delivered"));
    for name in ["over-rate", "flows", "limited-flows"].map(|name| format!("rate-limit/{name}")) {
        assert_eq!(reason(&in_wasm, &name), reason(&report, &name), "{name}");
    }
}

#[test]
fn the_example_in_rust() {
    let folder = Folder::new();
    let project = examples().join("functions/dns-filter");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dns-filter");
    cargo(&[&"test", &"--locked"], &project, &target);
    cargo(&[&"build", &"--release", &"--locked"], &project, &target);
    let to = folder.path("functions/dns-filter/target/release");
    copy(&target.join("release"), &to);
    let chain = folder.path("chain.yaml");
    std::fs::copy(examples().join("dns-filter.yaml"), &chain).unwrap();
    lenient(&chain);
    let query = |name: &str, number: u8| {
        let mut message = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            message.push(label.len() as u8);
            message.extend(label.bytes());
        }
        message.extend([0, 0, 1, 0, 1]);
        let key = tailwater_net::FlowKey::v4(client(number), SERVER, 17, 5000, 53);
        let frame = tailwater_net::builder::FrameBuilder::new(&key);
        frame.payload(&message).to_vec().unwrap()
    };
    let names = ["ads.example.com", "example.org", "x.tracker.test", "example.com"];
    let packets: Vec<_> = (0..400u64)
        .map(|i| {
            let number = (i % 4) as usize;
            (i * 100_000, query(names[number], number as u8))
        })
        .chain([(50_000_000, tcp(client(9), 1, SERVER, 80))])
        .collect();
    let traffic = folder.capture("in.pcap", &packets);
    let report = report(&chain, &traffic, &[]);
    assert_identity(&report);
    assert_eq!(reason(&report, "dns-filter/listed"), 200);
    assert_eq!(reason(&report, "dns-filter/queries"), 400);
    assert_eq!(count(&report, "delivered"), 201);
}

#[test]
fn skeletons_build_and_pass_and_run() {
    let folder = Folder::new();
    let new = |name: &str, lang: &str| {
        let mut command = tailwater();
        command.args(["new-function", name, "--lang", lang]);
        command.current_dir(&folder.0).output().unwrap()
    };
    let traffic = folder.capture("in.pcap", &mixture(2000));
    // As libraries; as programs they are covered by the tests of isolation.
    let check = |name: &str| {
        let chain = folder.path(name).join("chain.yaml");
        lenient(&chain);
        let report = report(&chain, &traffic, &[]);
        assert_identity(&report);
        // Ten flows of 200 packets each, with a limit of 100.
        assert_eq!(reason(&report, &format!("{name}/too-many")), 1000);
        assert_eq!(reason(&report, &format!("{name}/flows")), 10);
        let checked = works(tailwater().arg("test-function").arg(chain));
        assert!(checked.contains(" 0 failed, ") && checked.contains(name), "{checked}");
        let explained = format!("explanations, as {name}: \"packets of the flow: ");
        assert!(checked.contains(&explained), "{checked}");
    };
    let written = new("my-limit", "c");
    assert!(written.status.success(), "{}", text(&written.stderr));
    assert!(text(&written.stdout).contains("my-limit/function.c"));
    let place = folder.path("my-limit");
    assert!(make(&place, "test").contains("my-limit: all tests passed"));
    make(&place, "my_limit.so");
    check("my-limit");
    // WebAssembly: the same function, with the same tests. Not every machine has clang for it.
    let written = new("boxed", "wasm");
    assert!(written.status.success(), "{}", text(&written.stderr));
    let place = folder.path("boxed");
    assert!(make(&place, "test").contains("boxed: all tests passed"));
    let is_installed = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if is_installed("clang") && is_installed("wasm-ld") {
        make(&place, "all");
        check("boxed");
    } else {
        println!("skipped: clang or its linker for WebAssembly is not installed");
    }
    // The same in Rust, with the tests of the Rust skeleton.
    let written = new("caged", "wasm-rust");
    assert!(written.status.success(), "{}", text(&written.stderr));
    let place = folder.path("caged");
    let target = place.join("target");
    cargo(&[&"test"], &place, &target);
    if has_rust_target("wasm32-unknown-unknown") {
        cargo(
            &[&"build", &"--release", &"--target", &"wasm32-unknown-unknown"],
            &place,
            &target,
        );
        check("caged");
    } else {
        println!("skipped: Rust's target wasm32-unknown-unknown is not installed");
    }
    // A name that is a keyword.
    let written = new("match", "rust");
    assert!(written.status.success(), "{}", text(&written.stderr));
    let place = folder.path("match");
    let target = place.join("target");
    cargo(&[&"test"], &place, &target);
    cargo(&[&"build", &"--release"], &place, &target);
    check("match");
    // Nothing is overwritten.
    let before = std::fs::read(place.join("src/lib.rs")).unwrap();
    let again = new("match", "c");
    assert_eq!(again.status.code(), Some(2));
    assert_eq!(
        text(&again.stderr),
        "error: match already exists: nothing was written\n"
    );
    assert_eq!(std::fs::read(place.join("src/lib.rs")).unwrap(), before);
    assert!(!place.join("function.c").exists());
    for name in ["../up", "Upper", "", "9lives", "a b", "-x-"] {
        let refused = tailwater()
            .args(["new-function", "--lang", "c", "--", name])
            .current_dir(&folder.0)
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(2), "{name}");
        let told = text(&refused.stderr);
        assert!(told.starts_with("error: expected a name of lower-case"), "{told}");
    }
}

#[test]
fn a_library_that_crashes_is_an_error_of_the_spec() {
    let folder = Folder::new();
    let source = folder.write(
        "crash.c",
        "#include <stdio.h>\n#include <stdlib.h>\n\
         __attribute__((constructor)) static void crash(void) { puts(\"no licence\"); fflush(stdout); abort(); }\n",
    );
    works(
        Command::new("cc")
            .args(["-fPIC", "-shared", "-o"])
            .arg(folder.path("crash.so"))
            .arg(source),
    );
    let chain = folder.spec("chain.yaml", "[{library: {file: crash.so}}]", "");
    let output = run(&[&"run", &chain]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        text(&output.stderr),
        format!(
            "error: {}:5:32: spec.functions[0].library.file: {} crashed (SIGABRT) while loading; last output \
             \"no licence\"\n",
            chain.display(),
            folder.path("crash.so").display()
        )
    );
    assert!(output.stdout.is_empty());
}

/// A function that fails ends the run, with a report in which all packets are accounted for.
#[test]
fn a_function_that_fails_ends_the_run_with_its_report() {
    let folder = Folder::new();
    let source = folder.write(
        "fails.c",
        "#include <tailwater_nf.h>\n\
         static int process(void *instance, struct tw_batch *batch) {\n\
             uint32_t *seen = instance;\n\
             return (*seen += batch->count) > 500 ? 7 : 0;\n\
         }\n\
         static uint32_t seen[64], next;\n\
         static void *start(const void *shared) { (void)shared; return &seen[next++ % 64]; }\n\
         const struct tw_function tailwater_function = {\n\
             TW_FUNCTION_HEAD, .name = \"fails\", .start = start, .process = process};\n",
    );
    works(
        Command::new("cc")
            .args(["-fPIC", "-shared", "-o"])
            .arg(folder.path("fails.so"))
            .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../sdk/include"))
            .arg(source),
    );
    let chain = folder.spec("chain.yaml", "[{library: {file: fails.so}}]", "");
    let traffic = folder.capture("in.pcap", &mixture(2000));
    let output = run(&[&"run", &chain, &"--traffic", &traffic, &"--output", &"json"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("died: the function fails failed (code 7); run stopped"),
        "{told}"
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_identity(&report);
    assert!(count(&report, "delivered") <= 500);
    assert!(reason(&report, "worker-died") > 0);
}

/// Function with the defect that its configuration names.
const DEFECTS: &str = "
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <tailwater_json.h>
#include <tailwater_nf.h>
static char defect[16];
static uint64_t all;
struct flow { uint64_t packets; void *self; };
struct instance { uint8_t packets[65536]; };
static int configure(const char *config, size_t bytes, void **shared, struct tw_error *error) {
    (void)bytes, (void)shared, (void)error;
    for (const char *at = config; tw_json_each(&at, defect, sizeof defect);) break;
    return 0;
}
static void *start(const void *shared) { (void)shared; return calloc(1, 1 << 20); }
static void stop(void *instance) {
    if (strcmp(defect, \"restart\")) free(instance);
    else memset(instance, 1, 1 << 20);
}
static int process(void *instance, struct tw_batch *batch) {
    struct instance *self = instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        struct flow *flow = packet->state;
        uint32_t payload = packet->length - packet->payload_offset;
        uint16_t port = tw_key_source_port(packet->key);
        flow->packets++;
        if (!strcmp(defect, \"repeatable\") && ++all % 7 == 0) packet->verdict = TW_DROP(0);
        if (!strcmp(defect, \"batches\") && i >= 100) packet->verdict = TW_DROP(0);
        if (!strcmp(defect, \"cores\") && ++self->packets[port] > 20) packet->verdict = TW_DROP(0);
        if (flow->packets == 1) flow->self = flow;
        if (!strcmp(defect, \"reload\") && flow->self != flow) packet->verdict = TW_DROP(0);
        if (!strcmp(defect, \"isolation\") && geteuid()) packet->verdict = TW_DROP(0);
        if (!strcmp(defect, \"explain\") && flow->packets > 100) packet->verdict = TW_DROP(0);
        if (!strcmp(defect, \"hostile\") && payload == 0) abort();
        if (!strcmp(defect, \"many-flows\") && flow->packets == 1) memset(malloc(1024), 1, 1024);
    }
    return 0;
}
static void explain(const void *instance, const struct tw_packet *packet, struct tw_explanation *explanation) {
    (void)instance;
    tw_explain(explanation, strcmp(defect, \"printable\") ? \"a packet\" : \"a packet\\n\");
    if (!strcmp(defect, \"explain\")) ((struct flow *)packet->state)->packets += 10;
}
static const struct tw_drop_reason reasons[] = {{\"some\", 0}};
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = \"defects\", .state_bytes = sizeof(struct flow), .drop_reasons = reasons,
    .drop_reason_count = 1, .configure = configure, .start = start, .stop = stop, .process = process,
    .explain = explain,
};
";

/// Each check finds the defect that it is for, and a crash in one check does not end the others.
#[test]
fn conformance_checks_find_their_defects() {
    let folder = Folder::new();
    let source = folder.write("defects.c", DEFECTS);
    works(
        Command::new("cc")
            .args(["-O1", "-fPIC", "-shared", "-o"])
            .arg(folder.path("defects.so"))
            .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../sdk/include"))
            .arg(source),
    );
    let test = |defect: &str, more: &[&str]| {
        let mut command = tailwater();
        command
            .current_dir(&folder.0)
            .args(["test-function", "defects.so", "--config"]);
        command.arg(format!("{{\"{defect}\": 1}}")).args(more).output().unwrap()
    };
    for name in ["repeatable", "batches", "cores", "explain", "many-flows", "restart"] {
        let output = test(name, &["--check", name]);
        let told = text(&output.stdout);
        assert!(told.contains("tailwater-check: FAILED "), "{name}: {told}");
    }
    let told = text(&test("printable", &["--check", "explain"]).stdout);
    assert!(
        told.contains("tailwater-check: FAILED defects: an explanation is not printable"),
        "{told}"
    );
    let output = test("hostile", &[]);
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let verdict = |name: &str| {
        let line = told.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    for name in [
        "repeatable",
        "batches",
        "cores",
        "reload",
        "explain",
        "many-flows",
        "restart",
    ] {
        assert_eq!(verdict(name), "passed", "{told}");
    }
    // A machine that is busy, and a user without rights, cannot do it.
    assert_ne!(verdict("isolation"), "FAILED", "{told}");
    // Its state has no version.
    assert_eq!(verdict("take-over"), "skipped", "{told}");
    assert!(told.contains("hostile     FAILED   crashed (SIGABRT)"), "{told}");
    assert!(told.contains(" 1 failed, "), "{told}");
    // Flows that end with another address of their state, and an instance that is wrong in a process of its own.
    for name in ["reload", "isolation"] {
        let output = test(name, &["--check", name]);
        let told = text(&output.stdout);
        let skipped = name == "isolation" && told.contains("tailwater-check: skipped ");
        assert!(skipped || told.contains("tailwater-check: FAILED "), "{name}: {told}");
    }
    // Errors name the library, and no spec that the user has not written.
    folder.write("no-library.so", "text");
    let refused = run(&[&"test-function", &folder.path("no-library.so")]);
    let told = text(&refused.stderr);
    assert!(
        told.contains("no-library.so: cannot be loaded: ") && !told.contains("spec."),
        "{told}"
    );
    // Wrong input.
    let refused = run(&[&"test-function", &folder.path("none.so")]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}

/// Library constructor that simulates a run with huge tables: more private memory in one mapping than the kernel lets a
/// process fork. None of it is touched.
const HUGE: &str = "#include <sys/mman.h>\n#include <sys/sysinfo.h>\n#include <sys/wait.h>\n#include <stdio.h>\n#include <unistd.h>\n\
     __attribute__((constructor)) static void grow(void) {\n\
         struct sysinfo all;\n\
         sysinfo(&all);\n\
         size_t half = (all.totalram + all.totalswap) * all.mem_unit / 4 * 3 >> 21 << 21;\n\
         char *at = mmap(0, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
         if (at != MAP_FAILED && !mprotect(at, half, PROT_READ | PROT_WRITE))\n\
             mprotect(at + half, half, PROT_READ | PROT_WRITE);\n\
         pid_t child = fork();\n\
         if (child == 0) _exit(0);\n\
         fputs(child < 0 ? \"no fork\\n\" : \"a fork\\n\", stderr);\n\
         if (child > 0) waitpid(child, 0, 0);\n\
     }\n";

/// A run with too much memory to fork still tries libraries out, and reloads its chain.
#[test]
fn a_run_too_large_to_be_forked_tries_libraries_out() {
    let folder = Folder::new();
    let source = folder.write("huge.c", HUGE);
    let huge = folder.path("huge.so");
    let mut compile = Command::new("cc");
    works(compile.args(["-fPIC", "-shared", "-o"]).arg(&huge).arg(source));
    let place = folder.path("rate-limit");
    copy(&examples().join("functions/rate-limit"), &place);
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/include");
    let header = format!("TAILWATER={}", headers.canonicalize().unwrap().display());
    works(
        Command::new("make")
            .arg("-C")
            .arg(&place)
            .args(["rate_limit.so", &header]),
    );
    let rules = |name: &str, ports: &[u16]| {
        let rule = |port: &u16| format!("@0.0.0.0/0\t0.0.0.0/0\t0 : 65535\t{port} : {port}\t0x06/0xFF\n");
        folder.write(name, ports.iter().map(rule).collect::<String>())
    };
    rules("all.rules", &[25]);
    let functions = "[{acl: {default: allow, rulesFile: all.rules, matchAction: deny}}, \
                     {library: {file: rate-limit/rate_limit.so, config: {packetsPerSecond: 1000000}}}]";
    let chain = folder.spec("chain.yaml", functions, "");
    let traffic = folder.capture("in.pcap", &mixture(2000));
    let mut command = tailwater();
    command
        .env("LD_PRELOAD", &huge)
        .args(["run", "--duration", "2m", "--traffic"]);
    command.args([&traffic, &chain]).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    // On a failure the run, and thus its output, ends by itself.
    let mut wait_for = |expected: &str| {
        let mut told = String::new();
        while !told.contains(expected) {
            let before = told.len();
            stderr.read_line(&mut told).unwrap();
            assert!(told.len() > before, "{expected} is not there: {told}");
        }
        told
    };
    let first = wait_for("fork\n");
    if !first.contains("no fork") {
        eprintln!("not shown: this kernel copies as much memory as one likes (vm.overcommit_memory)");
    }
    // Repeated until it is detected: the run may not have begun at the first replacement.
    let (replacing, done) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let folder = &folder;
        scope.spawn(move || {
            let mut more = vec![25, 26];
            let timeout = std::sync::mpsc::RecvTimeoutError::Timeout;
            while done.recv_timeout(std::time::Duration::from_secs(2)) == Err(timeout) && more.len() < 60 {
                let new = rules("new.rules", &more);
                std::fs::rename(new, folder.path("all.rules")).unwrap();
                more.push(26 + more.len() as u16);
            }
        });
        let told = wait_for("rules in force (version 2)");
        assert!(!told.contains("cannot be tested"), "{told}");
        drop(replacing);
    });
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
}
