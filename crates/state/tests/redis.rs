//! Tests with a real Redis: users and permissions, TLS, and failures.

mod server;

use redis::{Connection, RedisResult};
use server::{RedisServer, certificates, free_port};
use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tailwater_api::{RedisAddress, RedisSpec, Secret};
use tailwater_chain::chain::DurableFunction;
use tailwater_net::FlowKey;
use tailwater_state::keys::write_flow;
use tailwater_state::link::Store;
use tailwater_state::redis::{Access, AccessError, RedisStore};
use tailwater_state::request::{Entry, Operation, Request};

const ROW: usize = 24;

/// Two functions, with state of 16 and 8 bytes per flow.
fn functions() -> Vec<DurableFunction> {
    let function = |name: &str, row| DurableFunction {
        name: name.to_owned(),
        kind: "Kind",
        version: 1,
        row,
    };
    vec![function("first", 0..16), function("second", 16..ROW)]
}

fn at(server: &RedisServer) -> RedisSpec {
    RedisSpec {
        address: RedisAddress::Socket(server.socket()),
        user: None,
        password: None,
    }
}

fn open(spec: &RedisSpec) -> Arc<Access> {
    Arc::new(Access::open(spec, "chain", None, &functions()).unwrap_or_else(|error| panic!("{error}")))
}

fn flow(n: u16) -> FlowKey {
    FlowKey::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1), 17, n, 53)
}

fn entry(ask: Operation, n: u16, pieces: u16) -> Entry {
    let key = flow(n);
    Entry {
        operation: ask,
        key,
        asker: key,
        pieces,
        life: 60_000,
        stamp: 7,
        base: 7,
        ..Entry::default()
    }
}

fn request(entries: impl IntoIterator<Item = (Entry, u8)>) -> Request {
    let mut request = Request::with_room(64, ROW);
    for (entry, fill) in entries {
        let place = request.push(entry);
        request.row_mut(place).fill(fill);
    }
    request
}

/// Writes both functions' state of a flow.
fn update(store: &mut RedisStore, n: u16, fill: u8) -> Result<u32, tailwater_state::link::Failure> {
    store.serve(&mut [request([(entry(Operation::Update, n, 3), fill)])])
}

/// Functions whose state of a flow was found, and its row.
fn read(store: &mut RedisStore, n: u16) -> (u16, Vec<u8>) {
    let mut requests = [request([(entry(Operation::Read, n, 3), 0)])];
    store.serve(&mut requests).unwrap();
    (requests[0].entries[0].found, requests[0].row(0).to_vec())
}

#[test]
fn what_is_written_is_read_in_order_and_forgotten() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let mut store = RedisStore::new(open(&at(&server)));
    let mut requests = [
        request([
            (entry(Operation::Read, 1, 3), 0),
            (entry(Operation::Update, 1, 3), 5),
            (entry(Operation::Update, 2, 1), 6),
            (entry(Operation::Read, 1, 3), 0),
            (entry(Operation::Probe, 2, 1), 0),
            (entry(Operation::Probe, 2, 2), 0),
        ]),
        request([
            (entry(Operation::Forget, 1, 3), 0),
            (entry(Operation::Read, 1, 3), 0),
            (entry(Operation::Read, 2, 3), 0),
        ]),
    ];
    store.serve(&mut requests).unwrap();
    let found = |request: &Request| request.entries.iter().map(|e| e.found).collect::<Vec<_>>();
    assert_eq!(found(&requests[0]), [0, 0, 0, 3, 1, 0]);
    assert_eq!(requests[0].row(3), [5; ROW]);
    assert_eq!(found(&requests[1]), [0, 0, 1]);
    assert_eq!(requests[1].row(2)[..16], [6; 16]);
    assert_eq!(server.keys(), 1);
    let key: &str = &server.command(&["--scan"]);
    assert!(key.starts_with("tw:chain:first:Kind-v1:"), "{key}");
    // Entries expire.
    let expires = server.command(&["info", "keyspace"]);
    assert!(expires.contains("keys=1,expires=1"), "{expires}");
}

/// Reply to a command on the key of a flow in a function's space.
fn try_key(connection: &mut Connection, command: &str, space: &str) -> RedisResult<redis::Value> {
    let mut key = format!("{space}Kind-v1:").into_bytes();
    write_flow(&flow(1), &mut key);
    let mut cmd = redis::cmd(command);
    cmd.arg(key);
    if command == "SET" {
        cmd.arg("forged");
    }
    cmd.query(connection)
}

