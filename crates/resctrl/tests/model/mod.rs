//! A model of the kernel's `resctrl` file tree, as a file system in user space.
#![allow(dead_code)]

pub mod fuse;
pub mod kernel;
