//! Drawing of the screen.

use super::columns;
use super::sample::{ChainSample, PortSample, Rates};
use super::state::{Page, State};
use crate::text::short;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, TableState, Wrap};
use tailwater_net::Nanos;

/// Cells of a bar.
const BAR: usize = 20;

/// Width in cells below which tables have fewer columns: a value that is cut lacks its unit.
const NARROW: u16 = 72;

/// Styles, or none where colours are not wanted.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Colours may be used.
    pub has_colours: bool,
}

impl Look {
    fn colour(self, colour: Color) -> Style {
        match self.has_colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    fn good(self) -> Style {
        self.colour(Color::Green)
    }

    fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn dim(self) -> Style {
        self.colour(Color::DarkGray)
    }

    fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}

/// Draws the screen. `position` is the number of a recording's sample, and how many there are.
pub fn draw(frame: &mut Frame<'_>, state: &State, position: Option<(usize, usize)>, look: Look) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(heading(state, position, look), head);
    match &state.page {
        Page::Chains => chains(frame, body, state, look),
        Page::Chain(name) => chain(frame, body, name, state, look),
        Page::Cores => cores(frame, body, state, look),
        Page::Events => events(frame, body, state, look),
        Page::Help => frame.render_widget(help(), body),
    }
    frame.render_widget(footing(state, position.is_some(), look), foot);
}

fn heading(state: &State, position: Option<(usize, usize)>, look: Look) -> Paragraph<'static> {
    let sample = &state.sample;
    let mut title = vec![Span::styled(sample.title.clone(), look.head())];
    if !sample.state.is_empty() {
        title.push(Span::raw(format!("  {}", sample.state)));
    }
    if state.is_paused {
        title.push(Span::styled("  paused", look.bad()));
    }
    let second = match (&state.error, position) {
        (Some(error), _) => Line::styled(error.clone(), look.bad()),
        (None, Some((at, of))) => {
            let filled = (at + 1) * BAR / of.max(1);
            let bar = format!("{}{}", "━".repeat(filled), "─".repeat(BAR - filled));
            Line::raw(format!(
                "{bar}  {:.1} s, step {} of {of}",
                sample.at.as_secs_f64(),
                at + 1
            ))
        }
        (None, None) => {
            let missed = sample.chains.iter().filter(|chain| chain.is_met == Some(false)).count();
            let lost: f64 = sample
                .chains
                .iter()
                .filter_map(|chain| chain.rates)
                .map(|rates| rates[3])
                .sum();
            let offered: f64 = sample
                .chains
                .iter()
                .filter_map(|chain| chain.rates)
                .map(|rates| rates[0])
                .sum();
            let is_bad = missed > 0 || lost > 0.0 || sample.ports.iter().any(|port| port.rate > 0.0);
            let text = format!(
                "{} packets/s offered, {} lost/s, {missed} objectives missed{}",
                short(offered),
                short(lost),
                port_losses(&sample.ports)
            );
            Line::styled(text, if is_bad { look.bad() } else { look.good() })
        }
    };
    Paragraph::new(vec![Line::from(title), second])
}

/// Losses of the ports, of which no chain knows. Those that lose packets now come first.
fn port_losses(ports: &[PortSample]) -> String {
    let mut ports: Vec<&PortSample> = ports.iter().filter(|port| port.lost > 0 || port.rate > 0.0).collect();
    ports.sort_by(|one, two| two.rate.total_cmp(&one.rate));
    let losses = ports.iter().map(|port| {
        let (rate, lost) = (short(port.rate), short(port.lost as f64));
        format!(", port {} loses {rate}/s ({lost} so far)", port.name)
    });
    losses.collect()
}

