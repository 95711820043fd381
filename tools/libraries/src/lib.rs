//! Nothing but dependencies. Built together with a part of the workspace, this package gives libraries the features
//! that they have in a build of the whole workspace: they, and crates that use them, are not compiled again.
