//! Refusals of a program without its optional features, as `make demo` builds it: one line, exit code 2, and which
//! build has them. `cargo test -p tailwater --no-default-features --test built_without`.
#![cfg(not(any(
    feature = "control",
    feature = "ipsec",
    feature = "metrics",
    feature = "redis",
    feature = "wasm"
)))]

mod common;

use common::*;

fn assert_without(output: &std::process::Output, what: &str, feature: &str) {
    assert_refused(output, what);
    let says = format!("this program was built without the feature `{feature}`; `make build` builds one with it");
    assert_refused(output, &says);
}

#[test]
fn without_features_their_options_and_fields_are_refused() {
    let folder = Folder::new();
    let state = "  state: {redis: {socket: /nowhere}}\n";
    let chain = folder.spec("state.yaml", "[{nat: {external: [203.0.113.0/28]}}]", state);
    assert_without(&run(&[&"run", &chain]), "spec.state", "redis");
    let key = "cipher: aes-128-gcm, key: 0x00112233445566778899aabbccddeeff00112233";
    let ipsec = format!("[{{ipsec: {{inbound: [{{name: a, spi: 256, {key}, destination: 192.0.2.1}}]}}}}]");
    let chain = folder.spec("ipsec.yaml", &ipsec, "");
    assert_without(&run(&[&"run", &chain]), "ipsec.yaml:5", "ipsec");
    let chain = folder.spec("wasm.yaml", "[{wasm: {file: none.wasm}}]", "");
    assert_without(&run(&[&"run", &chain]), "wasm.yaml:5", "wasm");
    let chain = folder.forward();
    assert_without(&run(&[&"run", &chain, &"--metrics", &"0"]), "--metrics", "metrics");
    let otlp = "http://127.0.0.1:4318";
    assert_without(&run(&[&"run", &chain, &"--otlp", &otlp]), "--otlp", "metrics");
    assert_without(&run(&[&"get", &"chains"]), "get", "control");
    let server = "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {name: edge}\nspec:\n  cores: 0\n  \
                  ports: [{name: a, traffic: bursty}]\n";
    let server = folder.write("server.yaml", server);
    assert_without(&run(&[&"serve", &server, &"--otlp", &otlp]), "--otlp", "metrics");
}
