//! Functions from shared libraries: defects are reported, and valid functions run like built-in ones.

mod chain;
mod compile;
mod errors;
