//! Ports, workers, measurement: what moves packets through a chain.
