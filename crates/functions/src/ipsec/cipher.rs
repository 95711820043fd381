//! Authenticated ciphers of ESP: keys, nonces and associated data.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::fmt;

/// Bytes of the initialisation vector in front of each ciphertext (RFC 4106 §3, RFC 7634 §2).
pub(super) const IV: usize = 8;
/// Bytes of the integrity check value behind each ciphertext: the full 16 of all three ciphers.
pub(super) const ICV: usize = 16;
/// Bytes of a key's salt, the start of each nonce.
const SALT: usize = 4;

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

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
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

/// Expanded key, shared by all workers.
pub(super) struct Sealer {
    key: LessSafeKey,
    salt: [u8; SALT],
    /// `true` for 64-bit sequence numbers, all bits of which are authenticated.
    extended: bool,
}

impl Sealer {
    /// Returns `None` if the key does not fit its cipher.
    pub(super) fn new(keying: &Keying, extended: bool) -> Option<Sealer> {
        let (key, salt) = keying.bytes.split_last_chunk::<SALT>()?;
        let key = UnboundKey::new(keying.cipher.algorithm(), key).ok()?;
        Some(Sealer {
            key: LessSafeKey::new(key),
            salt: *salt,
            extended,
        })
    }

    /// Encrypts `text` in place, and writes the integrity check value into `icv`. Returns `None` if the text exceeds
    /// the cipher's limit, which no packet does.
    ///
    /// No nonce may be used twice: `iv` must be one no packet has had with this key.
    #[inline]
    pub(super) fn seal(
        &self,
        spi: u32,
        sequence: u64,
        iv: [u8; IV],
        text: &mut [u8],
        icv: &mut [u8; ICV],
    ) -> Option<()> {
        let (aad, length) = self.authenticated(spi, sequence);
        let aad = Aad::from(aad.get(..length)?);
        self.key.seal_in_place_scatter(self.nonce(iv), aad, text, &[], icv).ok()
    }

    /// Decrypts a ciphertext followed by its check value in place. Returns `None`, with the bytes destroyed, if
    /// authentication fails.
    #[inline]
    pub(super) fn open(&self, spi: u32, sequence: u64, iv: [u8; IV], text: &mut [u8]) -> Option<()> {
        let (aad, length) = self.authenticated(spi, sequence);
        let aad = Aad::from(aad.get(..length)?);
        self.key.open_in_place(self.nonce(iv), aad, text).ok().map(drop)
    }

    #[inline]
    fn nonce(&self, iv: [u8; IV]) -> Nonce {
        let mut nonce = [0; SALT + IV];
        nonce[..SALT].copy_from_slice(&self.salt);
        nonce[SALT..].copy_from_slice(&iv);
        Nonce::assume_unique_for_key(nonce)
    }

    /// Returns the associated data and its length in bytes: SPI, then the sequence number of 32 or 64 bits (RFC 4106
    /// §5).
    #[inline]
    fn authenticated(&self, spi: u32, sequence: u64) -> ([u8; 12], usize) {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&spi.to_be_bytes());
        if self.extended {
            bytes[4..].copy_from_slice(&sequence.to_be_bytes());
            return (bytes, 12);
        }
        bytes[4..8].copy_from_slice(&(sequence as u32).to_be_bytes());
        (bytes, 8)
    }
}
