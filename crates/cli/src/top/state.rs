//! State of the screen: what is shown, and how keys change it.

use super::sample::{ChainSample, CoreSample, Counters, Rates, Sample};
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use tailwater_net::Nanos;

/// Page of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// All chains.
    Chains,
    /// One chain, by name.
    Chain(String),
    /// All cores.
    Cores,
    /// Events.
    Events,
    /// Keys.
    Help,
}

/// Order of the chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By name.
    Name,
    /// By 99th percentile, compared with the objective.
    Latency,
    /// By offered packets.
    Offered,
    /// By lost packets.
    Lost,
    /// By cores.
    Cores,
}

impl Order {
    const ALL: [Order; 5] = [Order::Name, Order::Latency, Order::Offered, Order::Lost, Order::Cores];

    /// Name, as the screen shows it.
    pub fn name(self) -> &'static str {
        match self {
            Order::Name => "name",
            Order::Latency => "p99/objective",
            Order::Offered => "offered",
            Order::Lost => "lost",
            Order::Cores => "cores",
        }
    }
}

/// Keys that have a meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Character.
    Char(char),
    /// Cursor keys.
    Up,
    /// Down.
    Down,
    /// Left.
    Left,
    /// Right.
    Right,
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Next page.
    Tab,
    /// Deletes a character.
    Backspace,
    /// Ends the program.
    Interrupt,
}

/// Content of the screen, and how it is shown.
#[derive(Debug)]
pub struct State {
    /// Latest sample, or the one that is looked at in a recording.
    pub sample: Sample,
    /// Page.
    pub page: Page,
    /// Order of the chains.
    pub order: Order,
    /// The order is turned round.
    pub is_reversed: bool,
    /// Chains whose names contain this are shown.
    pub filter: String,
    /// The filter is being typed.
    pub is_typing: bool,
    /// Row that is selected.
    pub selected: usize,
    /// New samples are not shown, and a recording stands still.
    pub is_paused: bool,
    /// Why there is no newer sample.
    pub error: Option<String>,
    /// Rates of the chains.
    pub rates: BTreeMap<String, Rates>,
    /// Latest 99th percentiles of the chains, in nanoseconds.
    pub latencies: BTreeMap<String, VecDeque<u64>>,
    /// Share of each core's time, 0 to 1.
    pub busy: BTreeMap<u32, f64>,
    before: BTreeMap<String, Counters>,
    cores_before: (Nanos, Vec<CoreSample>),
    page_before: Page,
}

impl State {
    /// Latencies that are kept of each chain.
    pub const HISTORY: usize = 60;

    /// State that shows a sample.
    pub fn new(sample: Sample) -> State {
        let mut state = State {
            sample: Sample::default(),
            page: Page::Chains,
            order: Order::Name,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            selected: 0,
            is_paused: false,
            error: None,
            rates: BTreeMap::new(),
            latencies: BTreeMap::new(),
            busy: BTreeMap::new(),
            before: BTreeMap::new(),
            cores_before: (Nanos::ZERO, Vec::new()),
            page_before: Page::Chains,
        };
        state.show(sample);
        state
    }

    /// State that shows a sample, and in it the chain of this name, if one is given.
    ///
    /// # Errors
    /// There is no such chain.
    pub fn opened(chain: Option<&str>, sample: &Sample) -> Result<State, String> {
        let mut state = State::new(sample.clone());
        if let Some(name) = chain {
            if !sample.chains.iter().any(|chain| chain.name == name) {
                return Err(format!("there is no chain {name}"));
            }
            state.page = Page::Chain(name.to_owned());
        }
        Ok(state)
    }

    /// Forgets earlier samples, with the rates and latencies that come from them.
    pub fn forget(&mut self) {
        self.rates.clear();
        self.latencies.clear();
        self.busy.clear();
        self.before.clear();
        self.cores_before = (Nanos::ZERO, Vec::new());
    }

    /// Shows a newer sample.
    pub fn show(&mut self, sample: Sample) {
        self.error = None;
        let is_there = |name: &String| sample.chains.iter().any(|chain| chain.name == *name);
        self.rates.retain(|name, _| is_there(name));
        self.latencies.retain(|name, _| is_there(name));
        self.before.retain(|name, _| is_there(name));
        for chain in &sample.chains {
            self.note(chain);
        }
        self.note_cores(&sample);
        self.sample = sample;
        let rows = self.rows();
        self.selected = self.selected.min(rows.saturating_sub(1));
    }

    fn note(&mut self, chain: &ChainSample) {
        let Some(counters) = &chain.counters else {
            return;
        };
        let before = self.before.get(&chain.name);
        // A sample without a new window has no new rates.
        if before.is_some_and(|before| before.at == counters.at) {
            return;
        }
        let nothing = Counters::default();
        let is_same_run = before.is_some_and(|before| before.at < counters.at);
        let before = before.filter(|_| is_same_run).unwrap_or(&nothing);
        if let Some(rates) = counters.since(before) {
            self.rates.insert(chain.name.clone(), rates);
        }
        self.before.insert(chain.name.clone(), counters.clone());
        let latencies = self.latencies.entry(chain.name.clone()).or_default();
        latencies.push_back(chain.latency[1].map_or(0, |latency| latency.0));
        if latencies.len() > State::HISTORY {
            latencies.pop_front();
        }
    }

