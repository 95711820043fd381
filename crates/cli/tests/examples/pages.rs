//! Commands of the documentation, above all of the tutorial, run in the order of the page in a folder of their own, and
//! their output compared with the page's. Marks of a block, behind its language:
//!
//! | mark | the block |
//! |---|---|
//! | `console` | runs; numbers may differ, and `...` stands for any lines, or any words at a line's end |
//! | `console exact` | runs; numbers, too, are those of the page |
//! | `console background` | starts and goes on; the page shows its first lines |
//! | `text ended` | the lines of the program in the background after SIGINT |
//! | `console dpdk` | runs in programs with this feature |
//! | `console root`, `cluster`, `long` | does not run here: the parser of arguments checks it, as in all pages |
//! | `yaml` behind "`NAME.yaml`:" | is written to this file |

use super::{Folder, PROJECT};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait for a server, or for what it shows.
const PATIENCE: Duration = Duration::from_secs(30);

/// A step of a page.
#[derive(Debug)]
enum Step {
    /// A file with this name and text.
    Write(String, String),
    /// Commands with their output, all of one block.
    Run(Vec<(String, Vec<String>)>, Numbers),
    /// A command that goes on, and its first lines.
    Start(String, Vec<String>),
    /// Lines of the command in the background at its end.
    End(Vec<String>),
}

/// Comparison of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    Exact,
    Any,
}

/// Returns a page's steps.
fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines();
    let mut before = "";
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let Some(marks) = line.trim().strip_prefix("```") else {
            if !line.trim().is_empty() {
                before = line;
            }
            continue;
        };
        // Blocks of list items are indented.
        let body = lines.by_ref().take_while(|line| line.trim() != "```");
        let body: Vec<&str> = body.map(|line| line.get(indent..).unwrap_or_default()).collect();
        let has_feature = !marks.ends_with("dpdk") || cfg!(feature = "dpdk");
        match marks {
            "yaml" if before.ends_with("`:") => {
                let name = before.rsplit('`').nth(1).expect("a name between backticks");
                steps.push(Step::Write(name.to_owned(), body.join("\n") + "\n"));
            }
            "console" | "console exact" | "console dpdk" if has_feature => {
                let numbers = match marks {
                    "console exact" => Numbers::Exact,
                    _ => Numbers::Any,
                };
                steps.push(Step::Run(commands(&body), numbers));
            }
            "console background" => {
                let (command, output) = commands(&body).pop().expect("a command");
                steps.push(Step::Start(command, output));
            }
            "text ended" => steps.push(Step::End(body.into_iter().map(str::to_owned).collect())),
            _ => {}
        }
    }
    steps
}

/// Returns the commands of a block, those after `$ `, and the lines behind each.
fn commands(body: &[&str]) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for line in body {
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => found.push((command.to_owned(), Vec::new())),
            (None, Some((command, output))) => match command.strip_suffix('\\') {
                Some(start) => *command = format!("{start}{}", line.trim_start()),
                None => output.push((*line).to_owned()),
            },
            (None, None) => panic!("{line}: expected a command in front of output"),
        }
    }
    found
}

/// Returns a line's words without bars, and without numbers and their units if these may differ.
fn words(line: &str, numbers: Numbers) -> Vec<String> {
    let is_bar = |c: char| ('\u{2581}'..='\u{259f}').contains(&c);
    let words = line.split_whitespace().filter(|word| !word.chars().all(is_bar));
    if numbers == Numbers::Exact {
        return words.map(str::to_owned).collect();
    }
    let mut found: Vec<String> = Vec::new();
    for word in words {
        let unsigned = word.trim_start_matches(['+', '-']);
        let mut rest = match unsigned.starts_with(|c: char| c.is_ascii_digit()) {
            true => unsigned,
            false => word,
        };
        let mut text = String::new();
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            text.push_str(&rest[..at]);
            rest = rest[at..].trim_start_matches(|c: char| c.is_ascii_digit() || c == ',' || c == '.');
            for unit in ["kpps", "Mpps", "pps", "ns", "us", "ms", "s", "k", "M", "%"] {
                let behind = rest.strip_prefix(unit);
                if let Some(behind) = behind.filter(|rest| !rest.starts_with(|c: char| c.is_ascii_alphabetic())) {
                    rest = behind;
                    break;
                }
            }
            text.push('#');
        }
        text.push_str(rest);
        // A number of units of its own: `5 ms`, `12 %`.
        if found.last().is_some_and(|last| last == "#") && ["ns", "us", "ms", "s", "%", "k", "M"].contains(&&*text) {
            continue;
        }
        // Columns that say whether the objective was met in the last window.
        found.push(match &*text {
            "yes" | "no" | "NO" | "YES" => "yes-or-no".to_owned(),
            _ => text,
        });
    }
    found
}

