//! Replays every frame in `tests/regressions/`: inputs with which the fuzz target `parse` found a bug, and one frame of
//! each difficult kind.

mod invariants;

use std::path::Path;

#[test]
fn replay() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder is part of the crate") {
        let path = entry.expect("a readable folder").path();
        if path.extension().is_some_and(|extension| extension == "bin") {
            let frame = std::fs::read(&path).expect("a readable file");
            println!("{}", path.display());
            invariants::check(&frame);
            count += 1;
        }
    }
    assert!(count > 0, "no regressions in {}", folder.display());
}
