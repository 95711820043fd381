//! Rules of one hook: those with a fast pattern, and those without.

use crate::address::AddressSet;
use crate::address_index::AddressIndex;
use crate::buffer::{Buffer, BufferKey};
use crate::port_groups::{GroupSet, PortGroups};
use crate::prefilter::{FastPattern, Group};
use crate::rule::{Direction, Rule, Test};
use crate::signature::{Hook, RuleSetError, Signature};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Rules without a fast pattern.
#[derive(Debug)]
pub(crate) struct Unfiltered {
    plain: Vec<u32>,
    /// Rules on TCP packets by flags; empty at other hooks.
    by_flags: Vec<Vec<u32>>,
    by_source: AddressIndex,
    by_destination: AddressIndex,
}

/// Rules of one hook.
#[derive(Debug)]
pub(crate) struct SignatureGroup {
    /// Prefilters by direction: to the server, to the client.
    pub(crate) groups: [Vec<Group>; 2],
    pub(crate) unfiltered: Unfiltered,
}

/// Flags that index the lists: all except ECE and CWR.
const FLAGS: usize = 0x3f;

/// Returns the fast pattern of a rule, with its buffer.
pub(crate) fn fast_content(rule: &Rule) -> Option<(BufferKey, &[u8])> {
    let parts = rule.parts.iter();
    let contents = parts.flat_map(|part| {
        part.tests.iter().filter_map(|test| match test {
            Test::Content(content) if !content.negated => Some((part.buffer, content)),
            _ => None,
        })
    });
    // Preference: the rule's own choice, then contents of messages, then the longest.
    let best = contents.max_by_key(|(buffer, content)| {
        let of_message = buffer.buffer != Buffer::Payload;
        (content.fast, of_message, content.bytes.len())
    });
    best.map(|(buffer, content)| (buffer, &content.bytes[..]))
}

/// Returns `true` if a rule may match at a hook on bytes of a direction.
fn goes(rule: &Rule, place: Hook, direction: Direction) -> bool {
    let of_place = match place {
        Hook::StreamToServer | Hook::Request | Hook::RequestBody | Hook::ClientHello | Hook::MessageToServer => {
            Some(Direction::ToServer)
        }
        Hook::StreamToClient | Hook::Response | Hook::ResponseBody | Hook::Certificate | Hook::MessageToClient => {
            Some(Direction::ToClient)
        }
        _ => None,
    };
    of_place.is_none_or(|of_place| of_place == direction) && rule.flow.directions().contains(&direction)
}

/// Rules collected for a hook before compilation.
#[derive(Debug, Default)]
pub(crate) struct SignatureGroupBuilder {
    /// By direction (to the server, to the client) and buffer.
    by_buffer: [BTreeMap<BufferKey, Vec<FastPattern>>; 2],
    unfiltered: Vec<u32>,
}

impl SignatureGroupBuilder {
    /// Adds a rule. `ports` is given if the hook has packets of one transport protocol only.
    pub(crate) fn add(&mut self, rule: u32, of: &Rule, place: Hook, ports: Option<&PortGroups>) {
        match fast_content(of) {
            Some((buffer, content)) if place != Hook::FlowStart => {
                for direction in [Direction::ToServer, Direction::ToClient] {
                    if goes(of, place, direction) {
                        let may_match = |ports: &PortGroups| ports.may_match(&of.header, direction);
                        let wanted = &mut self.by_buffer[direction.index()];
                        wanted.entry(buffer).or_default().push(FastPattern {
                            rule,
                            content: content.to_ascii_lowercase(),
                            buffer: 0,
                            ports: ports.map_or(GroupSet::ALL, may_match),
                        });
                    }
                }
            }
            _ => self.unfiltered.push(rule),
        }
    }