/// Returns `true` if the lines of a page are those found, with `...` for any.
fn matches(expected: &[Vec<String>], found: &[Vec<String>]) -> bool {
    match expected.split_first() {
        None => found.is_empty(),
        Some((first, rest)) if *first == ["..."] => (0..=found.len()).any(|skipped| matches(rest, &found[skipped..])),
        Some((first, rest)) => found
            .split_first()
            .is_some_and(|(line, others)| is_line(first, line) && matches(rest, others)),
    }
}

/// Returns `true` if a line of the page is the one found, with `...` at its end for any words.
fn is_line(expected: &[String], found: &[String]) -> bool {
    match expected.split_last() {
        Some((last, start)) if last == "..." => found.starts_with(start),
        _ => expected == found,
    }
}

/// Compares output with the page's. Where other programs had the core, the verdict may be worse than the page's, and
/// single lines may differ: the report then says so, and must have the page's sections.
fn compare(expected: &[String], found: &str, numbers: Numbers) -> Result<(), String> {
    let is_notice = |line: &str| line.starts_with("notice: ") || line.starts_with("warning: ");
    let shows_notices = expected.iter().any(|line| is_notice(line));
    let lines: Vec<&str> = found
        .lines()
        .filter(|line| !line.trim().is_empty() && (shows_notices || !is_notice(line)))
        .collect();
    let all = |lines: &mut dyn Iterator<Item = &str>| -> Vec<Vec<String>> {
        let words = lines.map(|line| words(line, numbers));
        words.filter(|words| !words.is_empty()).collect()
    };
    let [page, here] = [
        all(&mut expected.iter().map(String::as_str)),
        all(&mut lines.iter().copied()),
    ];
    let is_disturbed = ["CPU interference", "  descheduled "]
        .iter()
        .any(|sign| found.contains(sign));
    let has_sections = || {
        // First words of the lines that begin at the margin.
        let heads = |lines: &[&str]| -> Vec<String> {
            let tops = lines.iter().filter(|line| !line.starts_with(' '));
            let words = tops.filter_map(|line| line.split_whitespace().next());
            // A conclusion (`different:`) may be another one.
            let sections = words.filter(|word| *word != "..." && !word.ends_with(':'));
            sections.map(str::to_owned).collect()
        };
        let of_page: Vec<&str> = expected.iter().map(String::as_str).collect();
        let mut left = heads(&lines).into_iter();
        let was_missed = of_page.iter().any(|line| line.contains("MISSED: "));
        let in_order = heads(&of_page).into_iter().all(|head| left.any(|other| other == head));
        in_order && (!was_missed || found.contains("MISSED: "))
    };
    match matches(&page, &here) || (is_disturbed && has_sections()) {
        true => Ok(()),
        false => Err(format!("expected\n{}\nfound\n{found}", expected.join("\n"))),
    }
}

/// A page's folder, and its program in the background.
struct Terminal {
    folder: Folder,
    background: Option<Child>,
}

impl Terminal {
    fn new() -> Terminal {
        let folder = Folder::new();
        for name in ["run", "state"] {
            fs::create_dir(folder.path(name)).unwrap();
        }
        symlink(Path::new(PROJECT).join("examples"), folder.path("examples")).unwrap();
        Terminal {
            folder,
            background: None,
        }
    }

