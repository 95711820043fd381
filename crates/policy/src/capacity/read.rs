//! YAML events with their positions, for a reader with a fixed schema.
//!
//! Nothing is allocated for unexpected content. Aliases, anchors and tags are refused, so neither depth nor aliases can
//! expand a small file.

use super::error::{ProfileError, quoted};
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, StrInput};
use std::borrow::Cow;

/// Part of a document.
pub(super) enum Token<'a> {
    /// Scalar, `plain` if written without quotes.
    Scalar { text: Cow<'a, str>, plain: bool },
    /// Start of a list.
    List,
    /// Start of a map.
    Map,
    /// End of a list or map.
    End,
    /// End of the file.
    Finish,
}

impl Token<'_> {
    /// Returns the token as the end of a sentence: "expected ..., found".
    fn found(&self) -> String {
        match self {
            Token::Scalar { text, plain } if *plain && text.is_empty() => "nothing".to_owned(),
            Token::Scalar { text, .. } => quoted(text),
            Token::List => "a list".to_owned(),
            Token::Map => "a map".to_owned(),
            Token::End | Token::Finish => "the end".to_owned(),
        }
    }
}

/// Reads a document from start to end.
pub(super) struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    file: &'a str,
    /// Field being read, for errors.
    field: String,
    /// Line and column of the last token.
    position: (usize, usize),
    documents: usize,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str, file: &'a str) -> Self {
        Reader {
            parser: Parser::new_from_str(text),
            file,
            field: String::new(),
            position: (0, 0),
            documents: 0,
        }
    }

    /// Sets the field that the following tokens belong to.
    pub fn enter(&mut self, field: impl Into<String>) {
        self.field = field.into();
    }

    /// Returns an error at the position of the last token.
    pub fn error(&self, message: impl Into<String>) -> ProfileError {
        ProfileError::whole_file(self.file, message)
            .at(self.position.0, self.position.1)
            .in_field(&self.field)
    }

    /// Returns the next token.
    ///
    /// # Errors
    /// The file is not YAML, or uses an alias, an anchor, a tag or several documents.
    pub fn next(&mut self) -> Result<Token<'a>, ProfileError> {
        loop {
            let Some(event) = self.parser.next() else {
                return Ok(Token::Finish);
            };
            let (event, span) = event.map_err(|error| {
                let place = error.marker();
                ProfileError::whole_file(self.file, format!("not valid YAML: {}", error.info()))
                    .at(place.line(), place.col() + 1)
            })?;
            self.position = (span.start.line(), span.start.col() + 1);
            if event.tag().is_some() {
                return Err(self.error("expected no tags, found one"));
            }
            let (token, anchor) = match event {
                Event::Scalar(text, style, anchor, _) => {
                    let plain = style == ScalarStyle::Plain;
                    (Token::Scalar { text, plain }, anchor)
                }
                Event::SequenceStart(_, anchor, _) => (Token::List, anchor),
                Event::MappingStart(_, anchor, _) => (Token::Map, anchor),
                Event::SequenceEnd | Event::MappingEnd => (Token::End, 0),
                Event::Alias(anchor) => (Token::Finish, anchor),
                Event::DocumentStart(..) => {
                    self.documents += 1;
                    if self.documents > 1 {
                        return Err(self.error("expected one document, found a second one"));
                    }
                    continue;
                }
                _ => continue,
            };
            if anchor != 0 {
                return Err(self.error("expected no anchors and aliases, found one"));
            }
            return Ok(token);
        }
    }

    /// Reads the start of a map.
    ///
    /// # Errors
    /// The next token is not a map, or cannot be read.
    pub fn map(&mut self, what: &str) -> Result<(), ProfileError> {
        match self.next()? {
            Token::Map => Ok(()),
            token => Err(self.unexpected(what, &token)),
        }
    }

    /// Returns the next key of the current map, or `None` at its end.
    ///
    /// # Errors
    /// The next token is not a scalar, or cannot be read.
    pub fn key(&mut self) -> Result<Option<Cow<'a, str>>, ProfileError> {
        match self.next()? {
            Token::Scalar { text, .. } => Ok(Some(text)),
            Token::End => Ok(None),
            token => Err(self.unexpected("the name of a field", &token)),
        }
    }

    /// Returns a scalar as text.
    ///
    /// # Errors
    /// The next token is not a scalar, or cannot be read.
    pub fn text(&mut self, what: &str) -> Result<Cow<'a, str>, ProfileError> {
        match self.next()? {
            Token::Scalar { text, plain } if !plain || !text.is_empty() => Ok(text),
            token => Err(self.unexpected(what, &token)),
        }
    }

    /// Reads a list whose items are lists of `N` texts. `row` gets each item and returns `None` to reject it.
    ///
    /// # Errors
    /// The list has more than `most` items, an item is not a list of `N` texts, or `row` rejects it.
    pub fn rows<const N: usize>(
        &mut self,
        what: &str,
        most: usize,
        mut row: impl FnMut([Cow<'a, str>; N]) -> Option<()>,
    ) -> Result<(), ProfileError> {
        let list = self.field.clone();
        match self.next()? {
            Token::List => {}
            token => return Err(self.unexpected(&format!("a list of {what}"), &token)),
        }
        for i in 0.. {
            self.field = format!("{list}[{i}]");
            match self.next()? {
                Token::End => break,
                Token::List if i == most => {
                    self.field = list;
                    return Err(self.error(format!("expected at most {most} points, found more")));
                }
                Token::List => {}
                token => return Err(self.unexpected(what, &token)),
            }
            let position = self.position;
            let mut texts = std::array::from_fn(|_| Cow::Borrowed(""));
            for text in &mut texts {
                *text = self.text(what)?;
            }
            match self.next()? {
                Token::End => {}
                token => return Err(self.unexpected(what, &token)),
            }
            let found = format!("[{}]", texts.join(", "));
            if row(texts).is_none() {
                self.position = position;
                return Err(self.error(format!("expected {what}, found {}", quoted(&found))));
            }
        }
        self.field = list;
        Ok(())
    }

    /// Returns the error for an unexpected token.
    pub fn unexpected(&self, what: &str, token: &Token<'_>) -> ProfileError {
        self.error(format!("expected {what}, found {}", token.found()))
    }
}
