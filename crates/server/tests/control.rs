//! The control API over a real socket.

mod common;
#[path = "common/serving.rs"]
mod serving;

use common::{ModelMachine, yaml};
use message::Phase;
use serving::{Folder, Serving, exists, request, start, wait, wait_for};
use std::fs;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tailwater_server::control::generated as message;
use tailwater_server::control::{Client, ClientError, Limits};

const PERIOD: Duration = Duration::from_millis(20);

fn edge(latency: &str) -> String {
    yaml("edge", "10.0.0.0/8", "[acl: {}, forward: {}]", latency)
}

/// Agents of a rack panicked when they were ended.
#[test]
fn a_client_may_be_dropped_in_a_task() {
    let folder = Folder::new();
    let serving = Serving::start(folder.config("", Limits::default()));
    let mut client = serving.client();
    assert!(client.list().unwrap().chains.is_empty());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async move { drop(client) });
    assert!(serving.client().list().unwrap().chains.is_empty());
}

#[test]
fn a_chain_is_applied_shown_drained_and_deleted() {
    let folder = Folder::new();
    let serving = Serving::start(folder.config("", Limits::default()));
    let mut client = serving.client();
    let mut dry = request(&[edge("100us")]);
    dry.dry_run = true;
    assert_eq!(
        client.apply(dry).unwrap().applied[0].outcome(),
        message::Outcome::Created
    );
    assert!(client.list().unwrap().chains.is_empty());
    let applied = client.apply(request(&[edge("100us")])).unwrap();
    assert_eq!((applied.generation, applied.applied[0].name.as_str()), (1, "edge"));
    wait_for(&mut client, "edge", Phase::Running);
    let chain = wait(|| {
        client
            .get("edge")
            .ok()
            .filter(|chain| chain.packets.as_ref().is_some_and(|packets| packets.offered > 0))
    });
    let packets = chain.packets.unwrap();
    assert_eq!(packets.offered, packets.delivered + packets.dropped + packets.lost);
    assert_eq!(
        (chain.functions, chain.port),
        (vec!["acl".to_owned(), "forward".to_owned()], "north".to_owned())
    );
    assert_eq!(chain.cores.unwrap().dedicated, [1]);
    let latency = chain.latency.unwrap();
    assert_eq!(
        (latency.p99_nanos, latency.objective_nanos, latency.met),
        (Some(90_000), 100_000, Some(true))
    );
    assert!(chain.conditions.iter().all(|condition| match &*condition.r#type {
        // It has no promise.
        "PromiseKept" => condition.status() == message::ConditionStatus::Unknown,
        _ => condition.status() == message::ConditionStatus::True,
    }));
    let described = client.describe("edge").unwrap();
    assert_eq!(described.manifest, edge("100us"));
    let reasons: Vec<&str> = described.events.iter().map(|event| event.reason.as_str()).collect();
    assert_eq!(reasons, ["Started", "Running", "ObjectiveMet"]);
    let health = client.health().unwrap();
    assert_eq!(
        (health.server.as_str(), health.ready, health.running),
        ("edge-1", true, 1)
    );
    client.drain("edge").unwrap();
    wait_for(&mut client, "edge", Phase::Drained);
    let names = vec!["edge".to_owned()];
    let dry = message::DeleteRequest {
        names: names.clone(),
        dry_run: true,
    };
    assert_eq!(client.delete(dry).unwrap().generation, 2);
    assert_eq!(
        client
            .delete(message::DeleteRequest { names, dry_run: false })
            .unwrap()
            .generation,
        3
    );
    wait(|| client.get("edge").is_err().then_some(()));
}

#[test]
fn errors_say_what_is_wrong() {
    let folder = Folder::new();
    let serving = Serving::start(folder.config("", Limits::default()));
    let mut client = serving.client();
    assert!(matches!(client.get("none"), Err(ClientError::NotFound(text)) if text == "chain \"none\" not found"));
    let error = client.apply(request(&[edge("fast"), edge("1ms")])).unwrap_err();
    assert!(
        matches!(&error, ClientError::Invalid(text) if text.contains("spec.slo.latency")),
        "{error}"
    );
    serving.machine.state().too_large.insert("edge".into());
    let error = client.apply(request(&[edge("1ms")])).unwrap_err();
    assert!(
        matches!(&error, ClientError::Refused(text) if text.contains("needs 2 cores")),
        "{error}"
    );
    serving.machine.state().too_large.clear();
    serving.machine.state().fail_after = Some(0);
    let error = client.apply(request(&[edge("1ms")])).unwrap_err();
    assert!(
        matches!(&error, ClientError::Refused(text) if text.starts_with("cannot start chain")),
        "{error}"
    );
    let many: Vec<String> = (0..2000)
        .map(|n| yaml(&format!("c{n}"), "10.0.0.0/8", "[]", "1ms"))
        .collect();
    let error = client.apply(request(&many)).unwrap_err().to_string();
    assert!(error.ends_with("more errors") && error.lines().count() > 20, "{error}");
}