    /// A shell that finds the program of this build first.
    fn shell(&self, command: &str) -> Command {
        let programs = Path::new(env!("CARGO_BIN_EXE_tailwater")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(command)
            .current_dir(&self.folder.0)
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("XDG_RUNTIME_DIR", self.folder.path("run"))
            .env("XDG_STATE_HOME", self.folder.path("state"))
            .env("COLUMNS", "130")
            .stdin(Stdio::null());
        shell
    }

    /// Runs a command, and returns standard output and error.
    fn output(&self, command: &str) -> String {
        let output = self.shell(&format!("{{ {command}\n}} 2>&1")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Text that the program in the background has written.
    fn background_text(&self) -> String {
        fs::read_to_string(self.folder.path("background")).unwrap_or_default()
    }

    fn run(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Write(name, text) => {
                self.folder.write(&name, text);
                Ok(())
            }
            Step::Run(commands, numbers) => commands
                .iter()
                .try_for_each(|(command, expected)| self.run_command(command, expected, numbers)),
            Step::Start(command, expected) => {
                let file = File::create(self.folder.path("background")).unwrap();
                let mut shell = self.shell(&format!("exec {command}"));
                shell.stdout(file.try_clone().unwrap()).stderr(file);
                self.background = Some(shell.spawn().unwrap());
                until(|| compare(&expected, &self.background_text(), Numbers::Any))
                    .map_err(|error| format!("{command}: {error}"))
            }
            Step::End(expected) => {
                let mut child = self.background.take().expect("a program in the background");
                let so_far = self.background_text().len();
                let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
                assert!(kill.unwrap().success());
                child.wait().unwrap();
                compare(&expected, &self.background_text()[so_far..], Numbers::Any)
            }
        }
    }

    fn run_command(&self, command: &str, expected: &[String], numbers: Numbers) -> Result<(), String> {
        let once = || compare(expected, &self.output(command), numbers).map_err(|error| format!("{command}: {error}"));
        // A server's figures come with its first window.
        let reads = ["get", "describe", "events", "top", "trace packets"];
        match reads
            .iter()
            .any(|read| command.starts_with(&format!("tailwater {read} ")))
        {
            true => until(once),
            false => once(),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(child) = &mut self.background {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Repeats an attempt until it succeeds, for a bounded time.
fn until(attempt: impl Fn() -> Result<(), String>) -> Result<(), String> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(_) if start.elapsed() < PATIENCE => sleep(Duration::from_millis(50)),
            outcome => return outcome,
        }
    }
}

/// Runs a page, and returns the number of its commands.
fn run_page(name: &str) -> usize {
    let path = Path::new(PROJECT).join("docs").join(name);
    let page = fs::read_to_string(&path).unwrap();
    let mut terminal = Terminal::new();
    let mut count = 0;
    for step in steps(&page) {
        count += match &step {
            Step::Run(commands, _) => commands.len(),
            Step::Start(..) => 1,
            Step::Write(..) | Step::End(_) => 0,
        };
        if let Err(error) = terminal.run(step) {
            panic!("{name}: {error}");
        }
    }
    count
}

#[test]
fn the_first_chain_of_the_tutorial_does_as_its_page_says() {
    let commands = run_page("tutorial/first-chain.md");
    assert!(commands >= 10, "{commands} commands");
}

/// The page's other commands need root, or a cluster.
#[test]
fn the_chain_of_the_rack_in_the_tutorial_runs_on_a_laptop() {
    assert_eq!(run_page("tutorial/from-one-machine-to-three-servers.md"), 1);
}

#[test]
#[cfg(all(feature = "control", feature = "top"))]
fn the_chains_of_a_server_in_the_tutorial_do_as_their_page_says() {
    let commands = run_page("tutorial/ports-and-many-chains.md");
    assert!(commands >= 10, "{commands} commands");
}

/// Other pages: those whose commands take no time.
#[test]
fn commands_of_other_pages_do_as_the_pages_say() {
    for (page, commands) in [
        ("how-to/place-chains.md", 2),
        ("reference/commands/explain-spec.md", 2),
        ("reference/commands/validate.md", 2),
    ] {
        assert_eq!(run_page(page), commands, "{page}");
    }
}

/// A block is not forgotten: pages with marked blocks are in a test.
#[test]
fn pages_with_marked_blocks_are_in_a_test() {
    let here = include_str!("pages.rs");
    let docs = Path::new(PROJECT).join("docs");
    let mut open = vec![docs.clone()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(&docs).unwrap().display().to_string();
                let is_marked = fs::read_to_string(&path).unwrap().contains("```console");
                assert!(!is_marked || here.contains(&format!("\"{name}\"")), "{name}");
            }
        }
    }
}

#[test]
fn output_is_compared_except_for_numbers() {
    let same = |page: &str, found: &str| compare(&[page.to_owned()], found, Numbers::Any).is_ok();
    assert!(same("p99   5.31 us", "p99 1,200 us"));
    assert!(same("P99  4.1ms yes", "P99 900us no"));
    assert!(same("lost +3.4 %", "lost -12 %"));
    assert!(!same("lost 3", "late 3"));
    assert!(!same("SLO MET: 100 %", "SLO MISSED: 100 %"));
    assert!(!same("a", "a\nb"));
    let pages = |page: &[&str], found: &str| {
        let page: Vec<String> = page.iter().map(|line| (*line).to_owned()).collect();
        compare(&page, found, Numbers::Exact).is_ok()
    };
    assert!(pages(&["a 1", "...", "z"], "a 1\nb\nc\nz"));
    assert!(!pages(&["a 1", "...", "z"], "a 2\nb\nz"));
    // Other programs had the core: a worse verdict counts, a better one does not.
    let disturbed = "SLO MISSED: 9 %\nwindows 2\n 2 with CPU interference";
    assert!(pages(&["SLO MET: 100 %", "windows 2"], disturbed));
    assert!(!pages(
        &["SLO MISSED: 9 %", "windows 2"],
        &disturbed.replace("MISSED", "MET")
    ));
}
