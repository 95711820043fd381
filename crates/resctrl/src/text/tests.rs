use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Result<Schemata, Error> {
    Schemata::parse(text, Path::new("schemata"))
}

#[test]
fn schemata_of_the_kernel_s_documentation() {
    let cdp = "L3DATA:0=fffff;1=fffff;2=3c0;3=fffff\nL3CODE:0=fffff;1=fffff;2=fffff;3=fffff\n";
    let read = parse(cdp).unwrap();
    assert_eq!(read.get("L3DATA", 2), Some(0x3c0));
    assert_eq!(read.ways("L3", 2), 0xfffff);
    // AMD's format, with padding; the unit is 1/8 GB/s.
    let amd = parse("    MB:0=2048;1=  16;2=2048;3=2048\n    L3:0=ffff;1=ffff;2=ffff;3=ffff\n").unwrap();
    assert_eq!(amd.get("MB", 1), Some(16));
    assert_eq!(amd.get("L3", 3), Some(0xffff));
    assert_eq!(parse("L3:uninitialized\n").unwrap(), Schemata::default());
    assert_eq!(parse("L9:0=zz\n").unwrap(), Schemata::default());
}

#[test]
fn what_is_none_is_told_with_its_line() {
    for (text, expected) in [
        ("L3:0=f\nL3", "schemata:2: expected a resource and \":\", found \"L3\""),
        ("L3:0=g", "schemata:1: expected cache=value, found \"0=g\""),
        ("L3:0=-1", "schemata:1: expected cache=value, found \"0=-1\""),
        ("L3:0=+1", "schemata:1: expected cache=value, found \"0=+1\""),
        (
            "L3:0=1ffffffff",
            "schemata:1: expected cache=value, found \"0=1ffffffff\"",
        ),
        ("MB:0=a", "schemata:1: expected cache=value, found \"0=a\""),
        (
            "L3:0=1;0=2",
            "schemata:1: expected each cache once, found \"L3:0=1;0=2\"",
        ),
        (
            "L3:0=1\nL3:1=2",
            "schemata:2: expected each resource once, found \"L3:1=2\"",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), expected);
    }
}

#[test]
fn usage_of_the_kernel_s_documentation() {
    let usage = parse_bit_usage("0=SSSSSSEE;1=SSSSSS00\n", Path::new("bit_usage")).unwrap();
    assert_eq!(usage[&0][..3], [Use::Exclusive, Use::Exclusive, Use::Programs]);
    assert_eq!(usage[&1][..3], [Use::Nobody, Use::Nobody, Use::Programs]);
    for wrong in ["0", "0=", "0=Q", "x=S", "0=S;0=S", &format!("0={}", "S".repeat(33))] {
        assert!(parse_bit_usage(wrong, Path::new("bit_usage")).is_err(), "{wrong}");
    }
}

#[test]
fn lists_of_cores() {
    let parse = |text| parse_cores(text, Path::new("cpus_list"));
    assert_eq!(parse("0-2,5\n").unwrap(), [0, 1, 2, 5]);
    assert_eq!(parse("\n").unwrap(), []);
    for wrong in ["2-1", "a", "0-4294967295", "1--2"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_in_one_line(text: String) {
        let path = Path::new("file");
        let errors = [
            parse(&text).err(),
            parse_bit_usage(&text, path).err(),
            parse_cores(&text, path).err(),
            parse_tasks(&text, path).err(),
            parse_number(&text, 16, path).err(),
        ];
        for error in errors.into_iter().flatten() {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn near_schemata(text in "(L3|L3CODE|MB|L2|Q):([0-9a-f=; ]{0,12}|0=[0-9a-f]{1,9};1=f)\n?") {
        if let Ok(read) = parse(&text) {
            prop_assert_eq!(parse(&read.to_text()).unwrap().within(&read), read.within(&read));
        }
    }

    #[test]
    fn what_is_written_is_read_back(values in proptest::collection::btree_map(
        prop_oneof![Just("L3"), Just("L2CODE"), Just("L2DATA"), Just("MB"), Just("SMBA")],
        proptest::collection::btree_map(any::<u32>(), any::<u32>(), 1..5),
        0..5,
    )) {
        let resources = values.into_iter().map(|(name, values)| (name.to_owned(), values)).collect();
        let schemata = Schemata { resources };
        prop_assert_eq!(parse(&schemata.to_text()).unwrap(), schemata);
    }
}