fn footing(state: &State, is_recorded: bool, look: Look) -> Paragraph<'static> {
    let text = match (state.is_typing, is_recorded) {
        (true, _) => format!("/{}█  Enter keeps the filter, Esc clears it", state.filter),
        (false, true) => "q end  h keys  Tab pages  Enter open  ←/→ step  Space play  s sort  / filter".to_owned(),
        (false, false) => "q end  h keys  Tab pages  Enter open  Space pause  s sort  r reverse  / filter".to_owned(),
    };
    Paragraph::new(Line::styled(text, look.dim()))
}

fn chains(frame: &mut Frame<'_>, area: Rect, state: &State, look: Look) {
    let shown = state.chains();
    let longest = shown.iter().map(|chain| chain.name.chars().count()).max().unwrap_or(0);
    let columns = columns::shown(area.width, u16::try_from(longest).unwrap_or(u16::MAX));
    let mark = |title: &str| {
        let arrow = if state.is_reversed { "▲" } else { "▼" };
        let is_order = match state.order.name() {
            "p99/objective" => title == "P99/OBJECTIVE",
            name => title.eq_ignore_ascii_case(name),
        };
        if is_order {
            format!("{title}{arrow}")
        } else {
            title.to_owned()
        }
    };
    let rows = shown.iter().map(|chain| {
        let rates = state.rates.get(&chain.name);
        let cells = chain_cells(chain, rates, look).into_iter().enumerate();
        let is_shown = |number: usize| columns.iter().any(|(shown, ..)| *shown == number);
        Row::new(cells.filter(|(number, _)| is_shown(*number)).map(|(_, cell)| cell))
    });
    let widths = columns.iter().map(|(number, _, width)| match *number {
        columns::LAST => Constraint::Fill(1),
        _ => Constraint::Length(*width),
    });
    let heads = columns.iter().map(|(_, head, _)| Cell::from(mark(head)));
    let table = Table::new(rows, widths)
        .header(Row::new(heads).style(look.head()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::new().with_selected((!shown.is_empty()).then_some(state.selected));
    frame.render_stateful_widget(table, area, &mut selected);
    if shown.is_empty() {
        let text = if state.sample.chains.is_empty() {
            "no chains"
        } else {
            "no chain has this in its name"
        };
        let below = Rect {
            y: area.y + 1.min(area.height),
            height: area.height.saturating_sub(1),
            ..area
        };
        frame.render_widget(Paragraph::new(text), below);
    }
}

fn chain_cells(chain: &ChainSample, rates: Option<&Rates>, look: Look) -> Vec<Cell<'static>> {
    let per_second = |at: usize| chain.rates.map_or_else(|| "-".to_owned(), |rates| short(rates[at]));
    let is_lossy = chain.rates.is_some_and(|rates| rates[3] > 0.0);
    let met = match chain.is_met {
        Some(true) => Cell::from(Span::styled("yes", look.good())),
        Some(false) => Cell::from(Span::styled("NO", look.bad())),
        None if chain.port_lost > 0 => Cell::from(Span::styled("port", look.bad())),
        None => Cell::from("-"),
    };
    let cause = rates.and_then(|rates| rates.late.first());
    let cause = cause.map_or_else(String::new, |(cause, rate)| format!("{cause} {}/s", short(*rate)));
    let flows = chain.counters.as_ref().and_then(|counters| counters.flows);
    let phase = if chain.phase == "Running" {
        Style::new()
    } else {
        look.bad()
    };
    vec![
        Cell::from(chain.name.clone()),
        Cell::from(Span::styled(chain.phase.clone(), phase)),
        Cell::from(time(chain.latency[0])),
        Cell::from(time(chain.latency[1])),
        Cell::from(of_objective(chain, look)),
        met,
        Cell::from(per_second(0)),
        Cell::from(per_second(2)),
        Cell::from(Span::styled(
            per_second(3),
            if is_lossy { look.bad() } else { Style::new() },
        )),
        Cell::from(numbers(&chain.cores)),
        Cell::from(if chain.auxiliary > 0.0 {
            format!("{:.2}", chain.auxiliary)
        } else {
            "-".to_owned()
        }),
        Cell::from(flows.map_or_else(|| "-".to_owned(), |flows| short(flows as f64))),
        Cell::from(chain.promise.clone()),
        Cell::from(cause),
    ]
}

/// A bar of 8 cells for the share of the objective, with the share beside it.
fn of_objective(chain: &ChainSample, look: Look) -> Line<'static> {
    let Some(latency) = chain.latency[1].filter(|_| chain.objective > Nanos::ZERO) else {
        return Line::raw("-");
    };
    let share = latency.0 as f64 / chain.objective.0 as f64;
    let filled = ((share * 8.0).round() as usize).min(8);
    let style = if share > 1.0 { look.bad() } else { look.good() };
    let share = if share < 9.995 {
        percent(share)
    } else {
        ">999 %".to_owned()
    };
    Line::from(vec![
        Span::styled("█".repeat(filled), style),
        Span::styled("░".repeat(8 - filled), look.dim()),
        Span::raw(format!(" {share}")),
    ])
}

