//! The ciphers of ESP, each with authentication, and their keys.

use std::fmt;

/// Bytes of the initialisation vector in front of each ciphertext (RFC 4106 §3, RFC 7634 §2).
pub(super) const IV: usize = 8;
/// Bytes of the integrity check value behind each ciphertext: the full 16 of all three ciphers.
pub(super) const ICV: usize = 16;
/// Bytes of a key's salt, which begins each nonce.
pub(super) const SALT: usize = 4;

/// A cipher that encrypts and authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES in Galois/counter mode with a key of 128 bits (RFC 4106).
    Aes128Gcm,
    /// AES in Galois/counter mode with a key of 256 bits (RFC 4106).
    Aes256Gcm,
    /// ChaCha20 and Poly1305 (RFC 7634).
    ChaCha20Poly1305,
}

impl Cipher {
    /// Bytes of the key and the four of the salt behind it.
    pub const fn keying_bytes(self) -> usize {
        SALT + match self {
            Cipher::Aes128Gcm => 16,
            Cipher::Aes256Gcm | Cipher::ChaCha20Poly1305 => 32,
        }
    }
}

/// A cipher with its key and the salt, as both ends have agreed.
#[derive(Clone, PartialEq, Eq)]
pub struct Keying {
    cipher: Cipher,
    /// The key, then the salt.
    bytes: Vec<u8>,
}

impl Keying {
    /// From the key followed by the salt, as `ip xfrm` takes them; `None` if these are not
    /// [`keying_bytes`](Cipher::keying_bytes).
    pub fn new(cipher: Cipher, bytes: Vec<u8>) -> Option<Keying> {
        (bytes.len() == cipher.keying_bytes()).then_some(Keying { cipher, bytes })
    }

    /// The cipher.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The key and the salt: what makes a key stream, with a nonce.
    pub(crate) fn secret(&self) -> &[u8] {
        &self.bytes
    }
}

/// Without the key.
impl fmt::Debug for Keying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keying")
            .field("cipher", &self.cipher)
            .finish_non_exhaustive()
    }
}
