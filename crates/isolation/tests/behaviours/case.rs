//! Cases: a chain with a hostile function, its script, and the packets. A seed determines a case.

use crate::honest::{Honest, MOST_FUNCTIONS, Role};
use crate::script::{Class, Random, Script, Step, Verb};
use std::fmt;

/// Time that the behaviours of a case may take in all, microseconds.
const SHORT: u64 = 300_000;

/// A case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Seed of the packets.
    pub(crate) seed: u64,
    /// Roles of the honest functions in chain order.
    pub(crate) honest: Vec<Role>,
    /// Index of the hostile function in the chain.
    pub(crate) hostile: usize,
    pub(crate) script: Script,
    /// Most packets of a batch.
    pub(crate) packets: usize,
    /// Batches.
    pub(crate) batches: u32,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chain = (0..self.functions()).map(|k| match self.at(k) {
            Some(honest) => honest.role.to_string(),
            None => "hostile".to_owned(),
        });
        write!(
            f,
            "{}: [{}], {} batches of up to {} packets, script {}",
            self.name,
            chain.collect::<Vec<_>>().join(" "),
            self.batches,
            self.packets,
            self.script
        )
    }
}

impl Case {
    /// Returns a case that is written down. `chain` lists the honest functions' roles, and `hostile`.
    pub(crate) fn written(name: &str, chain: &str, script: &str, packets: usize, batches: u32) -> Case {
        let hostile = chain.split(' ').position(|role| role == "hostile");
        let honest = chain.split(' ').filter(|role| *role != "hostile");
        Case {
            name: name.to_owned(),
            seed: 1,
            honest: honest.map(|role| Role::parse(role).expect("a role")).collect(),
            hostile: hostile.expect("a hostile function"),
            script: script.parse().expect("a script"),
            packets,
            batches,
        }
    }

    /// Returns the case of a seed. `longer` cases take as many times the time of the short form. Of cheap behaviours
    /// they have even more turns.
    pub(crate) fn of_seed(seed: u64, longer: u32) -> Case {
        let mut random = Random(seed);
        let functions = 2 + random.below(MOST_FUNCTIONS - 1);
        let mut role = || Role::ALL[random.below(Role::ALL.len())].0;
        let honest = (1..functions).map(|_| role()).collect();
        let hostile = random.below(functions);
        let packets = [1, 2, 8, 8, 32, 70, 256][random.below(7)];
        let script = script(&mut random);
        let cost = 20 + packets as u64 + nominal_cost(&script);
        let longer = u64::from(longer);
        let most = [100, 1_000, 20_000][random.below(3)] * longer * longer;
        let batches = (longer * SHORT / cost).clamp(20 * longer, most) as u32;
        Case {
            name: format!("seed {seed}"),
            seed,
            honest,
            hostile,
            script,
            packets,
            batches,
        }
    }

    pub(crate) fn functions(&self) -> usize {
        self.honest.len() + 1
    }

    /// Returns the honest function at this index of the chain; `None` for the hostile one.
    pub(crate) fn at(&self, k: usize) -> Option<Honest> {
        let role = match k {
            k if k == self.hostile => return None,
            k if k < self.hostile => self.honest[k],
            k => self.honest[k - 1],
        };
        Some(Honest {
            role,
            position: k,
            checks: k.checked_sub(1) != Some(self.hostile),
            behind: k > self.hostile,
        })
    }

    /// Returns `true` if the hostile function is the last.
    pub(crate) fn is_last(&self) -> bool {
        self.hostile == self.honest.len()
    }

    /// Returns `true` if a function behind the hostile one drops packets that the policy denies.
    pub(crate) fn denies_behind(&self) -> bool {
        self.honest[self.hostile..].contains(&Role::Deny)
    }

    /// Returns `true` if a function in front of the hostile one drops packets that the policy denies.
    pub(crate) fn denies_in_front(&self) -> bool {
        self.honest[..self.hostile].contains(&Role::Deny)
    }

    fn verbs(&self) -> impl Iterator<Item = Step> + '_ {
        self.script.phases.iter().flat_map(|(_, steps)| steps.iter().copied())
    }

    /// Returns `true` if no behaviour changes a frame, except for the function's own field. Frames then leave as
    /// without the function.
    pub(crate) fn changes_no_frame(&self) -> bool {
        self.verbs()
            .all(|step| !matches!(step.verb.class(), Class::Write | Class::Lie))
    }

    /// Returns `true` if every behaviour is permitted: the function must not be accused.
    pub(crate) fn is_harmless(&self) -> bool {
        let order_kept = self.script.phases.iter().all(|(_, steps)| {
            let done = steps.iter().position(|step| step.verb == Verb::Done);
            let responds = steps.iter().position(|step| step.verb == Verb::Respond);
            done.is_none_or(|done| responds.is_some_and(|responds| responds < done))
        });
        let permitted = |step: Step| matches!(step.verb.class(), Class::Turn | Class::Harmless);
        order_kept && !self.script.restless && self.verbs().all(permitted)
    }

    /// Returns `true` if nothing is lost. A process that gets new memory in its turn may have to wait for it, and then
    /// spoils the round, without guilt.
    pub(crate) fn loses_nothing(&self) -> bool {
        self.is_harmless() && self.verbs().all(|step| step.verb != Verb::Map)
    }

    /// Returns `true` if the function holds the core for milliseconds in each turn.
    pub(crate) fn hogs(&self) -> bool {
        let spins = |steps: &[Step]| {
            let done = steps
                .iter()
                .position(|step| step.verb == Verb::Done)
                .unwrap_or(steps.len());
            let spins = steps[..done].iter().filter(|step| step.verb == Verb::Spin);
            spins.map(|step| step.number).sum::<u32>() >= 5_000
        };
        self.script.period == 1 && self.script.phases.iter().any(|(_, steps)| spins(steps))
    }

    /// Returns the cases with one behaviour less.
    pub(crate) fn shrunk(&self) -> Vec<Case> {
        let phases = self.script.phases.iter().enumerate();
        let places = phases.flat_map(|(i, (_, steps))| (0..steps.len()).map(move |j| (i, j)));
        let without = places.map(|(i, j)| {
            let mut case = self.clone();
            case.script.phases[i].1.remove(j);
            case.script.phases.retain(|(_, steps)| !steps.is_empty());
            case
        });
        without.filter(|case| !case.script.phases.is_empty()).collect()
    }
}

