//! Syntax of patterns and of lists of them.

use tailwater_streams::http::host::Host;
use tailwater_streams::http::target::normalize;

/// Largest number of patterns per filter.
pub const MAX_PATTERNS: usize = 1_000_000;
/// Longest pattern, in bytes.
pub const MAX_PATTERN_BYTES: usize = 2048;
/// Most bytes of all `*text*` patterns together: their automaton takes some hundred times as much memory.
pub const MAX_TEXT_BYTES: usize = 1 << 20;
/// Shortest `*text*`, in bytes: shorter ones occur in nearly every URL.
const MIN_TEXT: usize = 3;

/// Normalised pattern for requests and for server names in ClientHellos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Host, optionally with a port and a path prefix.
    Host {
        /// Host name.
        name: Box<[u8]>,
        /// If `true`, subdomains do not match.
        exact: bool,
        /// Port, if only one matches.
        port: Option<u16>,
        /// Path prefix; `None` matches any path, and server names in a ClientHello.
        path: Option<Box<[u8]>>,
    },
    /// Path prefix on any host.
    Path(Box<[u8]>),
    /// Text anywhere in host, path or query, in either case.
    Text(Box<[u8]>),
}

/// Reasons a text is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The text is empty.
    #[error("expected a pattern, found nothing")]
    Empty,
    /// Too long.
    #[error("expected at most {MAX_PATTERN_BYTES} bytes, found {0}")]
    TooLong(usize),
    /// White space or a control character.
    #[error("expected a pattern without white space and control characters, found {0:?}")]
    Character(char),
    /// The host name is invalid.
    #[error("expected a host name such as example.com, found \"{0}\"")]
    Host(String),
    /// The port is invalid.
    #[error("expected a port from 1 to 65535, found \"{0}\"")]
    Port(String),
    /// Misplaced star.
    #[error(
        "expected stars only as the first and last character (*text*), or none: a host includes its subdomains, a \
         path all paths that start with it"
    )]
    Star,
    /// The text between stars is too short.
    #[error("expected at least {MIN_TEXT} bytes between the stars, found {0}")]
    ShortText(usize),
}

/// Error in a list of patterns, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {error}")]
pub struct ListError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Kind of error.
    pub error: ListErrorKind,
}

/// Kinds of errors in a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListErrorKind {
    /// A line is not a pattern.
    #[error("{0}")]
    Pattern(#[from] PatternError),
    /// Too many patterns.
    #[error("expected at most {MAX_PATTERNS} patterns, found more")]
    TooMany,
    /// Too much text between stars.
    #[error("expected at most {MAX_TEXT_BYTES} bytes of *text* patterns, found more")]
    TooMuchText,
}

impl Pattern {
    /// Parses `example.com`, `=example.com`, `example.com:8080/path`, `/path` or `*text*`. A leading scheme is ignored.
    /// So are the marks of ad-blocking lists: leading `||`, and trailing `^` or `$all`.
    ///
    /// # Errors
    /// The text is none of these, or too long.
    pub fn parse(text: &str) -> Result<Pattern, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.len() > MAX_PATTERN_BYTES {
            return Err(PatternError::TooLong(text.len()));
        }
        if let Some(c) = text.chars().find(|c| c.is_whitespace() || c.is_control()) {
            return Err(PatternError::Character(c));
        }
        if let Some(inner) = text.strip_prefix('*') {
            let inner = inner.strip_suffix('*').ok_or(PatternError::Star)?;
            if inner.contains('*') {
                return Err(PatternError::Star);
            }
            return Pattern::text(inner);
        }
        let text = match text.strip_prefix("||") {
            Some(text) => {
                let text = text.strip_suffix("$all").unwrap_or(text);
                text.strip_suffix('^').unwrap_or(text)
            }
            None => text,
        };
        if text.starts_with('/') {
            return Ok(Pattern::Path(normal_path(text)));
        }
        let (exact, text) = match text.strip_prefix('=') {
            Some(text) => (true, text),
            None => (false, text),
        };
        let text = ["http://", "https://"]
            .iter()
            .find_map(|scheme| {
                let head = text.get(..scheme.len())?;
                head.eq_ignore_ascii_case(scheme).then(|| &text[scheme.len()..])
            })
            .unwrap_or(text);
        let end = text.find(['/', '?', '#']).unwrap_or(text.len());
        let (authority, path) = text.split_at(end);
        Pattern::host(exact, authority, path)
    }

    fn text(inner: &str) -> Result<Pattern, PatternError> {
        // Only percent-encoding is decoded: a text may start and end anywhere in a path.
        let mut bytes = b"?".to_vec();
        bytes.extend_from_slice(inner.as_bytes());
        let length = normalize(&mut bytes);
        bytes.truncate(length);
        bytes.remove(0);
        match bytes.len() {
            length if length < MIN_TEXT => Err(PatternError::ShortText(length)),
            _ => Ok(Pattern::Text(bytes.into())),
        }
    }

    fn host(exact: bool, authority: &str, path: &str) -> Result<Pattern, PatternError> {
        let wrong = || PatternError::Host(shown(authority));
        if authority.contains('*') {
            return Err(PatternError::Star);
        }
        let host = Host::new(authority.as_bytes()).ok_or_else(wrong)?;
        let name = host.name();
        let bracketed = name.first() == Some(&b'[') && name.last() == Some(&b']');
        if let Some((_, port)) = authority.rsplit_once(':')
            && !bracketed
            && host.port.is_none_or(|port| port == 0)
        {
            return Err(PatternError::Port(shown(port)));
        }
        let right = |&b: &u8| {
            b.is_ascii_alphanumeric()
                || matches!(b, b'.' | b'-' | b'_')
                || (bracketed && matches!(b, b'[' | b']' | b':'))
        };
        let labels = name.split(|&b| b == b'.');
        let labels_right = bracketed || labels.clone().all(|label| (1..=63).contains(&label.len()));
        if name.is_empty() || name.len() > 253 || !name.iter().all(right) || !labels_right {
            return Err(wrong());
        }
        let path = match path {
            "" => Box::default(),
            path if path.starts_with('/') => normal_path(path),
            path => normal_path(&format!("/{path}")),
        };
        Ok(Pattern::Host {
            name: name.into(),
            exact,
            port: host.port,
            // Every path starts with a slash, so this covers the whole host.
            path: (path.len() > 1).then_some(path),
        })
    }

    /// Returns the bytes a `*text*` adds to the text limit.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Pattern::Text(text) => text.len(),
            _ => 0,
        }
    }
}

