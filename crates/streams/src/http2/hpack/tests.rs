use super::*;
use proptest::prelude::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn fields(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<String>, Unreadable> {
    let mut fields = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    decoder.decode(block, &mut Vec::new(), |name, value| {
        fields.push(format!("{}: {}", text(name), text(value)));
    })?;
    Ok(fields)
}

/// RFC 7541 Appendix C.2.
#[test]
fn single_fields_of_the_rfc_are_decoded() {
    for (hex, expected, size) in [
        (
            "400a637573746f6d2d6b65790d637573746f6d2d686561646572",
            "custom-key: custom-header",
            55,
        ),
        ("040c2f73616d706c652f70617468", ":path: /sample/path", 0),
        ("100870617373776f726406736563726574", "password: secret", 0),
        ("82", ":method: GET", 0),
    ] {
        let mut decoder = Decoder::new();
        assert_eq!(fields(&mut decoder, &bytes(hex)), Ok(vec![expected.to_owned()]));
        assert_eq!(decoder.size(), size);
    }
}

/// RFC 7541 Appendix C.3 and C.4: requests without and with Huffman coding.
#[test]
fn requests_of_the_rfc_are_decoded() {
    let plain = [
        "828684410f7777772e6578616d706c652e636f6d",
        "828684be58086e6f2d6361636865",
        "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
    ];
    let coded = [
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    ];
    let expected = [
        ":method: GET|:scheme: http|:path: /|:authority: www.example.com",
        ":method: GET|:scheme: http|:path: /|:authority: www.example.com|cache-control: no-cache",
        ":method: GET|:scheme: https|:path: /index.html|:authority: www.example.com|custom-key: custom-value",
    ];
    for blocks in [plain, coded] {
        let mut decoder = Decoder::new();
        for ((hex, expected), size) in blocks.iter().zip(expected).zip([57, 110, 164]) {
            assert_eq!(fields(&mut decoder, &bytes(hex)).unwrap().join("|"), expected);
            assert_eq!(decoder.size(), size);
        }
    }
}

/// RFC 7541 Appendix C.5 and C.6: responses with a table of 256 bytes, from which entries are evicted.
#[test]
fn responses_of_the_rfc_are_decoded_and_entries_evicted() {
    let plain = [
        "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e17\
         68747470733a2f2f7777772e6578616d706c652e636f6d",
        "4803333037c1c0bf",
        "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d41\
         53444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
    ];
    let coded = [
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97\
         c8e9ae82ae43d3",
        "4883640effc1c0bf",
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd\
         5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
    ];
    let expected = [
        ":status: 302|cache-control: private|date: Mon, 21 Oct 2013 20:13:21 GMT|location: https://www.example.com",
        ":status: 307|cache-control: private|date: Mon, 21 Oct 2013 20:13:21 GMT|location: https://www.example.com",
        ":status: 200|cache-control: private|date: Mon, 21 Oct 2013 20:13:22 GMT|location: https://www.example.com|\
         content-encoding: gzip|set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
    ];
    for blocks in [plain, coded] {
        let mut decoder = Decoder::new();
        // An update of the table's size to 256.
        assert_eq!(fields(&mut decoder, &bytes("3fe101")), Ok(vec![]));
        for ((hex, expected), size) in blocks.iter().zip(expected).zip([222, 222, 215]) {
            assert_eq!(fields(&mut decoder, &bytes(hex)).unwrap().join("|"), expected);
            assert_eq!(decoder.size(), size);
        }
    }
}

#[test]
fn malformed_blocks_are_refused() {
    for hex in [
        // Index 0, and one behind the table.
        "80",
        "be",
        "ff8001",
        // Numbers without end, or too large.
        "ff",
        "ff80808080808001",
        "7fffffffff7f",
        // Strings longer than the block.
        "40",
        "4005",
        "400561",
        "0003616263",
        // Padding of eight bits, of zeros, and the end of a string within one.
        "0081ff00",
        "00810000",
        "0084ffffffff00",
    ] {
        let result = fields(&mut Decoder::new(), &bytes(hex));
        assert_eq!(result, Err(Unreadable::Malformed), "{hex}");
    }
    // A table of 16,385 bytes.
    assert_eq!(fields(&mut Decoder::new(), &bytes("3fe27f")), Err(Unreadable::TooMuch));
}

/// Appends a field that is added to the table.
fn put(name: &[u8], value: &[u8], coded: bool, out: &mut Vec<u8>) {
    out.push(0x40);
    for text in [name, value] {
        let mut bytes = Vec::new();
        match coded {
            true => huffman::encode(text, &mut bytes),
            false => bytes.extend_from_slice(text),
        }
        let flag = u8::from(coded) << 7;
        match bytes.len() {
            length @ 0..127 => out.push(flag | length as u8),
            length => {
                let rest = length - 127;
                out.extend([flag | 127, rest as u8 & 0x7f | 0x80, (rest >> 7) as u8]);
            }
        }
        out.extend(bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_code_is_decoded(text in prop::collection::vec(any::<u8>(), 0..300)) {
        let (mut coded, mut decoded) = (Vec::new(), Vec::new());
        huffman::encode(&text, &mut coded);
        prop_assert_eq!(huffman::decode(&coded, &mut decoded), Ok(()));
        prop_assert_eq!(decoded, text);
    }

    /// The table holds the newest fields that fit, whatever was added before, and does not grow.
    #[test]
    fn the_table_holds_the_newest_fields(
        texts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..60), 0usize..700, any::<bool>()), 1..40),
    ) {
        let mut decoder = Decoder::new();
        let room = decoder.bytes.capacity();
        let mut known: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for (name, length, coded) in texts {
            let value = vec![b'v'; length];
            let mut block = Vec::new();
            put(&name, &value, coded, &mut block);
            decoder.decode(&block, &mut Vec::new(), |_, _| ()).unwrap();
            known.insert(0, (name, value));
            let mut left = DEFAULT_TABLE;
            for (i, (name, value)) in known.iter().enumerate() {
                let size = name.len() + value.len() + ENTRY;
                let found = decoder.entry(62 + i);
                if size > left {
                    prop_assert!(found.is_err());
                    known.truncate(i);
                    break;
                }
                left -= size;
                prop_assert_eq!(found.unwrap(), (&name[..], &value[..]));
            }
            prop_assert_eq!(decoder.size(), DEFAULT_TABLE - left);
            prop_assert_eq!(decoder.bytes.capacity(), room);
        }
    }

    /// Any bytes: no panic, and memory stays bounded.
    #[test]
    fn any_block_is_decoded_or_refused(block in prop::collection::vec(any::<u8>(), 0..500)) {
        let (mut decoder, mut scratch) = (Decoder::new(), Vec::with_capacity(scratch_for(block.len())));
        let room = scratch.capacity();
        let _ = decoder.decode(&block, &mut scratch, |_, _| ());
        prop_assert!(decoder.size() <= MAX_TABLE && scratch.capacity() == room);
    }
}
