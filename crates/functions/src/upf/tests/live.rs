//! Tests of sessions added, changed and removed under traffic.

use super::super::api::respond;
use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tailwater_chain::batch::{Packet, Verdict};
use tailwater_chain::function::NewFlow;

/// While others are added, removed and redirected, one session loses nothing. Every packet sent belongs consistently to
/// one session.
#[test]
fn sessions_come_and_go_under_traffic() {
    let kept = session(1, false);
    let table = table(options(Role::Core), &[profile("all", Some(9))], &[kept]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (table, over) = (&table, &over);
            scope.spawn(move || {
                let mut rig = rig(table);
                let frames = [down(1, 100), down(2, 100), down(3, 100)];
                let mut sent = 0;
                while !over.load(Ordering::Relaxed) || sent == 0 {
                    for frame in rig.run(&frames, Nanos::from_secs(1)) {
                        let inner = &frame[58..];
                        let number = u32::from(inner[19]);
                        let teid = u32::from_be_bytes(frame[46..50].try_into().unwrap());
                        // Each TEID is congruent to its UE's number modulo 16.
                        assert_eq!(teid % 16, number % 16, "{teid:#x}");
                        sent += u32::from(number == 1);
                    }
                }
                let offered = rig.count("upf/encapsulated") + rig.count("upf/unknown-user");
                assert!(rig.count("upf/encapsulated") > 0 && offered.is_multiple_of(3));
                assert!(u64::from(sent) * 3 == offered, "the first lost packets");
            });
        }
        for round in 0..3000u32 {
            for number in [2, 3] {
                let moved = Session {
                    tunnel: Some(Tunnel {
                        peer: address(STATION[0]),
                        teid: round * 16 + number,
                    }),
                    ..session(number, false)
                };
                table.set(&moved, Owner::Api).unwrap();
                if round % 3 == number {
                    table.remove(number.into()).unwrap();
                }
            }
            let moved = Session {
                tunnel: Some(Tunnel {
                    peer: address(STATION[0]),
                    teid: round * 16 + 1,
                }),
                ..kept
            };
            assert_ne!(table.set(&moved, Owner::File), Ok(SessionChange::Added));
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_kept_decision_ends_with_its_session() {
    let options = Options {
        cached: true,
        ..options(Role::Core)
    };
    let profiles = [profile("first", Some(1)), profile("second", Some(2))];
    let table = table(options, &profiles, &[session(1, false)]);
    let mut rig = rig(&table);
    let qfi = |frame: Option<Vec<u8>>| frame.map(|frame| frame[56]);
    let frame = down(1, 100);
    assert_eq!(qfi(run(&mut rig, &frame)), Some(1));
    assert_eq!(qfi(run(&mut rig, &frame)), Some(1));
    let other = Session {
        profile: 1,
        ..session(1, false)
    };
    assert_eq!(table.set(&other, Owner::Api), Ok(SessionChange::Changed));
    assert_eq!(qfi(run(&mut rig, &frame)), Some(2));
    table.remove(1).unwrap();
    assert_dropped(&mut rig, &frame, "unknown-user");
    // Other sessions reuse its slot and its address.
    for number in 2..200 {
        table.set(&session(number, false), Owner::Api).unwrap();
    }
    assert_dropped(&mut rig, &frame, "unknown-user");
    let heir = Session {
        id: 77_777,
        teid: 0x7777,
        ..session(1, false)
    };
    table.set(&heir, Owner::Api).unwrap();
    assert_eq!(qfi(run(&mut rig, &frame)), Some(1));
}

/// Function that sends all packets to one UE, as a load balancer does with one backend. A change of the UE changes the
/// flow's key.
struct Redirect(Arc<AtomicU32>);

impl NetworkFunction for Redirect {
    fn kind(&self) -> &'static str {
        "Redirect"
    }
    fn state_bytes(&self) -> usize {
        1
    }
    fn version(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    fn new_flow(&mut self, _: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        flow.rekeyed();
        Verdict::Forward
    }
    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        for i in 0..batch.len() {
            let (packet, frame) = batch.packet_mut(i);
            frame.copy_from_slice(&down(self.version(), frame.len() - 14));
            packet.headers = parse(frame).unwrap();
        }
    }
}

#[test]
fn a_kept_decision_ends_when_its_flow_gets_another_user() {
    let options = Options {
        cached: true,
        ..options(Role::Core)
    };
    let sessions = [session(1, false), session(2, false)];
    let table = table(options, &[profile("all", Some(1))], &sessions);
    let user = Arc::new(AtomicU32::new(1));
    let functions: Vec<Box<dyn NetworkFunction>> = vec![
        Box::new(Redirect(Arc::clone(&user))),
        Box::new(Upf::new(table)),
        Box::new(HeadersAreTrue),
    ];
    let mut rig = ChainRig::new(functions, INPUT);
    for number in [1, 1, 2, 2, 1] {
        user.store(number, Ordering::Relaxed);
        let sent = run(&mut rig, &down(9, 100)).unwrap();
        let teid = u32::from_be_bytes(sent[46..50].try_into().unwrap());
        assert_eq!((teid, u32::from(sent[58 + 19])), (0x2000 + number, number));
    }
    // For a UE without a session the packet is unknown, not the previous UE's.
    user.store(3, Ordering::Relaxed);
    assert_dropped(&mut rig, &down(9, 100), "unknown-user");
}

#[test]
fn what_is_a_sessions_own_is_nobody_elses() {
    let table = table(options(Role::Core), &[profile("all", None)], &[session(1, false)]);
    let taken = |session: Session, what| {
        let expected = Err(SessionError::Taken { what, other: 1 });
        assert_eq!(table.set(&session, Owner::Api), expected);
    };
    let (one, two) = (session(1, false), session(2, false));
    taken(Session { teid: one.teid, ..two }, "teid");
    taken(
        Session {
            address: one.address,
            ..two
        },
        "ue",
    );
    taken(
        Session {
            prefix: one.prefix,
            ..two
        },
        "ue6",
    );
    let wrong = Session { profile: 1, ..two };
    assert_eq!(table.set(&wrong, Owner::Api), Err(SessionError::Profile(1)));
    assert_eq!(table.set(&one, Owner::Api), Ok(SessionChange::Nothing));
    // The address changes, and the old one becomes free.
    let moved = Session {
        address: Some(user(5000)),
        ..one
    };
    assert_eq!(table.set(&moved, Owner::Api), Ok(SessionChange::Changed));
    let heir = Session {
        address: one.address,
        ..two
    };
    assert_eq!(table.set(&heir, Owner::Api), Ok(SessionChange::Added));
    for number in 3..257 {
        table.set(&session(number, false), Owner::Api).unwrap();
    }
    let full = table.set(&session(257, false), Owner::Api);
    assert_eq!(full, Err(SessionError::Full(256)));
    table.remove(9).unwrap();
    assert_eq!(table.set(&session(257, false), Owner::Api), Ok(SessionChange::Added));
    assert_eq!((table.remove(9), table.sessions()), (None, 256));
}

/// Sessions of a file may exchange their identifiers in a cycle.
#[test]
fn sessions_of_a_file_may_change_places() {
    let sessions: Vec<_> = (1..6).map(|number| session(number, false)).collect();
    let table = table(options(Role::Core), &[profile("all", None)], &sessions);
    let of_api = session(50, false);
    table.set(&of_api, Owner::Api).unwrap();
    let rotated = |by: usize| {
        let places = (0..5).map(|i| (i, (i + by) % 5));
        let rotated = places.map(|(i, j)| Session {
            teid: sessions[j].teid,
            ..sessions[i]
        });
        rotated.collect::<Vec<_>>()
    };
    for by in [1, 2, 4, 0] {
        replace(&table, &rotated(by)).unwrap();
        for session in rotated(by) {
            assert_eq!(table.session(session.id).unwrap().0, session);
        }
    }
    // Sessions missing from the file are removed; the API's remains, and its identifiers stay taken.
    assert_eq!(replace(&table, &sessions[..2]).unwrap().version, 6);
    assert_eq!(table.sessions(), 3);
    let thief = Session {
        teid: of_api.teid,
        ..sessions[3]
    };
    let refused = replace(&table, &[sessions[0], thief]).unwrap_err();
    let why = SessionError::Taken {
        what: "teid",
        other: 50,
    };
    assert_eq!(refused, [(1, why)]);
    // During a replacement other changes are refused; afterwards, or if it is dropped, they are accepted.
    let prepared = UpfTable::prepare(&table, &sessions[1..3].into()).unwrap();
    let wish = |session| table.set(&session, Owner::Api);
    assert_eq!(wish(session(60, false)), Err(SessionError::Replacing));
    assert_eq!(prepared.put().version, 7);
    assert_eq!(wish(session(60, false)), Ok(SessionChange::Added));
    drop(UpfTable::prepare(&table, &sessions[..1].into()).unwrap());
    assert_eq!(wish(session(61, false)), Ok(SessionChange::Added));
    let mut ids = Vec::new();
    table.each(|record, _| ids.push(record.id));
    ids.sort_unstable();
    assert_eq!(ids, [2, 3, 50, 60, 61]);
    // The file gets only the capacity left by other owners' sessions.
    let many: Vec<_> = (1..=256).map(|number| session(100 + number, false)).collect();
    let refused = replace(&table, &many).unwrap_err();
    let places: Vec<_> = refused.iter().map(|(at, why)| (*at, why.clone())).collect();
    assert_eq!(places, [253, 254, 255].map(|at| (at, SessionError::Full(256))));
}

/// A new session takes the TEID of one that itself takes another's.
#[test]
fn new_sessions_may_have_what_others_leave() {
    let sessions: Vec<_> = (1..4).map(|number| session(number, false)).collect();
    let table = table(options(Role::Core), &[profile("all", None)], &sessions);
    let with = |at: usize, teid: usize| Session {
        teid: sessions[teid].teid,
        ..sessions[at]
    };
    let heir = Session {
        teid: sessions[0].teid,
        ..session(9, false)
    };
    let last = Session {
        teid: 0x9999,
        ..sessions[2]
    };
    // Session 9 takes the TEID of 1, which takes that of 2; 2 and 3 get new ones.
    let ring = [
        heir,
        with(0, 1),
        Session {
            teid: 0x8888,
            ..sessions[1]
        },
        last,
    ];
    replace(&table, &ring).unwrap();
    for session in ring {
        assert_eq!(table.session(session.id).unwrap().0, session);
    }
}

/// Each session takes the next one's identifiers, in the worst order: each is tried at most twice.
#[test]
fn a_row_of_sessions_moves_up_in_two_tries_each() {
    let number = 200;
    let sessions: Vec<_> = (1..=number).map(|number| session(number, false)).collect();
    let table = table(options(Role::Core), &[profile("all", None)], &sessions);
    let moved = |number: u32| Session {
        address: Some(user(number + 1)),
        teid: session(number + 1, false).teid,
        ..session(number, false)
    };
    let moved: Vec<_> = (1..=number).map(moved).collect();
    let put = replace(&table, &moved).unwrap();
    assert_eq!(put.left_out, []);
    // All wait for another, except the last, whose identifiers are free.
    assert_eq!(put.tries, 2 * 200 - 1);
    for session in moved {
        assert_eq!(table.session(session.id).unwrap().0, session);
    }
    // Without conflicts each is tried once.
    let again: Vec<_> = (1..=number).map(|number| session(number, false)).collect();
    assert_eq!(replace(&table, &again).unwrap().left_out, []);
    assert_eq!(replace(&table, &again).unwrap().tries, 200);
}

/// With all TEIDs in the same two buckets, the one session beyond their room is left out and reported.
#[test]
fn who_finds_no_room_is_told() {
    let options = Options {
        capacity: 32,
        ..options(Role::Core)
    };
    let table = table(options, &[profile("all", None)], &[]);
    let buckets = |teid: u32| {
        let mut at = table.prefetch_teid(teid).at;
        at.sort_unstable();
        at
    };
    let crowd = (1u32..).filter(|teid| buckets(*teid) == buckets(1));
    let crowd = (1u32..).zip(crowd.take(17));
    let sessions: Vec<_> = crowd
        .map(|(number, teid)| Session {
            teid,
            ..session(number, false)
        })
        .collect();
    let put = replace(&table, &sessions).unwrap();
    assert_eq!(put.left_out, [(17, SessionError::Full(32))]);
    assert_eq!(table.sessions(), 16);
    let told = "1 rejected, the first session 17: expected at most 32 sessions (capacity), found more";
    assert_eq!(put.message().as_deref(), Some(told));
    // A session left out holds no identifiers, and blocks no other.
    let heir = Session {
        teid: 0x9999,
        ..sessions[16]
    };
    assert_eq!(table.set(&heir, Owner::Api), Ok(SessionChange::Added));
}

#[test]
fn lines_by_a_socket_are_wishes() {
    let table = table(options(Role::Core), &[profile("all", None)], &[]);
    let names = table.names();
    for (line, expected) in [
        ("count", "ok 0"),
        ("set 7 ue 10.60.0.7 teid 0x1007 profile all\n", "ok added"),
        ("set 7 ue 10.60.0.7 teid 0x1007 profile all", "ok unchanged"),
        (
            "set 7 ue 10.60.0.7 teid 0x1007 profile all peer 192.0.2.10 peerTeid 9",
            "ok changed",
        ),
        ("count", "ok 1"),
        (
            "show 7",
            "ok 7 ue 10.60.0.7 teid 0x1007 peer 192.0.2.10 peerTeid 0x9 profile all \
             up_bytes 0 down_bytes 0 up_packets 0 down_packets 0",
        ),
        (
            "set 8 ue 10.60.0.8 teid 0x1007 profile all",
            "error: the teid is in use by session 7",
        ),
        (
            "set 8 ue 10.60.0.8 teid 8 profile al",
            "error: expected the name of a profile, found \"al\"; did you mean \"all\"?",
        ),
        ("show 8", "error: unknown session 8"),
        ("show", "error: expected the number of a session after show"),
        (
            "remove 7",
            "ok removed up_bytes 0 down_bytes 0 up_packets 0 down_packets 0",
        ),
        ("remove 7", "error: unknown session 7"),
        ("", "error: expected set SESSION, remove NUMBER, show NUMBER or count"),
        (
            "count 5",
            "error: expected set SESSION, remove NUMBER, show NUMBER or count",
        ),
    ] {
        assert_eq!(respond(&table, &names, line), expected, "{line}");
    }
}

/// A real socket handles partial lines, several lines at once, lines too long, and a stale socket of a killed process.
#[test]
fn a_socket_is_served() {
    use super::super::api::Api;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    let folder = std::env::temp_dir().join(format!("tailwater-upf-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    drop(UnixListener::bind(&path).unwrap());
    let table = table(options(Role::Core), &[profile("all", None)], &[]);
    let api = Api::start(Arc::clone(&table), &path).unwrap();
    assert!(Api::start(Arc::clone(&table), &path).is_err());
    let mut client = UnixStream::connect(&path).unwrap();
    let mut answers = BufReader::new(client.try_clone().unwrap()).lines();
    client.write_all(b"set 1 ue 10.60.0.1 teid").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(120));
    client.write_all(b" 1 profile all\ncount\nshow 2\n").unwrap();
    for expected in ["ok added", "ok 1", "error: unknown session 2"] {
        assert_eq!(answers.next().unwrap().unwrap(), expected);
    }
    client.write_all(&[b'x'; 5000]).unwrap();
    let refused = answers.next().unwrap().unwrap();
    assert_eq!(refused, "error: expected lines of at most 4096 bytes");
    assert!(answers.next().is_none_or(|line| line.is_err()));
    assert_eq!(table.sessions(), 1);
    drop(api);
    assert!(!path.exists());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_socket_is_its_owners_and_takes_no_files_place() {
    use super::super::api::Api;
    use std::os::unix::fs::PermissionsExt;
    let folder = std::env::temp_dir().join(format!("tailwater-upf-mode-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    let table = table(options(Role::Core), &[profile("all", None)], &[]);
    let names = || {
        let entries = std::fs::read_dir(&folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.collect::<Vec<_>>()
    };
    std::fs::write(&path, "text").unwrap();
    assert!(Api::start(Arc::clone(&table), &path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"text");
    assert_eq!(names(), ["socket"]);
    std::fs::remove_file(&path).unwrap();
    let api = Api::start(table, &path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The private folder is gone.
    assert_eq!(names(), ["socket"]);
    drop(api);
    assert!(names().is_empty());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A line cut off by a disconnect is not executed.
#[test]
fn half_a_line_is_no_wish() {
    use super::super::api::Api;
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    let folder = std::env::temp_dir().join(format!("tailwater-upf-half-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    let sessions = [session(12, false), session(123, false)];
    let table = table(options(Role::Core), &[profile("all", None)], &sessions);
    let api = Api::start(Arc::clone(&table), &path).unwrap();
    // A prefix of "remove 123".
    for (sent, expected) in [("remove 12", ""), ("count\nremove 12", "ok 2\n")] {
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(sent.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).unwrap();
        assert_eq!(answers, expected);
        assert!(table.session(12).is_some());
    }
    drop(api);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The file of sessions is reloaded with its spec, entirely or not at all.
#[test]
fn a_file_is_read_again() {
    use crate::build::{ChainBuilder, Reconfigure};
    use crate::reload::Reload;
    use crate::spec::ChainSpec;
    let folder = std::env::temp_dir().join(format!("tailwater-upf-file-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("users.sessions");
    let line = |number: u32| format!("{number} ue 10.60.0.{number} teid {number} profile all\n");
    std::fs::write(&path, line(1) + &line(2)).unwrap();
    let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\nspec:\n  \
                functions: [{upf: {addresses: [192.0.2.1], profiles: {all: {}}, sessionsFile: users.sessions}}]\n  \
                slo: {latency: 200us}\n";
    let spec = ChainSpec::parse(text, "test", &folder).unwrap();
    let rss = tailwater_net::toeplitz::RssHasher::default();
    let builder = ChainBuilder::new(&spec, &rss, 1).unwrap();
    let table = builder.table::<UpfTable>("upf").unwrap();
    assert_eq!(table.sessions(), 2);
    let file = Reconfigure::of(std::iter::once(&builder)).unwrap();
    assert_eq!(file.files(), std::slice::from_ref(&path));
    // A file with mistakes changes nothing.
    std::fs::write(&path, line(3) + "4 ue nowhere\n5 x\n").unwrap();
    let errors = file.reload().unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].contains("users.sessions:2:6: expected an IPv4 address"));
    assert!(table.session(3).is_none() && table.session(1).is_some());
    std::fs::write(&path, line(2) + &line(3) + &line(4)).unwrap();
    assert_eq!(file.reload().unwrap(), ["upf: 3 sessions in force (version 2)"]);
    assert!(table.session(1).is_none() && table.sessions() == 3);
    // An identifier that now belongs to an API session.
    let of_api = Session {
        address: Some([10, 60, 0, 5].into()),
        profile: 0,
        tunnel: None,
        ..session(7, false)
    };
    table.set(&of_api, Owner::Api).unwrap();
    std::fs::write(&path, line(5)).unwrap();
    assert_eq!(
        file.reload().unwrap_err(),
        ["upf: session 5: the ue is in use by session 7"]
    );
    assert_eq!(table.sessions(), 4);
    std::fs::remove_dir_all(&folder).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// After any additions, changes and removals, the table equals a map and finds each session by all its identifiers.
    #[test]
    fn the_table_is_a_map(steps in prop::collection::vec((0u8..4, 1u32..40, 1u32..40), 1..200)) {
        let table = table(options(Role::Core), &[profile("all", None)], &[]);
        let mut map: HashMap<u64, Session> = HashMap::new();
        for (kind, number, other) in steps {
            if kind == 0 {
                prop_assert_eq!(table.remove(number.into()).is_some(), map.remove(&number.into()).is_some());
                continue;
            }
            // Sometimes uses an address of another session.
            let new = Session {
                address: if kind == 1 { Some(user(other)) } else { session(number, false).address },
                tunnel: if kind == 2 { None } else { session(other, true).tunnel },
                ..session(number, false)
            };
            let taken = map.values().any(|old| old.id != new.id && old.address == new.address);
            let outcome = table.set(&new, Owner::Api);
            prop_assert_eq!(outcome.is_err(), taken);
            if !taken {
                let before = map.insert(new.id, new);
                let expected = match before {
                    None => SessionChange::Added,
                    Some(before) if before == new => SessionChange::Nothing,
                    Some(_) => SessionChange::Changed,
                };
                prop_assert_eq!(outcome, Ok(expected));
            }
        }
        prop_assert_eq!(table.sessions(), map.len());
        let mut seen = Vec::new();
        table.each(|record, _| seen.push(record.id));
        seen.sort_unstable();
        let mut ids: Vec<_> = map.keys().copied().collect();
        ids.sort_unstable();
        prop_assert_eq!(seen, ids);
        for (id, session) in &map {
            prop_assert_eq!(table.session(*id).unwrap().0, *session);
            let by_teid = table.session_of_teid(session.teid, table.prefetch_teid(session.teid));
            prop_assert_eq!(by_teid.unwrap().1.id, *id);
            let user = IpAddr::V4(session.address.unwrap());
            prop_assert_eq!(table.session_of_user(user, table.prefetch_user(user)).unwrap().1.id, *id);
            let host = IpAddr::V6((u128::from(session.prefix.unwrap()) << 64 | 9).into());
            prop_assert_eq!(table.session_of_user(host, table.prefetch_user(host)).unwrap().1.id, *id);
        }
    }
}
