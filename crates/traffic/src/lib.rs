//! Captures in and out, traffic synthesis, trace statistics.
