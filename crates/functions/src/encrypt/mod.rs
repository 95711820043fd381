//! `Encrypt`: ChaCha20 encryption and decryption of TCP and UDP payloads. The function's documentation page lists the
//! threats it does not protect against.

mod chacha;
mod function;
mod kind;
mod spec;
mod transfer;

pub use function::{Direction, Encrypt, EncryptRules, PacketNumbers};
pub use kind::KIND;
pub use spec::EncryptConfig;

#[cfg(test)]
mod tests;
