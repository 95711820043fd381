//! YAML text as a tree whose nodes record their position.
//!
//! The tree keeps the source's spelling. The field that reads a scalar decides on its meaning, so `1.10` stays `1.10`
//! in a label, and an error shows the original text. Size, depth and expansion by aliases are bounded, and the tree is
//! built without recursion.

use crate::error::{SpecError, quoted};
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use std::collections::HashMap;

/// Maximum size of a file in bytes.
pub const MAX_BYTES: usize = 16 << 20;
/// Maximum nesting depth of lists and maps.
const MAX_DEPTH: usize = 32;
/// Maximum number of nodes in a document, after expansion of aliases.
const MAX_NODES: usize = 1 << 20;
/// Maximum size of all scalars in bytes, after expansion of aliases.
const MAX_SCALAR_BYTES: usize = 2 * MAX_BYTES;

/// Scalar, list or map, with its position.
#[derive(Clone, Debug)]
pub struct Node {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Scalar, list, map or nothing.
    pub value: Value,
}

/// Content of a node.
#[derive(Clone, Debug)]
pub enum Value {
    /// Empty, `~` or `null`.
    Null,
    /// Text; `plain` is `true` if it is not quoted (a number is always plain).
    Scalar {
        /// The text, unquoted and unescaped.
        text: Box<str>,
        /// The text stood without quotes.
        plain: bool,
    },
    /// Items in order.
    List(Box<[Node]>),
    /// Keys and values in order, duplicates included.
    Map(Box<[(Node, Node)]>),
}

impl Value {
    fn scalar(text: &str, plain: bool) -> Value {
        if plain && matches!(text, "" | "~" | "null" | "Null" | "NULL") {
            return Value::Null;
        }
        Value::Scalar {
            text: text.into(),
            plain,
        }
    }
}

/// Parses text that holds exactly one YAML document; `None` if it holds none.
///
/// # Errors
/// If the text is not YAML, is too large or too deep, uses tags, or holds several documents.
pub fn parse(text: &str, file: &str) -> Result<Option<Node>, SpecError> {
    if text.len() > MAX_BYTES {
        return Err(too_large(file));
    }
    let mut builder = Builder::new(file);
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax(&error, text, file))?;
        if let Event::DocumentStart(..) = event {
            documents += 1;
            if documents > 1 {
                return Err(builder.error(&span, "expected one document, found a second one"));
            }
        }
        builder.event(event, &span)?;
    }
    Ok(builder.root)
}

/// Creates the error for a file larger than [`MAX_BYTES`].
pub fn too_large(file: &str) -> SpecError {
    larger_than(file, MAX_BYTES)
}

/// Creates the error for a file larger than `most` bytes.
pub fn larger_than(file: &str, most: usize) -> SpecError {
    let limit = most >> 20;
    SpecError::whole_file(file, format!("expected at most {limit} MiB, found a larger file"))
}

/// Converts an error of the YAML parser.
fn syntax(error: &ScanError, text: &str, file: &str) -> SpecError {
    let (line, column) = (error.marker().line(), error.marker().col() + 1);
    // The parser reports a tab in the indentation under various errors; this names the usual cause.
    let tab = text.lines().nth(line.saturating_sub(1)).and_then(|line| {
        let indentation = line.split(|c| c != ' ' && c != '\t').next()?;
        indentation.find('\t')
    });
    match tab {
        Some(tab) => SpecError::whole_file(file, "expected spaces as indentation, found a tab").at(line, tab + 1),
        None => SpecError::whole_file(file, format!("not valid YAML: {}", error.info())).at(line, column),
    }
}

/// Size of a part of a document: number of nodes, and bytes of text.
#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
}

impl Size {
    fn add(&mut self, other: Size) {
        self.nodes += other.nodes;
        self.bytes += other.bytes;
    }
}

/// List or map whose end has not been reached yet.
struct Open {
    line: u32,
    column: u32,
    anchor: usize,
    /// Size of the document in front of it.
    before: Size,
    children: Children,
}

enum Children {
    List(Vec<Node>),
    Map {
        entries: Vec<(Node, Node)>,
        key: Option<Node>,
    },
}

/// Node that an alias refers to.
struct Anchor {
    node: Node,
    size: Size,
    depth: usize,
}

struct Builder<'a> {
    file: &'a str,
    open: Vec<Open>,
    anchors: HashMap<usize, Anchor>,
    /// Size of the document so far, with aliases expanded.
    document: Size,
    /// Size of the copies in `anchors`.
    anchors_size: Size,
    root: Option<Node>,
}

impl<'a> Builder<'a> {
    fn new(file: &'a str) -> Self {
        Builder {
            file,
            open: Vec::new(),
            anchors: HashMap::new(),
            document: Size::default(),
            anchors_size: Size::default(),
            root: None,
        }
    }

    fn error(&self, span: &Span, message: impl Into<String>) -> SpecError {
        let (line, column) = position(span);
        SpecError::whole_file(self.file, message).at(line as usize, column as usize)
    }

