//! Rule under construction: accumulates options and checks their consistency.

use super::problem::Problem;
use crate::buffer::{Buffer, BufferKey};
use crate::rule::{
    App, BufferTests, Content, Direction, Flow, FlowBit, Header, PacketTest, Protocol, Rule, RuleInfo, Test, Threshold,
};

/// Options read so far.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) flow: Flow,
    pub(super) packet: Vec<PacketTest>,
    pub(super) parts: Vec<BufferTests>,
    /// Buffer that further tests belong to; `None` for the payload.
    pub(super) current: Option<BufferKey>,
    /// Last content, as indices of its part and of the test in it.
    pub(super) last: Option<(usize, usize)>,
    pub(super) bits: Vec<FlowBit>,
    pub(super) thresholds: Vec<Threshold>,
    pub(super) silent: bool,
    pub(super) about: RuleInfo,
    pub(super) has_sid: bool,
}

impl Draft {
    /// Returns the index of a buffer's part, which is created if necessary.
    fn part(&mut self, buffer: BufferKey) -> usize {
        let known = self.parts.iter().position(|part| part.buffer == buffer);
        known.unwrap_or_else(|| {
            self.parts.push(BufferTests {
                buffer,
                tests: Vec::new(),
            });
            self.parts.len() - 1
        })
    }

    /// Adds a test of a given buffer.
    pub(super) fn test_of(&mut self, buffer: BufferKey, test: Test) {
        let part = self.part(buffer);
        let tests = &mut self.parts[part].tests;
        if matches!(test, Test::Content(_)) {
            self.last = Some((part, tests.len()));
        }
        tests.push(test);
    }

    /// Adds a test of the current buffer.
    pub(super) fn test(&mut self, test: Test) {
        let buffer = self.current.unwrap_or(BufferKey::PAYLOAD);
        self.test_of(buffer, test);
    }

    /// Returns the content that modifiers apply to.
    pub(super) fn content(&mut self) -> Option<&mut Content> {
        let (part, test) = self.last?;
        match self.parts.get_mut(part)?.tests.get_mut(test)? {
            Test::Content(content) => Some(content),
            _ => None,
        }
    }

    /// Moves the last content to another buffer, for modifiers in the old syntax.
    pub(super) fn move_content(&mut self, buffer: Buffer) -> Result<(), String> {
        let (part, test) = self
            .last
            .take()
            .ok_or("expected a content in front of it, found none")?;
        let test = self.parts[part].tests.remove(test);
        if self.parts[part].tests.is_empty() && part == self.parts.len() - 1 {
            self.parts.pop();
        }
        self.test_of(buffer.into(), test);
        Ok(())
    }

    /// Builds the rule if its options are consistent.
    pub(super) fn finish(mut self, header: Header, end: usize) -> Result<Rule, Problem> {
        if !self.has_sid {
            return Err(Problem::at(end - 1, "expected a sid, found none"));
        }
        self.parts.retain(|part| !part.tests.is_empty());
        for test in self.parts.iter().flat_map(|part| &part.tests) {
            check(test)?;
        }
        self.go_together(&header)?;
        Ok(Rule {
            line: 0,
            header,
            flow: self.flow,
            packet: self.packet,
            parts: self.parts,
            bits: self.bits,
            thresholds: self.thresholds,
            silent: self.silent,
            about: self.about,
        })
    }

    /// Checks that buffers, protocol and direction are compatible.
    fn go_together(&mut self, header: &Header) -> Result<(), Problem> {
        let mut app = match header.protocol {
            Protocol::App(app) => Some(app),
            _ => None,
        };
        let buffers = self.parts.iter().map(|part| part.buffer.buffer);
        for buffer in buffers.clone() {
            match (app, buffer.app()) {
                (Some(App::Smtp | App::Smb | App::Ftp), Some(App::Http)) if buffer == Buffer::FileData => {
                    let name = app.map_or("", App::name);
                    return Err(Problem::unsupported(format!("file.data of {name}")));
                }
                (Some(App::Http1 | App::Http2), Some(App::Http)) => {}
                (Some(one), Some(other)) if one != other => {
                    return Err(Problem::wrong(format!(
                        "a {} rule tests a buffer of {}",
                        one.name(),
                        other.name()
                    )));
                }
                (None, other) => app = other,
                _ => {}
            }
        }
        for direction in buffers.filter_map(Buffer::direction) {
            match self.flow.direction {
                None => self.flow.direction = Some(direction),
                Some(known) if known != direction => {
                    let way = |direction| match direction {
                        Direction::ToServer => "to the server",
                        Direction::ToClient => "to the client",
                    };
                    return Err(Problem::wrong(format!(
                        "a rule for traffic {} tests a buffer of traffic {}",
                        way(known),
                        way(direction)
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Checks that a test can ever hold.
fn check(test: &Test) -> Result<(), Problem> {
    let Test::Content(content) = test else {
        return Ok(());
    };
    let length = content.bytes.len();
    let place = &content.position;
    if place.depth.is_some_and(|depth| (depth as usize) < length) {
        return Err(Problem::wrong(format!(
            "expected a depth of at least the content's {length} bytes, found less"
        )));
    }
    if place.within.is_some_and(|within| i64::from(within) < length as i64) {
        return Err(Problem::wrong(format!(
            "expected a within of at least the content's {length} bytes, found less"
        )));
    }
    Ok(())
}
