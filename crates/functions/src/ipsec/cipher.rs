//! Authenticated ciphers of ESP: keys, nonces and associated data.

use std::fmt;

/// Bytes of the initialisation vector in front of each ciphertext (RFC 4106 §3, RFC 7634 §2).
pub(super) const IV: usize = 8;
/// Bytes of the integrity check value behind each ciphertext: the full 16 of all three ciphers.
pub(super) const ICV: usize = 16;
/// Bytes of a key's salt, the start of each nonce.
pub(super) const SALT: usize = 4;

/// Authenticated cipher (AEAD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-GCM with a 128-bit key (RFC 4106).
    Aes128Gcm,
    /// AES-GCM with a 256-bit key (RFC 4106).
    Aes256Gcm,
    /// ChaCha20-Poly1305 (RFC 7634).
    ChaCha20Poly1305,
}

impl Cipher {
    /// Returns the bytes of the key and the 4-byte salt behind it.
    pub const fn keying_bytes(self) -> usize {
        SALT + match self {
            Cipher::Aes128Gcm => 16,
            Cipher::Aes256Gcm | Cipher::ChaCha20Poly1305 => 32,
        }
    }
}

/// Cipher with its key and salt, as both ends have agreed.
#[derive(Clone, PartialEq, Eq)]
pub struct Keying {
    cipher: Cipher,
    /// Key, then salt.
    bytes: Vec<u8>,
}

impl Keying {
    /// Takes the key followed by the salt, as `ip xfrm` does. Returns `None` unless there are
    /// [`keying_bytes`](Cipher::keying_bytes) of them.
    pub fn new(cipher: Cipher, bytes: Vec<u8>) -> Option<Keying> {
        (bytes.len() == cipher.keying_bytes()).then_some(Keying { cipher, bytes })
    }

    /// Returns the cipher.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Returns key and salt, which with a nonce determine the key stream.
    pub(crate) fn secret(&self) -> &[u8] {
        &self.bytes
    }
}

/// Omits the key.
impl fmt::Debug for Keying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keying")
            .field("cipher", &self.cipher)
            .finish_non_exhaustive()
    }
}
