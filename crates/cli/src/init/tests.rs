use super::args::{FirstFunction, InitArgs};
use super::text::{ServerSettings, Settings};
use super::*;
use clap::{Parser, ValueEnum};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    args: InitArgs,
}

fn args(words: &[&str]) -> InitArgs {
    Program::parse_from([&["init"], words].concat()).args
}

/// Every function alone, and all together, make specs that are valid.
#[test]
fn all_choices_are_valid() {
    let all = FirstFunction::value_variants();
    let choices = all.iter().map(|function| vec![*function]).chain([all.to_vec()]);
    for functions in choices {
        let mut settings = settings(&args(&["edge 1.yaml", "--server", "--rack"])).unwrap();
        assert_eq!(settings.name, "chain");
        settings.functions = functions;
        for port in [None, Some("interface=eth1".to_owned()), Some("0000:3b:00.0".to_owned())] {
            let server = ServerSettings {
                cores: "1-3".to_owned(),
                port,
            };
            let files = [
                ("edge 1.yaml".into(), text::chain(&settings)),
                ("server.yaml".into(), text::server(&settings, &server, "edge 1.yaml")),
                ("rack.yaml".into(), text::rack(&settings)),
            ];
            check(&files, Path::new("")).unwrap_or_else(|error| panic!("{settings:?}: {error}"));
            assert!(files.iter().all(|(_, text)| text.lines().all(|line| line.len() <= 120)));
        }
    }
}

#[test]
fn questions_are_asked_for_missing_options_only_and_again_after_a_wrong_answer() {
    let args = args(&["--name", "edge"]);
    let mut found = settings(&args).unwrap();
    let answers = "nat,mirror\n forward , nat\n1ms\n\ny\n0\n";
    let mut printed = Vec::new();
    questions::ask(&args, &mut found, &mut answers.as_bytes(), &mut printed).unwrap();
    let expected = Settings {
        name: "edge".to_owned(),
        functions: vec![FirstFunction::Forward, FirstFunction::Nat],
        slo: Nanos::from_millis(1),
        traffic: "bursty".to_owned(),
        server: Some(ServerSettings {
            cores: "0".to_owned(),
            port: None,
        }),
        rack: false,
    };
    assert_eq!(found, expected);
    let printed = String::from_utf8(printed).unwrap();
    assert!(printed.contains("unknown function \"mirror\""), "{printed}");
    assert!(!printed.contains("Name of the chain"), "{printed}");
    // Without answers all defaults hold.
    let mut found = settings(&args).unwrap();
    let before = found.clone();
    questions::ask(&args, &mut found, &mut &b""[..], &mut Vec::new()).unwrap();
    assert_eq!(found, before);
}
