//! A function in C with external flow state in Redis: in this process, from a library in a process of its own, and as a
//! program.

use crate::common::*;
use crate::server::RedisServer;
use crate::{TRUSTED, alone, process, reason, run_isolated};
use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_dataplane::cores::available;

/// Builds the example, and returns its entry for a chain spec: as a library, and as a program.
fn built(folder: &Folder) -> [String; 2] {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let works = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    let quota = sources.join("../../examples/functions/quota/quota.c");
    let main = folder.write(
        "main.c",
        "#include <tailwater_nf.h>\n\
         int main(int argc, char **argv) { return tailwater_nf_run(&tailwater_function, argc, argv); }\n",
    );
    let compile = |more: &[&str], to: &str, files: &[PathBuf]| {
        let mut command = Command::new("cc");
        command.args(["-std=c11", "-O2", "-fPIC", "-I"]);
        command.arg(sources.join("../sdk/include")).args(more);
        command.arg("-o").arg(folder.path(to)).args(files);
        works(command.args(["-lpthread", "-ldl", "-lm"]));
    };
    compile(&["-shared"], "quota.so", std::slice::from_ref(&quota));
    let library = libtailwater_nf().join("libtailwater_nf.a");
    compile(&[], "quota", &[main, quota, library]);
    ["library", "program"].map(|kind| {
        let file = if kind == "library" { "quota.so" } else { "quota" };
        format!("{kind}: {{file: ./{file}, config: {{bytes: 10000}}}}")
    })
}

#[test]
fn what_a_function_in_c_knows_of_flows_goes_from_instance_to_instance() {
    let _alone = alone();
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = Folder::new();
    let [library, program] = built(&folder);
    let ways = [
        (&library, "none"),
        (&library, process()),
        (&program, process()),
        (&program, TRUSTED),
    ];
    let core = available().pop().unwrap().to_string();
    let frame = |flow: u64| udp(client(flow as u8 + 1), 5000, SERVER, 53);
    let each = 10_000 / frame(0).len() as u64;
    // Each flow sends three quarters of its quota.
    let (flows, packets) = (20, each * 3 / 4);
    let traffic: Vec<_> = (0..flows * packets).map(|i| (i * 100_000, frame(i % flows))).collect();
    let traffic = folder.capture("in.pcap", &traffic);
    for (i, (first, first_way)) in ways.into_iter().enumerate() {
        let (second, second_way) = ways[(i + 1) % ways.len()];
        server.command(&["flushall"]);
        let mut left = flows * each;
        for (run, (function, way)) in [(first, first_way), (second, second_way)].into_iter().enumerate() {
            let state = format!(
                "  state: {{redis: {{socket: {}}}, wait: 10s, packets: 32768}}\n",
                server.socket().display()
            );
            let chain = folder.spec("quota.yaml", &format!("[{{{function}}}]"), &state);
            let (report, sent) = run_isolated(&chain, &traffic, way, &core);
            let what = format!("{way} after {first_way}: {report:#}");
            let passed = left.min(flows * packets);
            left -= passed;
            assert_eq!(sent.len() as u64, passed, "{what}");
            assert_eq!(reason(&report, "quota/over-quota"), flows * packets - passed, "{what}");
            assert_eq!(reason(&report, "quota/returned-flows"), run as u64 * flows, "{what}");
            assert_eq!(report["state"]["hits"], run as u64 * flows, "{what}");
        }
        assert_eq!(server.keys(), flows);
        assert!(server.command(&["--scan"]).contains("tw:test:quota:quota-v1:"));
    }
}
