//! Ends of turns of a hostile function: it reports its turn done too early or not at all, keeps the core or gives it
//! away, and changes packets and responses whenever it runs again.

use super::{Raw, masks};
use rustix::thread::sched_yield;
use std::time::{Duration, Instant};
use tailwater_sdk::protocol::layout::{MASKS, PacketMasks, slots};

/// Holds the core for this number of milliseconds.
pub(super) fn spin(milliseconds: u64) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(milliseconds) {
        std::hint::spin_loop();
    }
}

/// Sleeps, with the one call for that which the filter permits.
fn sleep(time: Duration) {
    let word = 0u32;
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: time.as_nanos() as i64,
    };
    // SAFETY: the word and the time outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, &raw const word, libc::FUTEX_WAIT, 0, &raw const time) };
}

/// Does what the attack does while no turn of the function is due.
pub(super) fn between_rounds(raw: &Raw, round: u64) {
    match raw.words().0 {
        "spin-between-rounds" => spin(u64::MAX),
        "done-ahead" => raw.slate.set_done(round + 1),
        // It has the core a second time in the round.
        "rewrite" | "rewrite-masks" => change(raw),
        _ => {}
    }
}

/// Ends the turn as the attack requires; as usual, if it requires nothing.
pub(super) fn end_turn(raw: &mut Raw, round: u64) {
    match raw.words().0 {
        "done-and-spin" => {
            raw.slate.set_done(round);
            spin(u64::MAX);
        }
        "yield-for-ever" => loop {
            sched_yield();
        },
        "slow" => {
            spin(9);
            raw.slate.set_done(round);
        }
        "sleep-in-turn" => {
            sleep(Duration::from_micros(100));
            raw.slate.set_done(round);
        }
        "rewrite" | "rewrite-masks" => rewrite(raw, round),
        _ => raw.slate.set_done(round),
    }
}

/// Sleeps and yields until it is behind the others, and reports the turn done in between. It changes packets when it
/// wakes up after that, and when it has the core a second time in the round.
fn rewrite(raw: &mut Raw, round: u64) {
    for _ in 0..3 {
        raw.random ^= raw.random << 13;
        raw.random ^= raw.random >> 7;
        raw.random ^= raw.random << 17;
        let time = Duration::from_nanos(raw.random >> 8 & 0x3fff);
        match raw.random % 4 {
            0 => sleep(time),
            1 => {
                sched_yield();
            }
            2 => raw.slate.set_done(round),
            _ => {}
        }
        // Masks that are wrong at the end of the turn would be an invalid response.
        if raw.slate.done() == round && raw.random % 4 < 2 && raw.words().0 == "rewrite" {
            change(raw);
        }
    }
    raw.slate.set_done(round);
}

/// Gives all frames an odd port, or denies half of them in the masks.
fn change(raw: &Raw) {
    const PORT: usize = 37;
    for word in 0..MASKS {
        let PacketMasks { left, moved } = raw.slate.masks(word);
        if raw.words().0 == "rewrite-masks" {
            raw.slate.set_masks(word, masks(left & 0x5555_5555_5555_5555, moved));
            continue;
        }
        for i in slots(word, left) {
            let at = i * raw.buffer_bytes + usize::from(raw.board.frame_range(i)[0]) + PORT;
            raw.packets.write(at, &[1]);
        }
    }
}