    fn event(&mut self, event: Event<'_>, span: &Span) -> Result<(), SpecError> {
        if let Some(tag) = event.tag() {
            let message = format!("expected no tags, found {}", quoted(&tag.original()));
            return Err(self.error(span, message));
        }
        let (line, column) = position(span);
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let size = Size {
                    nodes: 1,
                    bytes: text.len(),
                };
                self.grow(size, span)?;
                let node = Node {
                    line,
                    column,
                    value: Value::scalar(&text, style == ScalarStyle::Plain),
                };
                if anchor != 0 {
                    self.store_anchor(anchor, &node, size, span)?;
                }
                self.push(node);
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(anchor, Children::List(Vec::new()), span)?;
            }
            Event::MappingStart(_, anchor, _) => {
                let entries = Vec::new();
                self.begin(anchor, Children::Map { entries, key: None }, span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(span)?,
            Event::Alias(anchor) => self.alias(anchor, span)?,
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, anchor: usize, children: Children, span: &Span) -> Result<(), SpecError> {
        if self.open.len() == MAX_DEPTH {
            return Err(self.too_deep(span));
        }
        let (line, column) = position(span);
        self.open.push(Open {
            line,
            column,
            anchor,
            before: self.document,
            children,
        });
        self.grow(Size { nodes: 1, bytes: 0 }, span)
    }

    fn end(&mut self, span: &Span) -> Result<(), SpecError> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let value = match open.children {
            Children::List(items) => Value::List(items.into()),
            Children::Map { entries, .. } => Value::Map(entries.into()),
        };
        let node = Node {
            line: open.line,
            column: open.column,
            value,
        };
        if open.anchor != 0 {
            let size = Size {
                nodes: self.document.nodes - open.before.nodes,
                bytes: self.document.bytes - open.before.bytes,
            };
            self.store_anchor(open.anchor, &node, size, span)?;
        }
        self.push(node);
        Ok(())
    }

    /// Stores a copy of an anchored node; its size counts like that of the node itself.
    fn store_anchor(&mut self, anchor: usize, node: &Node, size: Size, span: &Span) -> Result<(), SpecError> {
        self.anchors_size.add(size);
        self.check_size(span)?;
        let anchored = Anchor {
            node: node.clone(),
            size,
            depth: depth(node),
        };
        self.anchors.insert(anchor, anchored);
        Ok(())
    }

    fn alias(&mut self, anchor: usize, span: &Span) -> Result<(), SpecError> {
        let Some(anchored) = self.anchors.get(&anchor) else {
            return Err(self.error(
                span,
                "expected an alias of an earlier value, found an alias of the value that contains it",
            ));
        };
        if self.open.len() + anchored.depth > MAX_DEPTH {
            return Err(self.too_deep(span));
        }
        // The size is checked before the copy is made.
        self.document.add(anchored.size);
        self.check_size(span)?;
        if let Some(anchored) = self.anchors.get(&anchor) {
            let node = anchored.node.clone();
            self.push(node);
        }
        Ok(())
    }

    fn push(&mut self, mut node: Node) {
        match self.open.last_mut().map(|open| &mut open.children) {
            None => self.root = Some(node),
            Some(Children::List(items)) => items.push(node),
            Some(Children::Map { entries, key }) => match key.take() {
                None => *key = Some(node),
                Some(key) => {
                    // The parser detects a missing value only further on; it is reported at the position of its key.
                    if let Value::Null = node.value {
                        (node.line, node.column) = (key.line, key.column);
                    }
                    entries.push((key, node));
                }
            },
        }
    }

    fn grow(&mut self, size: Size, span: &Span) -> Result<(), SpecError> {
        self.document.add(size);
        self.check_size(span)
    }

    fn check_size(&self, span: &Span) -> Result<(), SpecError> {
        let mut total = self.document;
        total.add(self.anchors_size);
        if total.nodes > MAX_NODES || total.bytes > MAX_SCALAR_BYTES {
            let message = format!(
                "expected at most {MAX_NODES} values and {} MiB of text after expanding aliases, \
                 found more",
                MAX_SCALAR_BYTES >> 20
            );
            return Err(self.error(span, message));
        }
        Ok(())
    }

    fn too_deep(&self, span: &Span) -> SpecError {
        let message = format!("expected at most {MAX_DEPTH} levels of nesting, found more");
        self.error(span, message)
    }
}

/// Number of nesting levels of lists and maps, at most [`MAX_DEPTH`].
fn depth(node: &Node) -> usize {
    match &node.value {
        Value::Null | Value::Scalar { .. } => 0,
        Value::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Map(entries) => {
            let children = entries.iter().flat_map(|(key, value)| [key, value]);
            1 + children.map(depth).max().unwrap_or(0)
        }
    }
}

fn position(span: &Span) -> (u32, u32) {
    (span.start.line() as u32, span.start.col() as u32 + 1)
}
