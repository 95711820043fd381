//! Tests with published packets, compared to the byte.

use super::super::sealer::Sealer;
use super::*;
use tailwater_net::FlowKey;
use tailwater_net::builder::FrameBuilder;

/// Asserts that sealing gives the published bytes and opening gives back the text.
fn assert_sealed(keying: &Keying, (spi, sequence, extended): (u32, u64, bool), iv: &str, text: &str, sealed: &str) {
    let sealer = Sealer::new(keying, extended).unwrap();
    let iv: [u8; 8] = hex(iv).try_into().unwrap();
    let (text, expected) = (hex(text), hex(sealed));
    let mut found = [&text[..], &[0; 16]].concat();
    let (body, icv) = found.split_last_chunk_mut().unwrap();
    sealer.seal(spi, sequence, iv, body, icv).unwrap();
    assert_eq!(found, expected);
    sealer.open(spi, sequence, iv, &mut found).unwrap();
    assert_eq!(found[..text.len()], text);
    // Any other header fails authentication.
    for (spi, sequence) in [(spi ^ 1, sequence), (spi, sequence ^ 1)] {
        let mut forged = expected.clone();
        assert_eq!(sealer.open(spi, sequence, iv, &mut forged), None);
    }
    if extended {
        let mut forged = expected;
        assert_eq!(sealer.open(spi, sequence ^ 1 << 32, iv, &mut forged), None);
    }
}

/// Vectors of draft-mcgrew-gcm-test-01 §4: 128-bit key, extended sequence numbers.
#[test]
fn aes_128_gcm_with_extended_numbers() {
    let key = hex("4c80cdefbb5d10da906ac73c3613a634 2e443b68");
    assert_sealed(
        &Keying::new(Cipher::Aes128Gcm, key).unwrap(),
        (0x4321, 0x8765_4321_0000_0000, true),
        "4956ed7e3b244cfe",
        "45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000\
         00000000045f736970045f756470037369700963796265726369747902646b00\
         0021000101020201",
        "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34\
         cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247aeabb786b93bce\
         61bc17d768fd9732459018148f6cbe722fd04796562dfdb4",
    );
}

/// Vectors of draft-mcgrew-gcm-test-01 §4: 256-bit key.
#[test]
fn aes_256_gcm() {
    let key = hex("abbccddef00112233445566778899aababbccddef00112233445566778899aab 11223344");
    assert_sealed(
        &Keying::new(Cipher::Aes256Gcm, key).unwrap(),
        (0x4a2c_bfe3, 2, false),
        "0102030405060708",
        "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee000000000\
         7002400020bf0000020405b40101040201020201",
        "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763\
         748a637985771d347f0545659f14e99def842d8eb335f4eecfdbf831824b4c49\
         15956c96",
    );
}

/// RFC 7634, appendix A: a whole ping in a tunnel, both directions.
#[test]
fn chacha20_poly1305_in_a_tunnel() {
    let key = hex("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f a0a1a2a3");
    let association = Association {
        spi: 0x0102_0304,
        keying: Keying::new(Cipher::ChaCha20Poly1305, key).unwrap(),
        ..association(Cipher::ChaCha20Poly1305, false)
    };
    let mut ends = Ends::new(Cipher::ChaCha20Poly1305, false);
    ends.out.association = association.clone();
    ends.out.source = address("203.0.113.153");
    ends.out.destination = address("203.0.113.5");
    ends.out.first = 5;
    ends.back.association = association;
    ends.back.destination = ends.out.destination;
    let ping = hex("45000054a6f200004001e778c6336405c0000205\
         08005b7a3a080000553bec100007362708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\
         202122232425262728292a2b2c2d2e2f3031323334353637");
    let ethernet = hex("020000000002 020000000001 0800");
    let frame = [&ethernet[..], &ping].concat();
    let table = IpsecTable::starting_at(&ends.sending(), 0x1011_1213_1415_1617).unwrap();
    let table = Arc::new(Live::new(table));
    let sent = run(&mut instance(&table), &frame).unwrap();
    let esp = hex("0102030400000005 1011121314151617\
         24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c6\
         14ee8099d52844eb61aa95dfab4c02f72aa71e7c4c4f64c9befe2facc638e8f3\
         cbec163fac469b502773f6fb94e664da9165b82829f641e0\
         76aaa8266b7fb0f7b11b369907e1ad43");
    assert_eq!(sent[..14], ethernet);
    assert_eq!(sent[34..], esp);
    // The outer header equals the RFC's except identification and checksum.
    assert_eq!(sent[14..18], hex("4500008c"));
    assert_eq!(sent[20..24], hex("00004032"));
    assert_eq!(sent[26..34], hex("cb007199cb007105"));
    assert_eq!(run(&mut rig(&ends.receiving()), &sent).unwrap(), frame);
    // With the RFC's outer header everything matches to the last byte.
    let outer = hex("4500008c2345000040 32de5bcb007199cb007105");
    let published = [&ethernet[..], &outer, &esp].concat();
    assert_eq!(run(&mut rig(&ends.receiving()), &published).unwrap(), frame);
}

/// Keys have exactly their cipher's length, and debug output does not show them.
#[test]
fn keys_are_of_their_ciphers_length_and_not_in_debug_output() {
    for cipher in CIPHERS {
        let bytes = cipher.keying_bytes();
        assert_eq!(Keying::new(cipher, vec![7; bytes - 1]), None);
        assert_eq!(Keying::new(cipher, vec![7; bytes + 1]), None);
        let text = format!("{:?}", Keying::new(cipher, vec![7; bytes]).unwrap());
        assert!(text.contains("cipher") && !text.contains('7'), "{text}");
    }
    let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 1, 2);
    let frame = FrameBuilder::new(&key).payload(&[0; 100]).to_vec().unwrap();
    let sent = CIPHERS.map(|cipher| run(&mut rig(&Ends::new(cipher, false).sending()), &frame).unwrap());
    assert!(sent[0] != sent[1] && sent[1] != sent[2] && sent[0] != sent[2]);
}
