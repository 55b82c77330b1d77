//! Clouds: [`client`] calls a cloud plug-in, [`inventory`] is the reference plug-in.

pub mod client;
pub mod inventory;
