//! Documents of a file: YAML separated by `---`.

/// Document of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'t> {
    /// Number of lines in front of it.
    pub lines_before: usize,
    /// Its text, with the line that begins it.
    pub text: &'t str,
}

/// Splits a text into its documents. Those that are empty are left out, unless all are: then there is one.
pub fn split(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let (mut start, mut lines_before) = (0, 0);
    let (mut at, mut has_content) = (0, false);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        // Within a document, such a line is never content.
        let is_start =
            line == "---" || line.starts_with("---\n") || line.starts_with("---\r") || line.starts_with("--- ");
        if is_start {
            if has_content {
                parts.push(Part {
                    lines_before,
                    text: &text[start..at],
                });
                (start, lines_before) = (at, number);
            }
            has_content = false;
        }
        let content = line.strip_prefix("---").filter(|_| is_start).unwrap_or(line).trim();
        let is_directive = line.starts_with('%') && !has_content;
        has_content |= !content.is_empty() && !content.starts_with('#') && content != "..." && !is_directive;
        at += line.len();
    }
    if has_content || parts.is_empty() {
        parts.push(Part {
            lines_before,
            text: &text[start..],
        });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(usize, &str)> {
        let parts = split(text).into_iter();
        parts.map(|part| (part.lines_before, part.text)).collect()
    }

    #[test]
    fn documents_keep_their_lines() {
        assert_eq!(of("a: 1\n"), [(0, "a: 1\n")]);
        assert_eq!(of("a: 1\n---\nb: 2\n"), [(0, "a: 1\n"), (1, "---\nb: 2\n")]);
        assert_eq!(
            of("# first\n---\na: 1\n--- # second\nb: |\n  ---\n"),
            [(0, "# first\n---\na: 1\n"), (3, "--- # second\nb: |\n  ---\n")]
        );
        assert_eq!(
            of("%YAML 1.2\n---\na: 1\n...\n---\n---\n"),
            [(0, "%YAML 1.2\n---\na: 1\n...\n")]
        );
        assert_eq!(of(""), [(0, "")]);
        assert_eq!(of("---\n# nothing\n"), [(0, "---\n# nothing\n")]);
        assert_eq!(of("a: ---b\n---x\n"), [(0, "a: ---b\n---x\n")]);
    }
}
