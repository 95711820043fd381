//! Tests of targets against references on whole segments.

use super::*;
use proptest::prelude::*;

fn normal(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let length = normalize(&mut bytes);
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn paths() {
    for (given, expected) in [
        ("/", "/"),
        ("", ""),
        ("/a/b", "/a/b"),
        ("/a//b", "/a/b"),
        ("/%61/%2e%2E/b", "/b"),
        ("/a/./b/.", "/a/b/"),
        ("/../../a", "/a"),
        ("/a/../..", "/"),
        ("/a/..", "/"),
        ("/a/b/../c?x=/../%41#f", "/a/c?x=/../A"),
        ("/a%2fb%5c..\\c", "/a/c"),
        ("/a%3fb", "/a?b"),
        ("/%zz%4", "/%zz%4"),
        ("/%252e", "/%2e"),
        ("*", "*"),
        ("a/../b", "/b"),
        ("..", ""),
    ] {
        assert_eq!(normal(given), expected, "{given}");
    }
}

#[test]
fn authorities() {
    for (target, lenient, suricata) in [
        ("http://h:1/x", Some("h:1"), Some("h:1")),
        ("HTTP://h:1?q", Some("h:1"), Some("h:1")),
        ("https://h", Some("h"), Some("h")),
        ("http://h\\x/", Some("h"), Some("h\\x")),
        ("ftp+x://h#f", Some("h"), None),
        ("http:/h", None, None),
        ("://h", None, None),
        ("/http://h/", None, None),
        ("*", None, None),
    ] {
        let found = |reading| authority(target.as_bytes(), reading).map(|range| &target[range]);
        assert_eq!(found(Reading::Lenient), lenient, "{target}");
        assert_eq!(found(Reading::Suricata), suricata, "{target}");
    }
}

/// Reference implementation of RFC 3986 §5.2.4 on whole segments.
fn by_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let last = segments.len() - 1;
    for (i, segment) in segments.iter().enumerate() {
        match *segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            "" if i < last => {}
            segment => {
                kept.push(segment);
                continue;
            }
        }
        if i == last {
            kept.push("");
        }
    }
    // An empty last segment stands for the trailing slash; two of them are one.
    format!("/{}", kept.join("/"))
}

proptest! {
    #[test]
    fn dot_segments_as_by_segments(path in "(/(a|b|\\.|\\.\\.|\\.a)?){1,8}") {
        prop_assert_eq!(normal(&path), by_segments(&path));
    }

    /// Both readings agree on paths from the root.
    #[test]
    fn readings_agree_on_paths_from_the_root(path in "(/|\\\\|%2f)(/|%2e|\\.|\\\\|a|%4|b){0,20}") {
        let (mut one, mut other) = (path.clone().into_bytes(), path.into_bytes());
        let lengths = [normalize_path(&mut one, Reading::Lenient), normalize_path(&mut other, Reading::Suricata)];
        prop_assert_eq!(&one[..lengths[0]], &other[..lengths[1]]);
    }

    #[test]
    fn any_bytes_shrink_or_stay(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut copy = bytes.clone();
        prop_assert!(normalize(&mut copy) <= bytes.len());
    }
}
