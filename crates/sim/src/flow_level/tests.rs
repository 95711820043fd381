//! Tests of whole runs at flow level.