    fn note_cores(&mut self, sample: &Sample) {
        let (at, before) = &self.cores_before;
        let Some(passed) = sample.at.0.checked_sub(at.0).filter(|passed| *passed > 0) else {
            self.cores_before = (sample.at, sample.cores.clone());
            return;
        };
        if *at > Nanos::ZERO {
            let share = |core: &CoreSample| {
                let before = before.iter().find(|other| other.core == core.core)?;
                Some((
                    core.core,
                    core.busy.0.saturating_sub(before.busy.0) as f64 / passed as f64,
                ))
            };
            self.busy = sample.cores.iter().filter_map(share).collect();
        }
        self.cores_before = (sample.at, sample.cores.clone());
    }

    /// Chains that are shown, in order.
    pub fn chains(&self) -> Vec<&ChainSample> {
        let filter = self.filter.to_lowercase();
        let is_shown = |chain: &&ChainSample| chain.name.to_lowercase().contains(&filter);
        let mut chains: Vec<_> = self.sample.chains.iter().filter(is_shown).collect();
        let most = |of: fn(&ChainSample) -> f64| {
            move |one: &&ChainSample, two: &&ChainSample| of(two).partial_cmp(&of(one)).unwrap_or(Ordering::Equal)
        };
        match self.order {
            Order::Name => {}
            Order::Latency => chains.sort_by(most(|chain| {
                let latency = chain.latency[1].map_or(0, |latency| latency.0);
                latency as f64 / chain.objective.0.max(1) as f64
            })),
            Order::Offered => chains.sort_by(most(|chain| chain.rates.map_or(0.0, |rates| rates[0]))),
            Order::Lost => chains.sort_by(most(|chain| chain.rates.map_or(0.0, |rates| rates[3]))),
            Order::Cores => chains.sort_by(most(|chain| chain.cores.len() as f64 + chain.auxiliary)),
        }
        if self.is_reversed {
            chains.reverse();
        }
        chains
    }

    /// The chain of the page that shows one, while it is there.
    pub fn chain(&self) -> Option<&ChainSample> {
        let Page::Chain(name) = &self.page else {
            return None;
        };
        self.sample.chains.iter().find(|chain| chain.name == *name)
    }

    fn rows(&self) -> usize {
        match self.page {
            Page::Chains => self.chains().len(),
            Page::Cores => self.sample.cores.len(),
            Page::Events => self.sample.events.len(),
            Page::Chain(_) | Page::Help => 0,
        }
    }

    /// Carries out a key. Returns `false` if the program is to end. Left and right, which move in a recording, are the
    /// caller's.
    pub fn press(&mut self, key: Key) -> bool {
        if key == Key::Interrupt {
            return false;
        }
        if self.is_typing {
            match key {
                Key::Char(letter) => self.filter.push(letter),
                Key::Backspace => drop(self.filter.pop()),
                Key::Escape => {
                    self.filter.clear();
                    self.is_typing = false;
                }
                Key::Enter => self.is_typing = false,
                _ => {}
            }
            self.selected = 0;
            return true;
        }
        match key {
            Key::Char('q') => return false,
            Key::Escape if self.page == Page::Chains && self.filter.is_empty() => return false,
            Key::Escape if self.page == Page::Chains => self.filter.clear(),
            Key::Escape | Key::Backspace => {
                let back = if self.page == Page::Help {
                    self.page_before.clone()
                } else {
                    Page::Chains
                };
                self.go(back);
            }
            Key::Char('h' | '?') if self.page == Page::Help => self.go(self.page_before.clone()),
            Key::Char('h' | '?') => {
                self.page_before = self.page.clone();
                self.go(Page::Help);
            }
            Key::Tab => self.go(match self.page {
                Page::Chains | Page::Chain(_) => Page::Cores,
                Page::Cores => Page::Events,
                Page::Events | Page::Help => Page::Chains,
            }),
            Key::Char('1') => self.go(Page::Chains),
            Key::Char('2') => self.go(Page::Cores),
            Key::Char('3') => self.go(Page::Events),
            Key::Char('/') => {
                self.go(Page::Chains);
                self.is_typing = true;
            }
            Key::Char('s') => {
                let at = Order::ALL.iter().position(|order| *order == self.order).unwrap_or(0);
                self.order = Order::ALL[(at + 1) % Order::ALL.len()];
            }
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            Key::Char(' ') => self.is_paused = !self.is_paused,
            Key::Up | Key::Char('k') => self.selected = self.selected.saturating_sub(1),
            Key::Down | Key::Char('j') => self.selected = (self.selected + 1).min(self.rows().saturating_sub(1)),
            Key::Enter => match &self.page {
                Page::Chains => {
                    if let Some(chain) = self.chains().get(self.selected) {
                        self.page = Page::Chain(chain.name.clone());
                    }
                }
                Page::Cores => {
                    // The chains of the core: the first of them is opened.
                    let core = self.sample.cores.get(self.selected);
                    if let Some(name) = core.and_then(|core| core.chains.first()) {
                        self.page = Page::Chain(name.clone());
                    }
                }
                _ => {}
            },
            _ => {}
        }
        true
    }

    fn go(&mut self, page: Page) {
        if self.page != page {
            self.page = page;
            self.selected = 0;
        }
    }
}
