//! States and files that cannot be what they are said to be.

use super::*;

#[test]
fn a_state_cut_off_anywhere_is_refused_and_left_alone() {
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let state = folder.path("state.json");
    document(&slos, &cluster, &state);
    let whole = std::fs::read(&state).expect("the state");
    let text = whole.trim_ascii_end();
    let more = ["--state", state.to_str().expect("a name in UTF-8")];
    for part in 1..8 {
        let cut = &text[..text.len() * part / 8];
        std::fs::write(&state, cut).expect("a state");
        let (status, stdout, stderr) = place(&slos, &cluster, &more);
        assert_eq!((status, &*stdout), (Some(2), ""), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert_eq!(std::fs::read(&state).expect("the state"), cut);
    }
}
