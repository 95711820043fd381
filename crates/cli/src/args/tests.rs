//! Commands in the documentation, parsed as on the command line.

use super::Cli;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use std::fs;
use std::path::{Path, PathBuf};

/// Project's folder.
const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns the files below a folder whose names end so.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns the lines of a page's shell blocks, with continued lines joined; of other blocks, those after a prompt.
fn shell_lines(page: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let (mut block, mut continued) = (None, false);
    for line in page.lines() {
        let line = line.trim();
        if let Some(language) = line.strip_prefix("```") {
            block = match block {
                None => Some(language),
                Some(_) => None,
            };
            continue;
        }
        let Some(language) = block else {
            continue;
        };
        let prompted = line.strip_prefix("$ ");
        let Some(command) = prompted.or((language.split(' ').next() == Some("sh") || continued).then_some(line)) else {
            continue;
        };
        let (part, more) = command.strip_suffix('\\').map_or((command, false), |part| (part, true));
        match lines.last_mut().filter(|_| continued) {
            Some(last) => last.push_str(part),
            None => lines.push(part.to_owned()),
        }
        continued = more;
    }
    lines
}

/// Returns the program's commands in a shell line: without comments, redirections and other programs.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = line.split(" #").next().unwrap_or_default();
    let parts = line.split("&&").flat_map(|part| part.split([';', '|', '&']));
    let commands = parts.filter_map(|part| {
        let part = part.trim().trim_start_matches("sudo ");
        let words = part.strip_prefix("tailwater ")?.split_whitespace();
        let words = words.take_while(|word| *word != ">" && *word != "2>");
        let mut arguments = vec!["tailwater".to_owned()];
        // Words between quotes are one argument.
        let mut quote: Option<char> = None;
        for word in words {
            let text = word.trim_matches(['\'', '"']);
            match (quote, arguments.last_mut()) {
                (Some(_), Some(last)) => {
                    last.push(' ');
                    last.push_str(text);
                }
                _ => arguments.push(text.to_owned()),
            }
            let opens = word
                .chars()
                .next()
                .filter(|first| quote.is_none() && ['\'', '"'].contains(first));
            quote = quote
                .or(opens)
                .filter(|quote| word.len() == 1 || !word.ends_with(*quote));
        }
        Some(arguments)
    });
    commands.collect()
}

/// Every documented command is one that this program accepts. Synopses with brackets are left out.
#[test]
fn documented_commands_are_accepted() {
    let project = Path::new(PROJECT);
    let mut lines: Vec<(PathBuf, String)> = Vec::new();
    let pages = files(&project.join("docs"), ".md");
    for path in pages.into_iter().chain([project.join("README.md")]) {
        let page = fs::read_to_string(&path).expect("a page");
        lines.extend(shell_lines(&page).into_iter().map(|line| (path.clone(), line)));
    }
    let index = project.join("examples/README.md");
    let page = fs::read_to_string(&index).expect("a page");
    let quoted = page
        .lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    lines.extend(quoted.map(|quoted| (index.clone(), quoted.to_owned())));
    for path in files(&project.join("examples"), ".yaml") {
        let spec = fs::read_to_string(&path).expect("a spec");
        let comments = spec.lines().filter_map(|line| line.strip_prefix('#'));
        lines.extend(comments.map(|line| (path.clone(), line.trim().to_owned())));
    }
    let (mut accepted, mut refused) = (0, Vec::new());
    for (path, line) in lines {
        if line.contains(['[', '…', '<']) {
            continue;
        }
        for words in commands(&line) {
            if let Err(error) = Cli::try_parse_from(&words) {
                // A machine may have fewer cores than the command names.
                let is_elsewhere = error.to_string().contains("is not available");
                if error.kind() != ErrorKind::DisplayHelp && !is_elsewhere {
                    refused.push(format!("{}: {}: {error}", path.display(), words.join(" ")));
                }
            }
            accepted += 1;
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(accepted > 100, "{accepted} commands");
}

/// Every command has a page, or is a part of one.
#[test]
fn commands_have_pages() {
    let folder = Path::new(PROJECT).join("docs/reference/commands");
    let pages: Vec<String> = files(&folder, ".md")
        .iter()
        .map(|page| page.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    for command in Cli::command()
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        let name = command.get_name();
        let is_about = |page: &String| page == name || page.starts_with(&format!("{name}-"));
        // Its page is a how-to.
        assert!(
            name == "new-function" || pages.iter().any(is_about),
            "{name} has no page"
        );
    }
}

/// The pages of a server's clients have all their options.
#[test]
fn options_of_clients_are_documented() {
    for name in ["apply", "get", "describe", "delete", "drain", "events", "top"] {
        let page = Path::new(PROJECT).join(format!("docs/reference/commands/{name}.md"));
        let page = fs::read_to_string(page).expect("a page");
        let command = Cli::command();
        let command = command.find_subcommand(name).expect("a command");
        for option in command.get_arguments().filter_map(|argument| argument.get_long()) {
            assert!(page.contains(&format!("--{option}")), "{name}: --{option}");
        }
        assert!(page.contains("Exit codes: 0 "), "{name}");
    }
}

/// A user of the package finds the files that help names, and needs none for the first example.
#[test]
fn help_says_where_its_files_are() {
    let mut program = Cli::command();
    program.build();
    let mut commands = vec![program];
    while let Some(mut command) = commands.pop() {
        let help = command.render_long_help().to_string();
        let names_files = ["docs/", "examples/"].iter().any(|folder| help.contains(folder));
        let name = command.get_name();
        assert!(
            !names_files || help.contains("/usr/share/doc/tailwater"),
            "{name}: {help}"
        );
        assert!(!help.contains("tailwater run examples/"), "{name}: {help}");
        commands.extend(command.get_subcommands().cloned());
    }
}
