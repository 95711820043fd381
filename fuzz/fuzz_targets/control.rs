//! Any bytes as a message of a client of the control API, and as a stored generation: reading never panics, a message
//! that was read is the same after writing and reading, and its chains are applied as a whole or refused with an error
//! on each line.
//!
//! ```text
//! cargo +nightly fuzz run control
//! ```
//!
//! Put a failing input into a test of `crates/server/tests/hostile.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use std::io;
use std::path::Path;
use tailwater_api::document::Document;
use tailwater_api::server::{DESCRIPTION, ServerSpec};
use tailwater_net::Nanos;
use tailwater_server::control::generated as message;
use tailwater_server::details::CoreDetails;
use tailwater_server::generation::{Store, StoredGeneration, decode};
use tailwater_server::{AppliedChain, ApplyRequest, ChainObservation, Machine, Manager, Manifest, Refusal};

const SERVER: &str = "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {name: fuzz}\nspec:\n  cores: 1\n  \
    ports: [{name: a, traffic: bursty}]\n";

/// Machine that accepts every chain.
struct Willing;

impl Machine for Willing {
    fn check(&self, _: &AppliedChain, _: &[&AppliedChain]) -> Result<(), Refusal> {
        Ok(())
    }

    fn start(&mut self, _: &AppliedChain) -> Result<(), Refusal> {
        Ok(())
    }

    fn replace(&mut self, _: &str, _: &AppliedChain) -> Result<(), Refusal> {
        Ok(())
    }

    fn drain(&mut self, _: &str) -> Result<(), Refusal> {
        Ok(())
    }

    fn cores(&self) -> Vec<CoreDetails> {
        Vec::new()
    }

    fn observe(&mut self) -> Vec<ChainObservation> {
        Vec::new()
    }
}

/// Disk that is not there.
struct Nowhere;

impl Store for Nowhere {
    fn store_after(&mut self, generation: &StoredGeneration, carry_out: &mut dyn FnMut() -> bool) -> io::Result<()> {
        assert!(!generation.chains.is_empty());
        carry_out();
        Ok(())
    }
}

/// Reads a message, and writes and reads it again.
fn read<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    let found = M::decode(bytes).ok()?;
    let again = M::decode(&*found.encode_to_vec()).expect("a message that was written");
    // Bytes are compared, since a number that is none differs from itself.
    assert_eq!(found.encode_to_vec(), again.encode_to_vec());
    Some(found)
}

fn apply(request: message::ApplyRequest) {
    let document = Document::parse(SERVER, "server.yaml", DESCRIPTION).expect("a server");
    let server = ServerSpec::new(&document, Path::new("/")).expect("a server");
    let mut manager = Manager::new(server, Willing, Nowhere, Nanos(1), drop);
    let manifest = |manifest: message::Manifest| Manifest {
        source: manifest.source,
        path: Some(manifest.path.into()),
        yaml: manifest.yaml,
    };
    let count = request.manifests.len();
    let request = ApplyRequest {
        manifests: request.manifests.into_iter().map(manifest).collect(),
        dry_run: request.dry_run,
        force: request.force,
    };
    match manager.apply(&request, Nanos(2)) {
        Ok(applied) => assert_eq!(applied.len(), count),
        Err(error) => {
            assert!(!error.to_string().is_empty() && manager.configuration().chains.is_empty());
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(request) = read::<message::ApplyRequest>(bytes) {
        apply(request);
    }
    read::<message::DeleteRequest>(bytes);
    read::<message::EventsRequest>(bytes);
    read::<message::WatchRequest>(bytes);
    // Fields that a client reads.
    read::<message::ListResponse>(bytes);
    read::<message::DescribeResponse>(bytes);
    read::<message::ApplyResponse>(bytes);
    let _ = decode(bytes);
});
