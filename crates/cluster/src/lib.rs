//! A rack of servers on Kubernetes: the custom resources, the controller that places chains on servers, the agent of a
//! server, and the ingress that steers packets to servers.

#![forbid(unsafe_code)]

pub mod ingress;