    /// Compiles the rules of the hook.
    pub(crate) fn station(
        self,
        place: Hook,
        signatures: &[Signature],
        ports: Option<&PortGroups>,
    ) -> Result<SignatureGroup, RuleSetError> {
        let ports: Vec<(u8, u64)> = ports.map_or(Vec::new(), |ports| ports.all().collect());
        let ready = |wanted: BTreeMap<BufferKey, Vec<FastPattern>>| {
            let groups = together(wanted).into_iter();
            let groups = groups.map(|(buffers, wanted)| Group::new(buffers, wanted, &ports));
            groups.collect::<Result<_, _>>().map_err(RuleSetError)
        };
        let [to_server, to_client] = self.by_buffer;
        Ok(SignatureGroup {
            groups: [ready(to_server)?, ready(to_client)?],
            unfiltered: Unfiltered::new(&self.unfiltered, place, signatures),
        })
    }
}

/// Groups buffers with their fast patterns. Buffers with mostly the same bytes share a search: a body without content
/// coding equals its decoded form.
fn together(mut wanted: BTreeMap<BufferKey, Vec<FastPattern>>) -> Vec<(Vec<BufferKey>, Vec<FastPattern>)> {
    let data = BufferKey::from(Buffer::FileData);
    let mut all = Vec::with_capacity(wanted.len());
    if let Some(mut of_data) = wanted.remove(&data) {
        let mut buffers = vec![data];
        for body in [Buffer::RequestBody, Buffer::ResponseBody].map(BufferKey::from) {
            if let Some(mut of_body) = wanted.remove(&body) {
                of_body.iter_mut().for_each(|one| one.buffer = buffers.len());
                of_data.append(&mut of_body);
                buffers.push(body);
            }
        }
        all.push((buffers, of_data));
    }
    all.extend(wanted.into_iter().map(|(buffer, wanted)| (vec![buffer], wanted)));
    all
}

impl SignatureGroup {
    #[inline]
    pub(crate) fn has_rules(&self) -> bool {
        self.groups.iter().any(|groups| !groups.is_empty()) || !self.unfiltered.is_empty()
    }
}

impl Unfiltered {
    fn new(rules: &[u32], place: Hook, signatures: &[Signature]) -> Unfiltered {
        let mut plain = Vec::new();
        let mut by_flags = match place {
            Hook::PacketTcp => vec![Vec::new(); FLAGS + 1],
            _ => Vec::new(),
        };
        let (mut sources, mut destinations): (Vec<(u32, &AddressSet)>, Vec<_>) = Default::default();
        for &rule in rules {
            let signature = &signatures[rule as usize];
            let header = &signature.rule.header;
            if place == Hook::PacketTcp {
                for (flags, rules) in by_flags.iter_mut().enumerate() {
                    if signature.may_have_flags(flags as u8) {
                        rules.push(rule);
                    }
                }
            } else if place != Hook::FlowStart || header.both_ways {
                plain.push(rule);
            } else if header.source.is_narrow() {
                sources.push((rule, &*header.source));
            } else if header.destination.is_narrow() {
                destinations.push((rule, &*header.destination));
            } else {
                plain.push(rule);
            }
        }
        Unfiltered {
            plain,
            by_flags,
            by_source: AddressIndex::new(&sources),
            by_destination: AddressIndex::new(&destinations),
        }
    }

    /// Returns `true` if a rule applies to packets without payload and with these TCP flags.
    #[inline]
    pub(crate) fn has_for(&self, flags: u8) -> bool {
        let by_flags = self.by_flags.get(usize::from(flags) & FLAGS);
        !self.plain.is_empty() || by_flags.is_some_and(|rules| !rules.is_empty())
    }

    /// Calls `each` on the rules; for a connection's first packet, also on those by source and destination.
    #[inline]
    pub(crate) fn each(&self, ends: Option<[IpAddr; 2]>, flags: u8, mut each: impl FnMut(u32)) {
        let mut all = |rules: &[u32]| rules.iter().for_each(|rule| each(*rule));
        all(&self.plain);
        if let Some(rules) = self.by_flags.get(usize::from(flags) & FLAGS) {
            all(rules);
        }
        if let Some([source, destination]) = ends {
            all(self.by_source.find(source));
            all(self.by_destination.find(destination));
        }
    }

    fn is_empty(&self) -> bool {
        let flags = self.by_flags.iter().all(Vec::is_empty);
        let addresses = self.by_source.is_empty() && self.by_destination.is_empty();
        self.plain.is_empty() && flags && addresses
    }
}
