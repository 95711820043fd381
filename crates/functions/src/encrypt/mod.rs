//! `Encrypt`: ChaCha20 over the payloads of TCP and UDP, and back. See the function's page for what
//! it does not protect from.

mod chacha;
mod function;

pub use function::{Direction, Encrypt, EncryptRules, PacketNumbers};

#[cfg(test)]
mod tests;