#[test]
fn events_and_changes_are_followed() {
    let folder = Folder::new();
    let serving = Serving::start(folder.config("", Limits::default()));
    let socket = serving.socket.clone();
    let follower = std::thread::spawn(move || {
        let mut client = Client::connect(&socket).unwrap();
        let mut seen = Vec::new();
        let on_change = |change: Option<message::ChainChange>| {
            let Some(change) = change else { return true };
            let chain = change.chain.unwrap();
            seen.push((chain.name.clone(), chain.phase(), change.gone));
            !change.gone
        };
        client.watch("", PERIOD, on_change).unwrap();
        seen
    });
    let mut client = serving.client();
    client.apply(request(&[edge("1ms")])).unwrap();
    wait_for(&mut client, "edge", Phase::Running);
    // Phases of 100 ms and less, of which the last one is seen.
    client
        .delete(message::DeleteRequest {
            names: vec!["edge".into()],
            dry_run: false,
        })
        .unwrap();
    let seen = follower.join().unwrap();
    assert_eq!(
        seen.last().unwrap(),
        &("edge".to_owned(), Phase::Draining, true),
        "{seen:?}"
    );
    assert!(seen.contains(&("edge".to_owned(), Phase::Running, false)), "{seen:?}");
    let mut reasons = Vec::new();
    let request = message::EventsRequest {
        chain: "edge".into(),
        ..message::EventsRequest::default()
    };
    let collect = |event: Option<message::Event>| {
        reasons.extend(event.map(|event| event.reason));
        true
    };
    client.events(request, PERIOD, collect).unwrap();
    assert_eq!(reasons[..2], ["Started", "Running"]);
    assert_eq!(reasons[reasons.len() - 2..], ["Draining", "Gone"]);
    // With `follow`, the call stays.
    let mut last = 0;
    let request = message::EventsRequest {
        follow: true,
        after: 2,
        ..message::EventsRequest::default()
    };
    let until_idle = |event: Option<message::Event>| {
        last = event.as_ref().map_or(last, |event| event.sequence);
        event.is_some() || last < 5
    };
    client.events(request, PERIOD, until_idle).unwrap();
    assert!(last >= 5);
}

#[test]
fn a_server_that_stops_removes_its_socket_and_resumes_later() {
    let folder = Folder::new();
    let serving = Serving::start(folder.config("", Limits::default()));
    let mut client = serving.client();
    client.apply(request(&[edge("1ms")])).unwrap();
    let took = serving.stop();
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(!exists(&folder.socket()));
    assert!(matches!(client.list(), Err(ClientError::Connection(_))));
    assert!(matches!(
        Client::connect(&folder.socket()),
        Err(ClientError::NoServer { .. })
    ));
    // A killed server leaves its socket.
    drop(UnixListener::bind(folder.socket()).unwrap());
    assert!(exists(&folder.socket()));
    let serving = Serving::start(folder.config("", Limits::default()));
    let mut client = serving.client();
    assert_eq!(wait_for(&mut client, "edge", Phase::Running).generation, 1);
}

#[test]
fn a_second_server_is_refused_and_disturbs_nothing() {
    let folder = Folder::new();
    let serving = Serving::start(folder.config("", Limits::default()));
    let run = |config| {
        start(&config, ModelMachine::default(), &AtomicBool::new(true))
            .unwrap_err()
            .to_string()
    };
    let error = run(folder.config("", Limits::default()));
    assert!(
        error.starts_with("another server is running: it uses ") && error.ends_with("/state"),
        "{error}"
    );
    let mut config = folder.config("", Limits::default());
    config.paths.state = folder.0.join("other");
    let error = run(config.clone());
    assert!(
        error.starts_with("another server is running: it uses ") && error.ends_with("edge-1.sock"),
        "{error}"
    );
    serving.client().list().unwrap();
    // No socket at all.
    config.paths.socket = folder.0.join("file");
    fs::write(&config.paths.socket, "precious").unwrap();
    let error = run(config.clone());
    assert!(error.contains("the file exists and is no socket"), "{error}");
    assert_eq!(fs::read(&config.paths.socket).unwrap(), b"precious");
    config.paths.socket = folder.0.join("other.sock");
    config.spec.control.readers = Some("no such group".into());
    assert!(run(config).contains("spec.control.readers"));
}