/// Returns the mean time of a script's behaviours in a batch, microseconds.
fn nominal_cost(script: &Script) -> u64 {
    let cost = |step: &Step| match (step.verb, step.verb.class()) {
        (Verb::Sleep | Verb::Spin, _) => u64::from(step.number),
        (Verb::Search, _) => 100,
        // Ended, reaped and replaced.
        (_, Class::End) => 50_000,
        (_, Class::Lie) => 3_000,
        _ => 5,
    };
    let sum: u64 = script.phases.iter().flat_map(|(_, steps)| steps.iter().map(cost)).sum();
    sum / u64::from(script.period)
}

/// Draws a script.
fn script(random: &mut Random) -> Script {
    let period = [1, 1, 2, 3, 7, 16, 64, 257][random.below(8)];
    let count = 1 + random.below(3.min(period as usize));
    let mut phases: Vec<(u32, Vec<Step>)> = Vec::new();
    for _ in 0..count {
        let phase = random.below(period as usize) as u32;
        if phases.iter().all(|(other, _)| *other != phase) {
            phases.push((phase, steps(random, period)));
        }
    }
    Script {
        restless: random.below(4) == 0,
        period,
        phases,
    }
}

/// Draws the steps of a turn: some before it responds, between that and done, and afterwards.
fn steps(random: &mut Random, period: u32) -> Vec<Step> {
    let mut steps = Vec::new();
    let plain = |verb| Step { verb, number: 0 };
    let some = |random: &mut Random, steps: &mut Vec<Step>, most: usize| {
        for _ in 0..random.below(most + 1) {
            steps.push(step(random, period));
        }
    };
    some(random, &mut steps, 2);
    if random.below(12) > 0 {
        steps.push(plain(Verb::Respond));
    }
    some(random, &mut steps, 2);
    match random.below(12) {
        0 => {}
        1 => steps.extend([plain(Verb::Done); 2]),
        2 => {
            let at = random.below(steps.len() + 1);
            steps.insert(at, plain(Verb::Done));
        }
        _ => steps.push(plain(Verb::Done)),
    }
    // Behaviours after a turn are often seen only if others ran in between.
    if random.below(2) == 0 {
        steps.push(Step {
            verb: Verb::Yield,
            number: 1 + random.below(3) as u32,
        });
    }
    some(random, &mut steps, 3);
    steps
}

fn step(random: &mut Random, period: u32) -> Step {
    let class = match random.below(100) {
        0..25 => Class::Harmless,
        25..55 => Class::Delay,
        55..78 => Class::Write,
        78..92 => Class::Lie,
        _ => Class::End,
    };
    // A function that ends in every turn shows nothing else.
    let class = match class {
        Class::End if period < 16 => Class::Delay,
        Class::Lie if period < 3 => Class::Write,
        other => other,
    };
    let verbs = Verb::ALL.iter().filter(|(_, _, it)| *it == class);
    let verbs: Vec<Verb> = verbs.map(|(verb, ..)| *verb).collect();
    let verb = verbs[random.below(verbs.len())];
    let mut one_of = |numbers: &[u32]| numbers[random.below(numbers.len())];
    let number = match verb {
        Verb::Sleep => one_of(&[1, 20, 50, 100, 150, 200, 1_000, 5_000]),
        Verb::Yield => one_of(&[1, 1, 2, 3, 8, 40]),
        Verb::Spin => match period {
            0..16 => one_of(&[1, 5, 20, 100, 9_000]),
            _ => one_of(&[1, 20, 100, 1_000, 9_000, 30_000, 150_000]),
        },
        Verb::Map => one_of(&[4, 64, 1024]),
        Verb::Stderr => one_of(&[1, 1, 16]),
        Verb::Exit => one_of(&[0, 7]),
        Verb::KillSelf | Verb::KillAll => one_of(&[9, 15, 19, 11]),
        Verb::Priority => one_of(&[4, 50]),
        Verb::MapExecutable => 4,
        Verb::Reason => one_of(&[0, 1, 255]),
        _ => match verb.class() {
            Class::Write | Class::Lie => one_of(&[0, 1, 2, 3]),
            _ => 0,
        },
    };
    Step { verb, number }
}
