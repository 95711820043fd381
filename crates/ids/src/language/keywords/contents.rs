//! Contents and regular expressions.

use super::values::value;
use crate::buffer::Buffer;
use crate::language::draft::Draft;
use crate::language::expressions::Expressions;
use crate::language::options::{Opt, bytes, quotation};
use crate::language::problem::{Problem, quoted};
use crate::pattern::{ExpressionError, Flags};
use crate::rule::{Content, PositionConstraint, Test};

pub(super) fn modified(draft: &mut Draft) -> Result<&mut Content, Problem> {
    let content = draft.content();
    content.ok_or_else(|| Problem::wrong("expected a content in front of it, found none"))
}

pub(super) fn moved(draft: &mut Draft, buffer: Buffer) -> Result<(), Problem> {
    draft.move_content(buffer).map_err(Problem::wrong)
}

pub(super) fn content(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let Some((negated, text)) = quotation(value) else {
        return Err(Problem::wrong("expected a content in quotation marks"));
    };
    let bytes = bytes(text).map_err(Problem::wrong)?;
    if bytes.is_empty() {
        return Err(Problem::wrong("expected a content of one byte at least"));
    }
    if bytes.len() > 1024 {
        return Err(Problem::wrong(format!(
            "expected a content of up to 1,024 bytes, found {}",
            bytes.len()
        )));
    }
    draft.test(Test::Content(Content {
        bytes,
        nocase: false,
        negated,
        position: PositionConstraint::default(),
        fast: false,
    }));
    Ok(())
}

/// Converts case-insensitive contents to lower case.
pub(super) fn lower_nocase(draft: &mut Draft) {
    for test in draft.parts.iter_mut().flat_map(|part| &mut part.tests) {
        if let Test::Content(content) = test
            && content.nocase
        {
            content.bytes.make_ascii_lowercase();
        }
    }
}

pub(super) fn pcre(draft: &mut Draft, option: &Opt<'_>, expressions: &mut Expressions) -> Result<(), Problem> {
    let Some((negated, text)) = quotation(value(option)?) else {
        return Err(Problem::wrong("expected an expression in quotation marks"));
    };
    let inside = text.strip_prefix('/').and_then(|text| text.rsplit_once('/'));
    let Some((source, letters)) = inside else {
        return Err(Problem::wrong("expected an expression between slashes"));
    };
    let (mut flags, mut relative, mut buffer) = (Flags::default(), false, None);
    for letter in letters.chars() {
        match letter {
            'i' => flags.nocase = true,
            's' => flags.dot_all = true,
            'm' => flags.multi_line = true,
            'x' => flags.extended = true,
            'A' => flags.anchored = true,
            'E' => flags.dollar_end = true,
            'G' => flags.ungreedy = true,
            'R' => relative = true,
            // There are no limits to ignore, and payloads are never decoded.
            'O' | 'B' => {}
            'U' => buffer = Some(Buffer::Uri),
            'I' => buffer = Some(Buffer::RawUri),
            'P' => buffer = Some(Buffer::RequestBody),
            'Q' => buffer = Some(Buffer::ResponseBody),
            'H' => buffer = Some(Buffer::Header),
            'D' => buffer = Some(Buffer::RawHeader),
            'M' => buffer = Some(Buffer::Method),
            'C' => buffer = Some(Buffer::Cookie),
            'S' => buffer = Some(Buffer::StatusCode),
            'Y' => buffer = Some(Buffer::StatusMessage),
            'V' => buffer = Some(Buffer::UserAgent),
            'W' => buffer = Some(Buffer::Host),
            'Z' => buffer = Some(Buffer::RawHost),
            _ => {
                return Err(Problem::wrong(format!(
                    "expected flags of an expression, found \"{letter}\""
                )));
            }
        }
    }
    let expression = expressions.get(source, letters, flags).map_err(|no| match no {
        ExpressionError::Unsupported(what) => Problem::unsupported(what),
        ExpressionError::Wrong(what) => Problem::wrong(format!("pcre {}: {what}", quoted(source))),
    })?;
    let test = Test::Pattern {
        expression,
        relative,
        negated,
    };
    match buffer {
        Some(buffer) => draft.test_of(buffer.into(), test),
        None => draft.test(test),
    }
    Ok(())
}
