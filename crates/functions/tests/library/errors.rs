//! Defects of libraries, and the one-line error for each.

use crate::compile::{folder, item, library, spec};

/// Error of a chain with this library, without the folder's name.
fn error(function: &str, config: &str) -> String {
    let file = library(function, "errors");
    let error = spec(&format!("[{}]", item(&file, config))).unwrap_err();
    let told = error.to_string();
    assert_eq!(told.lines().count(), 1, "{told}");
    told.replace(&format!("{}/errors-{function}.so", folder().display()), "LIB")
}

const FILE: &str = "chain.yaml:7:32: spec.functions[0].library.file: LIB";

#[test]
fn libraries_that_are_none_for_this_program() {
    for (function, expected) in [
        (
            "VERSION",
            "expected a function built with version 2 of tailwater_nf.h, found version 7: build it again with version 2",
        ),
        (
            "NO_SYMBOL",
            "expected a library that exports tailwater_function (see tailwater_nf.h), found none of that name",
        ),
        ("UNDEFINED", "cannot be loaded: undefined symbol: missing_function"),
        (
            "SIZE",
            "tailwater_function: expected a size of 104 bytes or more, found 16",
        ),
        (
            "NAME",
            "tailwater_function: name: expected a name of 1 to 63 lower-case letters, digits and dashes, found \
             \"A Name\"",
        ),
        ("NO_PROCESS", "tailwater_function: expected process, found NULL"),
        (
            "STATE",
            "tailwater_function: state_bytes: expected at most 1024, found 1025",
        ),
        (
            "FLAGS",
            "tailwater_function: flags: expected only those of tailwater_nf.h, found 0x40",
        ),
        (
            "ENDS",
            "tailwater_function: flows_ended: expected NULL with state_bytes 0",
        ),
        ("REASONS", "tailwater_function: drop_reasons: expected 2, found NULL"),
        (
            "TWICE",
            "tailwater_function: expected a different name for each reason and counter, found \"invalid\" twice",
        ),
        ("START", "tailwater_function: start: expected an instance, found NULL"),
    ] {
        assert_eq!(error(function, ""), format!("{FILE} {expected}"), "{function}");
    }
}

#[test]
fn crashes_are_told_and_survived() {
    for (function, expected) in [
        ("CRASH_SEGV", "crashed (SIGSEGV) while loading"),
        (
            "CRASH_ABORT",
            r#"crashed (SIGABRT) while loading; last output "no table of \u{1b}[31mroutes""#,
        ),
        ("CRASH_EXIT", "ended the process (exit code 3) while loading"),
        ("CRASH_CONFIGURE", "crashed (SIGSEGV) while reading its configuration"),
        ("CRASH_START", "crashed (SIGABRT) while starting an instance"),
        ("CRASH_STOP", "crashed (SIGKILL) while stopping"),
    ] {
        assert_eq!(error(function, ""), format!("{FILE} {expected}"), "{function}");
    }
}

#[test]
fn files_that_are_no_libraries() {
    let text = folder().join("text.so");
    std::fs::write(&text, "hello, this is text").unwrap();
    std::fs::create_dir_all(folder().join("folder.so")).unwrap();
    for (file, expected) in [
        (
            "missing.so",
            "cannot be read: No such file or directory (os error 2); build it first",
        ),
        ("folder.so", "expected a shared library, found a folder or device"),
        ("text.so", "cannot be loaded: file too short"),
    ] {
        let error = spec(&format!("[{{library: {{file: {file}}}}}]")).unwrap_err();
        let path = folder().join(file);
        let expected = format!(
            "chain.yaml:7:32: spec.functions[0].library.file: {} {expected}",
            path.display()
        );
        assert_eq!(error.to_string(), expected);
    }
    for (functions, expected) in [
        (
            "[{library: }]",
            "7:16: spec.functions[0].library: expected a map of file, config, readOnly, found nothing",
        ),
        (
            "[{library: {config: {}}}]",
            "7:25: spec.functions[0].library.file: missing, expected the name of a shared library, such as ./limit.so",
        ),
        (
            "[{library: {file: x.so, config: [1]}}]",
            "7:46: spec.functions[0].library.config: expected a map, found a list",
        ),
    ] {
        let error = spec(functions).unwrap_err();
        assert_eq!(error.to_string(), format!("chain.yaml:{expected}"));
    }
}

#[test]
fn the_functions_own_words_about_its_configuration() {
    let message = r"expected less, found more\nthan one line";
    for (config, expected) in [
        (
            "{a: [1, {b: 2}]}",
            format!("7:71: spec.functions[0].library.config.a[1].b: {message}"),
        ),
        (
            "{a: [1]}",
            format!("7:63: spec.functions[0].library.config.a: {message}"),
        ),
        ("", format!("7:25: spec.functions[0].library: config: {message}")),
        (
            "{silent: true}",
            "7:59: spec.functions[0].library.config: refuses rejected it (code 9) without a message".to_owned(),
        ),
        (
            "{long: true}",
            format!("7:59: spec.functions[0].library.config: {}", "x".repeat(512)),
        ),
        (
            "{number: 0x10}",
            "7:68: spec.functions[0].library.config.number: expected a JSON number such as 16 or 0.5, or a \
             string in quotes, found 0x10"
                .to_owned(),
        ),
    ] {
        assert_eq!(error("REFUSES", config), format!("chain.yaml:{expected}"), "{config}");
    }
    let none = error("PLAIN", "{a: 1}");
    assert_eq!(
        none,
        "chain.yaml:7:57: spec.functions[0].library.config: expected none, since plain takes none"
    );
}

#[test]
fn names_are_the_librarys_own_unless_given() {
    let plain = item(&library("PLAIN", "names"), "");
    let one = spec(&format!("[{plain}]")).unwrap();
    assert_eq!(one.functions[0].name, "plain");
    assert_eq!(one.functions[0].config.kind(), "library");
    let named = plain.replace("{library", "{name: mine, library");
    let two = spec(&format!("[{plain}, {named}]")).unwrap();
    assert_eq!(two.functions[1].name, "mine");
    assert_eq!(two.functions[0].config, two.functions[1].config);
    let error = spec(&format!("[{plain}, {plain}]")).unwrap_err().to_string();
    assert!(
        error.contains("found \"plain\" as in functions[0]; give one of them a name"),
        "{error}"
    );
}