#[test]
fn chains_of_files_and_watched_folders_are_applied() {
    let folder = Folder::new();
    let chains = folder.0.join("chains");
    fs::create_dir(&chains).unwrap();
    fs::write(chains.join("edge.yaml"), edge("1ms")).unwrap();
    fs::write(chains.join(".hidden.yaml"), "no chain").unwrap();
    fs::write(chains.join("notes.txt"), "no chain").unwrap();
    let fields = format!("  chains: [{}]\n  watch: true\n", chains.display());
    let serving = Serving::start(folder.config(&fields, Limits::default()));
    let mut client = serving.client();
    wait_for(&mut client, "edge", Phase::Running);
    // A wrong file changes nothing, and is reported.
    fs::write(chains.join("core.yaml"), "kind: Chain").unwrap();
    let rejected = |client: &mut Client| {
        let mut found = None;
        let on_event = |event: Option<message::Event>| {
            found = event.filter(|event| event.reason == "Rejected").or(found.take());
            true
        };
        client
            .events(message::EventsRequest::default(), PERIOD, on_event)
            .unwrap();
        found
    };
    let event = wait(|| rejected(&mut client));
    assert!(event.message.contains("keeping the current configuration") && event.message.contains("core.yaml"));
    fs::write(
        chains.join("core.yaml"),
        yaml("core", "192.168.0.0/16", "[forward: {}]", "1ms"),
    )
    .unwrap();
    wait_for(&mut client, "core", Phase::Running);
    fs::remove_file(chains.join("edge.yaml")).unwrap();
    wait(|| client.get("edge").is_err().then_some(()));
    // Without `watch`, a wrong file is an error at the start.
    drop(serving);
    fs::write(chains.join("core.yaml"), "kind: Chain").unwrap();
    let fields = format!(
        "  chains: [{}, {}]\n",
        chains.display(),
        folder.0.join("none.yaml").display()
    );
    let config = folder.config(&fields, Limits::default());
    let error = start(&config, ModelMachine::default(), &AtomicBool::new(true))
        .unwrap_err()
        .to_string();
    assert!(error.contains("none.yaml: cannot be read"), "{error}");
    assert!(!exists(&folder.socket()));
}

/// A step that fails for a passing reason is tried again, although the files stay the same.
#[test]
fn files_of_watched_folders_whose_steps_fail_are_tried_again() {
    let folder = Folder::new();
    let chains = folder.0.join("chains");
    fs::create_dir(&chains).unwrap();
    fs::write(chains.join("edge.yaml"), edge("1ms")).unwrap();
    let fields = format!("  chains: [{}]\n  watch: true\n", chains.display());
    let serving = Serving::start(folder.config(&fields, Limits::default()));
    let mut client = serving.client();
    wait_for(&mut client, "edge", Phase::Running);
    serving.machine.state().fail_after = Some(0);
    let core = yaml("core", "192.168.0.0/16", "[forward: {}]", "1ms");
    fs::write(chains.join("core.yaml"), core).unwrap();
    let mut found = None;
    let on_event = |event: Option<message::Event>| {
        found = event.filter(|event| event.reason == "Rejected").or(found.take());
        true
    };
    wait_for(&mut client, "core", Phase::Running);
    client
        .events(message::EventsRequest::default(), PERIOD, on_event)
        .unwrap();
    let message = found.expect("an event").message;
    let expected = "cannot start chain \"core\": injected failure of start core; tried again in 1 s";
    assert!(message.ends_with(expected), "{message}");
}

/// Group of readers in the test below; no group of this machine.
const READERS: u32 = 61_234;

/// Not a test: the client of the test below, in a process of another user.
#[test]
#[ignore = "started by another test"]
fn client_of_another_user() {
    let socket = std::env::var_os("TAILWATER_TEST_SOCKET").expect("started by another test");
    let mut client = Client::connect(socket.as_ref()).unwrap();
    let says = match client.list() {
        Ok(_) => "reads",
        Err(_) => "nothing",
    };
    println!("{says}");
    if let Err(ClientError::Permission(text)) = client.apply(request(&[edge("1ms")])) {
        println!("{text}");
    }
}

#[test]
fn other_users_read_if_they_are_in_the_group_and_change_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let folder = Folder::new();
    let fields = format!("  control: {{readers: {READERS}}}\n");
    let serving = Serving::start(folder.config(&fields, Limits::default()));
    // All users may connect, as they can where access lists of the file allow it.
    fs::set_permissions(&serving.socket, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    // Other users can run a copy of this program.
    let program = folder.0.join("client");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let run = |group: u32| {
        let mut command = Command::new(&program);
        command.args(["--ignored", "--exact", "--nocapture", "client_of_another_user"]);
        command
            .env("TAILWATER_TEST_SOCKET", &serving.socket)
            .current_dir("/")
            .uid(65_534)
            .gid(group);
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let reader = run(READERS);
    assert!(
        reader.contains("reads\nonly root and the user of the server may change chains\n"),
        "{reader}"
    );
    let stranger = run(65_534);
    assert!(!stranger.contains("reads"), "{stranger}");
    assert!(serving.machine.live().is_empty());
}
