//! Wrong and hostile clients of the control socket: they are cut, and others are served.

mod common;
#[path = "common/serving.rs"]
mod serving;

use common::yaml;
use serving::{Folder, Serving, frame, head, preface, read_to_end, request, wait, wait_for, write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;
use tailwater_server::control::generated as message;
use tailwater_server::control::{Client, ClientError, Limits};

/// Limits with short times.
fn hasty() -> Limits {
    Limits {
        idle: Duration::from_millis(400),
        request: Duration::from_millis(200),
        stalled: Duration::from_millis(200),
        ..Limits::default()
    }
}

/// Limits with short times, except that clients may be idle.
fn patient() -> Limits {
    Limits {
        idle: Duration::from_secs(600),
        ..hasty()
    }
}

fn is_served(serving: &Serving) {
    assert!(serving.client().health().unwrap().ready);
}

#[test]
fn clients_that_say_nothing_or_half_of_it_are_cut() {
    let folder = Folder::new();
    let serving = Serving::start(folder.config("", hasty()));
    let starts = [&b""[..], b"P", b"PRI * HTTP/2.0\r\n", &preface(65_535)];
    let mut clients: Vec<UnixStream> = starts
        .iter()
        .map(|bytes| {
            let mut stream = serving.stream();
            write(&mut stream, bytes);
            stream
        })
        .collect();
    is_served(&serving);
    for stream in &mut clients {
        read_to_end(stream);
    }
    is_served(&serving);
}

#[test]
fn garbage_ends_its_own_connection() {
    let folder = Folder::new();
    let serving = Serving::start(folder.config("", patient()));
    let head_of_list = head("List");
    let after_preface = |bytes: &[u8]| [preface(65_535), bytes.to_vec()].concat();
    let garbage = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 4096],
        after_preface(&[0xff; 4096]),
        // A frame that is longer than allowed.
        after_preface(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]),
        // A head that refers to a dynamic table.
        after_preface(&frame(1, 4, 1, &[0xff; 64])),
        // A call on stream 0.
        after_preface(&frame(0, 1, 0, b"data")),
    ];
    for bytes in &garbage {
        let mut stream = serving.stream();
        write(&mut stream, bytes);
        read_to_end(&mut stream);
    }
    is_served(&serving);
    // A message that is no message is an error of the call, not of the connection.
    let mut stream = serving.stream();
    let no_message = [&[0, 0, 0, 0, 3][..], &[0xff; 3]].concat();
    write(
        &mut stream,
        &[preface(65_535), head_of_list, frame(0, 1, 1, &no_message)].concat(),
    );
    is_served(&serving);
}

#[test]
fn a_request_that_is_not_sent_in_time_is_an_error() {
    let folder = Folder::new();
    let serving = Serving::start(folder.config("", hasty()));
    let mut stream = serving.stream();
    // The message has 100 bytes, of which one is sent.
    write(
        &mut stream,
        &[preface(65_535), head("Apply"), frame(0, 0, 1, &[0, 0, 0, 0, 100, 10])].concat(),
    );
    read_to_end(&mut stream);
    is_served(&serving);
}

#[test]
fn a_message_that_is_too_large_is_refused() {
    let folder = Folder::new();
    let limits = Limits {
        message_bytes: 10_000,
        ..Limits::default()
    };
    let serving = Serving::start(folder.config("", limits));
    let mut client = serving.client();
    let large = yaml(
        "edge",
        "10.0.0.0/8",
        &format!("[acl: {{x: {}}}]", "y".repeat(20_000)),
        "1ms",
    );
    let error = client.apply(request(&[large])).unwrap_err();
    assert!(
        matches!(&error, ClientError::Invalid(text) if text.contains("too large")),
        "{error:?}"
    );
    client.list().unwrap();
    // One that only claims to be.
    let mut stream = serving.stream();
    write(
        &mut stream,
        &[
            preface(65_535),
            head("Apply"),
            frame(0, 0, 1, &[0, 0xff, 0xff, 0xff, 0xff]),
        ]
        .concat(),
    );
    client.list().unwrap();
    drop(stream);
    // Long heads, too.
    let fields: Vec<u8> = (0..200)
        .flat_map(|_| [&[0, 1, b'x', 127, 128][..], &[b'y'; 255]].concat())
        .collect();
    let mut stream = serving.stream();
    write(&mut stream, &preface(65_535));
    fields.chunks(16_384).enumerate().for_each(|(index, chunk)| {
        let kind = if index == 0 { 1 } else { 9 };
        write(&mut stream, &frame(kind, 0, 1, chunk));
    });
    client.list().unwrap();
}

#[test]
fn a_hundred_idle_clients_leave_room_for_others() {
    let folder = Folder::new();
    let limits = Limits {
        clients: 20,
        ..patient()
    };
    let serving = Serving::start(folder.config("", limits));
    let mut idle: Vec<UnixStream> = (0..100).map(|_| serving.stream()).collect();
    is_served(&serving);
    // Those that were idle longest had to leave.
    for stream in &mut idle[..80] {
        read_to_end(stream);
    }
    is_served(&serving);
}

#[test]
fn a_client_that_does_not_read_is_cut() {
    let folder = Folder::new();
    let serving = Serving::start(folder.config("", patient()));
    serving
        .client()
        .apply(request(&[yaml("edge", "10.0.0.0/8", "[forward: {}]", "1ms")]))
        .unwrap();
    let mut stream = serving.stream();
    // Its window has no room at all.
    write(
        &mut stream,
        &[preface(0), head("Watch"), frame(0, 1, 1, &[0; 5])].concat(),
    );
    read_to_end(&mut stream);
    // One that reads stays, although nothing happens for longer.
    wait_for(&mut serving.client(), "edge", message::Phase::Running);
    let mut calls = 0;
    let on_change = |change: Option<message::ChainChange>| {
        calls += usize::from(change.is_none());
        calls < 10
    };
    serving
        .client()
        .watch("", Duration::from_millis(100), on_change)
        .unwrap();
    is_served(&serving);
}

#[test]
fn calls_that_follow_are_limited() {
    let folder = Folder::new();
    let limits = Limits {
        followers: 1,
        ..Limits::default()
    };
    let serving = Serving::start(folder.config("", limits));
    let socket = serving.socket.clone();
    let (stop, stopped) = channel::<()>();
    let (follows, is_following) = channel();
    let follower = std::thread::spawn(move || {
        let mut client = Client::connect(&socket).unwrap();
        let on_change = |_| {
            let _ = follows.send(());
            stopped.try_recv() == Err(TryRecvError::Empty)
        };
        client.watch("", Duration::from_millis(10), on_change)
    });
    is_following.recv().unwrap();
    let mut client = serving.client();
    let mut events = || client.events(message::EventsRequest::default(), Duration::from_millis(10), |_| false);
    let error = events().unwrap_err();
    assert!(error.to_string().contains("too many clients follow"), "{error}");
    // When it ends, another one may follow.
    drop(stop);
    follower.join().unwrap().unwrap();
    wait(|| events().ok());
}
