//! Model of the kernel's `resctrl` file tree, as a FUSE file system.
#![allow(dead_code)]

pub mod fuse;
pub mod kernel;
