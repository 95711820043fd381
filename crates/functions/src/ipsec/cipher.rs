//! The ciphers of ESP, each with authentication: keys, nonces and what is authenticated.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::fmt;

/// Bytes of the initialisation vector in front of each ciphertext (RFC 4106 §3, RFC 7634 §2).
pub(super) const IV: usize = 8;
/// Bytes of the integrity check value behind each ciphertext: the full 16 of all three ciphers.
pub(super) const ICV: usize = 16;
/// Bytes of a key's salt, which begins each nonce.
const SALT: usize = 4;

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

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
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

/// A key that is ready to be used, by all workers.
pub(super) struct Sealer {
    key: LessSafeKey,
    salt: [u8; SALT],
    /// Whether sequence numbers have 64 bits, all of which are authenticated.
    extended: bool,
}

impl Sealer {
    /// `None` if the key does not fit its cipher.
    pub(super) fn new(keying: &Keying, extended: bool) -> Option<Sealer> {
        let (key, salt) = keying.bytes.split_last_chunk::<SALT>()?;
        let key = UnboundKey::new(keying.cipher.algorithm(), key).ok()?;
        Some(Sealer {
            key: LessSafeKey::new(key),
            salt: *salt,
            extended,
        })
    }

    /// Encrypts `text` in place, and writes the check value into `icv`. `None` if the cipher does not take so
    /// much, which no packet is.
    ///
    /// No nonce may be used twice: `iv` is one that no packet has had under this key.
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

    /// Decrypts in place a ciphertext with its check value behind it. `None`, with the bytes spoilt, if it is
    /// not what the other end has sealed.
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

    /// What is authenticated beside the ciphertext, and how many bytes of it count: the index, then the
    /// sequence number, of 32 or 64 bits (RFC 4106 §5).
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
