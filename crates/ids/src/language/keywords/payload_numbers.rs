//! Numbers in payloads: `isdataat`, `byte_test` and `byte_jump`.

use super::values::{FAR, one_of};
use crate::language::draft::Draft;
use crate::language::numbers::{is_name, signed, whole, within};
use crate::language::problem::{Problem, quoted};
use crate::rule::{Comparison, NumberAt, Test};

pub(super) fn data_at(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let (negated, rest) = match value.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let mut words = rest.split(',').map(str::trim);
    let number = words.next().unwrap_or_default();
    if is_name(number) {
        return Err(Problem::unsupported("isdataat: variable"));
    }
    let mut relative = false;
    for word in words {
        relative |= one_of(word, &[("relative", true), ("rawbytes", false)])?;
    }
    draft.test(Test::DataAt {
        bytes: within(number, FAR).map_err(Problem::wrong)?,
        relative,
        negated,
    });
    Ok(())
}

/// Parses an option common to `byte_test` and `byte_jump`; returns `false` if the word is another one.
fn number_option(number: &mut NumberAt, word: &str) -> Result<bool, Problem> {
    match word {
        "relative" => number.relative = true,
        "little" => number.little = true,
        "big" => number.little = false,
        "string" => number.text = number.text.or(Some(10)),
        "hex" => number.text = Some(16),
        "dec" => number.text = Some(10),
        "oct" => number.text = Some(8),
        "dce" => return Err(Problem::unsupported("byte order dce")),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Checks that a number of this many bytes can be read.
fn check_number(number: &NumberAt) -> Result<(), Problem> {
    match (number.text, number.bytes) {
        (None, 1..=8) | (Some(_), 0..=23) => Ok(()),
        _ => Err(Problem::wrong(
            "expected a number of 1 to 8 bytes, or one of up to 23 digits",
        )),
    }
}

fn number_at(bytes: &str, offset: &str, option: &str) -> Result<NumberAt, Problem> {
    if is_name(bytes) || is_name(offset) {
        return Err(Problem::unsupported(format!("{option}: variable")));
    }
    Ok(NumberAt {
        bytes: within(bytes, 23).map_err(Problem::wrong)?,
        offset: signed(offset, FAR as i64).map_err(Problem::wrong)?,
        relative: false,
        little: false,
        text: None,
    })
}

pub(super) fn byte_test(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let words: Vec<&str> = value.split(',').map(str::trim).collect();
    let [bytes, operator, operand, offset, options @ ..] = &words[..] else {
        return Err(Problem::wrong("expected bytes, an operator, a value and an offset"));
    };
    let (negated, operator) = match operator.strip_prefix('!') {
        Some("") => (true, "="),
        Some(rest) => (true, rest.trim()),
        None => (false, *operator),
    };
    let comparison = one_of(
        operator,
        &[
            ("<", Comparison::Less),
            ("<=", Comparison::AtMost),
            ("=", Comparison::Equal),
            (">", Comparison::Greater),
            (">=", Comparison::AtLeast),
            ("&", Comparison::And),
            ("^", Comparison::Or),
        ],
    )?;
    let mut number = number_at(bytes, offset, "byte_test")?;
    if is_name(operand) {
        return Err(Problem::unsupported("byte_test: variable"));
    }
    for word in options {
        if word.starts_with("bitmask") {
            return Err(Problem::unsupported("byte_test: bitmask"));
        }
        if !number_option(&mut number, word)? {
            let found = quoted(word);
            return Err(Problem::wrong(format!(
                "expected an option of byte_test, found {found}"
            )));
        }
    }
    check_number(&number)?;
    let operand = whole(operand);
    draft.test(Test::Compare {
        number,
        comparison,
        value: operand.ok_or_else(|| Problem::wrong("expected a number to compare with"))?,
        negated,
    });
    Ok(())
}

pub(super) fn byte_jump(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let words: Vec<&str> = value.split(',').map(str::trim).collect();
    let [bytes, offset, options @ ..] = &words[..] else {
        return Err(Problem::wrong("expected bytes and an offset"));
    };
    let mut number = number_at(bytes, offset, "byte_jump")?;
    let (mut multiplier, mut align, mut from_start, mut more) = (1, false, false, 0);
    for word in options {
        let (key, argument) = word.split_once(' ').unwrap_or((word, ""));
        match key {
            "align" => align = true,
            "from_beginning" => from_start = true,
            "multiplier" => multiplier = within(argument, 65_535).map_err(Problem::wrong)?,
            "post_offset" if is_name(argument) => {
                return Err(Problem::unsupported("byte_jump: variable"));
            }
            "post_offset" => more = signed(argument, FAR as i64).map_err(Problem::wrong)?,
            "from_end" | "bitmask" => {
                return Err(Problem::unsupported(format!("byte_jump: {key}")));
            }
            _ if number_option(&mut number, word)? => {}
            _ => {
                let found = quoted(word);
                return Err(Problem::wrong(format!(
                    "expected an option of byte_jump, found {found}"
                )));
            }
        }
    }
    check_number(&number)?;
    draft.test(Test::Jump {
        number,
        multiplier,
        align,
        from_start,
        more,
    });
    Ok(())
}