/// Both functions' keys exist. The first one's user can access only its own keys, and nothing else of the server. The
/// operator's credential can access everything: the user's permissions are what limits the function.
#[test]
fn a_function_cannot_touch_another_ones_keys() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let access = open(&at(&server));
    update(&mut RedisStore::new(Arc::clone(&access)), 1, 9).unwrap();
    let mut first = access.connect_as(&access.functions()[0]).unwrap();
    let other = &access.functions()[1].space;
    let own = &access.functions()[0].space;
    for command in ["MGET", "SET", "UNLINK"] {
        let refused = try_key(&mut first, command, other).unwrap_err();
        assert_eq!(refused.code(), Some("NOPERM"), "{command}: {refused}");
    }
    for command in ["GET", "DUMP", "TYPE", "OBJECT", "EXPIRE", "RENAME", "COPY"] {
        assert!(try_key(&mut first, command, own).is_err(), "{command}");
    }
    for command in [
        &["KEYS", "*"][..],
        &["SCAN", "0"],
        &["FLUSHALL"],
        &["CONFIG", "GET", "*"],
        &["ACL", "WHOAMI"],
        &["ACL", "SETUSER", "default", "on"],
        &["EVAL", "return redis.call('SET', KEYS[1], '')", "1", "x"],
        &["EVAL", "return redis.call('SET', 'x', '')", "0"],
        &["EVAL", "return redis.call('FLUSHALL')", "0"],
        &["SCRIPT", "FLUSH"],
        &["SUBSCRIBE", "x"],
        &["SHUTDOWN"],
        &["CLIENT", "LIST"],
        &["MONITOR"],
    ] {
        let mut cmd = redis::cmd(command[0]);
        command[1..].iter().for_each(|argument| {
            cmd.arg(argument);
        });
        let refused = cmd.query::<redis::Value>(&mut first).unwrap_err();
        let text = refused.to_string();
        assert!(
            refused.code() == Some("NOPERM") || text.contains("user executing the script"),
            "{command:?}: {text}"
        );
    }
    assert!(try_key(&mut first, "MGET", own).is_ok());
    assert!(try_key(&mut first, "SET", own).is_ok());
    // Without the user's permissions, the same attack succeeds.
    let client = redis::Client::open(format!("unix://{}", server.socket().display())).unwrap();
    let mut anybody = client.get_connection().unwrap();
    assert!(try_key(&mut anybody, "SET", other).is_ok());
    // A pattern in a function's name grants no additional access.
    let mut odd = functions();
    odd[0].name = "*".to_owned();
    let odd = Access::open(&at(&server), "chain", None, &odd).unwrap();
    let mut odd = odd.connect_as(&odd.functions()[0]).unwrap();
    assert_eq!(try_key(&mut odd, "MGET", other).unwrap_err().code(), Some("NOPERM"));
}

#[test]
fn passwords_are_needed_and_come_from_a_file_or_the_environment() {
    let Some(server) = RedisServer::start(&["--requirepass", "hush hush"]) else {
        return;
    };
    let refused = |spec: &RedisSpec| match Access::open(spec, "chain", None, &functions()) {
        Ok(_) => panic!("let in"),
        Err(error) => error,
    };
    let error = refused(&at(&server));
    assert!(error.to_string().contains("NOAUTH"), "{error}");
    let file = server.folder.join("password");
    fs::write(&file, "wrong\n").unwrap();
    let from_file = RedisSpec {
        password: Some(Secret::File(file.clone())),
        ..at(&server)
    };
    let error = refused(&from_file);
    assert!(matches!(error, AccessError::Redis { .. }), "{error}");
    fs::write(&file, "hush hush\n").unwrap();
    let mut store = RedisStore::new(open(&from_file));
    update(&mut store, 1, 1).unwrap();
    assert_eq!(read(&mut store, 1).0, 3);
    let from_nowhere = RedisSpec {
        password: Some(Secret::Environment("TAILWATER_NO_SUCH_VARIABLE".to_owned())),
        ..at(&server)
    };
    let error = refused(&from_nowhere).to_string();
    assert!(error.contains("TAILWATER_NO_SUCH_VARIABLE is not set"), "{error}");
}

