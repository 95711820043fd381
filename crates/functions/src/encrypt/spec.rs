//! Configuration of `encrypt`.

use crate::encrypt::{Direction, EncryptRules};
use crate::kind::Context;
use tailwater_api::error::SpecError;
use tailwater_api::files::read_text;
use tailwater_api::located::Located;
use tailwater_api::schema::{FILE, Field, Map, Rule, Text, Type};
use tailwater_api::values::PacketAction;

const KEY: &str = "a key of 64 hexadecimal digits";

static DIGITS: Text = Text {
    what: "64 hexadecimal digits",
    pattern: "^[0-9a-fA-F]{64}$",
    most: 64,
    example: "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
    whole: None,
};
/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new("key", Type::Text(&DIGITS), "Secret, 256 bits."),
        Field::new(
            "keyFile",
            Type::Text(&FILE),
            "File with the digits, relative to the spec's folder; preferable.",
        ),
        Field::new(
            "direction",
            Type::Words(&["encrypt", "decrypt"]),
            "Encrypts or decrypts.",
        )
        .or("encrypt"),
        Field::new("mtu", Type::Whole(576, 65_535), "Longest IP packet sent.").or("1500"),
        Field::new(
            "midstream",
            Type::Words(&["drop", "encrypt"]),
            "Data of TCP connections whose SYN was not seen; equal at both ends.",
        )
        .or("drop"),
        Field::new(
            "otherProtocols",
            PacketAction::TYPE,
            "Packets that are neither TCP nor UDP, and fragments: dropped, or passed in plain.",
        )
        .or("drop"),
    ],
    rules: &[Rule::ExactlyOne(&["key", "keyFile"])],
    nullable: true,
};

/// Encryption of payloads with ChaCha20.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptConfig {
    /// Complete configuration.
    pub rules: EncryptRules,
}

impl EncryptConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let key = match (fields.optional("key"), fields.optional("keyFile")) {
            (Some(_), Some(file)) => {
                return Err(file.error("expected either key or keyFile, found both"));
            }
            (None, None) => {
                return Err(fields.error("expected either key or keyFile, found neither"));
            }
            // No error quotes the invalid text, which may resemble the key.
            (Some(node), None) => {
                let text = node.text(KEY)?;
                hexadecimal(text)
                    .ok_or_else(|| node.error(format!("expected {KEY}, found {} characters", text.chars().count())))?
            }
            (None, Some(node)) => {
                let path = context.file(node.string("the name of a file")?);
                let name = path.display().to_string();
                let text = read_text(&path, &name).map_err(|error| node.error(format!("{name} {}", error.message)))?;
                hexadecimal(text.trim()).ok_or_else(|| {
                    node.error(format!(
                        "{name}: expected {KEY}, found other \
                    content"
                    ))
                })?
            }
        };
        let others = fields.optional("otherProtocols");
        let others = others.map_or(Ok(PacketAction::Drop), |node| PacketAction::parse(&node))?;
        let rules = EncryptRules {
            key,
            direction: match fields.optional("direction") {
                None => Direction::Encrypt,
                Some(node) => node.word(&[("encrypt", Direction::Encrypt), ("decrypt", Direction::Decrypt)])?,
            },
            mtu: match fields.optional("mtu") {
                None => 1500,
                Some(node) => node.whole(576..=65_535)? as u16,
            },
            midstream: match fields.optional("midstream") {
                None => false,
                Some(node) => node.word(&[("drop", false), ("encrypt", true)])?,
            },
            drop_others: others == PacketAction::Drop,
        };
        Ok(EncryptConfig { rules })
    }
}

/// Parses 64 hexadecimal digits into 32 bytes.
fn hexadecimal(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    let mut bytes = [0; 32];
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(bytes)
}
