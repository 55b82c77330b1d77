//! The store's API over a real socket: a store in the test's own process, without agents or a controller.

mod authorization;
mod budgets;
mod fencing;
mod heartbeat;
mod limits;
mod objects;
mod pods;
mod store_id;
mod watch;
