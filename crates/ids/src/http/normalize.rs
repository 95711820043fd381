//! Normalisation of request targets and hosts, as servers do it.

/// Splits a target into its authority, if it has one, and the rest.
pub(crate) fn split_target(target: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| {
        target
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    let Some(scheme) = scheme else {
        return (None, target);
    };
    let rest = &target[scheme.len()..];
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#'));
    let (authority, rest) = rest.split_at(end.unwrap_or(rest.len()));
    (Some(authority), rest)
}

/// Returns a host without user information and port.
pub(crate) fn host_of(authority: &[u8]) -> &[u8] {
    let user = authority.iter().rposition(|byte| *byte == b'@');
    let host = &authority[user.map_or(0, |at| at + 1)..];
    if host.first() == Some(&b'[') {
        let end = host.iter().position(|byte| *byte == b']');
        return &host[..end.map_or(host.len(), |end| end + 1)];
    }
    let end = host.iter().position(|byte| *byte == b':');
    &host[..end.unwrap_or(host.len())]
}

/// Writes a target's path, decoded once, with backslashes as slashes, repeated slashes merged, and dot segments
/// resolved (RFC 3986 §5.2.4). Then writes query and fragment unmodified.
pub(crate) fn normalize(target: &[u8], out: &mut Vec<u8>) {
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#'));
    let (mut path, rest) = target.split_at(end.unwrap_or(target.len()));
    let rooted = matches!(path.first(), Some(b'/' | b'\\' | b'%'));
    while let Some((byte, behind)) = decoded(path) {
        path = behind;
        match byte {
            b'/' | b'\\' => {
                if rooted {
                    end_segment(out);
                }
                if out.last() != Some(&b'/') {
                    out.push(b'/');
                }
            }
            _ => out.push(byte),
        }
    }
    if rooted {
        end_segment(out);
    }
    out.extend_from_slice(rest);
}

/// Returns the first byte of a path after percent-decoding, and the rest.
fn decoded(path: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    match path {
        [b'%', high, low, rest @ ..] => match (digit(*high), digit(*low)) {
            (Some(high), Some(low)) => Some(((high * 16 + low) as u8, rest)),
            _ => Some((b'%', &path[1..])),
        },
        [byte, rest @ ..] => Some((*byte, rest)),
        [] => None,
    }
}

/// Ends a segment: removes a single dot, or two dots together with the previous segment.
fn end_segment(out: &mut Vec<u8>) {
    let slash = |out: &[u8]| out.iter().rposition(|byte| *byte == b'/');
    let Some(start) = slash(out) else {
        return;
    };
    match &out[start + 1..] {
        b"." => out.truncate(start + 1),
        b".." => {
            let before = slash(&out[..start]).unwrap_or(start);
            out.truncate(before + 1);
        }
        _ => {}
    }
}
