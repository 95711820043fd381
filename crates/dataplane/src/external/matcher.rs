//! Matching of returned packets to packets sent to an external function.
//!
//! Sans-I/O: packets and times are inputs. A packet is identified by its [`Fingerprint`]. Among several with the same
//! one, the one sent first is taken.

use super::fingerprint::Fingerprint;
use super::table::Table;
use tailwater_net::Nanos;

/// Packet sent to an external function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// Arrival at the chain.
    pub arrival: Nanos,
    /// Transmission time.
    pub sent: Nanos,
    /// Packet number, restored when it comes back.
    pub number: u16,
}

/// Classification of a packet received from an external function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// This packet, in time.
    Known(Outside),
    /// A packet that has timed out.
    Late,
    /// Not a packet that was sent: created by the function, or changed beyond recognition.
    Own,
}

/// Outstanding packets, bounded in number, and as many of those that timed out last.
#[derive(Debug)]
pub struct Matcher {
    outside: Table<Outside>,
    /// Timed-out packets, with the time they timed out.
    given_up: Table<Nanos>,
    timeout: Nanos,
}

/// Time a timed-out packet is remembered, as a multiple of the timeout.
const REMEMBERED: u64 = 8;

impl Matcher {
    /// For up to `most` outstanding packets, each with the given timeout.
    pub fn new(most: u32, timeout: Nanos) -> Matcher {
        Matcher {
            outside: Table::new(most),
            given_up: Table::new(most),
            timeout,
        }
    }

    /// Maximum time a packet may be outstanding.
    pub fn timeout(&self) -> Nanos {
        self.timeout
    }

    /// Number of outstanding packets.
    pub fn outside(&self) -> usize {
        self.outside.len()
    }

    /// Returns `true` if `packets` more packets may be sent.
    #[inline]
    pub fn has_room_for(&self, packets: usize) -> bool {
        self.outside.has_room_for(packets)
    }

    /// Adds a sent packet. Returns `true` if there was room.
    #[inline]
    pub fn send(&mut self, fingerprint: Fingerprint, packet: Outside) -> bool {
        self.outside.add(fingerprint, packet)
    }

    /// Times out packets that have been outstanding for too long. Returns their number.
    #[inline]
    pub fn give_up(&mut self, now: Nanos) -> u64 {
        let mut count = 0;
        while let Some(oldest) = self.outside.oldest()
            && now.saturating_sub(oldest.sent) >= self.timeout
        {
            self.give_up_oldest(now);
            count += 1;
        }
        let long = Nanos(self.timeout.0.saturating_mul(REMEMBERED));
        while let Some(since) = self.given_up.oldest()
            && now.saturating_sub(since) >= long
        {
            self.given_up.take_oldest();
        }
        count
    }

    /// Times out all outstanding packets. Returns their number.
    pub fn give_up_all(&mut self, now: Nanos) -> u64 {
        let count = self.outside.len();
        (0..count).for_each(|_| self.give_up_oldest(now));
        count as u64
    }

    fn give_up_oldest(&mut self, now: Nanos) {
        if let Some((fingerprint, _)) = self.outside.take_oldest() {
            if !self.given_up.has_room_for(1) {
                self.given_up.take_oldest();
            }
            self.given_up.add(fingerprint, now);
        }
    }

