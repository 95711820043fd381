//! Functions from shared libraries: what is wrong with one is told, and what is right runs as a function of this
//! program's would.

mod chain;
mod compile;
mod errors;
