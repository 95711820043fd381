//! Reference implementations of both ends, from the format's description alone. They store everything forever and
//! search everywhere for matches. Each interoperates with the real other end, and they agree on missing lines.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Stream bytes by epoch and offset.
#[derive(Default)]
struct PlainDecoder(HashMap<(u64, u64), u8>);

impl PlainDecoder {
    fn decode(&mut self, sent: &[u8]) -> Option<Vec<u8>> {
        assert_eq!(sent[0], 0x10);
        let (regions, length) = (usize::from(sent[1]), number(&sent[2..4]) as usize);
        let (epoch, first) = (number(&sent[4..8]), number(&sent[8..12]) * 64);
        let (mut content, mut literals) = (vec![None; length], sent[16 + 8 * regions..].to_vec());
        for entry in sent[16..16 + 8 * regions].chunks(8) {
            let (at, bytes) = (number(&entry[..2]) as usize, number(&entry[2..4]));
            for i in 0..bytes {
                let byte = self.0.get(&(epoch, first - number(&entry[4..]) + i))?;
                content[at + i as usize] = Some(*byte);
            }
        }
        for byte in content.iter_mut().filter(|byte| byte.is_none()) {
            *byte = Some(literals.remove(0));
        }
        assert!(literals.is_empty());
        let content: Vec<u8> = content.into_iter().flatten().collect();
        let padded = content.iter().copied().chain(std::iter::repeat(0));
        for (at, byte) in padded.take(length.next_multiple_of(64)).enumerate() {
            self.0.insert((epoch, first + at as u64), byte);
        }
        Some(content)
    }
}

/// Everything sent, at its stream offset.
struct PlainEncoder {
    stream: Vec<u8>,
}

impl PlainEncoder {
    /// Returns length and offset of the stream's longest match with the content's start.
    fn longest(&self, content: &[u8]) -> (usize, usize) {
        let same = |from: usize| {
            let pairs = self.stream[from..].iter().zip(content);
            pairs.take_while(|(a, b)| a == b).count()
        };
        let places = 64..self.stream.len();
        places.map(|from| (same(from), from)).max().unwrap_or((0, 0))
    }

    fn encode(&mut self, content: &[u8], epoch: u32) -> Vec<u8> {
        let (mut regions, mut literals) = (Vec::new(), Vec::new());
        let (mut at, mut count) = (0, 0u8);
        while at < content.len() {
            let (length, from) = self.longest(&content[at..]);
            if length < 12 || count == 254 {
                literals.push(content[at]);
                at += 1;
                continue;
            }
            regions.extend((at as u16).to_be_bytes());
            regions.extend((length as u16).to_be_bytes());
            regions.extend(((self.stream.len() - from) as u32).to_be_bytes());
            (at, count) = (at + length, count + 1);
        }
        let line = (self.stream.len() / 64) as u32;
        let mut sent = vec![0x10, count];
        sent.extend((content.len() as u16).to_be_bytes());
        sent.extend(epoch.to_be_bytes());
        sent.extend(line.to_be_bytes());
        let checksum = super::super::checksum::checksum(content, epoch, line);
        sent.extend(checksum.to_be_bytes());
        sent.extend(regions);
        sent.extend(literals);
        self.stream.extend(content);
        self.stream.resize(self.stream.len().next_multiple_of(64), 0);
        sent
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn a_plain_decoder_restores_the_same_and_misses_the_same(
        seed in any::<u64>(), period in 16u16..=128, max_p in any::<bool>(),
        packets in prop::collection::vec((1usize..1500, 0u8..10), 1..250),
    ) {
        let sampling = if max_p { Sampling::MaxP } else { Sampling::SampleByte };
        let mut chance = Chance(seed);
        let files = chance.files();
        let mut near = Near::new(LEAST_CACHE, Fingerprints { sampling, period }, 1);
        let (mut far, mut plain) = (Far::new(LEAST_CACHE), PlainDecoder::default());
        let mut held: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for (length, fate) in packets {
            let content = chance.content(&files, length);
            let sent = near.encode(&content);
            match fate {
                0 => continue,
                1 => {
                    held.push((content, sent));
                    continue;
                }
                _ => {}
            }
            let late = std::mem::take(&mut held);
            for (content, sent) in std::iter::once((content, sent)).chain(late) {
                let expected = plain.decode(&sent);
                prop_assert!(expected.as_ref().is_none_or(|restored| *restored == content));
                match far.decode(&sent) {
                    Ok(restored) => prop_assert_eq!(Some(restored), expected),
                    Err((lost, request)) => {
                        prop_assert_eq!((lost, expected), (Lost::Missing, None));
                        near.apply_request(&request);
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_plain_encoder_makes_is_restored(
        seed in any::<u64>(), lengths in prop::collection::vec(1usize..400, 1..12),
    ) {
        let mut chance = Chance(seed);
        let files: Vec<Vec<u8>> = (0..3).map(|_| chance.bytes(600)).collect();
        let (mut plain, mut far) = (PlainEncoder { stream: vec![0; 64] }, Far::new(LEAST_CACHE));
        for length in lengths {
            let content = chance.content(&files, length);
            let sent = plain.encode(&content, 77);
            prop_assert_eq!(far.decode(&sent).ok(), Some(content));
        }
    }
}

/// Fingerprints miss some of the matches an exhaustive search finds, but not most.
#[test]
fn most_of_what_could_be_saved_is() {
    let mut chance = Chance(30);
    let files: Vec<Vec<u8>> = (0..3).map(|_| chance.bytes(600)).collect();
    for sampling in [Sampling::SampleByte, Sampling::MaxP] {
        let mut near = Near::new(LEAST_CACHE, Fingerprints { sampling, period: 32 }, 1);
        let mut plain = PlainEncoder { stream: vec![0; 64] };
        let (mut content_bytes, mut real, mut best) = (0, 0, 0);
        for _ in 0..12 {
            let content = chance.content(&files, 600);
            content_bytes += content.len();
            real += near.encode(&content).len();
            best += plain.encode(&content, 1).len();
        }
        let (saved, could) = (content_bytes - real, content_bytes - best);
        assert!(saved * 10 > could * 6, "{sampling:?}: {saved} of {could} bytes");
    }
}
