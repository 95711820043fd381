//! Truncated, corrupted and invented files.

use super::*;

#[test]
fn a_file_that_is_cut_says_so_wherever_it_is_cut() {
    let (bytes, _) = recorded(&random_situations(12, 9), anything(), "profile");
    assert_eq!(decisions(&bytes).unwrap().len(), 12);
    for length in 0..bytes.len() {
        let error = decisions(&bytes[..length]).unwrap_err();
        let magic = length < format::MAGIC.len();
        let expected = match magic {
            true => "byte 0: expected a record of decisions, found another file".to_owned(),
            false => format!("byte {length}: the record is cut short"),
        };
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn what_is_changed_is_refused_or_read_but_never_more_than_there_is() {
    let (bytes, _) = recorded(&random_situations(20, 30), anything(), "profile");
    let mut random = Random(7);
    let mut refused = 0;
    for _ in 0..4000 {
        let mut changed = bytes.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(changed.len() as u64) as usize;
            changed[at] = random.below(256) as u8;
        }
        match decisions(&changed) {
            Ok(all) => assert!(all.len() <= bytes.len()),
            Err(error) => {
                refused += 1;
                assert!(error.offset <= changed.len() as u64);
                assert!(!error.to_string().contains('\n'));
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

/// A file with a header and these numbers.
fn file_of(numbers: &[u64]) -> Vec<u8> {
    let mut bytes = header("").encoded();
    numbers.iter().for_each(|n| format::put(&mut bytes, *n));
    bytes
}

fn refused(bytes: &[u8]) -> String {
    decisions(bytes).unwrap_err().to_string()
}

#[test]
fn what_is_out_of_bounds_is_refused_on_one_line() {
    let start = header("").encoded().len();
    let is = |bytes: &[u8], text: &str| assert_eq!(refused(bytes), format!("byte {start}: {text}"));
    is(
        &file_of(&[u64::MAX]),
        &format!(
            "expected at most {} numbers in a decision, found {}",
            read::LONGEST,
            u64::MAX
        ),
    );
    is(&file_of(&[1, 0]), "expected at least 18 numbers in a decision, found 1");
    // 18 numbers and three auxiliary cores: an empty decision.
    let mut nothing = vec![0; 1 + 18 + HELPERS * 4];
    nothing[0] = nothing.len() as u64 - 1;
    let with = |changes: &[(usize, u64)]| {
        let mut numbers = nothing.clone();
        changes.iter().for_each(|(at, to)| numbers[*at] = *to);
        numbers.extend([0, 0]);
        file_of(&numbers)
    };
    assert_eq!(decisions(&with(&[])).unwrap().len(), 1);
    let cases: &[(&[(usize, u64)], &str)] = &[
        (&[(1, 1025)], "expected at most 1023 as a dispatcher, found 1025"),
        (&[(4, 1)], "expected at most 0 nanoseconds of waiting, found 1"),
        (&[(6, 5)], "expected 5 packets in all flows, found 0"),
        (
            &[(6, 1 << 32)],
            "expected at most 4294967295 packets in a queue, found 4294967296",
        ),
        (
            &[(7, 1 << 40)],
            "expected at most 32768 flows in a queue, found 1099511627776",
        ),
        (&[(8, 8)], "expected at most 7 as flags, found 8"),
        (&[(10, 8)], "expected at most 7 as auxiliary cores to release, found 8"),
        (&[(11, 8)], "expected at most 7 as auxiliary cores to relieve, found 8"),
        (
            &[(13, 1 << 32)],
            "expected at most 4294967295 parked packets, found 4294967296",
        ),
        (&[(15, 1)], "expected at most 0 flowlets on auxiliary cores, found 1"),
        (
            &[(14, 1), (15, 1), (16, 2)],
            "expected at most 1 flowlets on dedicated cores, found 2",
        ),
        (
            &[(17, u64::MAX)],
            "expected at most 0 listed flows, found 18446744073709551615",
        ),
        (&[(18, 1)], "expected 33 numbers in a decision, found 30"),
        (&[(19, 8)], "expected at most 7 as flags of an auxiliary core, found 8"),
    ];
    for (changes, text) in cases {
        // The check of a count needs the right expectation.
        is(&with(changes), text);
    }
    let mut more = with(&[]);
    more.push(0);
    let end = more.len() - 1;
    let text = format!("byte {end}: expected the file's end after the record's end, found more data");
    assert_eq!(refused(&more), text);

    let magic = format::MAGIC.len();
    let mut other = header("").encoded();
    other[magic] = 7;
    let text = format!("byte {magic}: expected a record of version 6, found version 7");
    assert_eq!(refused(&other), text);
    assert_eq!(
        refused(b"apiVersion: tailwater.dev/v1alpha1"),
        "byte 0: expected a record of decisions, found another file"
    );
    let mut long = format::MAGIC.to_vec();
    long.extend([0xff; 10]);
    let text = format!("byte {magic}: expected a number of 64 bits, found a longer one");
    assert_eq!(refused(&long), text);
    let mut text = format::MAGIC.to_vec();
    for number in [format::VERSION, 0, 0, 0, 0, 0, 1 << 50] {
        format::put(&mut text, number);
    }
    assert!(
        refused(&text).contains("at most 1048576 bytes of text"),
        "{}",
        refused(&text)
    );
}

#[test]
fn a_header_of_too_many_cpus_is_refused() {
    let mut bytes = header("").encoded();
    // Three CPUs in four bytes, and their number.
    bytes.truncate(bytes.len() - 5);
    format::put(&mut bytes, 65);
    let text = Reader::new(&*bytes).unwrap_err().to_string();
    assert!(text.contains("auxiliary cores, found 65"), "{text}");
}

#[test]
fn texts_of_a_header_are_cut_between_characters() {
    let long = Header {
        chain: "é".repeat(1 << 20),
        ..header("")
    };
    let mut bytes = long.encoded();
    format::put_end(&mut bytes, 0);
    let reader = Reader::new(&*bytes).unwrap();
    assert_eq!(reader.header().chain.len(), 1 << 20);
}
