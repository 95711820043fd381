//! NetBlaze's published profiles.

use ruzstd::decoding::StreamingDecoder;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

/// Published profiles.
pub struct Published(BTreeMap<String, Vec<u8>>);

impl Published {
    /// Loads the archive in TAILWATER_TEST_DATA, or prints that it is missing.
    pub fn load() -> Option<Published> {
        let Some(folder) = std::env::var_os("TAILWATER_TEST_DATA") else {
            eprintln!("skipped: TAILWATER_TEST_DATA is not set, and NetBlaze's profiles are there");
            return None;
        };
        let path = PathBuf::from(folder).join("profiles/netblaze_profiles.tar.zst");
        let packed = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut archive = Vec::new();
        StreamingDecoder::new(&packed[..])
            .map_err(std::io::Error::other)
            .and_then(|mut decoder| decoder.read_to_end(&mut archive))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Some(Published(untarred(&archive)))
    }

    /// Returns a file of the archive.
    ///
    /// # Panics
    /// It has none of this name.
    pub fn file(&self, name: &str) -> &[u8] {
        let found = self.0.get(name);
        found.unwrap_or_else(|| panic!("no {name} among the published profiles"))
    }
}

/// Returns the profiles of a tar archive (POSIX ustar): a header of 512 bytes precedes each file.
fn untarred(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut rest = archive;
    while let Some((header, after)) = rest.split_first_chunk::<512>() {
        let text = |field: &[u8]| {
            let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..end]).trim().to_owned()
        };
        let Ok(size) = usize::from_str_radix(&text(&header[124..136]), 8) else {
            break;
        };
        let name = text(&header[..100]);
        if let Some((_, name)) = name.split_once("nf_profiles/") {
            files.insert(name.to_owned(), after[..size].to_vec());
        }
        rest = &after[size.next_multiple_of(512).min(after.len())..];
    }
    files
}