fn chain(frame: &mut Frame<'_>, area: Rect, name: &str, state: &State, look: Look) {
    let Some(chain) = state.chain() else {
        frame.render_widget(Paragraph::new(format!("the server has no chain {name} any more")), area);
        return;
    };
    let nothing = Rates::default();
    let rates = state.rates.get(name).unwrap_or(&nothing);
    let notes = chain.notes.len() as u16;
    let functions = rates.functions.len() as u16;
    let summary = summary(chain, rates, look);
    // On a narrow terminal the last line takes several.
    let summary_lines = summary.iter().map(|line| lines_of(line.width(), area.width)).sum();
    let [top, spark, notes_area, functions_area, counts] = Layout::vertical([
        Constraint::Length(summary_lines),
        Constraint::Length(4),
        Constraint::Length(notes),
        Constraint::Length(if functions > 0 { functions + 2 } else { 0 }),
        Constraint::Min(3),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(summary).wrap(Wrap { trim: true }), top);
    latency_history(frame, spark, state, chain, look);
    let lines: Vec<Line<'_>> = chain
        .notes
        .iter()
        .map(|note| Line::styled(note.clone(), look.bad()))
        .collect();
    frame.render_widget(Paragraph::new(lines), notes_area);
    if functions > 0 {
        function_table(frame, functions_area, rates, look);
    }
    let halves = [Constraint::Fill(1), Constraint::Fill(1)];
    let [late, reasons] = match area.width < NARROW {
        true => Layout::vertical(halves).areas(counts),
        false => Layout::horizontal(halves).areas(counts),
    };
    frame.render_widget(counted("LATE OR LOST, BY CAUSE", &rates.late, look), late);
    frame.render_widget(
        counted("DROPPED, LOST, UNUSUAL, BY REASON", &rates.reasons, look),
        reasons,
    );
}

/// Lines that a text of `text` cells takes at most, broken between words.
fn lines_of(text: usize, width: u16) -> u16 {
    let width = usize::from(width.max(1));
    let lines = text.div_ceil(width).max(1);
    (lines + usize::from(lines > 1)) as u16
}

fn summary(chain: &ChainSample, rates: &Rates, look: Look) -> Vec<Line<'static>> {
    let [offered, delivered, dropped, lost] = chain.rates.unwrap_or_default();
    let flows = chain.counters.as_ref().and_then(|counters| counters.flows);
    let verdict = match chain.is_met {
        Some(true) => Span::styled("met", look.good()),
        Some(false) => Span::styled("MISSED", look.bad()),
        None if chain.port_lost > 0 => Span::styled("unknown, its port loses packets", look.bad()),
        None => Span::raw("no verdict"),
    };
    let [p50, p99] = chain.latency.map(time);
    let promise = if chain.promise.is_empty() {
        String::new()
    } else {
        format!(", promise: {}", chain.promise)
    };
    let flows = flows.map_or_else(String::new, |flows| format!(", {} flows", short(flows as f64)));
    vec![
        Line::from(vec![
            Span::styled(chain.name.clone(), look.head()),
            Span::raw(format!("  {}{promise}{flows}", chain.phase)),
        ]),
        Line::from(vec![
            Span::raw(format!("p50 {p50}  p99 {p99}  objective {}: ", chain.objective)),
            verdict,
        ]),
        Line::raw(format!(
            "packets/s: {} offered, {} delivered, {} dropped, {} lost, {} on auxiliary cores; {:.1} preemptions/s; \
             cores {}",
            short(offered),
            short(delivered),
            short(dropped),
            short(lost),
            short(rates.to_auxiliary),
            rates.preemptions,
            numbers(&chain.cores),
        )),
    ]
}

