//! Time-stamp counter ticks, converted to nanoseconds and core cycles.

use std::fmt;
use std::time::{Duration, Instant};

/// Duration of a tick.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    /// Nanoseconds per tick.
    pub nanos: f64,
    /// Core cycles per tick, or `None` where they cannot be counted.
    pub cycles: Option<f64>,
}

/// Time span over which ticks are calibrated.
const SPAN: Duration = Duration::from_millis(50);

impl Ticks {
    /// Measures both. Takes 0.1 s.
    pub fn measure() -> Ticks {
        let (start, first) = (Instant::now(), ticks());
        let mut cycles: Option<f64> = None;
        while start.elapsed() < SPAN {
            // The fastest run is the one without interrupts.
            let measured = cycles_per_tick();
            cycles = cycles.zip(measured).map(|(a, b)| a.max(b)).or(cycles).or(measured);
        }
        let (elapsed, last) = (start.elapsed(), ticks());
        Ticks {
            nanos: elapsed.as_nanos() as f64 / (last - first) as f64,
            cycles,
        }
    }
}

impl fmt::Display for Ticks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "counter at {:.3} GHz", 1.0 / self.nanos)?;
        match self.cycles {
            Some(cycles) => write!(f, ", core at {:.3} GHz", cycles / self.nanos),
            None => Ok(()),
        }
    }
}

/// Reads the counter.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; Linux permits it in user mode.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Nanoseconds of the system clock.
#[cfg(not(target_arch = "x86_64"))]
pub fn ticks() -> u64 {
    use std::sync::LazyLock;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

/// Core cycles per tick, from dependent adds that take one cycle each.
#[cfg(target_arch = "x86_64")]
fn cycles_per_tick() -> Option<f64> {
    const TURNS: u64 = 10_000;
    let start = ticks();
    let (mut sum, mut left) = (0_u64, TURNS);
    // Adds of registers: some processors eliminate those of constants. SAFETY: arithmetic in three registers of its
    // own.
    unsafe {
        std::arch::asm!(
            "2:",
            ".rept 32",
            "add {sum}, {one}",
            ".endr",
            "dec {left}",
            "jnz 2b",
            sum = inout(reg) sum,
            one = in(reg) 1_u64,
            left = inout(reg) left,
            options(nomem, nostack),
        );
    }
    let ticks = ticks() - start;
    assert_eq!((sum, left), (TURNS * 32, 0));
    Some((TURNS * 32) as f64 / ticks as f64)
}

#[cfg(not(target_arch = "x86_64"))]
fn cycles_per_tick() -> Option<f64> {
    None
}