#[test]
fn over_tls_with_an_authority_of_its_own() {
    let folder = std::env::temp_dir().join(format!("tailwater-tls-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let there = certificates(&folder);
    let port = free_port();
    let path = |name: &str| folder.join(name).display().to_string();
    let (port_text, certificate, key) = (port.to_string(), path("server.pem"), path("server.key"));
    let authority = path("ca.pem");
    let arguments = [
        ["--port", "0"],
        ["--tls-port", &port_text],
        ["--tls-cert-file", &certificate],
        ["--tls-key-file", &key],
        ["--tls-ca-cert-file", &authority],
        ["--tls-auth-clients", "no"],
    ];
    let server = there.then(|| RedisServer::start(&arguments.concat())).flatten();
    if server.is_some() {
        let spec = |host: &str, authority: &str| RedisSpec {
            address: RedisAddress::Tls {
                host: host.to_owned(),
                port,
                authorities: Some(folder.join(authority)),
            },
            user: None,
            password: None,
        };
        let mut store = RedisStore::new(open(&spec("localhost", "ca.pem")));
        update(&mut store, 1, 1).unwrap();
        assert_eq!(read(&mut store, 1), (3, vec![1; ROW]));
        // The certificate is for another name, or from an untrusted authority.
        for (host, authority) in [("127.0.0.1", "ca.pem"), ("localhost", "other.pem")] {
            if authority == "other.pem" {
                let other = folder.join("other");
                fs::create_dir(&other).unwrap();
                certificates(&other);
                fs::copy(other.join("ca.pem"), folder.join("other.pem")).unwrap();
            }
            let refused = Access::open(&spec(host, authority), "chain", None, &functions());
            let Err(error) = refused else {
                panic!("{host} with {authority}")
            };
            assert!(matches!(error, AccessError::Redis { .. }), "{error}");
        }
        let Err(error) = Access::open(&spec("localhost", "nowhere.pem"), "chain", None, &functions()) else {
            panic!("without a file");
        };
        assert!(matches!(error, AccessError::File { .. }), "{error}");
    }
    drop(server);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_server_that_was_started_anew_is_another_incarnation_and_gets_its_users_back() {
    let Some(mut server) = RedisServer::start(&[]) else {
        return;
    };
    let mut store = RedisStore::new(open(&at(&server)));
    let before = update(&mut store, 1, 1).unwrap();
    server.stop();
    let failure = update(&mut store, 2, 2).unwrap_err();
    assert!(failure.connection_lost, "{failure:?}");
    let failure = update(&mut store, 2, 2).unwrap_err();
    assert!(!failure.connection_lost, "{failure:?}");
    server.start_again();
    let after = update(&mut store, 2, 2).unwrap();
    assert_ne!(before, after);
    assert_eq!([read(&mut store, 1).0, read(&mut store, 2).0], [0, 3]);
    // Another client deletes the users, or some of their permissions.
    let users = server.command(&["acl", "users"]);
    for user in users.lines().filter(|user| user.starts_with("tw:")) {
        server.command(&["acl", "deluser", user]);
    }
    let mut answer = update(&mut store, 3, 3);
    if answer.is_err() {
        answer = update(&mut store, 3, 3);
    }
    assert_eq!(answer, Ok(after));
    for user in users.lines().filter(|user| user.starts_with("tw:")) {
        server.command(&["acl", "setuser", user, "-set"]);
    }
    let refused = update(&mut store, 4, 4).unwrap_err();
    assert!(refused.message.contains("can't run this command"), "{refused:?}");
    assert_eq!(update(&mut store, 4, 4), Ok(after));
}

#[test]
fn a_full_server_takes_nothing_and_then_everything() {
    let Some(server) = RedisServer::start(&["--maxmemory-policy", "noeviction"]) else {
        return;
    };
    let mut store = RedisStore::new(open(&at(&server)));
    update(&mut store, 1, 1).unwrap();
    server.command(&["config", "set", "maxmemory", "1"]);
    let failure = update(&mut store, 1, 2).unwrap_err();
    assert!(failure.message.contains("maxmemory"), "{failure:?}");
    assert!(!failure.connection_lost);
    // No value is half written, and existing ones are readable.
    assert_eq!(read(&mut store, 1), (3, vec![1; ROW]));
    server.command(&["config", "set", "maxmemory", "0"]);
    update(&mut store, 1, 2).unwrap();
    assert_eq!(read(&mut store, 1), (3, vec![2; ROW]));
}

#[test]
fn what_others_wrote_there_is_as_nothing() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let mut store = RedisStore::new(open(&at(&server)));
    update(&mut store, 1, 1).unwrap();
    let client = redis::Client::open(format!("unix://{}", server.socket().display())).unwrap();
    let mut operator = client.get_connection().unwrap();
    let key = |space: &str| {
        let mut key = format!("tw:chain:{space}:Kind-v1:").into_bytes();
        write_flow(&flow(1), &mut key);
        key
    };
    redis::cmd("SET")
        .arg(key("first"))
        .arg("something else")
        .exec(&mut operator)
        .unwrap();
    redis::cmd("DEL").arg(key("second")).exec(&mut operator).unwrap();
    redis::cmd("LPUSH")
        .arg(key("second"))
        .arg("a list")
        .exec(&mut operator)
        .unwrap();
    assert_eq!(read(&mut store, 1), (0, vec![0; ROW]));
    update(&mut store, 1, 3).unwrap();
    assert_eq!(read(&mut store, 1), (3, vec![3; ROW]));
}

#[test]
fn a_server_that_stands_still_is_away_and_comes_back() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let mut store = RedisStore::new(open(&at(&server)));
    update(&mut store, 1, 1).unwrap();
    server.signal("STOP");
    let failure = update(&mut store, 1, 2).unwrap_err();
    assert!(!failure.connection_lost, "{failure:?}");
    assert!(update(&mut store, 1, 2).is_err());
    server.signal("CONT");
    let mut tries = (0..20).map(|_| update(&mut store, 1, 2));
    assert!(tries.any(|answer| answer == Ok(1)), "it never comes back");
    assert_eq!(read(&mut store, 1), (3, vec![2; ROW]));
}

fn open_as(server: &RedisServer, instance: &str) -> Arc<Access> {
    let access = Access::open(&at(server), "chain", Some(instance), &functions());
    Arc::new(access.unwrap_or_else(|error| panic!("{error}")))
}

/// An update of a run that was replaced: first the connection is lost.
fn assert_fenced(store: &mut RedisStore) {
    let failures = [update(store, 1, 66), update(store, 1, 66)].map(Result::unwrap_err);
    assert!(failures[1].fenced, "{failures:?}");
    assert!(failures[1].message.contains("taken over"), "{failures:?}");
}

#[test]
fn an_earlier_run_writes_nothing_after_a_later_one_has_begun() {
    let Some(mut server) = RedisServer::start(&[]) else {
        return;
    };
    let [mut first, mut elsewhere] = ["here", "there"].map(|name| RedisStore::new(open_as(&server, name)));
    update(&mut first, 1, 1).unwrap();
    update(&mut elsewhere, 2, 2).unwrap();
    // The clock went back: the next run's stamp is later all the same.
    let ahead = u64::MAX - 10;
    server.command(&["acl", "setuser", &format!("tw:chain:@here#{ahead:016x}")]);
    let access = open_as(&server, "here");
    let mut second = RedisStore::new(Arc::clone(&access));
    assert_eq!(read(&mut second, 1), (3, vec![1; ROW]));
    assert_fenced(&mut first);
    assert_eq!(read(&mut second, 1), (3, vec![1; ROW]));
    update(&mut second, 1, 3).unwrap();
    // An instance of another name has its own users.
    update(&mut elsewhere, 2, 4).unwrap();
    // The second run has deleted its users, but its marker remains.
    access.remove_users().unwrap();
    assert_fenced(&mut first);
    assert_eq!(read(&mut elsewhere, 1), (3, vec![3; ROW]));
    // Of two runs that return to a Redis that has lost their users, the later one stays.
    for later_first in [true, false] {
        let [mut earlier, mut later] = [(), ()].map(|()| RedisStore::new(open_as(&server, "here")));
        server.stop();
        server.start_again();
        for _ in 0..2 {
            // Both find their connection lost.
            let _ = (update(&mut earlier, 9, 9), update(&mut later, 9, 9));
        }
        if later_first {
            assert_eq!(read(&mut later, 9).0, 3);
            assert_fenced(&mut earlier);
        } else {
            assert_fenced(&mut earlier);
        }
        update(&mut later, 1, 5).unwrap();
        assert_fenced(&mut earlier);
        assert_eq!(read(&mut later, 1), (3, vec![5; ROW]));
    }
}

/// Two runs that take over at the same time never both stay, in any order of their steps.
#[test]
fn of_runs_that_begin_at_once_one_stays() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    for _ in 0..20 {
        let opened: Vec<_> = std::thread::scope(|scope| {
            let open = || {
                let access = Access::open(&at(&server), "chain", Some("here"), &functions());
                access.ok().map(|access| RedisStore::new(Arc::new(access)))
            };
            let threads = [(); 3].map(|()| scope.spawn(open));
            threads.map(|thread| thread.join().unwrap()).into()
        });
        let mut stores: Vec<RedisStore> = opened.into_iter().flatten().collect();
        let mut writes = |store: &mut RedisStore| (0..3).any(|_| update(store, 1, 1).is_ok());
        let writers: Vec<bool> = stores.iter_mut().map(&mut writes).collect();
        assert_eq!(writers.iter().filter(|writes| **writes).count(), 1, "{writers:?}");
    }
}