    /// Classifies a returned packet. Call [`give_up`](Matcher::give_up) before.
    #[inline]
    pub fn back(&mut self, fingerprint: Fingerprint) -> Back {
        if let Some(packet) = self.outside.take(fingerprint) {
            Back::Known(packet)
        } else if self.given_up.take(fingerprint).is_some() {
            Back::Late
        } else {
            Back::Own
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Oracle: lists searched from front to back.
    struct Naive {
        outside: Vec<(u64, Outside)>,
        given_up: Vec<(u64, Nanos)>,
        most: usize,
        timeout: Nanos,
    }

    impl Naive {
        fn give_up(&mut self, now: Nanos) -> u64 {
            let old = |packet: &Outside| now.0 - packet.sent.0 >= self.timeout.0;
            let gone: Vec<_> = self.outside.extract_if(.., |(_, packet)| old(packet)).collect();
            let count = gone.len() as u64;
            self.given_up.extend(gone.into_iter().map(|(print, _)| (print, now)));
            let over = self.given_up.len().saturating_sub(self.most);
            self.given_up.drain(..over);
            self.given_up.retain(|(_, since)| now.0 - since.0 < 8 * self.timeout.0);
            count
        }

        fn back(&mut self, print: u64) -> Back {
            if let Some(place) = self.outside.iter().position(|(other, _)| *other == print) {
                return Back::Known(self.outside.remove(place).1);
            }
            match self.given_up.iter().position(|(other, _)| *other == print) {
                Some(place) => {
                    self.given_up.remove(place);
                    Back::Late
                }
                None => Back::Own,
            }
        }
    }

    proptest! {
        #[test]
        fn it_matches_as_plain_lists_do(
            most in 1u32..10,
            timeout in 1u64..50,
            steps in prop::collection::vec((0u64..12, any::<bool>(), 0u64..6), 0..400),
        ) {
            let timeout = Nanos(timeout);
            let mut matcher = Matcher::new(most, timeout);
            let most = most as usize;
            let mut naive = Naive { outside: vec![], given_up: vec![], most, timeout };
            let (mut sent, mut back) = (0u64, [0u64; 3]);
            let mut now = Nanos::ZERO;
            let mut given_up = 0;
            for (number, (step, backward, later)) in steps.into_iter().enumerate() {
                now += Nanos(later);
                let count = matcher.give_up(now);
                prop_assert_eq!(count, naive.give_up(now));
                given_up += count;
                let print = step % 6;
                if step < 6 {
                    let packet = Outside { arrival: Nanos(number as u64), sent: now, number: u16::from(backward) };
                    let room = naive.outside.len() < most;
                    prop_assert_eq!(matcher.has_room_for(1), room);
                    prop_assert_eq!(matcher.send(Fingerprint(print), packet), room);
                    if room {
                        naive.outside.push((print, packet));
                        sent += 1;
                    }
                } else {
                    let found = matcher.back(Fingerprint(print));
                    prop_assert_eq!(found, naive.back(print));
                    back[match found { Back::Known(_) => 0, Back::Late => 1, Back::Own => 2 }] += 1;
                    if let Back::Known(packet) = found {
                        prop_assert!(now.saturating_sub(packet.sent) < timeout);
                    }
                }
                // Every packet is accounted for once.
                prop_assert_eq!(sent, back[0] + given_up + matcher.outside() as u64);
                prop_assert!(back[1] <= given_up);
            }
            prop_assert_eq!(matcher.give_up_all(now), naive.outside.len() as u64);
            prop_assert_eq!(matcher.outside(), 0);
        }
    }

    #[test]
    fn a_packet_sent_again_is_not_taken_for_the_one_given_up() {
        let mut matcher = Matcher::new(4, Nanos(10));
        let packet = |sent| Outside {
            arrival: Nanos(sent),
            sent: Nanos(sent),
            number: 0,
        };
        assert!(matcher.send(Fingerprint(1), packet(0)));
        assert_eq!(matcher.give_up(Nanos(10)), 1);
        assert!(matcher.send(Fingerprint(1), packet(12)));
        assert_eq!(matcher.back(Fingerprint(1)), Back::Known(packet(12)));
        assert_eq!(matcher.back(Fingerprint(1)), Back::Late);
        assert_eq!(matcher.back(Fingerprint(1)), Back::Own);
    }

    #[test]
    fn nothing_is_allocated_for_a_packet() {
        let mut matcher = Matcher::new(64, Nanos(100));
        let counted = allocation_counter::measure(|| {
            for number in 0..10_000u64 {
                let now = Nanos(number);
                matcher.give_up(now);
                let packet = Outside {
                    arrival: now,
                    sent: now,
                    number: 0,
                };
                matcher.send(Fingerprint(number % 100), packet);
                if number % 3 > 0 {
                    matcher.back(Fingerprint(number % 77));
                }
            }
        });
        assert_eq!(counted.count_total, 0);
    }
}
