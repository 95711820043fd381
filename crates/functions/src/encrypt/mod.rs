//! `Encrypt`: ChaCha20 encryption and decryption of TCP and UDP payloads. The function's documentation page lists the
//! threats it does not protect against.

mod chacha;
mod function;

pub use function::{Direction, Encrypt, EncryptRules, PacketNumbers};

#[cfg(test)]
mod tests;