fn latency_history(frame: &mut Frame<'_>, area: Rect, state: &State, chain: &ChainSample, look: Look) {
    let latencies: Vec<u64> = state
        .latencies
        .get(&chain.name)
        .into_iter()
        .flatten()
        .copied()
        .collect();
    let [label, line] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let most = latencies.iter().copied().max().unwrap_or(0).max(chain.objective.0);
    let text = format!(
        "p99 of the last {} windows seen; a full bar is {}",
        latencies.len(),
        Nanos(most)
    );
    frame.render_widget(Paragraph::new(Line::styled(text, look.dim())), label);
    let is_late = latencies.iter().any(|latency| *latency > chain.objective.0);
    let spark = Sparkline::default()
        .data(&latencies)
        .max(most.max(1))
        .style(if is_late { look.bad() } else { look.good() });
    frame.render_widget(spark, line);
}

fn function_table(frame: &mut Frame<'_>, area: Rect, rates: &Rates, look: Look) {
    let total: f64 = rates.functions.iter().map(|function| function.cores).sum();
    let is_narrow = area.width < NARROW;
    let shown = |number: usize| !is_narrow || [0, 3, 5].contains(&number);
    let rows = rates.functions.iter().map(|function| {
        let share = if total > 0.0 { function.cores / total } else { 0.0 };
        let cells = [
            function.name.clone(),
            short(function.packets),
            short(function.dropped),
            function
                .nanos
                .map_or_else(|| "-".to_owned(), |nanos| format!("{nanos:.0} ns")),
            format!("{:.3}", function.cores),
            match is_narrow {
                true => percent(share),
                false => format!(
                    "{} {}",
                    "█".repeat((share * BAR as f64).round() as usize),
                    percent(share)
                ),
            },
        ];
        Row::new(only(cells, shown))
    });
    let widths = [
        Constraint::Length(if is_narrow { 16 } else { 20 }),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(7),
        Constraint::Fill(1),
    ];
    let heads = [
        "FUNCTION",
        "PACKETS/S",
        "DROPPED/S",
        "PER PACKET",
        "CORES",
        if is_narrow { "SHARE" } else { "SHARE OF THE CHAIN" },
    ];
    frame.render_widget(
        Table::new(rows, only(widths, shown)).header(Row::new(only(heads, shown)).style(look.head())),
        area,
    );
}

/// Items of the columns that are shown.
fn only<T, const N: usize>(items: [T; N], shown: impl Fn(usize) -> bool) -> Vec<T> {
    let numbered = items.into_iter().enumerate();
    numbered
        .filter(|(number, _)| shown(*number))
        .map(|(_, item)| item)
        .collect()
}

fn counted(head: &str, counts: &[(String, f64)], look: Look) -> Paragraph<'static> {
    let lines = counts
        .iter()
        .map(|(name, rate)| Line::raw(format!("{:>9}/s  {name}", short(*rate))));
    let none = counts.is_empty().then(|| Line::styled("          none", look.dim()));
    Paragraph::new(
        [Line::styled(head.to_owned(), look.head())]
            .into_iter()
            .chain(lines)
            .chain(none)
            .collect::<Vec<_>>(),
    )
}

