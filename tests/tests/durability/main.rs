//! What the store keeps, and what its clients see, when it is killed, paused, cut off, loses its leadership, runs out of
//! disk, is backed up or moved, serves many watchers, or is flooded by one caller.
//!
//! These tests use all processors and the disk. They are in a binary of their own, so that cargo runs them when no
//! other integration test runs.

mod backup;
mod crash;
mod disk_errors;
mod followers;
mod full_disk;
mod history;
mod migrate;
mod private_files;
mod renewals_under_load;
mod replicas;
mod watch_fan_out;
