//! Scripts of a hostile function: its behaviours, turn by turn. Written as text, so that a failure can be repeated.
//!
//! A script is `PERIOD|PHASE=STEP,STEP|PHASE=STEP...`. In batch `n` the function takes the steps of phase `n % PERIOD`;
//! in a batch without a phase, and after steps that never say done, it responds truthfully. A step is a [`Verb`], with
//! a number after a colon if the verb has one. `restless|` in front: it yields for ever while it waits, instead of
//! sleeping.

use std::fmt;
use std::str::FromStr;

/// Kinds of behaviours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Part of a correct turn.
    Turn,
    /// Permitted.
    Harmless,
    /// Holds the core or waits, within or outside its turn.
    Delay,
    /// Writes frames. Permitted within its turn, on its own frames.
    Write,
    /// Writes its response area, or parts of a response that are not true.
    Lie,
    /// Ends the process, or makes the server end it.
    End,
}

/// Defines the verbs with their names in a script and their classes.
macro_rules! verbs {
    ($($(#[$about:meta])* $verb:ident $name:literal $class:ident;)*) => {
        /// Behaviours. The number is microseconds, KiB, a count or a seed of written bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Verb {
            $($(#[$about])* $verb,)*
        }

        impl Verb {
            pub(crate) const ALL: &[(Verb, &str, Class)] = &[$((Verb::$verb, $name, Class::$class),)*];
        }
    };
}

verbs! {
    /// Writes a truthful response.
    Respond "respond" Turn;
    /// Says that this round's turn is done.
    Done "done" Turn;
    /// Writes the field that belongs to it in its frames.
    Tag "tag" Harmless;
    /// Searches packet memory for bytes that it may not see.
    Search "search" Harmless;
    /// Maps private memory and writes it.
    Map "map" Harmless;
    /// Blocks all signals.
    BlockSignals "block-signals" Harmless;
    /// Writes standard error.
    Stderr "stderr" Harmless;
    /// Sleeps on a futex with a time-out.
    Sleep "sleep" Delay;
    /// Yields that many times.
    Yield "yield" Delay;
    /// Holds the core.
    Spin "spin" Delay;
    /// Writes random bytes into each of its frames.
    WriteOwn "write-own" Write;
    /// Writes a random byte into the headers of each of its frames.
    WriteHeaders "write-headers" Write;
    /// Writes buffers of the batch that are not its own: of dropped packets, and behind the last packet.
    WriteOthers "write-others" Write;
    /// Writes every buffer.
    WriteAll "write-all" Write;
    /// Sets the policy field of its frames to the denied value.
    WriteDenied "write-denied" Write;
    /// Says that an earlier round is done.
    DoneOld "done-old" Lie;
    /// Says that the next round is done.
    DoneNext "done-next" Lie;
    /// Writes random masks.
    Masks "masks" Lie;
    /// Writes its masks as those of another round.
    MasksOld "masks-old" Lie;
    /// Writes random words anywhere in its response area, but not the word that says done.
    Responses "responses" Lie;
    /// A frame longer than its buffer.
    Long "long" Lie;
    /// A frame behind its buffer.
    Beyond "beyond" Lie;
    /// A frame of no bytes.
    Empty "empty" Lie;
    /// All frames have one byte.
    OneByte "one-byte" Lie;
    /// Response words of another round.
    WordsOld "words-old" Lie;
    /// A packet disappears without a drop.
    Vanish "vanish" Lie;
    /// Packets that the function in front dropped come back.
    ComeBack "come-back" Lie;
    /// A packet behind the last one of the batch.
    OneMore "one-more" Lie;
    /// A drop reason that it did not declare.
    Reason "reason" Lie;
    /// Requests a companion, without having declared any.
    Companion "companion" Lie;
    /// Pretends to sleep, so that it is woken in each round.
    PretendAsleep "pretend-asleep" Lie;
    /// Claims that it handled flow ends of the future.
    HandledEnded "handled-ended" Lie;
    /// Sleeps without a time-out.
    SleepForever "sleep-forever" End;
    /// `nanosleep`, which is forbidden.
    Nanosleep "nanosleep" End;
    /// `pause`, which is forbidden.
    Pause "pause" End;
    /// Yields for ever.
    YieldForever "yield-forever" End;
    /// Holds the core for ever.
    SpinForever "spin-forever" End;
    /// Writes the request area.
    WriteRequests "write-requests" End;
    /// Writes behind packet memory.
    WriteBeyond "write-beyond" End;
    /// Exits with this code.
    Exit "exit" End;
    /// Aborts.
    Abort "abort" End;
    /// Writes address 0.
    Crash "crash" End;
    /// Sends itself a signal.
    KillSelf "kill-self" End;
    /// Sends a signal to all processes that it may reach.
    KillAll "kill-all" End;
    /// Forks; parent and child go on.
    Fork "fork" End;
    /// Executes another program.
    Exec "exec" End;
    /// Maps memory that is writable and executable.
    MapExecutable "map-executable" End;
    /// Makes packet memory read-only for itself, then writes it.
    ProtectPackets "protect-packets" End;
    /// Unmaps packet memory, then reads it.
    UnmapPackets "unmap-packets" End;
    /// Moves to another core.
    Affinity "affinity" End;
    /// Raises its priority.
    Priority "priority" End;
    /// Closes its socket to the server.
    Close "close" End;
}

impl Verb {
    fn entry(self) -> &'static (Verb, &'static str, Class) {
        &Verb::ALL[self as usize]
    }

    pub(crate) fn name(self) -> &'static str {
        self.entry().1
    }

    #[allow(dead_code, reason = "used by the tests alone")]
    pub(crate) fn class(self) -> Class {
        self.entry().2
    }
}

/// One behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) verb: Verb,
    /// 0 for none.
    pub(crate) number: u32,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => f.write_str(self.verb.name()),
            number => write!(f, "{}:{number}", self.verb.name()),
        }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Step, String> {
        let (name, number) = text.split_once(':').unwrap_or((text, "0"));
        let entry = Verb::ALL.iter().find(|(_, it, _)| *it == name);
        let &(verb, ..) = entry.ok_or_else(|| format!("expected a behaviour, found {name}"))?;
        let number = number.parse();
        let number = number.map_err(|_| format!("expected a number, found {text}"))?;
        Ok(Step { verb, number })
    }
}