fn normal_path(text: &str) -> Box<[u8]> {
    let mut bytes = text.as_bytes().to_vec();
    let length = normalize(&mut bytes);
    bytes.truncate(length);
    bytes.into()
}

/// Shortens a text for error messages.
fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Parses a list, one pattern per line. Empty lines and lines starting with `#` or `!` are ignored; white space
/// followed by `#` starts a comment.
///
/// # Errors
/// Names the first line that is not a pattern or exceeds a limit.
pub fn parse_list(text: &str) -> Result<Vec<Pattern>, ListError> {
    let mut patterns = Vec::new();
    let mut text_bytes = 0;
    for (index, line) in text.lines().enumerate() {
        let content = line.trim_start();
        let column = line[..line.len() - content.len()].chars().count() + 1;
        let error = |error| ListError {
            line: index + 1,
            column,
            error,
        };
        if content.starts_with(['#', '!']) {
            continue;
        }
        let comment = content
            .match_indices('#')
            .map(|(at, _)| at)
            .find(|&at| content[..at].ends_with(char::is_whitespace));
        let content = content[..comment.unwrap_or(content.len())].trim_end();
        if content.is_empty() {
            continue;
        }
        let pattern = Pattern::parse(content).map_err(|source| error(source.into()))?;
        text_bytes += pattern.text_bytes();
        if text_bytes > MAX_TEXT_BYTES {
            return Err(error(ListErrorKind::TooMuchText));
        }
        if patterns.len() == MAX_PATTERNS {
            return Err(error(ListErrorKind::TooMany));
        }
        patterns.push(pattern);
    }
    Ok(patterns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, exact: bool, port: Option<u16>, path: Option<&str>) -> Pattern {
        Pattern::Host {
            name: name.as_bytes().into(),
            exact,
            port,
            path: path.map(|path| path.as_bytes().into()),
        }
    }

    #[test]
    fn patterns() {
        for (text, expected) in [
            ("Example.com", host("example.com", false, None, None)),
            ("=example.com.", host("example.com", true, None, None)),
            ("https://example.com/", host("example.com", false, None, None)),
            ("1.2.3.4:81/a%2Fb", host("1.2.3.4", false, Some(81), Some("/a/b"))),
            ("example.com?x", host("example.com", false, None, Some("/?x"))),
            ("[::1]:80", host("[::1]", false, Some(80), None)),
            ("||a.b/c?1:2$all", host("a.b", false, None, Some("/c?1:2"))),
            ("||a.b^", host("a.b", false, None, None)),
            ("/x/../y", Pattern::Path(b"/y"[..].into())),
            ("*/../a%20*", Pattern::Text(b"/../a "[..].into())),
        ] {
            assert_eq!(Pattern::parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn no_patterns() {
        for text in [
            "",
            "a b",
            "*.example.com",
            "*ab*",
            "*a*b*",
            "=",
            "http://",
            "a..b",
            "exa$mple.com",
            "example.com:0",
            "example.com:http",
            "example.com:70000",
            "b\u{fc}cher.example",
            &"a".repeat(64),
            &"a".repeat(MAX_PATTERN_BYTES + 1),
        ] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lists() {
        let text = "# list\n! list\n\n  example.com  # why\n/a#b\r\n";
        let patterns = parse_list(text).unwrap();
        assert_eq!(patterns[0], host("example.com", false, None, None));
        assert_eq!(patterns[1], Pattern::Path(b"/a"[..].into()));
        assert_eq!(patterns.len(), 2);
        let error = parse_list("ok.example\n\t*a\n").unwrap_err();
        assert_eq!((error.line, error.column), (2, 2));
        assert_eq!(error.error, PatternError::Star.into());
    }
}