fn cores(frame: &mut Frame<'_>, area: Rect, state: &State, look: Look) {
    // An auxiliary core is lent to whoever is behind: those that have used one lately.
    let borrowers: Vec<String> = state
        .rates
        .iter()
        .filter(|(_, rates)| rates.to_auxiliary > 0.0)
        .map(|(name, rates)| format!("{name} {}/s", short(rates.to_auxiliary)))
        .collect();
    let shown = |number: usize| area.width >= NARROW || number != 3;
    let rows = state.sample.cores.iter().map(|core| {
        let busy = state.busy.get(&core.core).copied();
        let bar = busy.map_or_else(String::new, |busy| {
            let filled = ((busy * BAR as f64).round() as usize).min(BAR);
            format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled))
        });
        let (role, chains) = match core.is_auxiliary {
            true if borrowers.is_empty() => ("auxiliary", "lent to nobody".to_owned()),
            true => ("auxiliary", format!("lent to {}", borrowers.join(", "))),
            false => ("dedicated", core.chains.join(", ")),
        };
        let share = busy.map_or_else(|| "-".to_owned(), percent);
        let style = if busy.is_some_and(|busy| busy > 0.9) {
            look.bad()
        } else {
            look.good()
        };
        let cells = [
            Cell::from(core.core.to_string()),
            Cell::from(role),
            Cell::from(Span::styled(share, style)),
            Cell::from(Span::styled(bar, style)),
            Cell::from(core.chains.len().to_string()),
            Cell::from(chains),
        ];
        Row::new(only(cells, shown))
    });
    let widths = [
        Constraint::Length(5),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Length(BAR as u16),
        Constraint::Length(7),
        Constraint::Fill(1),
    ];
    let heads = ["CORE", "ROLE", "BUSY", "", "CHAINS", ""];
    let table = Table::new(rows, only(widths, shown))
        .header(Row::new(only(heads, shown)).style(look.head()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::new().with_selected((!state.sample.cores.is_empty()).then_some(state.selected));
    frame.render_stateful_widget(table, area, &mut selected);
}

fn events(frame: &mut Frame<'_>, area: Rect, state: &State, look: Look) {
    let is_narrow = area.width < NARROW;
    // The latest one first.
    let rows = state.sample.events.iter().rev().map(|event| {
        let style = if event.is_warning { look.bad() } else { Style::new() };
        // Without the day.
        let time = event.time.get(11..19).filter(|_| is_narrow).unwrap_or(&event.time);
        Row::new(vec![time.to_owned(), event.chain.clone(), event.text.clone()]).style(style)
    });
    let [time, chain] = if is_narrow { [8, 10] } else { [20, 20] };
    let widths = [Constraint::Length(time), Constraint::Length(chain), Constraint::Fill(1)];
    let table = Table::new(rows, widths)
        .header(Row::new(["TIME", "CHAIN", "EVENT"]).style(look.head()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::new().with_selected((!state.sample.events.is_empty()).then_some(state.selected));
    frame.render_stateful_widget(table, area, &mut selected);
}

fn help() -> Paragraph<'static> {
    Paragraph::new(
        "\
q, Ctrl-C       end
Tab, 1 2 3      chains, cores, events
Enter           open the chain that is selected, or the first one of a core
Esc             back
Up Down, k j    select
s, r            next order of the chains; reverse it
/               show chains with these letters in their names
Space           pause, or play a recording
Left Right      one step in a recording

P99/OBJECTIVE   99th percentile of latency in the last window, compared with the objective
LATE MOSTLY FOR the cause of most late and lost packets since the last look
PER PACKET      time of the function for a packet, from one batch in 64
CORES           of a function: seconds on a core, per second",
    )
}

fn time(time: Option<Nanos>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| time.to_string())
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Numbers, with ranges where they follow each other.
fn numbers(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let parts = parts.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    parts.collect::<Vec<_>>().join(",")
}