/// Behaviours by batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// `true` if the function never sleeps while it waits for its turn.
    pub(crate) restless: bool,
    pub(crate) period: u32,
    pub(crate) phases: Vec<(u32, Vec<Step>)>,
}

impl Script {
    /// Returns the steps in batch `n`.
    pub(crate) fn steps(&self, n: u32) -> &[Step] {
        let phase = n % self.period;
        let steps = self.phases.iter().find(|(at, _)| *at == phase);
        steps.map_or(&[], |(_, steps)| steps)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.restless {
            f.write_str("restless|")?;
        }
        write!(f, "{}", self.period)?;
        for (phase, steps) in &self.phases {
            let steps: Vec<String> = steps.iter().map(Step::to_string).collect();
            write!(f, "|{phase}={}", steps.join(","))?;
        }
        Ok(())
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Script, String> {
        let number = |text: &str| {
            let number = text.parse::<u32>();
            number.map_err(|_| format!("expected a number, found {text}"))
        };
        let (restless, text) = match text.strip_prefix("restless|") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut parts = text.split('|');
        let period = number(parts.next().unwrap_or(""))?.max(1);
        let phase = |part: &str| {
            let (phase, steps) = part.split_once('=').ok_or("expected PHASE=STEPS")?;
            let steps = steps.split(',').filter(|step| !step.is_empty()).map(str::parse);
            Ok((number(phase)?, steps.collect::<Result<_, String>>()?))
        };
        let phases = parts.map(phase).collect::<Result<_, String>>()?;
        Ok(Script {
            restless,
            period,
            phases,
        })
    }
}

/// Random numbers that a seed determines (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % (end as u64).max(1)) as usize
    }
}
