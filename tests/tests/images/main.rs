//! The container images in a real Docker engine, by themselves and with docker-compose.
//!
//! One binary: the engine is started and the images are built once for all of these tests.

mod compose;
mod containers;
